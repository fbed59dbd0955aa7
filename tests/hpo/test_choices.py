"""Choices, arrays of numbers and conditions, by themselves and in every explorer and selection."""

from __future__ import annotations

import copy
import json
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import (
    PB2,
    TPE,
    AutoSelection,
    BanditMutations,
    Bool,
    Choice,
    FactorSteps,
    GatedSelection,
    GaussianSteps,
    Genome,
    History,
    HyperbandSelection,
    HyperparameterConfig,
    MultiFrequencySelection,
    Mutations,
    NumberArray,
    RestartingSelection,
    RLParameter,
    Trial,
    TruncationSelection,
)
from agilerl_like.hpo.pb2 import encoded
from agilerl_like.hpo.tpe import Density
from benchmarks.toy_problems import Toy, search

seeds = st.integers(0, 2**32 - 1)
MIXED = HyperparameterConfig(
    schedule=Choice(["none", "linear", "kl"]),
    threshold=RLParameter(1e-3, 1e-1, when={"schedule": "kl"}),
    flag=Bool(),
    size=Choice([32, 64, 128], ordered=True),
    gamma=RLParameter(0.8, 0.999, scale="one_minus"),
    betas=NumberArray([RLParameter(0.8, 0.95), RLParameter(0.9, 0.999, scale="one_minus")], when={"flag": True}),
)
START = {
    "schedule": "none",
    "threshold": 0.01,
    "flag": False,
    "size": 64,
    "gamma": 0.99,
    "betas": (0.9, 0.99),
}
EXPLORERS = [
    Mutations(),
    FactorSteps(),
    GaussianSteps(),
    PB2(min_trials=4, always=True, gaussian=0.1),
    TPE(min_jobs=4, random=0.2),
    BanditMutations(kinds=("gaussian", "crossover")),
]


def chi_squared(counts: Counter, values) -> float:
    expected = sum(counts.values()) / len(values)
    return sum((counts[value] - expected) ** 2 / expected for value in values)


@pytest.mark.parametrize("explorer", [Mutations(no_mutation=0, architecture=0, parameters=0), FactorSteps()])
def test_each_value_is_reached_equally_often_in_3000_mutations(layers, explorer) -> None:
    config, rng = HyperparameterConfig(mode=Choice(["a", "b", "c"])), np.random.default_rng(0)
    genome, counts = Genome({"mode": "a"}, layers()), Counter()
    for _ in range(3000):
        genome, _ = explorer.propose(genome, History(), rng, hp_config=config)
        counts[genome.hyperparameters["mode"]] += 1
    assert chi_squared(counts, "abc") < 13.8  # 99.9 % of chi squared with 2 degrees of freedom


def test_draws_of_a_choice_are_uniform() -> None:
    rng, choice = np.random.default_rng(1), Choice(["a", "b", "c"])
    assert chi_squared(Counter(choice.resample_value(rng) for _ in range(3000)), "abc") < 13.8
    assert [choice.sampled_at([share]) for share in (0, 0.33, 0.34, 0.66, 0.67, 1)] == [*"aabbcc"]


def test_a_mutation_of_a_choice_always_changes_it_and_an_ordered_one_moves_to_a_neighbour() -> None:
    rng = np.random.default_rng(0)
    assert {Choice(["a", "b", "c"]).mutate("b", rng) for _ in range(50)} == {"a", "c"}
    sizes = Choice([32, 64, 128, 256], ordered=True, resample=0.0)
    assert {sizes.mutate(64, rng) for _ in range(50)} == {32, 128}
    assert {sizes.mutate(256, rng) for _ in range(50)} == {128}
    assert {Choice([32, 64, 128, 256], ordered=True).mutate(32, rng) for _ in range(99)} == {64, 128, 256}
    assert {Bool().mutate(flag, rng) for flag in (True, True, True)} == {False}


def test_a_flag_is_no_number() -> None:
    Choice([0, 1]).check("x", 1)
    with pytest.raises(ConfigurationError, match=r"x=True is none of its choices; allowed are 0, 1"):
        Choice([0, 1]).check("x", True)


