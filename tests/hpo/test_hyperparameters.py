from __future__ import annotations

import copy
import json
import math
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import Choice, FrozenMapping, HyperparameterConfig, RLParameter

seeds = st.integers(0, 2**32 - 1)


@st.composite
def parameters(draw: st.DrawFn) -> RLParameter:
    """Any legal range."""
    resample = draw(st.floats(0, 1))
    factors = draw(st.floats(0.1, 0.99)), draw(st.floats(1.01, 10))
    scale = draw(st.sampled_from(["auto", "linear", "log", "power_of_two"]))
    if scale == "power_of_two":
        low, high = sorted((draw(st.integers(0, 20)), draw(st.integers(0, 20))))
        return RLParameter(2**low, 2**high, dtype=int, scale=scale, resample=resample)
    dtype = draw(st.sampled_from([int, float]))
    least = (1 if dtype is int else 1e-8) if scale == "log" else -1000
    values = st.integers(least, 1000) if dtype is int else st.floats(least, 1000)
    low, high = sorted((draw(values), draw(values)))
    return RLParameter(low, high, *factors, dtype, scale=scale, resample=resample)


@given(parameters(), seeds)
def test_mutated_values_stay_legal(parameter: RLParameter, seed: int) -> None:
    rng = np.random.default_rng(seed)
    value = parameter.resample_value(rng)
    for _ in range(30):
        parameter.check("value", value)
        assert type(value) is parameter.dtype
        value = parameter.mutate(value, rng)


@given(parameters(), seeds)
def test_a_mutation_changes_the_value_unless_the_range_has_only_one(parameter: RLParameter, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for value in (parameter.min, parameter.max, parameter.resample_value(rng)):
        # floats closer together than a few roundings may coincide
        if parameter.max - parameter.min > 1e-9:
            assert parameter.mutate(value, rng) != value
        elif parameter.min == parameter.max:
            assert parameter.mutate(value, rng) == value


def reachable(parameter: RLParameter, start: int) -> set[int]:
    seen, frontier = {start}, [start]
    while frontier:
        fresh = set(parameter.neighbours(frontier.pop())) - seen
        seen |= fresh
        frontier.extend(fresh)
    return seen


RANGES = [(low, low + width) for low in (-40, -7, -1, 0, 1, 2, 5, 17, 100) for width in (0, 1, 2, 3, 9, 40, 250)]


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_every_integer_is_reachable_from_every_other_without_resampling(low: int, high: int) -> None:
    parameter = RLParameter(low, high, dtype=int, resample=0)
    assert reachable(parameter, low) == set(range(low, high + 1))
    # and from everywhere some step leads down, hence to the lowest, from which everything can be reached
    assert all(min(parameter.neighbours(value)) < value for value in range(low + 1, high + 1))


def test_powers_of_two_double_and_halve_whatever_the_factors() -> None:
    parameter = RLParameter(16, 1024, 0.8, 1.2, int, scale="power_of_two", resample=0)
    assert parameter.neighbours(64) == (32, 128)
    assert parameter.neighbours(16) == (32,)
    assert parameter.neighbours(1024) == (512,)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, (2,)),  # 1 * 1.2 = 1.2 is one or two, and a step moves
        (4, (3, 5)),  # 4 * 0.8 = 3.2 and 4 * 1.2 = 4.8; four itself is no step
        (9, (7, 8, 10)),  # 9 * 0.8 = 7.2; 9 * 1.2 = 10.8 is too much, and only 10 lies between
        (7, (5, 6, 8, 9)),  # 5.6 and 8.4
        (10, (8,)),  # 10 * 0.8 = 8 exactly; there is no way up
    ],
)
def test_update_epochs_can_step_up_and_down_where_agilerl_only_falls(value: int, expected: tuple[int, ...]) -> None:
    assert RLParameter(1, 10, dtype=int).neighbours(value) == expected


@given(st.integers(1, 60), seeds)
def test_a_step_leads_to_a_neighbour(value: int, seed: int) -> None:
    parameter = RLParameter(1, 60, dtype=int)
    assert parameter.perturb(value, np.random.default_rng(seed)) in parameter.neighbours(value)


def test_integers_are_rounded_without_bias(assert_frequency) -> None:
    rng = np.random.default_rng(0)
    steps = Counter(RLParameter(1, 100, dtype=int).perturb(9, rng) for _ in range(4000))
    # down to 7.2, up to 10.8: the nearer integer gets four fifths of its half
    for landed, probability in {7: 0.4, 8: 0.1, 10: 0.1, 11: 0.4}.items():
        assert_frequency(steps.pop(landed), 4000, probability)
    assert not steps


