"""Spaces: what is accepted, how wide it is, what a network sees, and that a file brings back the same space."""

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Text, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from agilerl_like.envs import (
    ObservationEncoding,
    check_action_space,
    check_observation_space,
    encode,
    flat_size,
    mask_size,
    space_from_json,
    space_to_json,
    tree_map,
)
from agilerl_like.errors import ConfigurationError, EnvironmentFault


@st.composite
def boxes(draw) -> Box:
    dtype = np.dtype(draw(st.sampled_from(["float32", "float64", "float16", "uint8", "int64", "bool"])))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=3))
    if dtype.kind == "f":
        numbers = st.floats(width=dtype.itemsize * 8, allow_nan=False)  # infinities included
    elif dtype.kind == "b":
        numbers = st.booleans()
    else:
        numbers = st.integers(np.iinfo(dtype).min, np.iinfo(dtype).max)
    one, other = (draw(hnp.arrays(dtype, shape, elements=numbers)) for _ in range(2))
    low, high = np.asarray(np.minimum(one, other)), np.asarray(np.maximum(one, other))
    # gymnasium refuses a lower bound of +inf and an upper one of -inf
    if dtype.kind == "f":
        low = np.where(low == np.inf, 0, low).astype(dtype)
        high = np.where(high == -np.inf, 0, high).astype(dtype)
        high = np.asarray(np.maximum(low, high))
    return Box(low, high, shape=shape, dtype=dtype.type)


multi_discretes = st.builds(
    lambda pairs, dtype: MultiDiscrete([n for n, _ in pairs], dtype=dtype, start=[start for _, start in pairs]),
    st.lists(st.tuples(st.integers(1, 9), st.integers(-5, 5)), min_size=1, max_size=4),
    st.sampled_from([np.int32, np.int64]),
)
leaves = st.one_of(
    boxes(),
    st.builds(Discrete, st.integers(1, 10**6), start=st.integers(-(10**6), 10**6)),
    multi_discretes,
    st.builds(MultiBinary, st.one_of(st.integers(1, 9), st.lists(st.integers(1, 3), min_size=1, max_size=3))),
)
spaces = st.recursive(
    leaves,
    lambda parts: st.one_of(
        st.builds(Dict, st.dictionaries(st.text(), parts, min_size=1, max_size=3)),
        st.builds(Tuple, st.lists(parts, min_size=1, max_size=3)),
    ),
    max_leaves=4,
)


@settings(max_examples=80, deadline=None)
@given(space=spaces)
def test_a_space_survives_a_strict_json_file(space):
    text = json.dumps(space_to_json(space), allow_nan=False)
    again = space_from_json(json.loads(text))
    assert again == space
    assert again.dtype == space.dtype
    if isinstance(space, Dict):
        assert isinstance(again, Dict)
        assert list(again.spaces) == list(space.spaces)  # the order of keys is part of a space


def test_two_dimensional_multi_discrete_survives_too():
    space = MultiDiscrete(np.array([[2, 3], [4, 5]]))
    assert space_from_json(space_to_json(space)) == space


@pytest.mark.parametrize("space", [Text(4), Graph(Discrete(2), None), Tuple([Text(4)]), Dict({"a": Text(4)})])
def test_a_space_that_cannot_be_written_is_named(space):
    with pytest.raises(ConfigurationError, match=r"(Text|Graph).*allowed are Box"):
        space_to_json(space)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"type": "Sphere"},
        {"type": "Discrete", "dtype": "int64", "n": 0, "start": 0},
        {"type": "Box", "dtype": "float32", "shape": [2], "low": [0.0, 0.0, 0.0], "high": 1.0},
        {"type": "Box", "dtype": "float99", "shape": [2], "low": 0.0, "high": 1.0},
        {"type": "Tuple", "spaces": 3},
    ],
)
def test_data_that_is_no_space_is_refused(data):
    with pytest.raises(ConfigurationError, match="not a description of a space"):
        space_from_json(data)


# ---- encoding: the rows are written down by hand