@given(st.lists(st.one_of(st.integers(-99, 99), st.just(None)), min_size=2, max_size=9, unique=True), st.booleans())
def test_coordinates_of_a_choice_lead_back_to_its_values(values, ordered: bool) -> None:
    choice = Choice(values, ordered=ordered)
    for value in values:
        assert choice.from_units(choice.to_units(value)) == value
        assert choice.from_units([choice.to_units(value)[0] + 2]) == value  # reflected twice


def test_steps_on_the_scale_one_minus_multiply_the_distance_from_one() -> None:
    gamma = RLParameter(0.9, 0.9999, scale="one_minus", resample=0)
    rng = np.random.default_rng(0)
    steps = {round((1 - gamma.perturb(0.99, rng)) / 0.01, 9) for _ in range(50)}
    assert steps == {0.8, 1.2}
    assert gamma == RLParameter(0.9, 0.9999, scale="log_complement", resample=0)
    assert gamma.from_unit(0.5) == pytest.approx(1 - 10**-2.5)  # the middle of 1e-1 and 1e-4


def test_each_number_of_an_array_stays_in_its_own_range() -> None:
    array = NumberArray([RLParameter(0, 1), RLParameter(10, 20)])
    rng = np.random.default_rng(0)
    value = array.resample_value(rng)
    for _ in range(200):
        array.check("betas", value)
        mutated = array.mutate(value, rng)
        assert mutated != value
        value = mutated
    with pytest.raises(ConfigurationError, match=r"betas.1=5.0 lies outside its range \[10.0, 20.0\]"):
        array.check("betas", (0.5, 5.0))
    with pytest.raises(ConfigurationError, match=r"betas=0.5; allowed is a list of 2 numbers"):
        array.check("betas", 0.5)


# -- conditions


def test_an_inactive_hyperparameter_is_neither_sampled_nor_changed(layers) -> None:
    config = HyperparameterConfig(mode=Choice(["a", "b"]), x=RLParameter(0, 1, when={"mode": "b"}))
    rng, genome = np.random.default_rng(0), Genome({"mode": "a", "x": 0.5}, layers())
    assert {("x" in drawn) == (drawn["mode"] == "b") for drawn in (config.sample(rng) for _ in range(50))} == {True}
    still = HyperparameterConfig(mode=Choice(["a", "b"]), x=RLParameter(0, 1, when={"mode": "b"}), y=RLParameter(0, 1))
    genome = Genome({"mode": "a", "x": 0.5, "y": 0.5}, layers())
    for _ in range(50):
        genome, _ = GaussianSteps(redraw=0.0).propose(genome, History(), rng, hp_config=still)
    assert genome.hyperparameters["x"] == 0.5
    assert genome.hyperparameters["y"] != 0.5


def test_a_hyperparameter_that_becomes_active_is_drawn() -> None:
    config = HyperparameterConfig(mode=Choice(["a", "b"]), x=RLParameter(0.0, 1.0, when={"mode": "b"}))
    old, rng = {"mode": "a", "x": 0.5}, np.random.default_rng(0)
    drawn = [config.resolve(old, {"mode": "b"}, rng)["x"] for _ in range(400)]
    assert 0.4 < np.mean(drawn) < 0.6
    assert np.ptp(drawn) > 0.9
    assert config.resolve(old, {"x": 0.1}, rng) == {}  # and while it is inactive it stays
    assert config.resolve({"mode": "b", "x": 0.5}, {"mode": "a"}, rng) == {"mode": "a"}


