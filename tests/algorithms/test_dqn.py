"""DQN: one gradient step by hand, targets through mutations, exploration, masks, members together and alone."""

import contextlib
import copy
import math

import gymnasium
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from agilerl_like import make_vect_envs, train_off_policy
from agilerl_like.algorithms.dqn import DQN
from agilerl_like.errors import ConfigurationError, PopulationDivergedError
from agilerl_like.hpo import HyperparameterConfig, Mutation, RLParameter
from agilerl_like.learning.replay_buffer import Batch

SMALL = {
    "latent_dim": 16,
    "encoder_config": {"hidden_size": [16], "min_mlp_nodes": 8},
    "head_config": {"hidden_size": [16], "min_mlp_nodes": 8},
}
OBS, ACTIONS = gymnasium.spaces.Box(-1.0, 1.0, (4,)), gymnasium.spaces.Discrete(3)
IMAGE = gymnasium.spaces.Box(0, 255, (2, 12, 12), np.uint8)
MIXED = gymnasium.spaces.Dict({"camera": IMAGE, "speed": OBS})


def agent(obs=OBS, net=SMALL, **settings):
    return DQN(obs, ACTIONS, net_config=net, seed=1, **settings)


def experiences(rows=32, seed=0, obs=OBS):
    stream = np.random.default_rng(seed)
    obs = copy.deepcopy(obs)
    obs.seed(seed)

    def observed():
        samples = [obs.sample() for _ in range(rows)]
        if isinstance(samples[0], dict):
            return {name: np.stack([one[name] for one in samples]) for name in samples[0]}
        return np.stack(samples)

    return {
        "obs": observed(),
        "action": stream.integers(3, size=(rows, 1)),
        "reward": stream.normal(size=(rows, 1)),
        "next_obs": observed(),
        "done": stream.integers(2, size=(rows, 1)),
    }


def perturb_target_(member, seed=3):
    stream = torch.Generator().manual_seed(seed)
    for tensor in member.network.target.buffers():
        if tensor.is_floating_point():
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=stream))


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_a_step_is_that_of_the_formula(double, dueling):
    tau, lr, gamma = 0.1, 1e-2, 0.9
    member = agent(double=double, dueling=dueling, tau=tau, lr=lr, gamma=gamma, max_grad_norm=0.5)
    perturb_target_(member)
    data = experiences()
    q = copy.deepcopy(member.network)
    old_target = [tensor.clone() for tensor, _ in q.target_pairs()]
    optimizer = torch.optim.Adam(q.parameters(), lr=lr, eps=1e-5)
    for _ in range(3):
        obs, after = (torch.tensor(data[name]) for name in ("obs", "next_obs"))
        action, reward, done = (torch.tensor(data[name]) for name in ("action", "reward", "done"))
        with torch.no_grad():
            of_target = q.target.q_values(after)
            best = (q if double else q.target).q_values(after).argmax(1, keepdim=True)
            goal = reward + gamma * (1 - done) * of_target.gather(1, best)
        loss = F.huber_loss(q.q_values(obs).gather(1, action), goal.float())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(q.parameters(), 0.5)
        optimizer.step()
        with torch.no_grad():
            for target, weight in q.target_pairs():
                target.copy_((1 - tau) * target + tau * weight)
        assert member.learn(data) == pytest.approx(loss.item(), abs=1e-6)
    for (target, weight), (own_target, own) in zip(q.target_pairs(), member.network.target_pairs(), strict=True):
        torch.testing.assert_close(own, weight, atol=1e-6, rtol=0)
        torch.testing.assert_close(own_target, target, atol=1e-6, rtol=0)
    assert any(
        not torch.equal(new, old) for (new, _), old in zip(member.network.target_pairs(), old_target, strict=True)
    )


def test_a_dueling_network_is_value_plus_centred_advantage():
    network = agent(dueling=True).network
    x = torch.randn(5, 4)
    latent = network.actor.encoder(x)
    advantage = network.actor.head(latent)
    expected = network.critic.head(latent) + advantage - advantage.mean(1, keepdim=True)
    torch.testing.assert_close(network.q_values(x), expected)


def test_the_target_is_a_copy_every_interval():
    member = agent(tau=1.0, target_update_interval=3)
    before = [target.clone() for target, _ in member.network.target_pairs()]
    for step in range(1, 5):
        member.learn(experiences())
        pairs = member.network.target_pairs()
        if step < 3:
            assert all(torch.equal(target, old) for (target, _), old in zip(pairs, before, strict=True))
        assert all(torch.equal(target, weight) for target, weight in pairs) == (step == 3)