@pytest.mark.parametrize(
    ("space", "observations", "rows"),
    [
        (Box(-np.inf, np.inf, (2,), np.float64), np.array([[1.5, -2.0]]), [[1.5, -2.0]]),
        (Box(0, 255, (2,), np.uint8), np.array([[0, 255]], dtype=np.uint8), [[0.0, 255.0]]),
        (Box(0, 1, (2,), np.bool_), np.array([[True, False]]), [[1.0, 0.0]]),
        (Box(-1, 1, ()), np.array([0.5, -0.5], dtype=np.float32), [[0.5], [-0.5]]),
        (Discrete(3), np.array([0, 2]), [[1, 0, 0], [0, 0, 1]]),
        (Discrete(3, start=1), np.array([1, 3]), [[1, 0, 0], [0, 0, 1]]),
        (Discrete(2, start=-1), np.array([-1, 0], dtype=np.int32), [[1, 0], [0, 1]]),
        (MultiDiscrete([2, 3]), np.array([[0, 2], [1, 0]]), [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0]]),
        (MultiDiscrete([2, 2], start=[5, -1]), np.array([[6, -1]]), [[0, 1, 1, 0]]),
        (MultiDiscrete(np.array([[2], [2]])), np.array([[[1], [0]]]), [[0, 1, 1, 0]]),
        (MultiBinary(3), np.array([[1, 0, 1]], dtype=np.int8), [[1, 0, 1]]),
        (MultiBinary([2, 2]), np.array([[[1, 0], [0, 1]]], dtype=np.int8), [[1, 0, 0, 1]]),
    ],
)
def test_rows_of_numbers(space, observations, rows):
    encoded = encode(space, observations)
    np.testing.assert_array_equal(encoded, rows)
    assert encoded.dtype == np.float32
    assert flat_size(space) == len(rows[0])
    # one observation alone, and a batch of batches [2, 1, …]
    np.testing.assert_array_equal(encode(space, observations[0]), rows[0])
    np.testing.assert_array_equal(encode(space, np.stack([observations[:1]] * 2)), [[rows[0]]] * 2)


def test_float32_rows_are_not_copied():
    observations = np.zeros((4, 3), dtype=np.float32)
    assert np.shares_memory(ObservationEncoding(Box(-1, 1, (3,))).encode(observations), observations)


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (Discrete(3, start=1), 0),
        (Discrete(3, start=1), 4),
        (MultiDiscrete([2, 3]), [0, 3]),
        (MultiDiscrete([2, 3]), [-1, 0]),
    ],
)
def test_a_category_outside_the_space_is_named_instead_of_wrapped_around(space, observation):
    with pytest.raises(EnvironmentFault, match="lies outside"):
        encode(space, np.array([observation]))


# ---- what agents accept


@pytest.mark.parametrize(
    "space", [Box(-1, 1, (3,)), Box(-1, 1, ()), Discrete(3), MultiDiscrete([2, 2]), MultiBinary(4)]
)
def test_observations_that_are_accepted(space):
    check_observation_space(space)
    assert flat_size(space) == gym.spaces.utils.flatdim(space)


@pytest.mark.parametrize(
    "space", [Box(0, 255, (8, 8, 3), np.uint8), Box(-1, 1, (2, 2)), Box(-1, 1, (0,)), Dict({"a": Discrete(2)}), Text(3)]
)
def test_observations_that_are_refused(space):
    with pytest.raises(ConfigurationError, match=r"observation_space=.*allowed are"):
        check_observation_space(space)


@pytest.mark.parametrize("space", [Box(-1, 1, (3,)), Discrete(3, start=1), MultiDiscrete([2, 2]), MultiBinary(4)])
def test_actions_that_are_accepted(space):
    check_action_space(space)


@pytest.mark.parametrize(
    "space", [Box(0, 3, (2,), np.int64), Box(-1, 1, (0,)), MultiDiscrete([[2, 2]]), Tuple([Discrete(2)]), Text(3)]
)
def test_actions_that_are_refused(space):
    with pytest.raises(ConfigurationError, match=r"action_space=.*allowed are Discrete"):
        check_action_space(space)


def test_masks_have_one_entry_for_each_choice():
    assert mask_size(Discrete(4, start=2)) == 4
    assert mask_size(MultiDiscrete([2, 3])) == 5  # 2 + 3, side by side
    assert mask_size(MultiBinary(6)) == 6
    assert mask_size(Box(-1, 1, (3,))) == 0


def test_tree_map_joins_what_stands_at_the_same_place():
    one = {"a": np.array([1]), "b": (np.array([2]), np.array([3]))}
    other = {"a": np.array([10]), "b": (np.array([20]), np.array([30]))}
    assert tree_map(lambda x, y: int(x[0] + y[0]), one, other) == {"a": 11, "b": (22, 33)}
    assert tree_map(len, np.zeros(4)) == 4
