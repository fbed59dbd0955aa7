"""Spaces: validation, encoding as rows, what networks read, and the JSON round trip."""

import json
import re

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Sequence, Text, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from agilerl_like.envs import (
    ObservationEncoder,
    check_action_space,
    check_observation_space,
    mask_size,
    space_from_json,
    space_to_json,
    tree_map,
)
from agilerl_like.envs.array_backend import TorchBackend
from agilerl_like.envs.space_match import check_spaces_match
from agilerl_like.envs.spaces import ambiguous_images, channel_layout
from agilerl_like.errors import ConfigurationError, EnvStepError


def encode(space, observations):
    return ObservationEncoder(space).encode(observations)


@st.composite
def boxes(draw) -> Box:
    dtype = np.dtype(draw(st.sampled_from(["float32", "float64", "float16", "uint8", "int64", "bool"])))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=3))
    if dtype.kind == "f":
        elements = st.floats(width=dtype.itemsize * 8, allow_nan=False)  # infinities included
    elif dtype.kind == "b":
        elements = st.booleans()
    else:
        elements = st.integers(np.iinfo(dtype).min, np.iinfo(dtype).max)
    one, other = (draw(hnp.arrays(dtype, shape, elements=elements)) for _ in range(2))
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


@settings(max_examples=40, deadline=None)
@given(space=spaces)
def test_a_space_round_trips_through_strict_json(space):
    text = json.dumps(space_to_json(space), allow_nan=False)
    again = space_from_json(json.loads(text))
    assert again == space
    assert again.dtype == space.dtype
    if isinstance(space, Dict):
        assert isinstance(again, Dict)
        assert list(again.spaces) == list(space.spaces)  # the order of keys is part of a space


def test_two_dimensional_multi_discrete_round_trips():
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
def test_invalid_space_data_is_refused(data):
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
def test_encoded_rows(space, observations, rows):
    encoded = encode(space, observations)
    np.testing.assert_array_equal(encoded, rows)
    assert encoded.dtype == np.float32
    assert ObservationEncoder(space).size == len(rows[0])
    # one observation alone, and a batch of batches [2, 1, …]
    np.testing.assert_array_equal(encode(space, observations[0]), rows[0])
    np.testing.assert_array_equal(encode(space, np.stack([observations[:1]] * 2)), [[rows[0]]] * 2)