OPERATORS = {
    "vector": (OBS, SMALL, ["encoder.add_node", "encoder.remove_node", "head.add_node", "head.remove_node"]),
    "layers": (OBS, SMALL, ["encoder.add_layer", "head.add_layer", "encoder.remove_layer", "head.remove_layer"]),
    "latent": (OBS, SMALL, ["add_latent_node", "remove_latent_node", "change_activation"]),
    "image": (IMAGE, {}, ["encoder.add_channel", "encoder.remove_channel", "encoder.add_layer", "add_latent_node"]),
    "mixed": (MIXED, {}, ["add_latent_node", "remove_latent_node", "head.add_node", "change_activation"]),
}


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("case", OPERATORS)
def test_targets_follow_every_mutation(case, dueling):
    obs, net, operators = OPERATORS[case]
    member = agent(obs, net, dueling=dueling, tau=0.5)
    for turn in range(3):
        member.learn(experiences(obs=obs, seed=turn))
    differing = member.clone()
    member.network.sync_target_()
    x = member.learner.normalize(experiences(256, obs=obs)["obs"])
    done = 0
    for operator in (*operators, *operators):
        for one in (member, differing):
            choices = list(one.architecture.choices(operator)) if operator in one.architecture.operator_kinds else []
            if not choices:
                continue
            q, target = one.network.q_values(x), one.network.target.q_values(x)
            (change,) = one.apply_genome(
                one.genome,
                (Mutation(("activation" if "activation" in operator else "architecture"), operator, dict(choices[0])),),
            )
            assert one.network.target.spec == one.network.spec
            shapes = [(target.shape, weight.shape) for target, weight in one.network.target_pairs()]
            assert all(left == right for left, right in shapes)
            done += change.kind != "none"
            if "remove" not in operator:
                torch.testing.assert_close(one.network.q_values(x), q, atol=2e-5, rtol=1e-4)
                torch.testing.assert_close(one.network.target.q_values(x), target, atol=2e-5, rtol=1e-4)
        # where network and target were equal they still are, whatever was grown or removed
        for target, weight in member.network.target_pairs():
            torch.testing.assert_close(target, weight, atol=1e-6, rtol=1e-5)
    assert done >= 4
    assert np.isfinite([one.learn(experiences(obs=obs)) for one in (member, differing)]).all()


def test_targets_lose_the_units_that_the_network_loses():
    member = agent()
    perturb_target_(member)
    before = copy.deepcopy(member.network)
    choice = dict(member.architecture.choices("encoder.remove_node")[0])
    (change,) = member.apply_genome(member.genome, (Mutation("architecture", "encoder.remove_node", choice),))
    assert change.kind == "architecture"
    name = next(name for name, weight in before.actor.encoder.named_parameters() if weight.shape == (16, 4))
    old, new = before.actor.encoder.get_parameter(name), member.network.actor.encoder.get_parameter(name)
    kept = [int((old == row).all(1).nonzero()) for row in new]  # rows of surviving units are unchanged
    assert len(kept) < 16
    old, new = (dict(net.target.actor.encoder.named_buffers())[name] for net in (before, member.network))
    assert torch.equal(new, old[kept])


def test_clones_take_the_same_next_step():
    member = agent()
    member.learn(experiences())
    clone = member.clone()
    assert member.learn(experiences(seed=1)) == clone.learn(experiences(seed=1))
    pairs = zip(member.network.target_pairs(), clone.network.target_pairs(), strict=True)
    assert all(torch.equal(one, other) for left, right in pairs for one, other in zip(left, right, strict=True))


def test_a_saved_agent_learns_on_alike(tmp_path):
    member = agent(dueling=True, n_step=3)
    member.learn(experiences())
    loaded = DQN.load(member.save_checkpoint(tmp_path / "agent"))
    assert loaded.settings() == member.settings()
    for seed in (1, 2):
        assert loaded.learn(experiences(seed=seed)) == member.learn(experiences(seed=seed))