def test_conditions_are_chains_and_all_must_be_met() -> None:
    config = HyperparameterConfig(
        a=Choice([1, 2, 3]),
        b=Choice([1, 2], when={"a": [2, 3]}),
        c=RLParameter(0, 1, when={"a": 2, "b": 1}),
    )
    active = {(a, b): [*config.active({"a": a, "b": b, "c": 0.0})] for a in (1, 2, 3) for b in (1, 2)}
    assert active == {
        (1, 1): ["a"],
        (1, 2): ["a"],
        (2, 1): ["a", "b", "c"],
        (2, 2): ["a", "b"],
        (3, 1): ["a", "b"],
        (3, 2): ["a", "b"],
    }
    units = np.array([config.to_units({"a": a, "b": b, "c": 0.5}) for a, b in active])
    full = np.array([[(a - 0.5) / 3, (b - 0.5) / 2, 0.5] for a, b in active])
    assert np.array_equal(config.without_inactive(full), units, equal_nan=True)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"a": Choice([1, 2], when={"b": 1}), "b": Choice([1, 2], when={"a": 1})},
            r"hp_config.a.when: the conditions are a circle \(a -> b -> a\)",
        ),
        ({"a": Choice([1, 2], when={"a": 1})}, r"hp_config.a.when: the conditions are a circle \(a -> a\)"),
        (
            {"a": RLParameter(0, 1, when={"b": 1})},
            r"hp_config.a.when='b' is none of the hyperparameters that are searched",
        ),
        (
            {"a": RLParameter(0, 1, when={"b": 1}), "b": RLParameter(0, 1), "c": Bool()},
            r"hp_config.a.when='b' is a range of numbers; allowed are c",
        ),
        (
            {"a": RLParameter(0, 1, when={"b": "lineer"}), "b": Choice(["linear", "kl"])},
            r"hp_config.a.when.b='lineer' is unknown; did you mean 'linear'",
        ),
        ({"a": 3}, r"hp_config.a=3 must be an RLParameter, a Choice or a NumberArray"),
    ],
)
def test_impossible_conditions_are_refused(parameters, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        HyperparameterConfig(**parameters)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Choice(["a"]), r"choices=\['a'\]; allowed are at least 2 values"),
        (lambda: Choice("ab"), r"choices='ab'; allowed is a list"),
        (lambda: Choice({"a"}), r"choices=\{'a'\}; allowed is a list"),  # the order of a set is not that of the seed
        (lambda: Choice([1, 1.0]), r"choices=\[1, 1.0\] has 1.0 twice"),
        (lambda: Choice([1, "a"]), r"mixes numbers with text; allowed are numbers alone, or with null"),
        (lambda: Choice(["1", "a"]), r"has '1'; allowed are text that is no number"),
        (lambda: Choice([float("nan"), 1]), r"has nan; allowed are"),
        (lambda: Choice([1, 2], when={"b": []}), r"when=\{'b': \[\]\} allows no value of 'b'"),
        (lambda: Choice([1, 2], when="b"), r"when='b'; allowed is a mapping"),
        (lambda: Choice([1, 2], resample=2), r"resample=2 must be a probability"),
        (lambda: NumberArray([]), r"each=\[\]; allowed is a list of RLParameter"),
        (lambda: NumberArray(3), r"each=3; allowed is a list"),
        (lambda: BanditMutations(kinds="steps"), r"kinds='steps'; allowed is a list"),
        (lambda: MultiFrequencySelection(frequencies=3), r"frequencies=3; allowed is a list"),
        (lambda: Mutations(activation_selection="ReLU"), r"activation_selection='ReLU'; allowed is a list"),
        (lambda: AutoSelection(halve_at=0.5), r"halve_at=0.5; allowed is a list"),
    ],
)
def test_impossible_choices_are_refused(make, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_config_is_plain_data_and_can_be_copied() -> None:
    data = json.loads(json.dumps(MIXED.to_json()))
    assert HyperparameterConfig.from_json(data) == MIXED
    assert data["schedule"] == {"choices": ["none", "linear", "kl"]}
    assert data["threshold"]["when"] == {"schedule": ["kl"]}
    assert "when" not in data["gamma"]
    for other in (copy.deepcopy(MIXED), pickle.loads(pickle.dumps(MIXED))):
        assert other == MIXED
        assert hash(other) == hash(MIXED)
        assert other.active(START).keys() == {"schedule", "flag", "size", "gamma"}
    with pytest.raises(ConfigurationError, match="Choice field='choice' is unknown; did you mean 'choices'"):
        HyperparameterConfig.from_json({"a": {"choices": [1, 2], "choice": 3}})


@given(seeds)
def test_points_of_the_unit_cube_lead_back_to_the_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = {**START, **MIXED.sample(rng)}
    units = MIXED.to_units(values)
    again = MIXED.from_units(units, rng)
    assert again.keys() == MIXED.active(values).keys()
    for name, value in again.items():
        assert value == (pytest.approx(values[name]) if name in ("threshold", "gamma", "betas") else values[name])


# -- models


def test_all_values_of_a_choice_are_equally_far_apart_for_the_process() -> None:
    config = HyperparameterConfig(a=Choice(["x", "y", "z"]), b=RLParameter(0, 1, when={"a": "x"}))
    rows = encoded(np.array([[1 / 6, 0.2], [0.5, np.nan], [5 / 6, np.nan]]), config)
    distance = np.linalg.norm(rows[:, None, :3] - rows[:, :3], axis=-1)
    assert np.allclose(distance, 0.7 * (1 - np.eye(3)))
    assert rows[:, 3].tolist() == [0.2, 0.5, 0.5]


def test_the_density_over_a_choice_adds_up_to_one() -> None:
    points = np.array([[0.25, 0.3], [0.25, np.nan], [0.75, 0.9]])
    density = Density(points, (2, 0))
    grid = np.linspace(0.0005, 0.9995, 1000)
    places = np.array([[choice, x] for choice in (0.25, 0.75) for x in grid])
    # relative to the uniform density; kernels lose a little beyond the ends, where samples are reflected
    assert 0.9 < np.exp(density.log(places)).mean() <= 1.0 + 1e-6
    assert np.exp(density.log(np.array([[0.25, 0.3]]))) > np.exp(density.log(np.array([[0.75, 0.3]])))
    drawn = density.sample(3000, np.random.default_rng(0))
    assert np.isfinite(drawn).all()
    assert set(drawn[:, 0]) == {0.25, 0.75}
    assert 0.55 < (drawn[:, 0] == 0.25).mean() < 0.68  # two of three points


def one_of_three() -> Toy:
    """In mode b a member gains up to 1 a generation, for x near 0.7; elsewhere it gains 0.1."""

    def train(total: float, hyperparameters, t: int, rng: np.random.Generator) -> float:
        if hyperparameters["mode"] != "b":
            return total + 0.1 + 0.01 * rng.normal()
        return total + 1 - abs(hyperparameters["x"] - 0.7) + 0.01 * rng.normal()

    ranges = HyperparameterConfig(
        mode=Choice([*"abcd"]), x=RLParameter(0.0, 1.0, when={"mode": "b"}), other=RLParameter(0.0, 1.0)
    )
    return Toy(ranges, float, train, float)


@pytest.mark.parametrize("explorer", [PB2(), TPE(min_jobs=4, random=0.0), BanditMutations()])
def test_trials_of_members_with_other_choices_are_left_out(explorer, layers):
    ranges = HyperparameterConfig(lr=RLParameter(1e-4, 1e-2), advantage=Choice(["gae", "mc"]))
    assert ranges.covers({"lr": 1.0, "advantage": "mc"})  # a number has a place, if not in its range
    assert not ranges.covers({"lr": 1e-3, "advantage": "vtrace"})
    assert not ranges.covers({"lr": 1e-3})
    trials = tuple(
        Trial(1 + uid // 8, uid, -1, {"lr": 1e-3, "advantage": name}, "", "None", 0.0, float(uid), 64)
        for uid, name in enumerate(["gae", "vtrace", "mc"] * 16)
    )
    genome = Genome({"lr": 1e-3, "advantage": "gae"}, layers())
    child, _ = explorer.propose(genome, History(trials), np.random.default_rng(0), hp_config=ranges)
    ranges.check(child.hyperparameters)


@pytest.mark.parametrize("explorer", EXPLORERS, ids=lambda one: type(one).__name__)
def test_trials_of_members_that_choose_none_where_this_one_has_a_range_are_left_out(explorer, layers):
    ranges = HyperparameterConfig(target_kl=RLParameter(0.01, 0.1), lr=RLParameter(1e-4, 1e-2))
    assert not ranges.covers({"target_kl": None, "lr": 1e-3})
    trials = tuple(
        Trial(1 + uid // 8, uid, -1, {"target_kl": kl, "lr": 1e-3}, "", "None", 0.0, float(uid), 64)
        for uid, kl in enumerate([0.02, None] * 24)
    )
    genome = Genome({"target_kl": 0.05, "lr": 1e-3}, layers())
    for seed in range(5):
        child, _ = explorer.propose(genome, History(trials), np.random.default_rng(seed), hp_config=ranges)
        ranges.check(child.hyperparameters)


@pytest.mark.parametrize("explorer", EXPLORERS, ids=lambda one: type(one).__name__)
def test_every_explorer_finds_the_right_choice_and_what_depends_on_it(explorer) -> None:
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        starts = [{"x": 0.0, **one_of_three().ranges.sample(rng)} for _ in range(8)]
        result = search(one_of_three(), starts, 30, TruncationSelection(), explorer, seed)
        found.append(result.best)
        for trial in result.history.trials:
            one_of_three().ranges.check(trial.hyperparameters)
    assert np.median(found) > 20  # of 30; other modes: 3


@pytest.mark.parametrize(
    "selection",
    [
        TruncationSelection(),
        GatedSelection(),
        AutoSelection(),
        MultiFrequencySelection(),
        RestartingSelection(patience=1),
        HyperbandSelection(),
    ],
    ids=lambda one: type(one).__name__,
)
@pytest.mark.parametrize(
    "explorer", [PB2(min_trials=8, always=True), TPE(min_jobs=5)], ids=lambda one: type(one).__name__
)
def test_every_selection_handles_choices_and_conditions(selection, explorer) -> None:
    def train(total: float, hyperparameters, t: int, rng: np.random.Generator) -> float:
        return total + (hyperparameters["schedule"] == "kl") + rng.normal()

    rng = np.random.default_rng(0)
    starts = [{**START, **MIXED.sample(rng)} for _ in range(8)]
    result = search(Toy(MIXED, float, train, float), starts, 12, selection, explorer)
    seen = [trial.hyperparameters for trial in result.history.trials]
    for values in seen:
        MIXED.check(values)
    assert {values["schedule"] for values in seen} == {"none", "linear", "kl"}
    assert {values["flag"] for values in seen} == {True, False}


def test_crossover_takes_a_choice_from_either_and_what_only_one_uses_from_that_one(layers) -> None:
    config = HyperparameterConfig(mode=Choice(["a", "b"]), x=RLParameter(0.0, 1.0, when={"mode": "b"}))
    mate = Trial(1, 1, -1, {"mode": "b", "x": 0.25}, "", "None", 0.0, 1.0, 1)
    genome, rng = Genome({"mode": "a", "x": 0.9}, layers()), np.random.default_rng(0)
    explorer = BanditMutations(kinds=("crossover",))
    seen = set()
    for _ in range(60):
        child, _ = explorer.propose(genome, History((mate,)), rng, hp_config=config)
        if child.hyperparameters != genome.hyperparameters:
            seen.add((child.hyperparameters["mode"], child.hyperparameters["x"]))
    assert ("b", 0.25) in seen


def test_a_history_holds_choices_and_reads_them_back() -> None:
    trial = Trial(1, 0, -1, START | {"threshold": None}, "", "None", 0.0, 1.0, 1)
    data = json.loads(json.dumps(History((trial,)).to_json()))
    assert History.from_json(data).trials[0].hyperparameters == trial.hyperparameters