def test_a_factor_of_one_keeps_floats_and_moves_integers_by_one() -> None:
    rng = np.random.default_rng(0)
    decaying = RLParameter(min=0.0001, max=0.001, grow_factor=1.0, shrink_factor=0.9)  # AgileRL's entropy bonus
    assert {decaying.perturb(5e-4, rng) for _ in range(20)} == {5e-4, 5e-4 * 0.9}
    assert RLParameter(1, 10, grow_factor=1, dtype=int).neighbours(5) == (4, 6)  # 5 * 0.8 = 4
    assert RLParameter(1, 10, shrink_factor=1, dtype=int).neighbours(5) == (4, 6)  # 5 * 1.2 = 6
    assert RLParameter(1, 10, grow_factor=1, dtype=int).neighbours(10) == (8,)
    assert RLParameter(1, 10, shrink_factor=1, dtype=int).neighbours(1) == (2,)


def test_a_float_moves_by_exactly_the_factors(assert_frequency) -> None:
    rng = np.random.default_rng(0)
    steps = Counter(RLParameter(1e-5, 1e-1).perturb(1e-3, rng) for _ in range(1000))
    assert set(steps) == {1e-3 * 0.8, 1e-3 * 1.2}
    assert_frequency(steps[1e-3 * 1.2], 1000, 0.5)


def test_a_step_across_a_bound_lands_uniformly_before_the_bound(assert_frequency) -> None:
    rng = np.random.default_rng(0)
    gamma = RLParameter(0.8, 0.999)
    steps = np.array([gamma.perturb(0.9, rng) for _ in range(2000)])  # 0.72 and 1.08 are both outside
    # the halves of [0.8, 0.9] and of [0.9, 0.999] are equally likely
    for low, high in ((0.8, 0.85), (0.85, 0.9), (0.9, 0.9495), (0.9495, 0.999)):
        assert_frequency(int(((steps >= low) & (steps < high)).sum()), 2000, 0.25)


@pytest.mark.parametrize("parameter", [RLParameter(0.8, 0.999, resample=0), RLParameter(-2, 3, resample=0)])
def test_floats_reach_their_whole_range_without_resampling(parameter: RLParameter) -> None:
    rng = np.random.default_rng(0)
    for value in (parameter.min, parameter.max):
        visited = set()
        for _ in range(3000):
            value = parameter.mutate(value, rng)
            visited.add(int(20 * (value - parameter.min) / (parameter.max - parameter.min)))
        assert visited >= set(range(20))


def test_zero_can_be_left_and_crossed() -> None:
    rng = np.random.default_rng(0)
    assert RLParameter(0, 0.1).perturb(0.0, rng) == pytest.approx(0.001)  # a hundredth of the range
    # a fifth of 0.005 is less than a hundredth of the range, 0.02
    assert {round(RLParameter(-1, 1).perturb(0.005, rng), 9) for _ in range(50)} == {-0.015, 0.025}
    # below zero "up" is towards zero: -0.5 * 0.8 and -0.5 * 1.2
    assert {round(RLParameter(-1, 1).perturb(-0.5, rng), 9) for _ in range(50)} == {-0.4, -0.6}


def test_a_linear_sample_is_uniform(assert_frequency) -> None:
    rng = np.random.default_rng(0)
    draws = Counter(RLParameter(3, 7, dtype=int).resample_value(rng) for _ in range(3000))
    assert set(draws) == {3, 4, 5, 6, 7}
    for count in draws.values():
        assert_frequency(count, 3000, 1 / 5)
    floats = [RLParameter(3, 7).resample_value(rng) for _ in range(1000)]
    assert_frequency(sum(value < 4 for value in floats), 1000, 1 / 4)


def test_a_log_sample_is_uniform_over_decades(assert_frequency) -> None:
    rng = np.random.default_rng(0)
    draws = [RLParameter(1e-5, 1e-1, scale="log").resample_value(rng) for _ in range(2000)]
    for decade in range(-5, -1):
        assert_frequency(sum(10**decade <= value < 10 ** (decade + 1) for value in draws), 2000, 1 / 4)
    # the integer n stands for [n - 1/2, n + 1/2], so of 1 to 4 it gets log((n + 1/2) / (n - 1/2)) / log(4.5 / 0.5)
    integers = Counter(RLParameter(1, 4, dtype=int, scale="log").resample_value(rng) for _ in range(2000))
    for n in range(1, 5):
        assert_frequency(integers[n], 2000, math.log((n + 0.5) / (n - 0.5)) / math.log(9))