def test_float32_rows_are_not_copied():
    observations = np.zeros((4, 3), dtype=np.float32)
    assert np.shares_memory(ObservationEncoder(Box(-1, 1, (3,))).encode(observations), observations)


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
    with pytest.raises(EnvStepError, match="lies outside"):
        encode(space, np.array([observation]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_categories_may_be_whole_numbers_of_any_kind(dtype):
    rows = encode(MultiDiscrete([2, 3], start=[1, 0]), np.array([[1, 2], [2, 0]], dtype))
    assert rows.tolist() == [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0]]
    with pytest.raises(EnvStepError, match="lies outside"):
        encode(Discrete(2, start=1), np.array([np.iinfo(dtype).max], dtype))


@pytest.mark.parametrize("given", [np.float64(1), [1.0, 2.0], [np.nan], "abc", [None], [1j]])
@pytest.mark.parametrize("space", [Discrete(4, start=-2), MultiDiscrete([4])])
def test_categories_that_are_no_whole_numbers_are_refused(space, given):
    wrong = np.asarray(given).reshape(-1, *space.shape)
    with pytest.raises(EnvStepError, match=f"observation has dtype {wrong.dtype}; allowed are whole numbers that lie"):
        encode(space, wrong)


@pytest.mark.parametrize("given", [["a", "b"], [object(), 1.0]])
def test_values_that_are_no_numbers_are_refused(given):
    with pytest.raises(EnvStepError, match=r"observation has dtype .*; allowed are numbers"):
        encode(Box(-1, 1, (2,)), np.array(given))


IMAGE = Box(0, 255, (1, 2, 2), np.uint8)


@given(
    hnp.arrays(
        st.sampled_from(["uint8", "bool", "int8", "int64", "uint64", "float16", "float32", "float64"]), (3, 1, 2, 2)
    )
)
def test_a_uint8_image_accepts_whole_numbers_of_any_dtype(given):
    wrong = [number for number in given.ravel().tolist() if not (0 <= number <= 255 and number == int(number))]
    if wrong:
        with pytest.raises(EnvStepError, match=rf"observation has {re.escape(str(wrong[0]))} among"):
            encode(IMAGE, given)
    else:
        np.testing.assert_array_equal(encode(IMAGE, given), given.reshape(3, 4))


@given(hnp.arrays(st.sampled_from(["int16", "float32"]), (1, 2, 2), elements=st.integers(0, 255)))
def test_a_uint8_image_of_another_dtype_gives_the_same_row(given):
    assert encode(IMAGE, given).tolist() == given.ravel().tolist()


@pytest.mark.parametrize("given", [np.full((1, 2, 2), "a"), np.full((1, 2, 2), None)])
def test_an_empty_image_is_refused(given):
    with pytest.raises(EnvStepError, match=r"observation has dtype .*; allowed are whole numbers from 0 to 255"):
        encode(IMAGE, given)


def test_a_tree_is_one_row_in_its_own_order():
    space = Dict([("z", Discrete(2)), ("a", Tuple([Box(-1, 1, (2,), np.float64), MultiBinary(2)]))])
    encoding = ObservationEncoder(space)
    rows = encoding.encode({"z": np.array([1, 0]), "a": (np.array([[0.5, 1], [-1, 0]]), np.array([[1, 0], [1, 1]]))})
    assert rows.tolist() == [[0, 1, 0.5, 1, 1, 0], [1, 0, -1, 0, 1, 1]]
    assert (encoding.size, encoding.dtype, rows.dtype) == (6, torch.float32, np.float32)
    assert [leaf.name for leaf in encoding.leaves] == ["z", "a.0", "a.1"]
    assert [leaf.kind for leaf in encoding.leaves] == ["categories", "vector", "categories"]
    assert encoding.normalised.tolist() == [False, False, True, True, False, False]
    assert encoding.float_columns(torch.from_numpy(rows)).tolist() == rows.tolist()


def test_floats_in_byte_rows_are_four_bytes_each():
    # 5 bytes of image, 2 numbers: the numbers come first, and 3 bytes fill the row up to a multiple of 4
    space = Dict({"eye": Box(0, 255, (1, 1, 5), np.uint8), "speed": Box(-1, 1, (2,))})
    encoding = ObservationEncoder(space)
    image, speed = np.array([[[[0, 51, 102, 204, 255]]]], np.uint8), np.array([[0.5, -0.25]], np.float32)
    rows = encoding.encode({"eye": image, "speed": speed})
    assert rows.tolist() == [[*speed.tobytes(), 0, 51, 102, 204, 255, 0, 0, 0]]
    assert (encoding.size, encoding.dtype, encoding.num_floats) == (16, torch.uint8, 2)
    rows = torch.from_numpy(rows)
    floats = encoding.float_columns(rows)
    assert floats.tolist() == speed.tolist()
    assert encoding.normalised.tolist() == [True, True]
    eye, its_speed = encoding.leaves
    assert eye.read(rows).tolist() == [[[[0.0, *np.array([0.2, 0.4, 0.8, 1.0], np.float32).tolist()]]]]
    floats += 1.0  # a view: who writes into it writes into the rows
    assert its_speed.read(rows).tolist() == [[1.5, 0.75]]


@pytest.mark.parametrize("xp", [np, torch])
def test_floats_in_byte_rows_may_be_transposed(xp):
    space = Dict({"eye": Box(0, 255, (1, 2, 2), np.uint8), "speed": Box(-1, 1, (2,))})
    image, speed = np.zeros((3, 1, 2, 2), np.uint8), np.arange(6, dtype=np.float32).reshape(2, 3).T
    expected = ObservationEncoder(space).encode({"eye": image, "speed": speed.copy()})
    parts = (
        [image.reshape(3, 4), speed] if xp is np else [torch.zeros(3, 4, dtype=torch.uint8), torch.tensor(speed.T).T]
    )
    np.testing.assert_array_equal(np.asarray(ObservationEncoder(space).join(parts, xp)), expected)


@pytest.mark.parametrize(
    ("space", "given", "seen"),
    [
        (Box(0, 255, (1, 1, 4), np.uint8), [0, 51, 102, 255], [0, 0.2, 0.4, 1]),
        (Box(10, 20, (1, 1, 4), np.uint8), [10, 15, 20, 20], [0, 0.5, 1, 1]),
        (Box(0, 1, (1, 1, 4), np.bool_), [0, 1, 1, 0], [0, 1, 1, 0]),
        (Box(-1, 3, (1, 1, 4), np.float32), [-1, 0, 1, 3], [0, 0.25, 0.5, 1]),
        (Box(-np.inf, np.inf, (1, 1, 4), np.float32), [-1, 0, 1, 3], [-1, 0, 1, 3]),
        (Box(-3e38, 3e38, (1, 1, 4), np.float32), [-1, 0, 1, 3], [-1, 0, 1, 3]),  # bounds that mean none
        (Box(0, 255, (4,), np.uint8), [0, 51, 102, 255], [0, 51, 102, 255]),  # no image
    ],
)
def test_images_are_scaled_by_their_bounds(space, given, seen):
    given = np.array(given, space.dtype).reshape(1, *space.shape)
    rows = torch.from_numpy(encode(space, given))
    assert (rows.dtype is torch.uint8) == (space.dtype in (np.uint8, np.bool_) and len(space.shape) == 3)
    (leaf,) = ObservationEncoder(space).leaves
    np.testing.assert_array_equal(leaf.read(rows).flatten(), np.array(seen, np.float32))
    (raw,) = ObservationEncoder(space, normalize_images=False).leaves
    np.testing.assert_array_equal(raw.read(rows).flatten(), given.flatten().astype(np.float32))
    if rows.is_floating_point():
        assert leaf.read(rows.double()).dtype is torch.float64


@pytest.mark.parametrize(("shape", "seen"), [((2, 5, 3), (3, 2, 5)), ((2, 5, 3, 4), (4, 2, 5, 3))])
def test_networks_read_channels_first(shape, seen):
    space = Box(0, 255, shape, np.uint8)
    image = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    (leaf,) = ObservationEncoder(space, swap_channels=True, normalize_images=False).leaves
    assert leaf.shape == seen
    read = leaf.read(torch.from_numpy(encode(space, image)))
    for channel in range(shape[-1]):
        assert read[channel].tolist() == image[..., channel].tolist()
    (as_it_is,) = ObservationEncoder(space).leaves
    assert as_it_is.shape == shape


def test_a_single_image_is_not_copied():
    images = np.zeros((3, 2, 2, 1), dtype=np.uint8)
    assert np.shares_memory(encode(Box(0, 255, (2, 2, 1), np.uint8), images), images)
    flags = np.zeros((3, 2, 2, 1), dtype=np.bool_)
    assert np.shares_memory(encode(Box(0, 1, (2, 2, 1), np.bool_), flags), flags)


def spaces_of_agents(levels=3):
    """Any space that agents can observe."""
    shapes = hnp.array_shapes(min_dims=0, max_dims=4, max_side=3)
    boxes = st.builds(
        lambda shape, kind: Box(*kind[:2], shape, kind[2]),
        shapes,
        st.sampled_from([(0, 255, np.uint8), (0, 1, np.bool_), (-2, 6, np.float32), (-np.inf, np.inf, np.float64)]),
    )
    parts = st.one_of(boxes, multi_discretes, st.builds(Discrete, st.integers(1, 4), start=st.integers(-3, 3)))
    if levels == 0:
        return parts
    inner = spaces_of_agents(levels - 1)
    keys = st.text(st.characters(blacklist_characters="."), min_size=1)
    return st.one_of(
        parts,
        st.builds(Dict, st.dictionaries(keys, inner, min_size=1, max_size=3)),
        st.builds(Tuple, st.lists(inner, min_size=1, max_size=3)),
    )


def arrays_in(space, observation, path=()):
    """Every array of an observation with its path, in the order of the space."""
    if isinstance(space, Dict | Tuple):
        parts = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        return [found for key, part in parts for found in arrays_in(part, observation[key], (*path, key))]
    return [(path, space, observation)]


def expected(space, array, *, swapped):
    """What a network should read of one array `[P, B, …]`, computed without rows."""
    leading = array.shape[: array.ndim - len(space.shape)]
    if isinstance(space, Box) and len(space.shape) > 2:
        image = array.astype(np.float32)
        if np.isfinite(space.low).all():
            low, high = float(space.low.min()), float(space.high.max())
            image = (image - np.float32(low)) / np.float32(high - low)
        return np.moveaxis(image, -1, 2) if swapped else image
    if isinstance(space, Discrete):
        return np.eye(space.n)[array - space.start]
    if isinstance(space, MultiDiscrete):
        return np.concatenate([np.eye(n)[array[..., i] - space.start[i]] for i, n in enumerate(space.nvec)], -1)
    return array.reshape(*leading, -1).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(space=spaces_of_agents(), seed=st.integers(0, 9), swapped=st.booleans())
def test_leaves_read_every_array_back_exactly(space, seed, swapped):
    members, samples = 2, 3
    space.seed(seed)
    given = [
        gym.vector.utils.concatenate(space, [space.sample() for _ in range(samples)], _room(space, samples))
        for _ in range(members)
    ]
    observation = tree_map(lambda *arrays: np.stack(arrays), *given)  # [P, B, …]
    encoding = ObservationEncoder(space, swap_channels=swapped)
    rows = torch.from_numpy(encoding.encode(observation))
    assert rows.dtype is encoding.dtype
    assert rows.shape == (members, samples, encoding.size)
    for leaf, (path, part, array) in zip(encoding.leaves, arrays_in(space, observation), strict=True):
        assert (leaf.path, leaf.space) == (path, part)
        seen = expected(part, array, swapped=swapped)
        np.testing.assert_array_equal(leaf.read(rows), seen)
        np.testing.assert_array_equal(leaf.read(rows[1]), seen[1])  # one member
        np.testing.assert_array_equal(leaf.read(rows[1, 2]), seen[1, 2])  # one observation
        assert leaf.read(rows).shape[2:] == leaf.shape
    floats = [leaf.read(rows).flatten(2) for leaf in encoding.leaves if not leaf.is_uint8 and leaf.kind != "image"]
    images = any(leaf.kind == "image" and not leaf.is_uint8 for leaf in encoding.leaves)
    if floats and not images:
        torch.testing.assert_close(encoding.float_columns(rows), torch.cat(floats, -1), rtol=0, atol=0)
    assert encoding.normalised.shape == encoding.float_columns(rows).shape[2:]
    device = TorchBackend(torch.device("cpu")).make_encode_fn(encoding)
    assert device(tree_map(torch.from_numpy, observation)).equal(rows)
    again = ObservationEncoder(space_from_json(json.loads(json.dumps(space_to_json(space)))), swap_channels=swapped)
    np.testing.assert_array_equal(again.encode(observation), rows)


def _room(space, samples):
    return gym.vector.utils.create_empty_array(space, samples)


TREE = Dict({"a": Box(-1, 1, (2,)), "b": Tuple([Discrete(3), Box(0, 255, (2, 2, 1), np.uint8)])})


def observed(*batch, a=(2,), b1=(2, 2, 1)):
    return {"a": np.zeros((*batch, *a), np.float32), "b": (np.zeros(batch, int), np.zeros((*batch, *b1), np.uint8))}


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (observed(5, a=(3,)), r"observation\.a has shape \(5, 3\); allowed is \(2,\)"),
        (observed(5, b1=(2, 1, 2)), r"observation\.b\.1 has shape \(5, 2, 1, 2\); allowed is \(2, 2, 1\)"),
        ({"b": observed(5)["b"]}, r"observation\.a is missing"),
        ({"a": observed(5)["a"], "b": ()}, r"observation\.b\.0 is missing"),
        ({"a": observed(5)["a"], "b": observed(4)["b"]}, r"unequal leading axes: \[\(4,\), \(5,\)\]"),
    ],
)
def test_an_observation_of_another_shape_is_named(observation, message):
    encoding = ObservationEncoder(TREE)
    with pytest.raises(EnvStepError, match=message):
        encoding.encode(observation)
    with pytest.raises(EnvStepError, match=message):
        TorchBackend(torch.device("cpu")).make_encode_fn(encoding)(tree_map(torch.from_numpy, observation))


