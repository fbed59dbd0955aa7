"""TD3, DDPG and SAC: gradient steps by hand, exploration, bounds, mutations, members together and alone."""

import copy
import math

import gymnasium
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from agilerl_like import DDPG, SAC, TD3, make_vect_envs, train_off_policy
from agilerl_like.algorithms.off_policy_algorithm import HandMadeBatch, batch_of, learn_or_restore
from agilerl_like.algorithms.serialization import without_learning_state
from agilerl_like.config import load
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import Mutation, Mutations, TournamentSelection
from agilerl_like.learning.replay_buffer import Batch

SMALL = {
    "latent_dim": 16,
    "encoder_config": {"hidden_size": [16], "min_mlp_nodes": 8},
    "head_config": {"hidden_size": [16], "min_mlp_nodes": 8},
}
OBS = gymnasium.spaces.Box(-1.0, 1.0, (4,))
ACTIONS = gymnasium.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([1.0, 0.5], np.float32))
KINDS = [TD3, DDPG, SAC]


def agent(kind, **settings):
    return kind(OBS, ACTIONS, **{"net_config": SMALL, **settings}, seed=1)


def experiences(rows=32, seed=0):
    stream = np.random.default_rng(seed)
    return {
        "obs": stream.uniform(-1, 1, (rows, 4)).astype(np.float32),
        "action": stream.uniform(ACTIONS.low, ACTIONS.high, (rows, 2)),
        "reward": stream.normal(size=(rows, 1)),
        "next_obs": stream.uniform(-1, 1, (rows, 4)).astype(np.float32),
        "done": stream.integers(2, size=(rows, 1)),
    }


def perturb_target_(member):
    stream = torch.Generator().manual_seed(3)
    for target, _ in member.network.target_pairs():
        target.add_(0.1 * torch.randn(target.shape, generator=stream))


def tensors(data):
    """Return the columns as tensors, with actions in half-widths from -1 to 1."""
    units = (data["action"] - (ACTIONS.low + ACTIONS.high) / 2) / ((ACTIONS.high - ACTIONS.low) / 2)
    found = {**data, "action": units}
    return [torch.tensor(found[name], dtype=torch.float32) for name in ("obs", "action", "reward", "next_obs", "done")]


def parts_of(network):
    critics = [p for name, p in network.named_parameters() if name.startswith("critic")]
    return list(network.actor.parameters()), critics


def assert_equal_networks(expected, member):
    for ours, theirs in zip(member.network.target_pairs(), expected.target_pairs(), strict=True):
        torch.testing.assert_close(ours[0], theirs[0], atol=1e-6, rtol=0)
        torch.testing.assert_close(ours[1], theirs[1], atol=1e-6, rtol=0)


def ddpg_steps(q, data, lr, gamma, tau, steps):
    """Take steps of DDPG as its paper defines them, with torch's own Adam."""
    obs, action, reward, after, done = tensors(data)
    actor, critics = parts_of(q)
    of_actor, of_critic = (torch.optim.Adam(its, lr=lr, eps=1e-5) for its in (actor, critics))
    for _ in range(steps):
        with torch.no_grad():
            next_action = torch.tanh(q.target.actor(after))
            both = torch.cat([after, next_action], 1)
            goal = reward + gamma * (1 - done) * q.target.critic(both)
        loss = F.mse_loss(q.critic(torch.cat([obs, action], 1)), goal)
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        of_actor.zero_grad()
        (-q.critic(torch.cat([obs, torch.tanh(q.actor(obs))], 1)).mean()).backward()
        of_actor.step()
        with torch.no_grad():
            for target, weight in q.target_pairs():
                target.copy_((1 - tau) * target + tau * weight)


@pytest.mark.parametrize("kind", [DDPG, TD3])
def test_without_its_changes_td3_is_ddpg(kind):
    plain = {"twin_q": False, "policy_delay": 1, "target_noise": 0.0, "target_update_interval": 1}
    member = agent(kind, lr=1e-3, gamma=0.9, tau=0.05, max_grad_norm=1e9, **(plain if kind is TD3 else {}))
    perturb_target_(member)
    expected = copy.deepcopy(member.network)
    ddpg_steps(expected, experiences(), 1e-3, 0.9, 0.05, steps=3)
    for _ in range(3):
        member.learn(experiences())
    assert_equal_networks(expected, member)


