"""A member's life does not depend on who shares its process: to the bit with `per_member`, up to rounding without."""

from functools import partial
from typing import ClassVar, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from recurrent_envs import Walk
from slow_cases import with_slow

from agilerl_like import PPO, HyperparameterConfig, Population, RLParameter, make_vect_envs
from agilerl_like.algorithms.learner_group import NOISE_STEPS
from agilerl_like.algorithms.ppo_learner import PPOLearnerGroup
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.hpo import Mutation, Offspring
from agilerl_like.learning.per_member_learner import PerMemberLearner
from agilerl_like.seeding import Purpose, integers
from agilerl_like.training.collector import Collector, PhaseTimer

ENVS = 3  # odd, so that no member's rows start at an aligned address
NET = {"encoder_config": {"hidden_size": [24, 20]}, "head_config": {"hidden_size": [16]}, "latent_dim": 16}
CNN = {"encoder_config": {"channel_size": [16], "kernel_size": [3], "stride_size": [1]}, "latent_dim": 16}


class Flicker(gymnasium.Env):
    """Images of noise; the reward is their brightness if that is configured."""

    metadata: ClassVar = {"render_modes": []}
    observation_space = Box(0, 255, (3, 6, 5), np.uint8)
    action_space = Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self.look(), {}

    def look(self):
        self.seen = self.np_random.integers(0, 256, (3, 6, 5), np.uint8)
        return self.seen

    def step(self, action):
        self.left -= 1
        reward = float(self.seen.mean() * (action == 1))
        return self.look(), reward, False, self.left == 0, {}


class World(NamedTuple):
    env: object
    settings: dict
    mutations: tuple[str, ...]
    """One for each of the first members; the others stay as they are."""


WORLDS = {
    "vectors": World("CartPole-v1", {"net_config": NET}, ("encoder.add_layer", "encoder.add_node", "head.add_node")),
    "raw vectors": World("CartPole-v1", {"net_config": NET, "normalize_observation": False}, ("encoder.add_node",)),
    "squashed": World("Pendulum-v1", {"net_config": NET, "squash_output": True}, ("encoder.add_node",)),
    "memory": World(
        Walk,
        {
            "net_config": {**NET, "memory_config": {"hidden_state_size": 12, "min_hidden_state_size": 8}},
            "recurrent": True,
            "max_seq_len": 4,
        },
        ("memory.add_node", "encoder.add_layer"),
    ),
    "images": World(Flicker, {"net_config": CNN}, ("encoder.add_channel",)),
}


def members_of(world, seed, **settings):
    """Four members, of which no two are computed alike."""
    single = make_vect_envs(world.env, 1, backend="sync")
    agents = list(
        PPO.population(
            4,
            single.single_observation_space,
            single.single_action_space,
            seed=seed,
            num_envs=ENVS,
            learn_step=48,
            batch_size=20,
            lr=3e-3,
            update_epochs=2,
            hp_config=HyperparameterConfig(learn_step=RLParameter(40, 100)),
            **world.settings,
            **settings,
        )
    )
    single.close()
    rng = np.random.default_rng(seed)
    for agent, operator in zip(agents, world.mutations, strict=False):
        spec, details = agent.architecture.mutate(operator, rng)
        agent.apply_genome(agent.genome.replace(architecture=spec), (Mutation("architecture", operator, details),))
        assert agent.architecture == spec
    agents[1].learn_step, agents[2].update_epochs, agents[3].target_kl = 60, 3, 1e-3
    return agents


class RecordingGroup(PPOLearnerGroup):
    """Learners whose actions are recorded."""

    def act(self, *args, **kwargs):
        raw, state = super().act(*args, **kwargs)
        self.actions = [*getattr(self, "actions", []), raw]
        return raw, state


class RecordingPopulation(Population):
    """A population whose members' actions are recorded."""

    def __init__(self, agents):
        super().__init__(agents)
        self.by_group = {group: RecordingGroup(self, group) for group in self.by_group}


