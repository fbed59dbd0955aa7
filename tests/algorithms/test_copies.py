"""What `copy` and `pickle` make of agents and populations: twins that live, and learn, on their own."""

import copy
import pickle
import threading

import gymnasium
import numpy as np
import pytest
import torch
from small_runs import SMALL

from agilerl_like import IPPO, PPO, Mutations, TournamentSelection

SEEN, THREE = gymnasium.spaces.Box(-1, 1, (4,)), gymnasium.spaces.Discrete(3)
SETTINGS = {"seed": 1, "net_config": SMALL, "num_envs": 2, "learn_step": 32, "batch_size": 8}
WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),  # what it wrote itself a moment ago
}
KINDS = {
    "plain": {},
    "one encoder and a memory": {"share_encoders": True, "recurrent": True},
    "noise on weights": {"net_config": {"encoder_config": {"noisy": True}}},
    "a network of its own": {
        "net_config": None,
        "actor_network": torch.nn.Linear(4, 3),
        "critic_network": torch.nn.Linear(4, 1),
    },
}


def learn(agent, seed=0, steps=16):
    rng = np.random.default_rng(seed)
    states = [rng.uniform(-1, 1, (2, 4)) for _ in range(steps)]
    actions, log_probs, _, values, *_ = zip(*(agent.get_action(state) for state in states), strict=True)
    rewards, begins = list(rng.normal(size=(steps, 2))), [np.ones(2), *[np.zeros(2)] * (steps - 1)]
    return agent.learn((states, actions, log_probs, rewards, begins, values, states[0], begins[-1]))


def tensors(agent):
    return {name: tensor.clone() for name, tensor in agent.to_documents()[1].items()}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_copied_agent_learns_independently_and_bit_identically(kind, way):
    agent = PPO(SEEN, THREE, **{**SETTINGS, **kind})
    learn(agent)
    agent.mutate(Mutations(no_mutation=0, architecture=1, parameters=0, rl_hp=0), np.random.default_rng(3))
    learn(agent)
    before = tensors(agent)
    twin = way(agent)
    assert twin.to_documents()[0] == agent.to_documents()[0]
    assert equal(tensors(twin), before)
    loss = learn(twin, seed=1)
    assert not torch.equal(tensors(twin)["adam.exp_avg"], before["adam.exp_avg"])
    assert not equal(tensors(twin), before)
    assert equal(tensors(agent), before)
    assert learn(agent, seed=1) == loss
    assert equal(tensors(twin), tensors(agent))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_copied_member_has_no_reference_to_its_population(way):
    population = PPO.population(8, SEEN, THREE, **SETTINGS)
    learn(population[2], seed=2)
    population.set_training_mode(True)  # which attaches all to one cohort
    cohort, before = population.cohort, [tensors(agent) for agent in population]
    twin = way(population[2])
    assert learn(twin) == learn(population[2])
    assert equal(tensors(twin), tensors(population[2]))
    assert population.cohort is cohort
    assert all(equal(tensors(population[i]), before[i]) for i in range(8) if i != 2)
    alone = PPO(SEEN, THREE, **SETTINGS)
    learn(alone)
    assert len(pickle.dumps(population[2])) < 1.1 * len(pickle.dumps(alone))  # without the weights of other members


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_copied_population_is_independent(way):
    population = PPO.population(3, SEEN, THREE, **SETTINGS)
    population.set_training_mode(True)
    learn(population[0])
    before = [tensors(agent) for agent in population]
    twins = way(population)
    twins.set_training_mode(True)
    assert all(twins.cohort.networks[place] is twins[place].network for place in range(3))
    losses = [learn(agent, seed=1) for agent in twins]
    assert all(map(equal, map(tensors, population), before))
    assert losses == [learn(agent, seed=1) for agent in population]
    assert all(map(equal, map(tensors, population), map(tensors, twins)))