def test_a_step_of_td3_is_that_of_the_formula():
    lr, lr_actor, gamma, tau = 1e-3, 2e-3, 0.9, 0.1
    settings = {"target_noise": 0.4, "noise_clip": 0.3, "batch_size": 32, "policy_delay": 2}
    member = agent(TD3, lr=lr, lr_actor=lr_actor, gamma=gamma, tau=tau, max_grad_norm=0.2, **settings)
    perturb_target_(member)
    q = copy.deepcopy(member.network)
    obs, action, reward, after, done = tensors(experiences())
    actor, critics = parts_of(q)
    of_actor = torch.optim.Adam(actor, lr=lr_actor, eps=1e-5)
    of_critic = torch.optim.Adam(critics, lr=lr, eps=1e-5)
    for step in range(1, 5):
        noise = (0.4 * member.learner.action_noise(1, 32)[0, 0]).clamp(-0.3, 0.3)
        with torch.no_grad():
            next_action = (torch.tanh(q.target.actor(after)) + noise).clamp(-1, 1)
            both = torch.cat([after, next_action], 1)
            goal = reward + gamma * (1 - done) * torch.minimum(
                q.target.critic(both), q.target._modules["critic2"](both)
            )
        both = torch.cat([obs, action], 1)
        loss = F.mse_loss(q.critic(both), goal) + F.mse_loss(q._modules["critic2"](both), goal)
        of_critic.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(critics, 0.2)
        of_critic.step()
        if step % 2 == 0:
            of_actor.zero_grad()
            (-q.critic(torch.cat([obs, torch.tanh(q.actor(obs))], 1)).mean()).backward()
            torch.nn.utils.clip_grad_norm_(actor, 0.2)
            of_actor.step()
            with torch.no_grad():
                for target, weight in q.target_pairs():
                    target.copy_((1 - tau) * target + tau * weight)
        assert member.learn(experiences()) == pytest.approx(loss.item(), abs=1e-6)
        assert member.network.actor_steps == step // 2
    assert_equal_networks(q, member)


