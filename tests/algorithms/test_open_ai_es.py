"""OpenAIES: how perturbed policies act, members together and alone, copies, files, mutations, errors."""

import copy
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agilerl_like import OpenAIES, make_vect_envs
from agilerl_like.algorithms.population import Population
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.errors import ConfigurationError
from agilerl_like.export.numpy_policy import load_numpy_policy
from agilerl_like.hpo import HyperparameterConfig, Mutation, Mutations, Offspring, RLParameter
from agilerl_like.learning.perturbations import ReturnsUpdate, antithetic_pairs
from agilerl_like.training.collector import Collector, PhaseTimer

SMALL = {
    "latent_dim": 8,
    "encoder_config": {"hidden_size": [8], "min_mlp_nodes": 4},
    "head_config": {"hidden_size": [8], "min_mlp_nodes": 4},
}
OBS, ACTIONS = gymnasium.spaces.Box(-1.0, 1.0, (4,)), gymnasium.spaces.Discrete(3)
CARTPOLE = make_vect_envs("CartPole-v1", num_envs=1)
IMAGE = gymnasium.spaces.Box(0, 255, (2, 12, 12), np.uint8)
SPACES = {
    "discrete": (OBS, ACTIONS),
    "box": (OBS, gymnasium.spaces.Box(-2.0, 3.0, (2,))),
    "multi": (OBS, gymnasium.spaces.MultiDiscrete([2, 3])),
    "binary": (OBS, gymnasium.spaces.MultiBinary(3)),
    "image": (IMAGE, ACTIONS),
    "dict": (gymnasium.spaces.Dict({"camera": IMAGE, "speed": OBS}), ACTIONS),
}


def agent(obs=OBS, actions=ACTIONS, net=SMALL, **changed):
    return OpenAIES(obs, actions, **{"net_config": net, "seed": 1, "num_envs": 4, **changed})


def flat(member):
    return torch.cat([parameter.detach().flatten() for parameter in member.network.parameters()])


def with_weights(member, weights):
    """A copy of an agent with other weights."""
    other = member.clone()
    start = 0
    with torch.no_grad():
        for parameter in other.network.parameters():
            parameter.copy_(weights[start : start + parameter.numel()].view(parameter.shape))
            start += parameter.numel()
    return other


def acting(pop, observations):
    """Let a population act in training mode, as the collector does."""
    group = pop.learners
    if group._returns is None:
        group.make_buffer(SimpleNamespace(env=None), pop[0].num_envs, None)
    state = group.initial_hidden_state.repeat(len(pop), pop[0].num_envs, 1, 1, 1)
    return group.act(observations, state, None, group.next_noise(pop[0].num_envs))[0]


@pytest.mark.parametrize("name", [*SPACES])
def test_each_env_is_played_by_weights_plus_its_perturbation(name):
    obs, actions = SPACES[name]
    net = SMALL if name not in ("image", "dict") else {"latent_dim": 8}
    member = agent(obs, actions, net=net, sigma=0.5)
    rows = member.learner.rollout_encoding.random_rows(4, torch.Generator().manual_seed(0))
    found = acting(Population([member]), rows[None])[0]
    pairs = antithetic_pairs(member.learner.perturbation_seed, 2, member.parameter_count)
    assert float((pairs[1] + pairs[0]).abs().max()) == 0
    for env in range(4):
        player = with_weights(member, flat(member) + 0.5 * pairs[env])
        x = player.network.observation_norm(rows[env : env + 1])
        expected = player.network.actor.distribution.mode(player.network.outputs(x))
        torch.testing.assert_close(found[env : env + 1], expected)
    assert not torch.equal(found[0], found[1]) or not torch.equal(found[2], found[3])
    unperturbed = member.learner.cohort.act(rows[None], torch.zeros(1, 4, 2, 0, 0), None, None)[0][0]
    x = member.network.observation_norm(rows)
    torch.testing.assert_close(unperturbed, member.network.actor.distribution.mode(member.network.outputs(x)))


