from __future__ import annotations

from collections import Counter
from dataclasses import fields
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import Genome, History, HyperparameterConfig, Mutation, Mutations, RLParameter
from agilerl_like.hpo.mutation import draw_operator
from agilerl_like.registry import registered

CONFIG = HyperparameterConfig(
    lr=RLParameter(1e-4, 1e-1, resample=0), batch_size=RLParameter(8, 512, dtype=int, scale="power_of_two")
)
VALUES = {"lr": 1e-2, "batch_size": 64, "gamma": 0.99}
ONLY = {"no_mutation": 0, "architecture": 0, "parameters": 0, "activation": 0, "rl_hp": 0}


def draws(mutations: Mutations, genome: Genome, count: int, **options) -> list[tuple[Genome, Mutation]]:
    rng = np.random.default_rng(0)
    children = [mutations.propose(genome, History(), rng, hp_config=CONFIG, **options) for _ in range(count)]
    return [(child, mutation) for child, (mutation,) in children]


def test_kinds_are_drawn_in_proportion_to_their_weights(layers, assert_frequency) -> None:
    mutations = Mutations(no_mutation=4, architecture=2, parameters=1, activation=1, rl_hp=2)
    kinds = Counter(mutation.kind for _, mutation in draws(mutations, Genome(VALUES, layers()), 3000))
    for kind, weight in {"none": 4, "architecture": 2, "parameters": 1, "activation": 1, "rl_hp": 2}.items():
        assert_frequency(kinds[kind], 3000, weight / 10)


def test_by_default_most_clones_change_hyperparameters(layers, assert_frequency) -> None:
    kinds = Counter(mutation.kind for _, mutation in draws(Mutations(), Genome(VALUES, layers((4, 4))), 3000))
    for kind, share in {"none": 0.1, "architecture": 0.2, "parameters": 0.1, "rl_hp": 0.6}.items():
        assert_frequency(kinds[kind], 3000, share)


