"""R13: the hyperparameters that are recorded are those that the next update uses, whatever happened before."""

import json
import math
from itertools import product

import gymnasium
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tiny_runs import NIGHTLY, SMALL, flat, tier

from agilerl_like import PPO, HyperparameterConfig, Mutations, Population, RLParameter, TournamentSelection
from agilerl_like.algorithms import IPPO
from agilerl_like.algorithms.ppo_config import PPOConfig
from agilerl_like.algorithms.ppo_learner import hyperparams_of
from agilerl_like.hpo import PopulationView, next_generation
from agilerl_like.learning.ppo_update import HYPERPARAM_NAMES
from agilerl_like.learning.rollout_buffer import FinalObservations, Rollout

SEEN = gymnasium.spaces.Box(-1, 1, (3,))
TWO = gymnasium.spaces.Discrete(2)
ENVS, MEMBERS = 2, 3
RANGES = HyperparameterConfig(
    lr=RLParameter(1e-5, 1e-1),
    gamma=RLParameter(0.5, 1.0),
    gae_lambda=RLParameter(0.0, 1.0),
    clip_coef=RLParameter(0.05, 0.5),
    ent_coef=RLParameter(0.0, 0.5),
    vf_coef=RLParameter(0.1, 2.0),
    max_grad_norm=RLParameter(0.01, 10.0),
    learn_step=RLParameter(8, 32, dtype=int),
    batch_size=RLParameter(2, 32, dtype=int),
    update_epochs=RLParameter(1, 3, dtype=int),
)
COUNTS = ("learn_step", "batch_size")  # who differs in them does not learn together with others
VALUES = HyperparameterConfig(**{name: range_ for name, range_ in RANGES.items() if name not in COUNTS})
SETTINGS = {"learn_step": 16, "batch_size": 4, "update_epochs": 2, "lr": 1e-3, "num_envs": ENVS, "hp_config": RANGES}
ONLY_NUMBERS = Mutations(no_mutation=0, architecture=0, parameters=0, rl_hp=1)
ALL_KINDS = Mutations(no_mutation=0.1, architecture=0.2, parameters=0.1, activation=0.2, rl_hp=0.4)
ANOTHER_ACTIVATION = Mutations(no_mutation=0, architecture=0, parameters=0, activation=1, rl_hp=0)


def population_of(seed, size=MEMBERS, **settings):
    return PPO.population(size, SEEN, TWO, seed=seed, net_config=SMALL, **{**SETTINGS, **settings})


def motley(seed, **settings):
    """Members that differ in every number, and in what they can be stacked with."""
    population, rng = population_of(seed, **settings), np.random.default_rng(seed)
    for place, agent in enumerate(population):
        is_set(population, place, rng)
        if rng.random() < 0.5:
            agent.mutate(ANOTHER_ACTIVATION, rng)
    return population


def rollout_of(places, steps):
    """What a member at each place saw and did: other numbers for each, and for each length."""
    generator = torch.Generator().manual_seed(steps)
    shape = steps, MEMBERS, ENVS
    observations = torch.rand(*shape, 3, generator=generator)
    actions = torch.randint(0, 2, (*shape, 1), generator=generator)
    rewards = torch.randn(shape, generator=generator)
    ended = (torch.rand(shape, generator=generator) < 0.1).float()
    following = torch.rand(MEMBERS, ENVS, 3, generator=generator)
    no_final_obs = FinalObservations.none(observations, MEMBERS)
    nothing = torch.zeros(MEMBERS, ENVS, 2, 0, 0)
    whole = Rollout.from_steps(
        observations, actions, rewards, ended, ended, torch.ones(shape), following, no_final_obs, None, nothing
    )
    return whole[torch.tensor(places)]


# -- what may happen to a population between two updates


def mutates(population, place, rng):
    population[place].mutate(ALL_KINDS if rng.random() < 0.5 else ONLY_NUMBERS, rng)
    return population


def is_copied(population, place, rng):
    agents = list(population)
    agents[place] = agents[int(rng.integers(MEMBERS))].clone(index=1 + max(agent.index for agent in agents))
    population.set_members(agents)
    return population


def evolves(population, place, rng):
    agents = list(population)
    births = next_generation(
        PopulationView(
            rng.normal(size=MEMBERS),
            [agent.index for agent in agents],
            [agent.genome for agent in agents],
            generation=int(rng.integers(1, 1000)),
        ),
        [agent.hp_config for agent in agents],
        selection=TournamentSelection(2),
        explorer=ALL_KINDS,
        seed=population.seed,
        next_uid=1 + max(agent.index for agent in agents),
        repair=population.repair,
    )
    population.evolve(births)
    return population