def test_weights_that_are_not_finite_are_restored():
    member, data = agent(), experiences()
    data["reward"][:] = 3e38  # whose sum is infinite
    before = [weight.clone() for weight in member.network.parameters()]
    with pytest.raises(PopulationDivergedError, match="its weights were restored"):
        member.learn(data)
    assert all(map(torch.equal, before, member.network.parameters()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": [[np.nan]] * 4}, "experiences: reward=nan; allowed are finite numbers"),
        ({"reward": [0, 0, -np.inf, 0]}, "experiences: reward=-inf; allowed are finite numbers"),
        ({"reward": [1e39] * 4}, r"experiences: reward=1e\+39; allowed are finite numbers"),  # infinite as float32
        ({"reward": [1.0]}, "experiences: reward has 1 numbers; allowed are 4"),
        ({"done": [np.nan] * 4}, "experiences: done=nan; allowed are finite numbers"),
        ({"done": [0, 1, 2, 0]}, "experiences: done=2; allowed are 0 and 1"),
        ({"done": [0]}, "experiences: done has 1 numbers; allowed are 4"),
        ({"action": [0, 1, 7, 0]}, r"experiences: action=7; allowed are those of Discrete\(3\)"),
        ({"action": [0, 1, -1, 0]}, r"experiences: action=-1; allowed are those of Discrete\(3\)"),
        ({"action": [0.5] * 4}, r"experiences: action=0\.5; allowed are those of Discrete\(3\)"),
        ({"action": [0]}, "experiences: action has 1 numbers; allowed are 4"),
        ({"next_obs": np.zeros((1, 4))}, "experiences: obs has 4 rows and next_obs has 1; allowed are as many"),
        ({"obs": np.zeros((0, 4)), "next_obs": np.zeros((0, 4))}, "obs has 0 rows and next_obs has 0; .* at least one"),
        ({"next_action_mask": np.ones((4, 2))}, r"next_action_mask has shape \(4, 2\); allowed is \(4, 3\)"),
        ({"next_action_mask": np.ones((1, 3))}, r"next_action_mask has shape \(1, 3\); allowed is \(4, 3\)"),
    ],
)
def test_experiences_that_do_not_fit_are_refused(changes, message):
    member = agent()
    with pytest.raises(ConfigurationError, match=message):
        member.learn({**experiences(4), **changes})
    assert member.learner.updates == 0


@pytest.mark.parametrize(
    ("learn_step", "envs", "ratio"), [(4, 4, 4), (2, 8, 2), (16, 8, 16), (5, 8, 4), (5, 7, 7), (4, 6, 3), (6, 4, 8)]
)
def test_env_steps_of_a_gradient_step_are_those_that_the_tutorial_describes(learn_step, envs, ratio):
    """With 5 and 8: one step of 8 envs, and 8 / 5 = 1.6 gradient steps, rounded to 2."""
    member = agent(learn_step=learn_step, num_envs=envs)
    assert member.learner.rollout_steps * envs / member.learner.steps_at_once == ratio


def test_a_return_is_not_longer_than_the_steps_of_one_env_in_the_replay():
    member = agent(n_step=10, memory_size=40, num_envs=4, learning_starts=4)
    member.learner.check_run(1000, None, 1)
    member.n_step = 11
    with pytest.raises(ConfigurationError, match="n_step=11 is more than the 10 steps of each of 4 envs that memory_"):
        member.learner.check_run(1000, None, 1)


@pytest.mark.parametrize("epsilon", [math.nan, -0.1, 2.0, "x"])
def test_only_a_probability_is_an_epsilon(epsilon):
    with pytest.raises(ConfigurationError, match=f"epsilon={epsilon!r} must be a probability, from 0 to 1"):
        agent().get_action(np.zeros((1, 4)), epsilon)


def test_experiences_are_a_mapping():
    with pytest.raises(ConfigurationError, match=r"experiences=\[1, 2\]; allowed is a mapping with obs, action"):
        agent().learn([1, 2])


def test_experiences_may_be_a_single_transition():
    member, mask = agent(), [True, False, True]
    single = {"obs": np.zeros(4), "action": 1, "reward": 1.0, "next_obs": np.zeros(4), "done": 0}
    assert np.isfinite(member.learn({**single, "next_action_mask": mask}))


def test_a_next_action_mask_that_allows_nothing_allows_everything():
    data = experiences()
    masks = np.ones((32, 3), np.bool_), np.tile(np.arange(32) % 2 == 0, (3, 1)).T
    whole, empty = (agent().learn({**data, "next_action_mask": mask}) for mask in masks)
    assert whole == empty
    assert not masks[1][1::2].any()  # the given mask stays as it is