def test_pre_training_never_draws_no_mutation(layers, assert_frequency) -> None:
    mutations = Mutations(no_mutation=4, architecture=1, parameters=0, rl_hp=3)
    kinds = Counter(m.kind for _, m in draws(mutations, Genome(VALUES, layers()), 1000, pre_training=True))
    assert set(kinds) == {"architecture", "rl_hp"}
    assert_frequency(kinds["rl_hp"], 1000, 3 / 4)
    unchanged = draws(Mutations(**ONLY | {"no_mutation": 1}), Genome(VALUES, layers()), 1, pre_training=True)
    assert unchanged == [(Genome(VALUES, layers()), Mutation("none"))]


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 8), min_size=1, max_size=3))
def test_a_mutation_changes_exactly_what_its_record_names(layers, seed: int, nodes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    mutations = Mutations(no_mutation=0.1, activation=0.3, activation_selection=("ReLU", "Tanh"))
    genome = Genome(VALUES, layers(tuple(nodes)))
    for _ in range(20):
        child, (mutation,) = mutations.propose(genome, History(), rng, hp_config=CONFIG)
        old, new = genome.hyperparameters, child.hyperparameters
        changed = {name: (old[name], new[name]) for name in VALUES if old[name] != new[name]}
        assert changed == (mutation.details if mutation.kind == "rl_hp" else {})
        assert (child.architecture != genome.architecture) == (mutation.kind in ("architecture", "activation"))
        assert (mutation.kind == "rl_hp") == bool(changed)
        if mutation.kind == "architecture":
            expected, _ = genome.architecture.mutate(mutation.operator, rng)
            assert mutation.operator in genome.architecture.operators("layer") + genome.architecture.operators("node")
            assert child.architecture == expected
        if mutation.kind == "activation":
            assert child.architecture.activation == mutation.details["activation"]
            assert child.architecture.nodes == genome.architecture.nodes
        CONFIG.check(child.hyperparameters)
        genome = child


def test_hyperparameters_move_independently_and_at_least_one_moves(layers, assert_frequency) -> None:
    moved = Counter(m.label for _, m in draws(Mutations(**ONLY | {"rl_hp": 1}), Genome(VALUES, layers()), 2000))
    # two coins: both with 1/4; one alone with 1/4, and half of the 1/4 in which neither came up
    for label, probability in {"batch_size,lr": 1 / 4, "lr": 3 / 8, "batch_size": 3 / 8}.items():
        assert_frequency(moved[label], 2000, probability)


def test_the_record_holds_the_repaired_values(layers) -> None:
    def small_batches(values: dict) -> dict:
        return values | {"batch_size": min(values["batch_size"], 64), "gamma": 0.9 if values["lr"] > 1e-2 else 0.99}

    records = draws(Mutations(**ONLY | {"rl_hp": 1}), Genome(VALUES, layers()), 200, repair=small_batches)
    assert any("gamma" in mutation.details for _, mutation in records)
    assert any(mutation == Mutation("none", details={"wanted": "rl_hp"}) for _, mutation in records)
    for child, mutation in records:
        assert child.hyperparameters["batch_size"] <= 64
        # a repaired value is recorded although it was not drawn, and a change that repair undid is not
        assert ("gamma" in mutation.details) == (child.hyperparameters["lr"] > 1e-2)
        for name, (old, new) in mutation.details.items() if mutation.kind == "rl_hp" else ():
            assert (old, new) == (VALUES[name], child.hyperparameters[name])
            assert old != new


def test_growing_and_shrinking_are_equally_likely_whatever_the_number_of_operators(layers, assert_frequency) -> None:
    # five ways to act on nodes: three add, two remove; one way to remove a layer, none to add one
    genome = Genome(VALUES, layers((1, 4, 4)))
    nodes = draws(Mutations(**ONLY | {"architecture": 1, "new_layer_prob": 0}), genome, 2000)
    operators = Counter(mutation.operator for _, mutation in nodes)
    assert_frequency(sum("add" in mutation.operator for _, mutation in nodes), 2000, 1 / 2)
    assert_frequency(operators["0.add_node"], 2000, 1 / 2 / 3)
    assert_frequency(operators["2.remove_node"], 2000, 1 / 2 / 2)
    layers_only = draws(Mutations(**ONLY | {"architecture": 1, "new_layer_prob": 1}), genome, 50)
    assert {mutation.operator for _, mutation in layers_only} == {"remove_layer"}


def test_only_the_verb_decides_the_direction_and_either_way_operators_count_in_both(assert_frequency) -> None:
    names = ("remove_me.add_node", "remove_me.remove_node", "change_kernel")

    class Images:
        def operators(self, kind: str) -> tuple[str, ...]:
            return names if kind == "node" else ()

    rng = np.random.default_rng(0)
    drawn = Counter(draw_operator(Images(), rng, 0.0) for _ in range(4000))
    for name, probability in zip(names, (1 / 4, 1 / 4, 1 / 2), strict=True):
        assert_frequency(drawn[name], 4000, probability)


def test_layers_are_drawn_with_new_layer_prob(layers, assert_frequency) -> None:
    mutations = Mutations(**ONLY | {"architecture": 1, "new_layer_prob": 0.3})
    records = draws(mutations, Genome(VALUES, layers()), 1000)
    assert_frequency(sum("layer" in mutation.operator for _, mutation in records), 1000, 0.3)


def test_random_architecture_mutations_do_not_drift_in_size(layers) -> None:
    rng = np.random.default_rng(0)
    mutations = Mutations(**ONLY | {"architecture": 1, "new_layer_prob": 0.3})
    genome, visited = Genome(VALUES, layers()), Counter()
    for _ in range(6000):
        genome, _ = mutations.propose(genome, History(), rng, hp_config=CONFIG)
        visited[len(genome.architecture.nodes)] += 1
    # one and three layers always leave by the only way, two layers leave to either side with equal chance: 1 : 2 : 1;
    # visits are correlated, so the bounds are twelve standard deviations of independent ones
    assert [visited[layer] / 6000 for layer in (1, 2, 3)] == pytest.approx([1 / 4, 1 / 2, 1 / 4], abs=0.07)


@pytest.mark.parametrize("kind", ["architecture", "activation", "rl_hp"])
def test_a_kind_with_nothing_to_change_is_recorded_as_wanted(layers, kind: str) -> None:
    class Rigid(layers):
        def operators(self, kind: str) -> tuple[str, ...]:
            return ()

    genome = Genome(VALUES, Rigid())
    mutations = Mutations(**ONLY | {kind: 1.0})
    rng, no_ranges = np.random.default_rng(0), HyperparameterConfig()
    child, mutation = mutations.propose(genome, History(), rng, hp_config=no_ranges)
    assert (child, mutation) == (genome, (Mutation("none", details={"wanted": kind}),))


def test_an_activation_without_alternative_is_no_mutation(layers) -> None:
    mutations = Mutations(**ONLY | {"activation": 1, "activation_selection": ["ReLU"]})
    genome = Genome(VALUES, layers())
    assert draws(mutations, genome, 1) == [(genome, Mutation("none", details={"wanted": "activation"}))]


def test_noise_keeps_the_genome_and_records_its_size(layers) -> None:
    genome = Genome(VALUES, layers())
    noise = Mutation("parameters", "noise", {"sd": 0.05, "kl": 0.02})
    assert draws(Mutations(**ONLY | {"parameters": 1, "mutation_sd": 0.05}, mutation_kl=0.02), genome, 1) == [
        (genome, noise)
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"no_mutation": -0.1}, r"no_mutation=-0\.1 must be a relative weight"),
        ({"rl_hp": nan}, "rl_hp=nan must be a relative weight"),
        ({"architecture": inf}, "architecture=inf must be a relative weight"),
        (ONLY, "must not all be 0"),
        ({"new_layer_prob": 1.1}, r"new_layer_prob=1\.1 must lie between 0 and 1"),
        ({"mutation_sd": -1}, "mutation_sd=-1 must be finite and not negative"),
        ({"mutation_kl": inf}, "mutation_kl=inf must be finite and not negative"),
        ({"activation": 0.1, "activation_selection": ()}, r"activation_selection=\(\) must name an activation"),
        ({"activation_selection": ["relu"]}, "activation_selection='relu' is unknown; did you mean 'ReLU'"),
        ({"activation_selection": ["Identity"]}, "activation_selection='Identity' is unknown; allowed are: ELU"),
    ],
)
def test_invalid_weights_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Mutations(**arguments)