def test_a_step_of_sac_is_that_of_the_formula():
    lr, gamma, tau = 1e-3, 0.9, 0.1
    member = agent(SAC, lr=lr, gamma=gamma, tau=tau, max_grad_norm=1e9, batch_size=32, target_entropy_scale=0.7)
    perturb_target_(member)
    q = copy.deepcopy(member.network)
    obs, action, reward, after, done = tensors(experiences())
    actor, critics = parts_of(q)
    of_actor, of_critic = (torch.optim.Adam(its, lr=lr, eps=1e-5) for its in ([*actor, q.log_alpha], critics))

    def policy(x, noise):
        mean, log_std = q.actor(x).chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        unsquashed = mean + log_std.exp() * noise
        # the density of tanh(u) is that of u over 1 - tanh(u)^2
        log_density = normal.log_prob(unsquashed) - torch.log(1 - torch.tanh(unsquashed) ** 2)
        return torch.tanh(unsquashed), log_density.sum(1, keepdim=True)

    def values(network, x, its):
        both = torch.cat([x, its], 1)
        return network.critic(both), network._modules["critic2"](both)

    for _ in range(3):
        next_noise, noise = member.learner.action_noise(1, 32)[0]
        alpha = q.log_alpha.detach().exp()
        with torch.no_grad():
            next_action, density = policy(after, next_noise)
            goal = reward + gamma * (1 - done) * (
                torch.minimum(*values(q.target, after, next_action)) - alpha * density
            )
        loss = sum(F.mse_loss(its, goal) for its in values(q, obs, action))
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        sampled, density = policy(obs, noise)
        of_actor.zero_grad()
        actor_loss = (alpha * density - torch.minimum(*values(q, obs, sampled))).mean()
        (actor_loss - (q.log_alpha * (density.detach() - 0.7 * 2)).mean()).backward()
        of_actor.step()
        with torch.no_grad():
            for target, weight in q.target_pairs():
                target.copy_((1 - tau) * target + tau * weight)
        assert member.learn(experiences()) == pytest.approx(loss.item(), abs=1e-5)
    for ours, theirs in zip(member.network.parameters(), q.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert q.log_alpha.item() != 0
    assert member.alpha == pytest.approx(q.log_alpha.exp().item(), abs=1e-5)


def test_the_gradient_of_the_temperature_is_not_clipped():
    member = agent(SAC, max_grad_norm=0.01, batch_size=32)
    member.learn(experiences())
    cohort = member.learner.cohort
    first = cohort.moments(member.learner.row).exp_avg[0]  # 0.1 times the gradients
    temperature, actor, critics = (part.norm() for part in first.tensor_split((1, cohort.stacked.critic_at)))
    assert temperature > 10 * 0.1 * 0.01
    assert actor == pytest.approx(0.1 * 0.01, rel=1e-3)
    assert critics == pytest.approx(0.1 * 0.01, rel=1e-3)


def test_the_loss_of_an_actor_that_took_no_step_is_not_a_number():
    member, found = agent(TD3, policy_delay=3), []
    batch = batch_of(member.learner, experiences(), 0.9)
    for _ in range(3):
        update = member.group_class.make_update([member.learner], [0], HandMadeBatch(batch, batch.weight), 1)
        report = learn_or_restore(member.learner, update)
        found.append((math.isnan(report["actor_loss"][0]), bool(report["healthy"][0])))
    assert found == [(True, True), (True, True), (False, True)]


@pytest.mark.parametrize("kind", [TD3, SAC])
def test_shrunk_members_take_the_first_steps_of_adam(kind):
    member = agent(kind, batch_size=32, max_grad_norm=1e9, **({"policy_delay": 1} if kind is TD3 else {}))
    for seed in range(5):
        member.learn(experiences(seed=seed))
    member.learner.mix_initial_weights(0.5, 0.5)
    assert (member.optimizer.steps.item(), member.network.actor_steps.item()) == (0, 0)
    before = copy.deepcopy(member.network.actor)
    member.learn(experiences())
    # a first step of Adam is lr times the sign of the gradient, where that is far above epsilon
    pairs = zip(member.network.actor.parameters(), before.parameters(), strict=True)
    assert max((new - old).abs().max().item() for new, old in pairs) == pytest.approx(member.lr, rel=0.02)


def test_shrunk_members_keep_the_temperature_and_fresh_ones_begin_with_the_initial_one():
    member = agent(SAC)
    with torch.no_grad():
        member.network.log_alpha.fill_(-2.0)  # as if it had been learned
    member.learner.mix_initial_weights(0.2, 0.1)
    assert member.alpha == pytest.approx(math.exp(-2.0))
    member.learner.mix_initial_weights(0.0, 1.0)
    assert member.alpha == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_agilerls_names_count_the_networks_and_their_outputs(kind):
    member = agent(kind)
    assert member.get_action_dim == kind.get_action_dim(ACTIONS) == (4 if kind is SAC else 2)
    assert member.get_state_dim == kind.get_state_dim(OBS) == 4
    assert set(member.evolvable_attributes()) == {"actor", "critic", *(["critic2"] if kind is not DDPG else [])}


def test_weights_alone_take_the_first_steps_of_adam():
    member = agent(TD3, batch_size=32)
    for seed in range(4):
        member.learn(experiences(seed=seed))
    documents = member.to_documents()
    whole, weights = (
        TD3.from_documents(*those, device="cpu", where="here")
        for those in (documents, without_learning_state(*documents))
    )
    assert (whole.optimizer.steps.item(), whole.network.actor_steps.item()) == (4, 2)
    assert (weights.optimizer.steps.item(), weights.network.actor_steps.item()) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_actions_that_do_not_fit_are_refused(kind):
    member, data = agent(kind), experiences(4)
    for given, message in (
        (np.full_like(data["action"], np.nan), "experiences: action=nan; allowed are finite numbers"),
        (data["action"][:1], f"action has {data['action'][0].size} numbers; allowed are {data['action'].size}"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            member.learn({**data, "action": given})


@pytest.mark.parametrize("kind", KINDS)
def test_actions_beyond_the_bounds_are_refused(kind):
    member, data = agent(kind), experiences()
    data["action"][:2] = np.nextafter(ACTIONS.low, -9), np.nextafter(ACTIONS.high, 9)
    assert np.isfinite(member.learn(data))
    data["action"][3, 1] = 0.75
    with pytest.raises(ConfigurationError, match=r"action=0\.75 is beyond the bounds; allowed is 0 to 0\.5"):
        member.learn(data)


def test_a_continuous_agent_has_no_action_masks():
    with pytest.raises(ConfigurationError, match="action_masks is given for Box"):
        agent(SAC).value(experiences()["obs"], np.ones((32, 2), np.bool_))


@pytest.mark.parametrize("kind", KINDS)
def test_actions_stay_within_their_bounds(kind):
    member = agent(kind)
    obs = np.random.default_rng(0).uniform(-1, 1, (2000, 4)).astype(np.float32)
    if kind is not SAC:
        member.expl_noise = 2.0
    explored = member.get_action(obs)
    member.set_training_mode(False)
    best = member.get_action(obs)
    with pytest.raises(TypeError, match="deterministic"):
        member.get_action(obs, deterministic=True)
    for actions in (explored, best):
        assert (actions >= ACTIONS.low).all()
        assert (actions <= ACTIONS.high).all()
    assert explored.std(0).min() > 10 * best.std(0).max()
    assert np.array_equal(best, member.predict(obs, deterministic=True)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_actions_are_uniform(kind):
    member = agent(kind, num_envs=2000)
    group = member.learner
    pop = kind.population(1, OBS, ACTIONS, net_config=SMALL, seed=1, num_envs=2000)
    raw, _ = pop.act(
        torch.zeros(1, 2000, 4), pop.initial_hidden_state.repeat(1, 2000, 1, 1, 1), noise=pop.learners.next_noise(2000)
    )
    counts, _ = np.histogram(raw[0, :, 0], bins=8, range=(-1, 1))
    assert counts.sum() == 2000
    assert ((counts - 250) ** 2 / 250).sum() < 24.3  # chi square of 7 degrees, 0.1 %
    assert group.distribution.size == 2


@pytest.mark.parametrize("kind", KINDS)
def test_actions_after_an_update_have_the_mean_of_the_policy_and_the_size_of_its_noise(kind):
    settings = {} if kind is SAC else {"expl_noise": 0.05}
    pop = kind.population(1, OBS, ACTIONS, net_config=SMALL, seed=1, num_envs=4000, **settings)
    pop[0].learner.count_updates(1)
    raw, _ = pop.act(
        torch.zeros(1, 4000, 4), pop.initial_hidden_state.repeat(1, 4000, 1, 1, 1), noise=pop.learners.next_noise(4000)
    )
    outputs = pop[0].network.outputs(torch.zeros(1, 4))[0].detach()
    if kind is SAC:
        found, mean, std = torch.atanh(raw[0]), outputs[:2], outputs[2:].exp()
    else:
        found, mean, std = raw[0], torch.tanh(outputs), torch.full((2,), 0.05)
    assert ((found.mean(0) - mean) / std).abs().max() < 4 / 4000**0.5
    torch.testing.assert_close(found.std(0), std, rtol=0.05, atol=0)


def test_the_density_of_a_squashed_gaussian_integrates_to_one():
    distribution = agent(SAC).learner.distribution
    grid = (torch.arange(400) + 0.5) / 200 - 1
    points = torch.cartesian_prod(grid, grid)
    outputs = torch.tensor([0.3, -0.2, math.log(0.4), math.log(0.7)]).expand(len(points), 4)
    cell = float(distribution.half_width.prod()) / 200**2  # in the environment's units
    assert float(distribution.evaluate(outputs, points)[0].exp().sum()) * cell == pytest.approx(1.0, abs=0.01)
    actions, log_density = distribution.reparametrized(outputs[:100], torch.randn(100, 2))  # in half-widths
    found = distribution.evaluate(outputs[:100], actions)[0] + distribution.log_width
    torch.testing.assert_close(found, log_density, atol=1e-3, rtol=1e-3)


OPERATORS = ("encoder.add_node", "add_latent_node", "head.add_layer", "head.add_node", "encoder.remove_node",
             "head.remove_node", "remove_latent_node", "change_activation")  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_targets_follow_every_mutation(kind):
    member = agent(kind)
    for turn in range(3):
        member.learn(experiences(seed=turn))
    member.network.sync_target_()
    differing = member.clone()
    perturb_target_(differing)
    x = torch.tensor(experiences(256)["obs"])
    actions = torch.rand(256, 2) * 2 - 1
    done = 0
    for operator in OPERATORS:
        for one in (member, differing):
            choices = one.architecture.choices(operator)
            if not choices:
                continue
            networks = one.network, one.network.target
            before = [(its.outputs(x), *its.q_values(x, actions)) for its in networks]
            name = "activation" if "activation" in operator else "architecture"
            (change,) = one.apply_genome(one.genome, (Mutation(name, operator, dict(choices[0])),))
            done += change.kind != "none"
            assert one.network.target.spec == one.network.spec
            if "remove" not in operator:
                for its, found in zip((one.network, one.network.target), before, strict=True):
                    for new, old in zip((its.outputs(x), *its.q_values(x, actions)), found, strict=True):
                        torch.testing.assert_close(new, old, atol=2e-5, rtol=1e-4)
        for target, weight in member.network.target_pairs():
            torch.testing.assert_close(target, weight, atol=1e-6, rtol=1e-5)
    assert done >= 8
    assert np.isfinite([one.learn(experiences()) for one in (member, differing)]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_policy_is_near_the_centre_unless_configured_otherwise(kind):
    def norms(**head):
        network = agent(kind, net_config={**SMALL, "head_config": {**SMALL["head_config"], **head}}).network
        return [branch.head.linears[-1].weight.norm() for branch in network.branches.values()]

    (actor, *critics), (full, *others) = norms(), norms(output_vanish=False)
    torch.testing.assert_close(full, 100 * actor)
    assert critics == others


@pytest.mark.parametrize("kind", KINDS)
def test_a_removal_refits_every_layer_that_reads_it_once(kind):
    network = agent(kind, net_config={**SMALL, "latent_dim": 32}).network
    readers = [consumer for consumer, _ in network.unit_change("remove_latent_node", {"nodes": 8}).consumers]
    assert readers == [f"{branch}.head.linears.0" for branch in network.branches]


class Batches:
    """Stands for a replay: minibatches by place and step."""

    masks, steps, envs, observations = None, 10**6, 10**6, torch.zeros(1, 4)

    def __init__(self, places):
        self.places, self.taken = places, [0] * len(places)
        self.new_steps = dict.fromkeys(places, 0)

    def sample(self, members, draws, *_):
        steps = draws.shape[1] // 16  # of several gradient steps at once
        found = [[self._batch(member) for _ in range(steps)] for member in members.tolist()]
        rows = [[torch.cat(column) for column in zip(*its, strict=True)] for its in found]
        obs, actions, reward, discount, after = (torch.stack(column) for column in zip(*rows, strict=True))
        return Batch(obs, actions, reward, discount, after, None, torch.ones_like(reward))

    def _batch(self, member):
        stream = torch.Generator().manual_seed(100 * self.places[member] + self.taken[member])
        self.taken[member] += 1
        rows, others = torch.randn(2, 16, 4, generator=stream)
        actions = torch.rand(16, 2, generator=stream) * 2 - 1
        return rows, actions, others[:, 0], rows[:, 0].clamp(0, 0.9), others

    def latest(self, place, count):
        return torch.zeros(1, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_members_learn_together_as_alone(kind):
    def varied():
        pop = kind.population(3, OBS, ACTIONS, seed=5, net_config=SMALL, gradient_steps=5, batch_size=16)
        for place, member in enumerate(pop):
            member.lr, member.tau, member.gamma = 1e-3 * (place + 1), 0.05 * (place + 1), 0.9 + 0.03 * place
        choice = dict(pop[1].architecture.choices("encoder.add_node")[-1])
        pop[1].apply_genome(pop[1].genome, (Mutation("architecture", "encoder.add_node", choice),))
        return pop

    together, alone = varied(), varied()
    together.learn([2, 0, 1], Batches([0, 1, 2]))
    together.learn([1, 2], Batches([0, 1, 2]))
    together.learn([0, 1, 2], Batches([0, 1, 2]))  # after 5 steps of the first, 10 of the others
    for place, member in enumerate(alone):
        single = type(together)([member])
        for _ in range(3 if place else 2):
            single.learn([0], Batches([place]))
        for ours, theirs in zip(together[place].network.target_pairs(), member.network.target_pairs(), strict=True):
            torch.testing.assert_close(ours[0], theirs[0], atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(ours[1], theirs[1], atol=1e-6, rtol=1e-5)
        assert torch.equal(together[place].network.actor_steps, member.network.actor_steps)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_evolves_saves_and_loads(kind, tmp_path):
    env = make_vect_envs("Pendulum-v1", num_envs=4)
    spaces = env.single_observation_space, env.single_action_space
    pop = kind.population(2, *spaces, net_config=SMALL, seed=1, batch_size=16, learning_starts=40, memory_size=200)
    run = {"max_steps": 240, "evo_steps": 120, "eval_loop": 1, "eval_steps": 20, "verbose": False}
    search = {"selection_strategy": TournamentSelection(2), "mutation": Mutations(no_mutation=0.0, architecture=1.0)}
    pop, _ = train_off_policy(env, pop=pop, run_dir=tmp_path / "run", **run, **search)
    loaded = kind.load(tmp_path / "run" / "best")
    obs = np.zeros((1, 3), np.float32)
    assert np.array_equal(loaded.predict(obs, deterministic=True)[0], pop.best.predict(obs, deterministic=True)[0])
    assert all(member.learner.updates for member in pop)


@pytest.mark.parametrize("kind", KINDS)
def test_a_diverged_member_is_replaced_before_it_acts(kind):
    """Actions that are not finite would spoil Pendulum's state, which is an error of the env."""
    env = make_vect_envs("Pendulum-v1", num_envs=4)
    spaces = env.single_observation_space, env.single_action_space
    settings = {"batch_size": 16, "learning_starts": 20, "learn_step": 2, "memory_size": 200}
    pop = kind.population(2, *spaces, net_config=SMALL, seed=1, **settings)
    pop[1].lr = 1e4
    run = {"max_steps": 80, "evo_steps": 80, "eval_loop": 1, "eval_steps": 20, "verbose": False}
    pop, _ = train_off_policy(env, pop=pop, **run)
    assert [member.index for member in pop] == [0, 3]  # the clone has the third uid
    assert all(member.learner.is_finite for member in pop)


@pytest.mark.parametrize("kind", KINDS)
def test_observations_are_mapped_from_their_bounds(kind):
    space = gymnasium.spaces.Box(np.array([0, -10, 5, 0], np.float32), np.array([100, 10, 6, 1], np.float32))
    member = kind(space, ACTIONS, net_config=SMALL, seed=1, normalize_observation="bounds")
    data = experiences()
    units = data["obs"].copy()
    data = {**data, "obs": (units + 1) / 2 * (space.high - space.low) + space.low}
    data["next_obs"] = data["obs"][::-1].copy()
    plain = kind(OBS, ACTIONS, net_config=SMALL, seed=1)
    losses = [plain.learn({**data, "obs": units, "next_obs": units[::-1].copy()}), member.learn(data)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dictionary_is_the_vector_of_its_entries(kind):
    halves = gymnasium.spaces.Dict({"a": gymnasium.spaces.Box(-1, 1, (2,)), "b": gymnasium.spaces.Box(-1, 1, (2,))})
    member, plain = (kind(space, ACTIONS, net_config=SMALL, seed=1) for space in (halves, OBS))
    data = experiences()
    split = {name: {"a": data[name][:, :2], "b": data[name][:, 2:]} if "obs" in name else data[name] for name in data}
    assert [member.learn(split) for _ in range(3)] == [plain.learn(data) for _ in range(3)]
    actions = (one.get_action(data["obs"] if one is plain else split["obs"]) for one in (member, plain))
    assert np.array_equal(*actions)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("lr_actor", "expected"), [(None, 1e-3), (4e-3, 4e-3)])
def test_a_schedule_scales_the_actors_rate_too(kind, lr_actor, expected):
    member = agent(kind, lr=1e-3, lr_actor=lr_actor, schedules={"lr": "linear"})
    member.progress = 0.75
    found = dict(zip(member.learner.hyperparam_names, member.learner.hyperparams(), strict=True))
    assert (found["lr"], found["lr_actor"]) == pytest.approx((1e-3 / 4, expected / 4))


@pytest.mark.parametrize("kind", KINDS)
def test_moments_travel_with_the_weights(kind):
    member = agent(kind, gradient_steps=1)
    for turn in range(4):
        member.learn(experiences(seed=turn))

    def moments():
        adam = member.learner.cohort.moments(member.learner.row)
        sizes = [its.numel() for its in member.network.parameters()]
        names = [name for name, _ in member.network.named_parameters()]
        shapes = [its.shape for its in member.network.parameters()]
        firsts, seconds = (x[0].split(sizes) for x in (adam.exp_avg, adam.exp_avg_sq))
        return {
            name: (first.view(shape).clone(), second.view(shape).clone())
            for name, first, second, shape in zip(names, firsts, seconds, shapes, strict=True)
        }

    before = moments()
    choice = dict(member.architecture.choices("encoder.add_node")[0])
    (change,) = member.apply_genome(member.genome, (Mutation("architecture", "encoder.add_node", choice),))
    assert change.kind == "architecture"
    grown = 0
    for name, found in moments().items():
        for new, old in zip(found, before[name], strict=True):
            grown += new.shape != old.shape
            block = tuple(slice(size) for size in old.shape)
            assert torch.equal(new[block], old)
    assert grown >= 2 * (3 if kind is DDPG else 4)
    assert member.network.actor_steps == (2 if kind is TD3 else 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tau": 0.0}, "tau=0.0: .*greater than 0"),
        ({"tau": 1.5}, "tau=1.5: .*less than or equal to 1"),
        ({"learning_starts": 200_000}, "learning_starts=200000 is more than memory_size=100000; allowed are at most"),
        ({"n_step": 9, "memory_size": 8, "learning_starts": 1}, "n_step=9 is more than memory_size=8"),
        ({"memory_size": 10**12}, r"memory_size=10{12} needs at least .* allowed are at most \d+ env steps"),
        ({"memory": "both"}, "memory='both': .*'own' or 'shared'"),
        ({"leraning_starts": 5}, "leraning_starts.*learning_starts"),
        ({"net_config": {"critic_config": {"encoder_config": {"hidden_size": [32]}}}}, "critic_config is not for"),
    ],
)
def test_bad_settings_are_named(kind, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        agent(kind, **settings)


def test_a_critic_config_is_refused_in_yaml_too(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "environment: {id: Pendulum-v1}\nalgorithm: {name: SAC}\nmutation: none\n"
        "network: {critic_config: {encoder_config: {hidden_size: [32]}}}\n"
    )
    with pytest.raises(ConfigurationError, match="critic_config is not for SAC, which has no critic of another"):
        load(path)


@pytest.mark.parametrize("kind", KINDS)
def test_other_spaces_are_refused(kind):
    for space in (gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(-np.inf, np.inf, (1,))):
        with pytest.raises(ConfigurationError, match=f"is not for {kind.algo}; allowed is a Box of finite bounds"):
            kind(OBS, space)
    with pytest.raises(ConfigurationError, match=f"has an image; {kind.algo} allows vectors"):
        kind(gymnasium.spaces.Box(0, 255, (3, 8, 8), np.uint8), ACTIONS)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_on_the_weights_is_drawn_after_each_update_and_learned(kind):
    noisy = {part: {**SMALL[part], "noisy": True} for part in ("encoder_config", "head_config")}
    member = kind(OBS, ACTIONS, net_config={**SMALL, **noisy}, seed=1, batch_size=32)
    before = {name: p.detach().clone() for name, p in member.network.named_parameters() if "sigma" in name}
    seen = []
    for seed in range(3):
        member.learn(experiences(seed=seed))
        seen.append({name: x.clone() for name, x in member.network.named_buffers() if name.endswith("input_noise")})
    assert any(name.startswith("target.") for name in seen[0])
    for name in seen[0]:
        assert not torch.equal(seen[0][name], seen[1][name])
        assert not torch.equal(seen[1][name], seen[2][name])
    now = dict(member.network.named_parameters())
    assert all((now[name] - old).abs().max() > 1e-5 for name, old in before.items())


@pytest.mark.parametrize("kind", KINDS)
def test_learning_without_noise_leaves_its_size(kind):
    settings = {"policy_delay": 1} if kind is TD3 else {}
    noisy = {**SMALL, "head_config": {"hidden_size": [16], "noisy": True}}
    member = kind(OBS, ACTIONS, net_config=noisy, seed=1, batch_size=32, **settings)
    member.set_training_mode(False)
    before = {name: p.detach().clone() for name, p in member.network.named_parameters()}
    member.learn(experiences())
    for name, parameter in member.network.named_parameters():
        assert torch.equal(parameter, before[name]) == ("sigma" in name), name