@pytest.mark.parametrize("double", [False, True])
def test_targets_choose_among_legal_actions(double):
    member, data = agent(double=double, gamma=0.9), experiences()
    perturb_target_(member)
    illegal, q = np.random.default_rng(1).integers(3, size=(32, 1)), member.network
    obs, after, action, reward, done = (
        torch.tensor(data[name]) for name in ("obs", "next_obs", "action", "reward", "done")
    )
    with torch.no_grad():
        of_target = q.target.q_values(after)
        chooser = q.q_values(after) if double else of_target
        best = chooser.scatter(1, torch.tensor(illegal), -torch.inf).argmax(1, keepdim=True)
        goal = reward + 0.9 * (1 - done) * of_target.gather(1, best)
        loss = F.huber_loss(q.q_values(obs).gather(1, action), goal.float())
    found = member.learn({**data, "next_action_mask": np.arange(3) != illegal})
    assert found == pytest.approx(loss.item(), abs=1e-6)


def test_a_masked_next_action_is_not_chosen_however_low_the_values_of_legal_ones_are():
    member = agent(gamma=0.5)
    with torch.no_grad():
        member.network.actor.head.linear(-1).bias.fill_(-1e10)
        member.network.target.actor.head.linear(-1).bias.copy_(torch.tensor([0.0, 1e11, 0.0]))
    masks = np.tile([False, True, False], (32, 1))
    loss = member.learn({**experiences(), "done": np.zeros((32, 1)), "next_action_mask": masks})
    assert loss == pytest.approx(0.5 * 1e11 + 1e10, rel=1e-3)


def test_epsilon_falls_by_share_of_the_budget():
    member = agent(eps_start=0.9, eps_end=0.1, eps_share=0.4)
    found = []
    for member.progress in (0.0, 0.2, 0.4, 0.9):
        found.append(member.epsilon)
    assert found == pytest.approx([0.9, 0.5, 0.1, 0.1])


def test_random_actions_are_uniform_among_legal_ones():
    member = agent()
    obs = np.zeros((4000, 4), np.float32)
    mask = np.tile([True, False, True], (4000, 1))
    counts = np.bincount(member.get_action(obs, epsilon=1.0, action_mask=mask), minlength=3)
    assert counts[1] == 0
    assert abs(counts[0] - 2000) < 4 * np.sqrt(1000)
    greedy = member.get_action(obs)
    assert len(set(greedy)) == 1
    share = np.mean(member.get_action(obs, epsilon=0.3) != greedy)
    assert share == pytest.approx(0.3 * 2 / 3, abs=4 * np.sqrt(0.2 * 0.8 / 4000))
    assert member.predict(obs[0])[0] == greedy[0]


def test_members_explore_each_with_its_own_probability():
    pop = DQN.population(2, OBS, ACTIONS, seed=0, num_envs=50, net_config=SMALL)
    pop[0].eps_start, pop[1].eps_start, pop[1].eps_end = 1.0, 0.0, 0.0
    obs = torch.zeros(2, 50, 4)
    counts = np.zeros((2, 3))
    for _ in range(20):
        raw, _ = pop.act(obs, pop.initial_hidden_state.repeat(2, 50, 1, 1, 1), noise=pop.learners.next_noise(50))
        counts += [np.bincount(actions.flatten(), minlength=3) for actions in raw.numpy()]
    assert counts[0].min() > 250
    assert sorted(counts[1]) == [0, 0, 1000]