@pytest.mark.parametrize("kind", ["selection", "explorer"])
def test_an_argument_of_another_name_is_refused_with_a_near_one(kind: str) -> None:
    for cls in registered(kind).values():
        if cls.__module__.startswith("agilerl_like.") and (arguments := fields(cls)):
            with pytest.raises(ConfigurationError, match=rf"did you mean .*'{arguments[0].name}'"):
                cls(**{f"{arguments[0].name}s": 1})


class Agent:
    """The agent of a loop written by hand."""

    def __init__(self) -> None:
        self.drawn: list[float] = []

    def mutate(self, mutations: Mutations, rng: np.random.Generator, *, pre_training: bool) -> None:
        self.drawn.append(rng.random() + pre_training)


def test_mutation_by_hand_spares_the_elite_and_repeats_with_its_seed() -> None:
    def mutated(**options) -> list[list[float]]:
        pre_training = options.pop("pre_training", False)
        agents = [Agent(), Agent(), Agent()]
        assert Mutations(**options).mutation(agents, pre_training_mut=pre_training) is agents
        return [agent.drawn for agent in agents]

    spared, second, third = mutated(rand_seed=1)
    assert spared == []
    assert second != third
    assert mutated(rand_seed=1) == [spared, second, third] != mutated(rand_seed=2)
    assert all(mutated(rand_seed=1, mutate_elite=True))
    assert all(drawn[0] >= 1 for drawn in mutated(pre_training=True))


def test_a_population_with_a_mutate_method_mutates_itself() -> None:
    class Stack:
        def mutate(self, mutations: Mutations, *, pre_training: bool) -> tuple[Mutations, bool]:
            return mutations, pre_training

    mutations = Mutations()
    assert mutations.mutation(Stack(), pre_training_mut=True) == (mutations, True)