def collected(pop, steps, seed_slots=None):
    """Step CartPole with a population, learning when the group decides."""
    env = make_vect_envs("CartPole-v1", num_envs=len(pop) * pop[0].num_envs, backend="torch")
    collector = Collector(pop, VecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
    collector.reset(seed_slots or range(len(pop)))
    reports = []
    while steps > 0:
        taken = min(steps, collector.vector_steps_until_update)
        steps -= collector.collect(taken)
        reports.append({place: float(report["return_mean"][0]) for place, report in collector.learn().items()})
    env.close()
    return reports


def cartpole(index, **changed):
    spaces = CARTPOLE.single_observation_space, CARTPOLE.single_action_space
    return agent(
        *spaces, **{"num_envs": 6, "index": index, "seed": 9, "sigma": 0.3, "lr": 0.1, "learn_step": 240, **changed}
    )


@given(st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True), st.booleans(), st.booleans())
@settings(max_examples=4, deadline=None)
def test_a_member_learns_together_as_it_does_alone(indices, wide, normalize):
    nets = [{**SMALL, "latent_dim": 16} if wide and index % 2 else SMALL for index in indices]
    members = [
        cartpole(index, net_config=net, normalize_observation=normalize)
        for index, net in zip(indices, nets, strict=True)
    ]
    together = Population([member.clone() for member in members])
    collected(together, 130, seed_slots=indices)
    for place, member in enumerate(members):
        alone = Population([member.clone()])
        collected(alone, 130, seed_slots=[indices[place]])
        assert alone[0].learner.updates == together[place].learner.updates > 0
        torch.testing.assert_close(flat(alone[0]), flat(together[place]), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(alone[0].optimizer.exp_avg, together[place].optimizer.exp_avg, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("normalizes", [(False, True), (True, False)])
def test_each_member_that_normalises_observations_has_statistics_of_them(normalizes):
    members = [cartpole(index, normalize_observation=its) for index, its in enumerate(normalizes)]
    collected(Population(members), 60)
    normalizing = members[normalizes.index(True)]
    assert normalizing.learner.updates > 0
    assert float(normalizing.network.observation_norm.count) > 0


def test_per_member_gives_the_same_bits_alone():
    members = [cartpole(index, per_member=True) for index in range(3)]
    together = Population([member.clone() for member in members])
    collected(together, 120)
    alone = Population([members[1].clone()])
    collected(alone, 120, seed_slots=[1])
    assert together[1].learner.updates > 0
    assert torch.equal(flat(alone[0]), flat(together[1]))


def test_per_member_can_be_set_between_runs():
    pop = Population([cartpole(index) for index in range(2)])
    collected(pop, 60)
    for member in pop:
        member.per_member = True
    updates = pop[0].learner.updates
    collected(pop, 60)
    assert pop[0].learner.updates > updates


def test_a_member_waits_for_all_of_its_policies_or_for_learn_step():
    pop = Population([cartpole(0, learn_step=None, episodes=2), cartpole(1, learn_step=6 * 8)])
    env = make_vect_envs("CartPole-v1", num_envs=12, backend="torch")
    collector = Collector(pop, VecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
    collector.reset([0, 1])
    collector.collect(8)
    assert pop.learners.returns.counts[0].min() == 0  # CartPole cannot fall in 7 steps
    reports = collector.learn()
    assert [*reports] == [1]
    assert float(reports[1]["return_mean"][0]) == 8  # the rewards so far
    before = pop.learners.returns.counts.clone()
    while 0 not in reports:
        collector.collect(collector.vector_steps_until_update)
        counts = pop.learners.returns.counts[0].clone()
        reports = collector.learn()
    assert counts.min() >= 2
    assert before[0].min() == 0
    env.close()


def test_copies_and_files_learn_the_same(tmp_path):
    member = cartpole(0, normalize_observation=True, episodes=2)
    collected(Population([member]), 150)
    assert member.learner.updates > 0
    member.save_checkpoint(tmp_path / "agent")
    copies = [member.clone(), copy.deepcopy(member), OpenAIES.load(tmp_path / "agent")]
    assert copies[2].settings() == member.settings()
    for one in copies:
        collected(Population([one]), 150)
    collected(Population([member]), 150)
    for one in copies:
        assert one.learner.updates == member.learner.updates
        assert torch.equal(flat(one), flat(member))
        assert torch.equal(one.optimizer.exp_avg_sq, member.optimizer.exp_avg_sq)
        assert torch.equal(one.network.observation_norm.mean, member.network.observation_norm.mean)
    other = member.clone(index=5)
    assert other.learner.perturbation_seed != member.learner.perturbation_seed


def test_an_offspring_begins_with_policies_of_its_own():
    pop = Population([cartpole(0), cartpole(1)])
    observations = torch.zeros(2, 6, 4)
    acting(pop, observations)
    group = pop.learners
    group.returns.sums += 1.0
    group.returns.counts += 1.0
    pop.set_members([pop[0], pop[0].clone(index=2)])
    acting(pop, observations)
    assert group.returns.counts.tolist() == [[1.0] * 6, [0.0] * 6]


@pytest.mark.parametrize("changed", [{"lr": 0.02}, {"sigma": 0.1}])
def test_a_survivor_with_another_hyperparameter_continues_its_trial(changed):
    reports, members = [], []
    for change in ({}, changed):
        pop = Population([cartpole(0, learn_step=6 * 100, episodes=1_000)])
        env = make_vect_envs("CartPole-v1", num_envs=6, backend="torch")
        collector = Collector(pop, VecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
        collector.reset([0])
        collector.collect(96)
        if change:
            genome = pop[0].genome.replace(hyperparameters=change)
            pop.evolve([Offspring(1, 0, 0, 0, 0, genome, (Mutation("rl_hp", details=change),))])
        collector.collect(4)
        reports.append(collector.learn()[0])
        members.append(pop[0])
        env.close()
    # the pole has fallen within 96 steps; the last 4 steps alone would give 4 at most
    assert float(reports[0]["return_mean"]) > 4
    for name in ("return_mean", "return_max", "return_std"):
        assert torch.equal(reports[0][name], reports[1][name])
    assert torch.equal(reports[0]["grad_norm"], reports[1]["grad_norm"])  # of the perturbations that acted
    assert torch.equal(flat(members[0]), flat(members[1])) == ("lr" not in changed)
    assert {name: getattr(members[1], name) for name in changed} == changed


def test_a_hook_that_may_change_weights_begins_another_trial():
    member = cartpole(0)
    key = member.learner.trial_key
    assert member.make_offspring(Offspring(1, 0, 0, 0, 0, member.genome))[0].learner.trial_key == key
    member.register_mutation_hook(lambda agent: agent.network)
    assert member.make_offspring(Offspring(1, 0, 0, 0, 0, member.genome))[0].learner.trial_key != key


@pytest.mark.parametrize("operator", ["add_latent_node", "encoder.add_node", "head.add_node"])
def test_growth_leaves_the_policy_unchanged_and_moves_the_moments(operator):
    member = agent(num_envs=4)
    member.learner.cohort.stacked.optimizer.exp_avg.fill_(0.5)
    obs = np.random.default_rng(0).uniform(-1, 1, (32, 4)).astype(np.float32)
    before = member.network.outputs(member.learner.normalize(obs)).clone()
    arguments = {"nodes": 8} if operator.endswith("node") else {}
    if operator.endswith(".add_node"):
        arguments["layer"] = 0
    done = member.learner.mutate(Mutation("architecture", operator, arguments))
    assert done.kind == "architecture"
    torch.testing.assert_close(member.network.outputs(member.learner.normalize(obs)), before)
    assert member.optimizer.exp_avg.shape[1] == member.parameter_count > 8
    assert float(member.optimizer.exp_avg.max()) == 0.5


def test_hyperparameters_and_architectures_evolve():
    ranges = HyperparameterConfig(
        sigma=RLParameter(0.01, 1.0), lr=RLParameter(0.001, 0.5), weight_decay=RLParameter(0.0, 0.1)
    )
    pop = OpenAIES.population(
        6, OBS, ACTIONS, net_config=SMALL, num_envs=4, seed=2, hp_config=ranges, sample_hyperparameters=True
    )
    before = [(one.sigma, one.lr, one.weight_decay) for one in pop]
    assert len(set(before)) == 6
    pop.mutate(Mutations(rl_hp=1.0, architecture=0.0, no_mutation=0.0, rand_seed=0, mutate_elite=True))
    assert all(a != (one.sigma, one.lr, one.weight_decay) for a, one in zip(before, pop, strict=True))
    pop.mutate(Mutations(rl_hp=0.0, architecture=1.0, no_mutation=0.0, rand_seed=0, mutate_elite=True))
    assert len({one.parameter_count for one in pop}) > 1
    pop.mutate(Mutations(parameters=1.0, architecture=0.0, rl_hp=0.0, no_mutation=0.0, rand_seed=0, mutate_elite=True))
    assert all(one.learner.is_finite for one in pop)


def test_a_schedule_of_lr():
    member = agent(lr=0.1, schedules={"lr": "linear"})
    member.progress = 0.75
    assert member.learner.lr == pytest.approx(0.025)


def test_an_update_has_the_settings_of_each_member():
    common = {"optimizer": "sgd", "lr": 0.1, "schedules": {"lr": "linear"}}
    pop = Population(
        [agent(**common), agent(index=1, weight_decay=0.25, shaping="standardized", betas=(0.9, 0.0), **common)]
    )
    pop[1].progress = 0.75
    returns = ReturnsUpdate(torch.zeros(2, 4), torch.zeros(2, 2, 4), torch.zeros(2, 2))
    update = pop.learners.make_update([*pop.learners], returns, [0.2, 0.3])
    assert (update.optimizer, update.betas, update.shaping) == ("sgd", [None, (0.9, 0.0)], ["ranks", "standardized"])
    for found, expected in ((update.lr, [0.1, 0.025]), (update.weight_decay, [0, 0.25]), (update.sigma, [0.2, 0.3])):
        assert found.tolist() == pytest.approx(expected)


def test_predictions_are_the_policy_without_perturbation(tmp_path):
    member = agent(actions=gymnasium.spaces.Box(-2.0, 3.0, (2,)))
    obs = np.random.default_rng(0).uniform(-1, 1, (5, 4)).astype(np.float32)
    outputs = member.network.outputs(member.learner.normalize(obs)).detach().numpy()
    np.testing.assert_allclose(member.get_action(obs), np.tanh(outputs) * 2.5 + 0.5, rtol=1e-5)
    np.testing.assert_array_equal(member.predict(obs)[0], member.get_action(obs))
    (path,) = member.export(tmp_path / "policy.py")
    np.testing.assert_allclose(load_numpy_policy(path)(obs), member.get_action(obs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_envs": 1}, "num_envs=1 is too few"),
        ({"num_envs": 5}, "num_envs=5 is odd"),
        ({"schedules": {"sigma": "linear"}}, "schedules='sigma' is unknown; allowed are: lr$"),
        ({"num_agents": 7}, "num_envs=7 is odd"),
        ({"optimizer": "lion"}, "optimizer='lion'"),
        ({"sigma": 0.0}, r"sigma=0\.0"),
        ({"shaping": "log"}, "shaping='log'"),
        ({"schedules": {"ent_coef": "linear"}}, "schedules='ent_coef' is unknown; allowed are: lr"),
        ({"recurrent": True}, "recurrent"),
        ({"net_config": {**SMALL, "critic_config": {"latent_dim": 16}}}, "critic_config is not for OpenAIES"),
        ({"actions": gymnasium.spaces.Box(-np.inf, np.inf, (2,))}, "Box of finite bounds"),
        ({"num_envs": 2**33}, "num_envs=8589934592"),
    ],
)
def test_bad_input(changed, message):
    with pytest.raises(ConfigurationError, match=message):
        agent(**changed)


def test_num_agents_is_the_number_of_envs():
    assert agent(num_agents=30).num_envs == 30