def test_a_power_of_two_sample_is_uniform_over_exponents(assert_frequency) -> None:
    rng = np.random.default_rng(0)
    parameter = RLParameter(8, 64, dtype=int, scale="power_of_two")
    draws = Counter(parameter.resample_value(rng) for _ in range(2000))
    assert set(draws) == {8, 16, 32, 64}
    for count in draws.values():
        assert_frequency(count, 2000, 1 / 4)


def test_a_mutation_resamples_with_the_given_probability(assert_frequency) -> None:
    rng = np.random.default_rng(0)
    parameter = RLParameter(0.1, 10.0, resample=0.3)
    steps = sum(parameter.mutate(1.0, rng) in (0.8, 1.2) for _ in range(2000))
    assert_frequency(steps, 2000, 0.7)


@pytest.mark.parametrize(
    ("parameter", "scale"),
    [
        (RLParameter(1e-4, 1e-2), "log"),
        (RLParameter(32, 512, dtype=int), "log"),
        (RLParameter(0.1, 1.0), "log"),  # a factor of exactly ten
        (RLParameter(0.8, 0.999), "linear"),
        (RLParameter(0.0, 0.1), "linear"),
        (RLParameter(-10, -0.1), "linear"),
    ],
)
def test_scale_auto_follows_from_the_range(parameter: RLParameter, scale: str) -> None:
    assert parameter.scale == scale


@pytest.mark.parametrize(
    ("parameter", "value", "nearest"),
    [
        (RLParameter(0, 1), 7, 1.0),
        (RLParameter(0, 1), -7, 0.0),
        (RLParameter(1, 9, dtype=int), 4.4, 4),
        (RLParameter(1, 9, dtype=int), np.int64(12), 9),
        (RLParameter(8, 64, dtype=int, scale="power_of_two"), 40, 32),
        (RLParameter(8, 64, dtype=int, scale="power_of_two"), 0, 8),
    ],
)
def test_clip_returns_the_nearest_legal_value(parameter: RLParameter, value: float, nearest: float) -> None:
    clipped = parameter.clip(value)
    assert (clipped, type(clipped)) == (nearest, parameter.dtype)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min": 2, "max": 1}, r"min=2\.0 must not be greater than max=1\.0"),
        ({"min": math.nan, "max": 1}, "min=nan must be a finite number"),
        ({"min": 0, "max": math.inf}, "max=inf must be a finite number"),
        ({"min": "0", "max": 1}, "min='0' must be a finite number"),
        ({"min": 0.5, "max": 2, "dtype": int}, "min=0.5 must be a whole number"),
        ({"min": 0, "max": 1, "dtype": bool}, "dtype=.* must be int or float"),
        ({"min": 0, "max": 1, "scale": "log"}, "min=0.0 must be positive"),
        ({"min": 0, "max": 1, "scale": "logs"}, "did you mean 'log'"),
        ({"min": 1, "max": 8, "scale": "power_of_two"}, "dtype=.* must be int on the scale 'power_of_two'"),
        ({"min": 1, "max": 9, "dtype": int, "scale": "power_of_two"}, "max=9 must be a power of two"),
        ({"min": 0, "max": 8, "dtype": int, "scale": "power_of_two"}, "min=0 must be a power of two"),
        ({"min": 0, "max": 1, "shrink_factor": 1.1}, r"shrink_factor=1\.1 must be greater than 0 and at most 1"),
        ({"min": 0, "max": 1, "grow_factor": 0.9}, r"grow_factor=0\.9 must be finite and at least 1"),
        (
            {"min": 0, "max": 1, "grow_factor": 1.0, "resample": 0},
            r"resample=0 must be above 0 where .*grow_factor=1\.0",
        ),
        ({"min": 0, "max": 1, "resample": 1.5}, r"resample=1\.5 must be a probability"),
        ({"min": 0, "max": 1, "resample": None}, r"resample=None must be a number"),
        ({"min": 0, "max": 1, "shrink_factor": "0.8"}, r"shrink_factor='0\.8' must be a number"),
        ({"min": 0, "max": 1, "dtype": []}, r"dtype=\[\] is not allowed; it must be int or float"),
    ],
)
def test_an_invalid_range_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RLParameter(**arguments)


