"""numpy and torch mean the same, and tensors are not looked into."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from agilerl_like.envs import ObservationEncoding
from agilerl_like.envs.arrays import HostArrays, TensorArrays, arrays_of
from agilerl_like.errors import ConfigurationError

HOST, DEVICE = HostArrays(), TensorArrays(torch.device("cpu"))

SPACES = [
    Box(-1, 1, (3,)),
    Box(0, 255, (2,), np.uint8),
    Discrete(4, start=-2),
    MultiDiscrete([2, 3], start=[5, 0]),
    MultiBinary(4),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_tensors_are_encoded_as_numpy_is(space):
    space.seed(0)
    encoding = ObservationEncoding(space)
    seen = np.stack([space.sample() for _ in range(20)])
    rows = DEVICE.encoder(encoding)(torch.from_numpy(seen))
    assert rows.dtype is torch.float32
    np.testing.assert_array_equal(rows, encoding.encode(seen))
    np.testing.assert_array_equal(HOST.encoder(encoding)(seen), encoding.encode(seen))


@pytest.mark.parametrize("outside", [1, 6])
def test_a_category_outside_the_space_is_no_number(outside):
    rows = DEVICE.encoder(ObservationEncoding(Discrete(4, start=2)))(torch.tensor([2, outside, 5]))
    assert rows.isnan().all(1).tolist() == [False, True, False]
    assert rows[[0, 2]].tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]


def test_rows_are_picked_by_flags_in_every_array_of_a_tree():
    flags = np.array([True, False, True])
    yes, no = ({"a": sign * np.arange(3.0), "b": (sign * np.ones((3, 2)),)} for sign in (1, -1))
    tensors = ({"a": torch.tensor(tree["a"]), "b": (torch.tensor(tree["b"][0]),)} for tree in (yes, no))
    for picked in (HOST.where(flags, yes, no), DEVICE.where(torch.tensor(flags), *tensors)):
        assert picked["a"].tolist() == [0, -1, 2]
        assert picked["b"][0].tolist() == [[1, 1], [-1, -1], [1, 1]]


def test_only_numpy_is_looked_into():
    assert HOST.some(np.array([False, True]))
    assert not HOST.some(np.array([False, False]))
    assert DEVICE.some(torch.tensor([False, False]))


def test_actions_come_to_numpy_and_to_tensors():
    for given in (np.array([1, 0]), torch.tensor([1, 0])):
        assert isinstance(HOST.actions(given), np.ndarray)
        assert HOST.actions(given).tolist() == DEVICE.actions(given).tolist() == [1, 0]


def test_other_arrays_are_refused_with_what_to_do():
    assert isinstance(arrays_of({"a": (np.zeros(2),)}), HostArrays)
    assert isinstance(arrays_of({"policy": torch.zeros(2)}), TensorArrays)
    with pytest.raises(ConfigurationError, match=r"builtins\.list.*JaxToTorch"):
        arrays_of([0.0])