def is_loaded(population, place, rng):
    documents, tensors = population.to_documents()
    return Population.from_documents(json.loads(json.dumps(documents)), tensors, device="cpu", where="memory")


def is_set(population, place, rng):
    agent = population[place]
    drawn = agent.hp_config.sample(rng)
    for name, value in agent.repair({**agent.genome.hyperparameters, **drawn}).items():
        setattr(agent, name, value)
    return population


EVENTS = (mutates, is_copied, evolves, is_loaded, is_set)


def assert_recorded_and_legal(agent):
    """Reported, saved and inherited values are equal, within bounds, and those of the next update."""
    agent.check()
    (saved, _), inherited = agent.to_documents(), agent.genome.hyperparameters
    for name, value in agent.hyperparameters.items():
        assert saved["settings"][name] == inherited[name] == value == getattr(agent, name)
        assert RANGES[name].min <= value <= RANGES[name].max
        assert type(value) is RANGES[name].dtype
    read = hyperparams_of([agent.learner])
    derived = {"lr_critic": saved["settings"]["lr"], "beta1": 0.9, "beta2": 0.999, "bootstrap": 1.0}
    derived |= {"n_step": math.inf, "kl_threshold": math.inf}  # no meaning with the modes of these members
    for name in HYPERPARAM_NAMES:
        recorded = derived[name] if name in derived else saved["settings"].get(name, getattr(PPOConfig, name, None))
        assert getattr(read, name).item() == np.float32(math.inf if recorded is None else recorded)


def assert_learns_as_recorded(population, places):
    """An agent that is made of nothing but the records does the same update."""
    twins = {place: recorded(population[place]) for place in places}
    before = {place: (flat(population[place]), population[place].optimizer.steps.item()) for place in places}
    reports = population.learn(places, rollout_of)
    for place, twin in twins.items():
        agent, (weights, steps) = population[place], before[place]
        samples = agent.rollout_steps * ENVS
        minibatches = min(samples, max(1, round(samples / agent.batch_size)))
        assert reports[place]["epochs"].item() == agent.update_epochs
        assert agent.optimizer.steps.item() == steps + agent.update_epochs * minibatches
        Population([twin]).learn([0], lambda _, length, place=place: rollout_of([place], length))
        if agent.per_member:
            assert np.array_equal(flat(agent), flat(twin))
        else:  # together with others the last bits are others
            way, its_way = flat(agent) - weights, flat(twin) - weights
            np.testing.assert_allclose(way, its_way, atol=0.05 * np.abs(its_way).max())


def recorded(agent):
    document, tensors = agent.to_documents()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    return PPO.from_documents(json.loads(json.dumps(document)), tensors, device="cpu", where="memory")


STORIES = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, MEMBERS - 1)), min_size=1, max_size=8)
LEARNERS = st.sets(st.integers(0, MEMBERS - 1), min_size=1).map(sorted)
SEEDS = st.integers(0, 2**31)


def some(pr, nightly):
    return settings(max_examples=tier(pr, nightly), derandomize=not NIGHTLY, deadline=None)


@some(60, 10_000)
@given(seed=SEEDS, story=STORIES)
def test_recorded_hyperparameters_are_those_of_the_next_update(seed, story):
    population, rng = motley(seed), np.random.default_rng(seed)
    for event, place in story:
        population = event(population, place, rng)
        for agent in population:
            assert_recorded_and_legal(agent)


@some(40, 400)  # each of them trains for seconds
@given(
    seed=SEEDS,
    ranges=st.sampled_from([RANGES, VALUES, VALUES]),
    story=STORIES,
    learners=st.tuples(LEARNERS, LEARNERS),
    per_member=st.booleans(),
)
def test_updates_use_the_recorded_hyperparameters(seed, ranges, story, learners, per_member):
    population, rng = motley(seed, hp_config=ranges, per_member=per_member), np.random.default_rng(seed)
    assert_learns_as_recorded(population, learners[0])
    for event, place in story:
        population = event(population, place, rng)
    for agent in population:
        assert_recorded_and_legal(agent)
    assert_learns_as_recorded(population, learners[1])


def test_mutations_never_leave_their_bounds():
    """Thousands of mutations one after the other, of numbers that depend on each other."""
    population, rng = population_of(0), np.random.default_rng(1)
    for life in range(tier(1000, 5000)):
        agent = population[life % MEMBERS]
        for _ in range(4):
            agent.mutate(ONLY_NUMBERS, rng)
        assert_recorded_and_legal(agent)