def state_of(agent):
    """All tensors of an agent that continue to change."""
    adam = agent.optimizer
    named = {**agent.network.state_dict(), "m": adam.exp_avg, "v": adam.exp_avg_sq, "steps": adam.steps}
    return {name: tensor.clone() for name, tensor in named.items()}


def make_offspring(population, collector, uids):
    """Let children take the places of some members, with another learning rate and fewer steps between updates."""
    births = []
    for slot, agent in enumerate(population):
        uid, genome = uids.get(agent.index, agent.index), agent.genome
        genome = genome if uid == agent.index else genome.replace(hyperparameters={"lr": 1e-2, "learn_step": 40})
        births.append(Offspring(1, slot, uid, agent.index, slot, genome, ()))
    population.evolve(births)
    for birth in births:
        if not birth.survives:
            collector.reset_member(birth.slot)


def lives(world, seed, places, *, ticks=70, births=None, **settings):
    """By place: the actions, the reports, the state in the end and the test episodes of those who share a process."""
    everybody = members_of(world, seed, **settings)
    population = RecordingPopulation([everybody[place] for place in places])
    env = make_vect_envs(world.env, ENVS * len(places), backend="sync")
    collector = Collector(population, VecEnvAdapter(env), PhaseTimer(("act", "env", "learn")))
    collector.reset(places)
    reports = [[] for _ in places]
    for tick in range(ticks):
        collector.collect(1)
        for row, report in collector.learn().items():
            reports[row].append(torch.stack([*report.values()]))
        if births and tick == ticks // 2:
            make_offspring(population, collector, births)
    did = torch.stack(population.learners.actions)  # [ticks, P, E, A]
    played = population.run_episodes(collector.env, integers(ENVS, seed, Purpose.EVALUATION_ENVS), 60)
    env.close()
    return {
        place: (did[:, row], reports[row], state_of(population[row]), played.returns[row])
        for row, place in enumerate(places)
    }


def assert_same(ours, theirs, same):
    """Compare two lives; `same` compares two tensors."""
    same(ours[0], theirs[0])
    assert len(ours[1]) == len(theirs[1]) >= 3
    for our, their in zip(ours[1], theirs[1], strict=True):
        same(our, their)
    assert ours[2].keys() == theirs[2].keys()
    for name, tensor in ours[2].items():
        same(tensor, theirs[2][name])
    same(torch.from_numpy(ours[3]), torch.from_numpy(theirs[3]))


to_the_bit = partial(torch.testing.assert_close, rtol=0, atol=0, equal_nan=True)
up_to_rounding = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-4, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_per_member_results_are_bit_identical_in_any_population(name):
    together = lives(WORLDS[name], 1, [0, 1, 2, 3], per_member=True)
    for places in ([0], [3], [2, 1], [3, 0]):
        for place, life in lives(WORLDS[name], 1, places, per_member=True).items():
            assert_same(life, together[place], to_the_bit)


@pytest.mark.parametrize("name", with_slow(["vectors", "memory"], "memory"))
def test_without_per_member_results_agree_up_to_rounding(name):
    together = lives(WORLDS[name], 0, [0, 1, 2, 3])
    for places in ([1], [3, 0]):
        for place, life in lives(WORLDS[name], 0, places).items():
            assert_same(life, together[place], up_to_rounding)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squashed", "memory"])
def test_offspring_in_other_slots_change_no_bit(name):
    births = {1: 11, 3: 13}
    together = lives(WORLDS[name], 0, [0, 1, 2, 3], births=births, per_member=True)
    for places in ([2, 0], [1, 0], [3]):
        for place, life in lives(WORLDS[name], 0, places, births=births, per_member=True).items():
            assert_same(life, together[place], to_the_bit)