def test_a_single_leaf_of_another_shape_is_named():
    with pytest.raises(EnvStepError, match=r"observation has shape \(4, 3\); allowed is \(2,\)"):
        encode(Box(-1, 1, (2,)), np.zeros((4, 3), np.float32))


def test_random_rows_are_standard_normal_floats_and_bytes_within_bounds():
    space = Dict({"a": Box(-1, 1, (20,)), "b": Box(3, 9, (5, 5, 5), np.uint8), "c": Box(0, 1, (5, 5, 1), np.bool_)})
    encoding = ObservationEncoder(space, normalize_images=False)
    rows = encoding.random_rows(500, torch.Generator().manual_seed(1))
    numbers, wide, flags = (leaf.read(rows) for leaf in encoding.leaves)
    assert abs(float(numbers.mean())) < 0.05  # 10,000 draws: five standard errors
    assert abs(float(numbers.std()) - 1) < 0.04
    assert wide.unique().tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert flags.unique().tolist() == [0, 1]
    plain = ObservationEncoder(Box(-1, 1, (3,))).random_rows(4, torch.Generator().manual_seed(1))
    assert plain.equal(torch.randn(4, 3, generator=torch.Generator().manual_seed(1)))


# ---- one observation or many


def test_a_single_observation_becomes_a_batch_of_one():
    encoding = ObservationEncoder(TREE)
    one = {"b": (2, np.full((2, 2, 1), 7).tolist()), "a": [0.5, 1.0], "unknown": "left out"}
    tree, single = encoding.as_batch(one)
    assert single
    assert list(tree) == ["a", "b"]
    many, was_single = encoding.as_batch(observed(3))
    assert not was_single
    assert many["b"][1].shape == (3, 2, 2, 1)
    np.testing.assert_array_equal(
        encoding.encode(tree), [[*np.array([0.5, 1, 0, 0, 1], np.float32).tobytes(), 7, 7, 7, 7]]
    )
    for space, alone, batch in ((Discrete(3), 2, [2, 0]), (Box(-1, 1, (1,)), [0.5], [[0.5], [1.0]])):
        assert [ObservationEncoder(space).as_batch(given)[1] for given in (alone, batch)] == [True, False]


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (observed(2, 3), r"observation\.a has shape \(2, 3, 2\); allowed are \(2,\) and \(batch, 2\)"),
        (observed(a=(3,)), r"observation\.a has shape \(3,\)"),
        ({"a": np.zeros(2), "b": observed(4)["b"]}, r"unequal batch sizes: \[\(\), \(4,\)\]"),
        ({"a": np.zeros(2), "c": 0}, r"^observation has no entry 'b' among 'a', 'c'; required are 'a', 'b'$"),
        ([0.0, 1.0], r"^observation has type list with 2 parts; allowed is a dict with the entries 'a', 'b'$"),
        (np.zeros(3), r"^observation has type ndarray; allowed is a dict with the entries 'a', 'b'$"),
        ({"a": np.zeros(2), "b": (0,)}, r"^observation\.b has type tuple with 1 parts; allowed is a tuple of 2 parts$"),
        (
            {"a": [[0.0], [1.0, 2.0]], "b": observed()["b"]},
            r"^observation\.a has type list with 2 parts, which is no array",
        ),
    ],
)
def test_as_batch_refuses_other_shapes(observation, message):
    with pytest.raises(ConfigurationError, match=message):
        ObservationEncoder(TREE).as_batch(observation)