COUPLED = [
    {"learn_step": RLParameter(4, 17, dtype=int), "batch_size": RLParameter(2, 11, dtype=int)},
    {"learn_step": RLParameter(4, 16, dtype=int), "batch_size": RLParameter(2, 16, dtype=int, scale="power_of_two")},
    {
        "learn_step": RLParameter(4, 32, dtype=int, scale="power_of_two"),
        "batch_size": RLParameter(3, 20, dtype=int),
    },
]


@pytest.mark.parametrize("ranges", COUPLED)
@pytest.mark.parametrize("num_envs", [1, 3])
def test_every_legal_pair_is_reachable_from_every_other(ranges, num_envs):
    """A minibatch and its rollout, of which a mutation changes one or both before they are repaired."""
    agent = PPO(
        SEEN,
        TWO,
        net_config=SMALL,
        num_envs=num_envs,
        learn_step=16,
        batch_size=4,
        hp_config=HyperparameterConfig(**ranges),
    )
    lengths, sizes = (legal(ranges[name]) for name in ("learn_step", "batch_size"))
    pairs = {(length, size) for length, size in product(lengths, sizes) if size <= -(-length // num_envs) * num_envs}

    def ways_on(pair):
        length, size = pair
        for new in product(
            {length, *ranges["learn_step"].neighbours(length)}, {size, *ranges["batch_size"].neighbours(size)}
        ):
            mended = agent.repair({**agent.genome.hyperparameters, "learn_step": new[0], "batch_size": new[1]})
            yield mended["learn_step"], mended["batch_size"]

    onwards = {pair: set(ways_on(pair)) for pair in pairs}
    backwards = {pair: {origin for origin in pairs if pair in onwards[origin]} for pair in pairs}
    assert set().union(*onwards.values()) <= pairs
    for ways in (onwards, backwards):
        assert reached(ways, (16, 4)) == pairs


@st.composite
def coupled(draw):
    """A single agent or a team, whose rollout is at its longest and whose minibatch at its smallest, both legal."""
    num_envs = draw(st.integers(1, 20))
    crowds = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    lengths = draw(ranges_of_counts(128))
    most = math.ceil(lengths.max / num_envs) * num_envs * min(crowds)
    sizes = draw(ranges_of_counts(most))
    ranges = {"learn_step": lengths, "batch_size": sizes}
    evolving = draw(st.sets(st.sampled_from(sorted(ranges)), min_size=1))
    settings = {
        "net_config": SMALL,
        "num_envs": num_envs,
        "learn_step": lengths.max,
        "batch_size": sizes.min,
        "hp_config": HyperparameterConfig(**{name: ranges[name] for name in sorted(evolving)}),
        "seed": 1,
    }
    if crowds == [1]:
        return PPO(SEEN, TWO, **settings)
    ids = [f"{group}_{number}" for group, crowd in zip("ab", crowds, strict=False) for number in range(crowd)]
    return IPPO(dict.fromkeys(ids, SEEN), dict.fromkeys(ids, TWO), **settings)


@st.composite
def ranges_of_counts(draw, most):
    """A range within [2, most]."""
    if draw(st.booleans()):
        ends = st.integers(1, most.bit_length() - 1)
        return RLParameter(*(2**end for end in sorted([draw(ends), draw(ends)])), dtype=int, scale="power_of_two")
    ends = st.integers(2, most)
    return RLParameter(*sorted([draw(ends), draw(ends)]), dtype=int)


@given(coupled(), st.integers(0, 2**32 - 1))
@settings(max_examples=tier(pr=60, nightly=2000), deadline=None)
def test_repaired_hyperparameters_are_within_bounds_and_fit(individual, seed):
    rng = np.random.default_rng(seed)
    for _ in range(3):
        drawn = individual.hp_config.sample(rng)
        for name, value in individual.repair({**individual.genome.hyperparameters, **drawn}).items():
            setattr(individual, name, value)
        individual.check()
        individual.hp_config.check(individual.hyperparameters)


def legal(range_):
    values = range(int(range_.min), int(range_.max) + 1)
    return [value for value in values if range_.clip(value) == value]


def reached(ways, start):
    seen, frontier = {start}, [start]
    while frontier:
        fresh = ways[frontier.pop()] - seen
        seen |= fresh
        frontier.extend(fresh)
    return seen