@pytest.mark.parametrize("way", [WAYS["deepcopy"], WAYS["pickle"]], ids=["deepcopy", "pickle"])
def test_a_copied_multi_agent_population_has_its_own_learners(way):
    ids = ["red_0", "red_1", "blue_0"]
    teams = IPPO.population(2, dict.fromkeys(ids, SEEN), dict.fromkeys(ids, THREE), **SETTINGS)
    for team in teams:
        learn(team.learners["red"])
    before = tensors(teams[0])
    twins = way(teams)
    twins[0].learn_step = 64
    assert [team.learners["red"].rollout_rows for team in (*twins, *teams)] == [128, 64, 64, 64]
    assert dict(twins[0].groups) == {"red": ("red_0", "red_1"), "blue": ("blue_0",)}
    for group, learners in twins.by_group.items():
        assert [*learners] == [team.learners[group] for team in twins]
    twins[0].learn_step = 32
    loss = learn(twins[0].learners["red"])
    assert equal(tensors(teams[0]), before)
    assert loss == learn(teams[0].learners["red"])
    assert equal(tensors(twins[0]), tensors(teams[0]))


def select(agent):
    agent.fitness = [1.0]
    return TournamentSelection(1, True).select([agent])[1][0]


@pytest.mark.parametrize("way", [*WAYS.values(), lambda agent: agent.clone(index=3), select])
def test_a_copied_agent_has_copies_of_the_attributes_that_a_script_has_set(way):
    agent = PPO(SEEN, THREE, **SETTINGS)
    agent.levels, agent.itself = [3], agent
    twin = way(agent)
    twin.levels.append(4)
    assert (agent.levels, twin.levels) == ([3], [3, 4])
    assert twin.itself is twin


def test_a_mutated_child_has_the_attributes_of_its_parent():
    population = PPO.population(2, SEEN, THREE, **SETTINGS)
    for agent in population:
        agent.level = 3
    before = [*population]
    population.mutate(Mutations(no_mutation=0, architecture=0, parameters=1, rl_hp=0), pre_training=True)
    assert all(new is not old and new.level == 3 for new, old in zip(population, before, strict=True))


def test_clones_lack_an_attribute_that_cannot_be_copied_with_a_warning():
    agent = PPO(SEEN, THREE, **SETTINGS)
    agent.lock, agent.level = threading.Lock(), 3
    with pytest.warns(UserWarning, match=r"clones do not have lock=<.*> of agent 0, which cannot be copied: .*lock"):
        clone = agent.clone()
    assert (clone.level, hasattr(clone, "lock")) == (3, False)


def test_a_clone_has_its_own_method_where_a_script_has_put_a_function():
    agent = PPO(SEEN, THREE, **SETTINGS)
    own = agent.get_action
    agent.get_action = lambda *given, **options: own(*given, **options)
    assert agent.clone().get_action.__self__ is not agent


class Owner:
    """Cannot be copied, and has functions for an agent."""

    def __init__(self):
        self.lock = threading.Lock()

    def hook(self, agent):
        pass

    def decay(self, progress):
        return 1.0

    def shaped(self, rewards, steps, max_steps):
        return rewards


def test_a_shallow_copy_of_a_population_shares_hooks_and_functions_as_that_of_an_agent():
    owner = Owner()
    settings = {"schedules": {"lr": owner.decay}, "reward_transform": owner.shaped}
    population = PPO.population(2, SEEN, THREE, **SETTINGS, **settings)
    population[1].register_mutation_hook(owner.hook)
    population.best_of_run = population[1].clone()
    twins = copy.copy(population)
    for twin, agent in ((twins[1], population[1]), (twins.best, population.best), (copy.copy(twins[1]), twins[1])):
        assert twin.learner is not agent.learner
        assert twin._hooks == [owner.hook]
        assert (dict(twin.schedules), twin.reward_transform) == ({"lr": owner.decay}, owner.shaped)