# ---- spaces of envs and agents


def differing(found, reads_bounds=lambda path: False):
    expected = Dict(camera=Box(0, 255, (8, 8, 1), np.uint8), state=Box(-1.0, 1.0, (2,)), mode=Discrete(3))
    spaces = Dict({**expected.spaces, **found}), Discrete(2)
    check_spaces_match("env", spaces, "the agent", (expected, Discrete(2)), reads_bounds=reads_bounds)


def test_an_entry_with_other_bounds_is_named_in_one_warning():
    with pytest.warns(UserWarning, match=r"which its networks do not read: observation\.state=Box\(-inf, inf, \(2,\)"):
        differing({"state": Box(-np.inf, np.inf, (2,))})


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            {"mode": Discrete(4)},
            r"^env has observation\.mode=Discrete\(4\); the agent was made for Discrete\(3\): allow",
        ),
        ({"state": Box(-1.0, 1.0, (3,))}, r"^env has observation\.state=Box.*; the agent was made for Box"),
        ({"arm": Discrete(2)}, r"^env has observation\.arm=Discrete\(2\); the agent was made for no such entry"),
        ({"camera": Box(0, 9, (8, 8, 1), np.uint8)}, r"^env has observation\.camera=.*, whose bounds scale the values"),
    ],
)
def test_an_entry_of_another_space_is_named(found, message):
    with pytest.raises(ConfigurationError, match=message):
        differing(found, reads_bounds=lambda path: path == ("camera",))