def test_surviving_members_keep_their_noise_and_new_ones_draw_their_own():
    def population():
        return PPO.population(3, Box(-1, 1, (2,)), Box(-1, 1, (2,)), seed=0, net_config=NET)

    changed, unchanged = population(), population()
    used = NOISE_STEPS // 3
    assert torch.equal(
        *(torch.stack([each.learners.next_noise(ENVS) for _ in range(used)]) for each in (changed, unchanged))
    )
    changed.set_members([changed[0], changed[2].clone(index=7), *changed[2:]])
    newcomer = changed[2].clone(index=7)
    own = torch.cat([newcomer.learner.noise((NOISE_STEPS, ENVS)) for _ in range(2)])[used:]
    for expected in own[: NOISE_STEPS + 5]:  # beyond the end of a block
        there, here = changed.learners.next_noise(ENVS), unchanged.learners.next_noise(ENVS)
        assert torch.equal(there[[0, 2]], here[[0, 2]])
        assert torch.equal(there[1], expected)
    changed.reset_noise()
    assert not torch.equal(changed.learners.next_noise(ENVS)[0], unchanged.learners.next_noise(ENVS)[0])


def test_per_member_agents_have_separate_cohorts():
    population = Population(members_of(WORLDS["vectors"], 0, per_member=True))
    cohort = population.cohort
    assert isinstance(cohort, PerMemberLearner)
    assert [learner.networks for learner in cohort.population_learners] == [[agent.network] for agent in population]
    assert [agent.learner.cohort for agent in population] == cohort.population_learners
    assert population.cohort is cohort
    population.set_members([*population[:2], population[0].clone(index=9), *population[3:]])
    assert population.cohort is not cohort
    assert population[2].learner.cohort is population.cohort.population_learners[2]
    again = Population.from_documents(*population.to_documents(), device="cpu", where="memory")
    assert again[0].per_member is True
    assert again[0].genome == population[0].genome
    assert "per_member" not in population[0].genome.hyperparameters


def test_a_population_whose_execution_options_are_set_has_a_cohort_with_them():
    population = Population(members_of(WORLDS["vectors"], 0))
    before, cohort = [state_of(agent) for agent in population], population.cohort
    for options in ({"precision": "bfloat16"}, {"per_member": True}, {"per_member": False, "precision": "float32"}):
        for agent in population:
            for name, value in options.items():
                setattr(agent, name, value)
        assert population.cohort is not cohort
        cohort = population.cohort
        assert isinstance(cohort, PerMemberLearner) == population[0].per_member
        assert {its.execution for its in cohort.population_learners} == {population[0].learner.execution}
        assert population.cohort is cohort
        for agent, state in zip(population, before, strict=True):
            assert all(torch.equal(x, state[name]) for name, x in state_of(agent).items())


def test_snapshots_can_be_restored():
    population = Population(members_of(WORLDS["vectors"], 0, per_member=True))
    own, before = population[1].learner.cohort, [state_of(agent) for agent in population]
    kept = own.snapshot(0)
    for agent in (population[0], population[1]):
        with torch.no_grad():
            next(agent.network.parameters()).add_(1.0)
    own.restore(0, kept)
    assert all(torch.equal(x, before[1][name]) for name, x in state_of(population[1]).items())
    assert not all(torch.equal(x, before[0][name]) for name, x in state_of(population[0]).items())


@pytest.mark.parametrize("per_member", [True, False])
def test_per_member_actions_do_not_depend_on_the_number_of_rows(per_member):
    agent = PPO(Box(-1, 1, (8,)), Box(-1, 1, (2,)), seed=1, per_member=per_member)
    rows = agent.learner.encoding.random_rows(64, torch.Generator().manual_seed(3))
    state = agent.learner.initial_hidden_state.repeat(64, 1, 1, 1)
    together, _ = agent.learner.best_actions(rows, None, state)
    alone = [agent.learner.best_actions(rows[i : i + 1].clone(), None, state[i : i + 1])[0][0] for i in range(64)]
    assert np.array_equal(together, alone) is per_member