@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        (RLParameter(1e-4, 1e-2), 0.1, r"lr=0\.1 lies outside its range \[0\.0001, 0\.01\]"),
        (RLParameter(1e-4, 1e-2), math.nan, "lr=nan must be a finite number"),
        (RLParameter(1e-4, 1e-2), None, r"lr=None is no number to begin with; set 0\.0001 to 0\.01"),
        (RLParameter(1, 8, dtype=int), 2.5, r"lr=2\.5 must be a whole number"),
        (RLParameter(1, 8, dtype=int), True, "lr=True must be a finite number"),
        (RLParameter(1, 8, dtype=int, scale="power_of_two"), 3, "lr=3 must be a power of two"),
    ],
)
def test_an_illegal_value_is_named(parameter: RLParameter, value: float, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parameter.check("lr", value)


CONFIG = HyperparameterConfig(
    lr=RLParameter(1e-5, 1e-2),
    batch_size=RLParameter(32, 512, dtype=int, scale="power_of_two"),
    update_epochs=RLParameter(1, 10, 0.5, 1.5, "int", resample=0.1),
)


def test_a_config_is_immutable_and_equals_its_copies() -> None:
    reordered = HyperparameterConfig(**{name: CONFIG[name] for name in reversed(list(CONFIG))})
    for twin in (reordered, copy.deepcopy(CONFIG), pickle.loads(pickle.dumps(CONFIG))):
        assert twin == CONFIG
        assert hash(twin) == hash(CONFIG)
        assert repr(twin) == repr(CONFIG)
        assert twin.sample(np.random.default_rng(1)) == CONFIG.sample(np.random.default_rng(1))
    assert HyperparameterConfig(lr=RLParameter(1e-5, 1e-2)) != CONFIG
    with pytest.raises(AttributeError):
        CONFIG.gamma = RLParameter(0.8, 0.99)  # pyright: ignore[reportAttributeAccessIssue]  # the point of the test
    with pytest.raises(TypeError, match="does not support item assignment"):
        CONFIG["gamma"] = RLParameter(0.8, 0.99)  # pyright: ignore[reportIndexIssue]  # the point of the test


def test_a_config_round_trips_through_json() -> None:
    data = json.loads(json.dumps(CONFIG.to_json()))
    assert data["update_epochs"] == {
        "min": 1,
        "max": 10,
        "shrink_factor": 0.5,
        "grow_factor": 1.5,
        "dtype": "int",
        "scale": "log",
        "resample": 0.1,
    }
    assert HyperparameterConfig.from_json(data) == CONFIG


def test_a_sample_is_legal_and_depends_on_the_generator_alone() -> None:
    sample = CONFIG.sample(np.random.default_rng(3))
    CONFIG.check(sample | {"gamma": 0.99})  # other values are not checked
    assert sample == CONFIG.sample(np.random.default_rng(3))
    assert sample != CONFIG.sample(np.random.default_rng(4))


def test_errors_of_a_config_name_the_field() -> None:
    with pytest.raises(ConfigurationError, match="hp_config='learning_rate' is unknown; did you mean 'learn_rate'"):
        HyperparameterConfig(learning_rate=RLParameter(0, 1)).check({"learn_rate": 0.1, "gamma": 0.99})
    with pytest.raises(ConfigurationError, match=r"hp_config\.lr=0\.1 must be an RLParameter"):
        HyperparameterConfig(lr=0.1)  # pyright: ignore[reportArgumentType]  # the point of the test
    with pytest.raises(ConfigurationError, match="'maximum' is unknown; did you mean 'max'"):
        RLParameter.from_json({"min": 0, "maximum": 1})
    with pytest.raises(ConfigurationError, match="lacks 'max'"):
        RLParameter.from_json({"min": 0})


def test_a_frozen_mapping_copies_its_entries() -> None:
    given_list = [1, 2]
    mapping = FrozenMapping({"b": given_list, "a": 0})
    given_list.append(3)
    assert mapping == {"a": 0, "b": (1, 2)}
    assert list(mapping) == ["a", "b"]


@pytest.mark.parametrize(
    "given", [{"min": 1, "max": 8, "log": True}, {"min": 1, "max": 8, "step": 2}, {"low": 1, "high": 2}]
)
def test_an_unknown_argument_of_a_range_lists_those_that_exist(given):
    with pytest.raises(ConfigurationError, match=r"argument='(log|step|low)' is unknown; allowed are: dtype, grow"):
        RLParameter(**given)


def test_values_taken_over_are_limited_where_they_are_in_use() -> None:
    ranges = HyperparameterConfig(
        lr_schedule=Choice(["linear", "kl"]), kl_threshold=RLParameter(0.01, 0.1, when={"lr_schedule": "kl"})
    )
    own = {"lr_schedule": "kl", "kl_threshold": 0.05}
    assert ranges.taken_over(own, {"lr_schedule": "kl", "kl_threshold": 0.5}) == own | {"kl_threshold": 0.1}
    assert ranges.taken_over(own, {"lr_schedule": "kl", "kl_threshold": None}) == own
    not_used = {"lr_schedule": "linear", "kl_threshold": None}
    assert ranges.taken_over(own, not_used) == not_used