# ---- what agents accept


def nested(space, levels):
    return (
        space
        if levels == 0
        else Dict({"in": nested(space, levels - 1)})
        if levels % 2
        else Tuple([nested(space, levels - 1)])
    )


@pytest.mark.parametrize(
    "space",
    [
        Box(-1, 1, (3,)),
        Box(-1, 1, ()),
        Box(-1, 1, (2, 2)),
        Box(0, 255, (8, 8, 3), np.uint8),
        Box(-1, 1, (1, 2, 2, 2)),
        Discrete(3),
        MultiDiscrete([2, 2]),
        MultiBinary(4),
        Dict({"a": Discrete(2), "b": Tuple([Box(-1, 1, (2,))])}),
        nested(Discrete(2), 3),
    ],
)
def test_supported_observation_spaces(space):
    check_observation_space(space)
    assert ObservationEncoder(space).size == gym.spaces.utils.flatdim(space)  # 8 * 8 * 3 is a multiple of 4


@pytest.mark.parametrize(
    ("space", "where", "why"),
    [
        (Box(-1, 1, (0,)), "", "has shape .0,."),
        (Box(-1, 1, (1, 1, 1, 1, 1)), "", "5 dimensions"),
        (Text(3), "", "is a Text"),
        (Sequence(Discrete(2)), "", "is a Sequence"),
        (Graph(Discrete(2), None), "", "is a Graph"),
        (OneOf([Discrete(2)]), "", "is a OneOf"),
        (Dict({}), "", "is empty"),
        (Tuple([]), "", "is empty"),
        (Dict({"a": Tuple([Discrete(2), Text(3)])}), ".a.1", "is a Text"),
        (Dict({"a": Dict({})}), ".a", "is empty"),
        (Dict({"a.b": Discrete(2)}), "", "key 'a.b'"),
        (Dict({"": Discrete(2)}), "", "key ''"),
        (Dict({3: Discrete(2)}), "", "key 3"),
        (nested(Discrete(2), 4), ".0.in.0", "nested too deep"),
    ],
)
def test_unsupported_observation_spaces(space, where, why):
    with pytest.raises(ConfigurationError, match=rf"observation_space{re.escape(where)}=.*{why}.*allowed are"):
        ObservationEncoder(space)