class Batches:
    """Stands for a replay: minibatches by place and step."""

    def __init__(self, places):
        self.steps = self.envs = 10**6
        self.observations = torch.zeros(1, 4)
        self.masks, self.new_steps = None, dict.fromkeys(places, 0)
        self.by_place = {place: [self._batch(place, step) for step in range(50)] for place in places}
        self.taken = dict.fromkeys(places, 0)

    @staticmethod
    def _batch(place, step):
        stream = torch.Generator().manual_seed(100 * place + step)
        rows = torch.randn(2, 16, 4, generator=stream)
        actions = torch.randint(3, (16, 1), generator=stream)
        reward, discount = torch.randn(2, 16, generator=stream)
        return rows[0], actions, reward, discount.clamp(0, 0.9), rows[1]

    def sample(self, members, draws, *_):
        steps = range(draws.shape[1] // 16)  # of several gradient steps at once
        found = [[self.by_place[p][self.taken[p] + step] for step in steps] for p in members.tolist()]
        for place in members.tolist():
            self.taken[place] += len(steps)
        rows = [[torch.cat(column) for column in zip(*its, strict=True)] for its in found]
        obs, actions, reward, discount, after = (torch.stack(column) for column in zip(*rows, strict=True))
        return Batch(obs, actions, reward, discount, after, None, torch.ones_like(reward))

    def latest(self, place, count):
        return self.by_place[place][0][0]


def varied(size):
    pop = DQN.population(size, OBS, ACTIONS, seed=5, net_config=SMALL, num_envs=4, gradient_steps=8, batch_size=16)
    for place, member in enumerate(pop):
        member.lr, member.tau, member.gamma = 1e-3 * (place + 1), 0.05 * (place + 1), 0.9 + 0.03 * place
        member.target_update_interval = place + 1
    choice = dict(pop[1].architecture.choices("encoder.add_node")[-1])
    pop[1].apply_genome(pop[1].genome, (Mutation("architecture", "encoder.add_node", choice),))
    return pop


def weights(member):
    return torch.cat([x.flatten() for pair in member.network.target_pairs() for x in pair]).clone()


@pytest.mark.parametrize("per_member", [False, True])
def test_members_learn_together_as_alone(per_member):
    together, alone = varied(3), varied(3)
    for member in together:
        member.per_member = per_member
    together.learn([2, 0, 1], Batches(range(3)))
    together.learn([1, 2], Batches(range(3)))
    for place, member in enumerate(alone):
        single = type(together)([member])
        for batches in (Batches(range(3)),) * (2 if place else 1):
            batches.taken = dict.fromkeys(batches.taken, 0)
            batches.by_place = {0: Batches(range(3)).by_place[place]}
            batches.taken = {0: 0}
            single.learn([0], batches)
        found, expected = weights(together[place]), weights(member)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
        assert together[place].learner.updates == member.learner.updates == (16 if place else 8)


class SampleArguments:
    """Stands for a replay whose minibatches are the arguments of `sample`."""

    observations = torch.zeros(1, 4)

    def sample(self, members, draws, gamma, n_step, kind):
        return members.tolist(), gamma.tolist(), n_step, kind


def test_minibatches_are_sampled_by_the_members_settings():
    pop = DQN.population(2, OBS, ACTIONS, seed=1, net_config=SMALL, gamma=0.5, n_step=3, memory="shared")
    update = pop.learners.make_update([pop[1].learner], [1], SampleArguments(), 1)
    assert next(update.batches()) == ([1], [0.5], 3, "shared")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tau": 0.0}, "tau=0.0: .*greater than 0"),
        ({"tau": 1.5}, "tau=1.5: .*less than or equal to 1"),
        ({"learning_starts": 200_000}, "learning_starts=200000 is more than memory_size=100000; allowed are at most"),
        ({"n_step": 9, "memory_size": 8, "learning_starts": 1}, "n_step=9 is more than memory_size=8"),
        ({"memory_size": 10**12}, r"memory_size=10{12} needs at least .* allowed are at most \d+ env steps"),
        ({"batch_size": 2**40}, r"batch_size=1099511627776 needs at least .* allowed are at most \d+ samples"),
        (
            {"hp_config": HyperparameterConfig(batch_size=RLParameter(64, 2**40))},
            "batch_size=1099511627776 needs at least",
        ),
        (
            {"gradient_steps": 2**40},
            r"gradient_steps=1099511627776 with batch_size=64 needs at least .* allowed are at most \d+ gradient steps",
        ),
        ({"memory": "both"}, "memory='both': .*'own' or 'shared'"),
        ({"schedules": {"clip_coef": "linear"}}, "schedules='clip_coef' is unknown; allowed are: lr"),
        ({"leraning_starts": 5}, "leraning_starts.*learning_starts"),
        (
            {"net": {"head_config": {"output_activation": "Tanh"}}},
            "head_config: output_activation='Tanh' has no effect in DQN.*; allowed is 'Identity'",
        ),
        (
            {"net": {"head_config": {"output_layernorm": True}}},
            "head_config: output_layernorm=True has no effect in DQN.*; allowed is False",
        ),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        agent(**settings)


def test_an_activation_of_the_output_that_a_mutation_made_is_no_error(tmp_path):
    """The output's activation follows the hidden one where both were the same."""
    linear = agent(net={"head_config": {"activation": "Identity"}})
    architecture = linear.architecture.apply("change_activation", activation="ELU")
    linear.apply_genome(
        linear.genome.replace(architecture=architecture),
        (Mutation("activation", "change_activation", {"activation": "ELU"}),),
    )
    assert linear.architecture.head.output_activation == "ELU"
    linear.save_checkpoint(tmp_path / "agent")
    assert DQN.load(tmp_path / "agent").architecture == linear.architecture


def test_other_action_spaces_are_refused():
    with pytest.raises(ConfigurationError, match="is not for DQN; allowed is Discrete"):
        DQN(OBS, gymnasium.spaces.Box(-1.0, 1.0, (2,)))
    with pytest.raises(ConfigurationError, match="Text"):
        DQN(gymnasium.spaces.Text(5), ACTIONS)


def test_hyperparameters_evolve_within_their_ranges():
    ranges = HyperparameterConfig(lr=RLParameter(1e-4, 1e-2), batch_size=RLParameter(8, 64), n_step=RLParameter(1, 5))
    pop = DQN.population(3, OBS, ACTIONS, seed=1, hp_config=ranges, net_config=SMALL, sample_hyperparameters=True)
    assert len({member.lr for member in pop}) == 3
    assert all(isinstance(member.n_step, int) and 1 <= member.n_step <= 5 for member in pop)
    with pytest.raises(ConfigurationError, match=r"memory_size.* is not a number of DQN that can evolve"):
        agent(hp_config=HyperparameterConfig(memory_size=RLParameter(8, 64)))


def test_noise_on_the_weights_is_drawn_in_a_run():
    noisy = {**SMALL, "encoder_config": {**SMALL["encoder_config"], "noisy": True}}
    with contextlib.closing(make_vect_envs("CartPole-v1", num_envs=2, backend="sync")) as env:
        spaces = env.single_observation_space, env.single_action_space
        pop = DQN.population(2, *spaces, num_envs=2, seed=1, learning_starts=20, batch_size=16, net_config=noisy)
        pop, _ = train_off_policy(env, pop=pop, max_steps=200, evo_steps=100, eval_loop=1, eval_steps=5, verbose=False)
    noise = [{name: x for name, x in one.network.named_buffers() if name.endswith("input_noise")} for one in pop]
    for name, one in noise[0].items():
        assert float(one.abs().sum()) > 0
        assert not torch.equal(one, noise[1][name])


def test_learning_without_noise_leaves_its_size():
    member = agent(net={**SMALL, "head_config": {"hidden_size": [16], "noisy": True}})
    member.set_training_mode(False)
    before = {name: p.detach().clone() for name, p in member.network.named_parameters()}
    member.learn(experiences())
    for name, parameter in member.network.named_parameters():
        assert torch.equal(parameter, before[name]) == ("sigma" in name)


@pytest.mark.parametrize("own", [0.9, 0.0])
def test_shrunk_members_with_layer_norm_act_as_they_learn(own):
    """A layer that grew by nodes counts the old ones at first; its own network and its stack must agree on which."""
    member = agent(net={**SMALL, "encoder_config": {"hidden_size": [16], "layer_norm": True}})
    member.learner.mutate(Mutation("architecture", "encoder.add_node", {"layer": 0, "nodes": 16}))
    member.learner.mix_initial_weights(own, 1 - own)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    found = member.learner.cohort.stacked.over(lambda net, x: (net.q_values(x), net.target.q_values(x)), x[None])
    with torch.no_grad():
        for plain, stacked in zip((member.network.q_values(x), member.network.target.q_values(x)), found, strict=True):
            torch.testing.assert_close(stacked[0], plain)


@pytest.mark.parametrize("dueling", [False, True])
def test_evolvable_attributes_are_the_networks(dueling):
    assert [*agent(dueling=dueling).evolvable_attributes()] == (["actor", "critic"] if dueling else ["actor"])


@pytest.mark.parametrize("obs", [OBS, IMAGE])
def test_mutations_are_measured_on_the_last_batch(obs, tmp_path):
    member, data = agent(obs, {"latent_dim": 16}), experiences(obs=obs)
    member.learn(data)
    seen = member.learner.encode(data["obs"])
    assert torch.equal(member.learner.recent_observations, seen)
    member.save_checkpoint(tmp_path / "agent")
    assert torch.equal(DQN.load(tmp_path / "agent").learner.recent_observations, seen)


def test_settings_that_are_set_are_checked_before_a_step():
    member = agent()
    member.lr = -1.0
    with pytest.raises(ConfigurationError, match="lr=-1"):
        member.learn(experiences())


def test_an_agent_that_learned_with_masks_is_marked():
    member = agent()
    member.learn(experiences())
    assert not member.learner.learned_with_masks
    member.learn({**experiences(), "next_action_mask": np.ones((32, 3), np.bool_)})
    assert member.learner.learned_with_masks