def test_the_name_of_a_policy_is_no_space():
    with pytest.raises(ConfigurationError, match=r"observation_space=MlpPolicy is a str.*The policies of Stable-Basel"):
        ObservationEncoder("MlpPolicy")


@pytest.mark.parametrize("space", [Box(-1, 1, (3,)), Discrete(3, start=1), MultiDiscrete([2, 2]), MultiBinary(4)])
def test_supported_action_spaces(space):
    check_action_space(space)


@pytest.mark.parametrize(
    "space", [Box(0, 3, (2,), np.int64), Box(-1, 1, (0,)), MultiDiscrete([[2, 2]]), Tuple([Discrete(2)]), Text(3)]
)
def test_unsupported_action_spaces(space):
    with pytest.raises(ConfigurationError, match=r"action_space=.*allowed are Discrete"):
        check_action_space(space)


def test_masks_have_one_entry_for_each_choice():
    assert mask_size(Discrete(4, start=2)) == 4
    assert mask_size(MultiDiscrete([2, 3])) == 5  # 2 + 3, side by side
    assert mask_size(MultiBinary(6)) == 6
    assert mask_size(Box(-1, 1, (3,))) == 0


def test_tree_map_applies_to_arrays_at_the_same_position():
    one = {"a": np.array([1]), "b": (np.array([2]), np.array([3]))}
    other = {"a": np.array([10]), "b": (np.array([20]), np.array([30]))}
    assert tree_map(lambda x, y: int(x[0] + y[0]), one, other) == {"a": 11, "b": (22, 33)}
    assert tree_map(len, np.zeros(4)) == 4


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((4, 84, 84), "first"),
        ((84, 84, 4), "last"),
        ((210, 160, 3), "last"),
        ((3, 210, 160), "first"),
        ((7, 7, 3), "last"),
        ((7, 7, 20), "last"),  # one-hot categories of a grid
        ((16, 8, 8), "first"),
        ((6, 7, 2), "last"),
        ((3, 3, 2), "last"),
        ((10, 10, 10), "ambiguous"),
        ((3, 64, 3), "ambiguous"),
        ((1, 1, 5), "ambiguous"),
        ((32, 16, 8), "ambiguous"),
        ((4, 84, 84, 3), "last"),
        ((3, 4, 84, 84), "first"),
        ((4, 3, 64, 64), "ambiguous"),
    ],
)
def test_channel_layout_is_inferred_from_the_shape(shape, layout):
    assert channel_layout(shape) == layout
    space = Dict({"eye": Box(0, 255, shape, np.uint8), "speed": Box(-1, 1, (2,))})
    assert ambiguous_images(space) == ([("eye", shape)] if layout == "ambiguous" else [])
    eye = ObservationEncoder(space).leaves[0]
    assert eye.channels_last == (layout == "last")
    for given_layout in (True, False):  # the argument wins
        assert ObservationEncoder(space, swap_channels=given_layout).leaves[0].channels_last is given_layout


def test_images_of_one_observation_may_have_different_layouts():
    space = Dict({"left": Box(0, 255, (9, 9, 3), np.uint8), "right": Box(0, 255, (3, 9, 9), np.uint8)})
    encoding = ObservationEncoder(space)
    assert [leaf.shape for leaf in encoding.leaves] == [(3, 9, 9)] * 2
    assert encoding.swap_channels is None
