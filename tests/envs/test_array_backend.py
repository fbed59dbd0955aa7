"""The numpy and the torch backend are equivalent, and tensors are not read."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from image_envs import Photographer

from agilerl_like.envs import ObservationEncoder, VecEnvAdapter, make_vect_envs
from agilerl_like.envs.array_backend import NumpyBackend, TorchBackend, array_backend_of
from agilerl_like.errors import ConfigurationError, EnvStepError

HOST, DEVICE = NumpyBackend(), TorchBackend(torch.device("cpu"))

SPACES = [
    Box(-1, 1, (3,)),
    Box(0, 255, (2,), np.uint8),
    Discrete(4, start=-2),
    MultiDiscrete([2, 3], start=[5, 0]),
    MultiBinary(4),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_torch_and_numpy_encode_equally(space):
    space.seed(0)
    encoding = ObservationEncoder(space)
    seen = np.stack([space.sample() for _ in range(20)])
    rows = DEVICE.make_encode_fn(encoding)(torch.from_numpy(seen))
    assert rows.dtype is torch.float32
    np.testing.assert_array_equal(rows, encoding.encode(seen))
    np.testing.assert_array_equal(HOST.make_encode_fn(encoding)(seen), encoding.encode(seen))


@pytest.mark.parametrize("outside", [1, 6])
def test_a_category_outside_the_space_is_nan_in_torch(outside):
    rows = DEVICE.make_encode_fn(ObservationEncoder(Discrete(4, start=2)))(torch.tensor([2, outside, 5]))
    assert rows.isnan().all(1).tolist() == [False, True, False]
    assert rows[[0, 2]].tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("space", "values", "allowed"),
    [
        (Box(0, 255, (3, 8, 8), np.uint8), torch.full((2, 3, 8, 8), 0.37), "from 0 to 255"),
        (Discrete(3), torch.tensor([1.7, 0.0]), r"that lie in Discrete\(3\)"),
        (MultiDiscrete([2, 3]), torch.full((2, 2), 1.7), r"that lie in MultiDiscrete\(\[2 3\]\)"),
    ],
    ids=["image", "category", "categories"],
)
def test_floats_in_the_place_of_bytes_and_categories_are_refused(space, values, allowed):
    encoding = ObservationEncoder(space)
    with pytest.raises(EnvStepError, match=f"has dtype torch.float32; allowed are whole numbers {allowed}"):
        DEVICE.make_encode_fn(encoding)(values)
    with pytest.raises(EnvStepError, match=r"allowed .* whole numbers"):
        HOST.make_encode_fn(encoding)(values.numpy())


def test_where_selects_rows_in_every_array_of_a_tree():
    flags = np.array([True, False, True])
    yes, no = ({"a": sign * np.arange(3.0), "b": (sign * np.ones((3, 2)),)} for sign in (1, -1))
    tensors = ({"a": torch.tensor(tree["a"]), "b": (torch.tensor(tree["b"][0]),)} for tree in (yes, no))
    for picked in (HOST.where(flags, yes, no), DEVICE.where(torch.tensor(flags), *tensors)):
        assert picked["a"].tolist() == [0, -1, 2]
        assert picked["b"][0].tolist() == [[1, 1], [-1, -1], [1, 1]]


def test_maybe_any_reads_numpy_and_not_torch():
    assert HOST.maybe_any(np.array([False, True]))
    assert not HOST.maybe_any(np.array([False, False]))
    assert DEVICE.maybe_any(torch.tensor([False, False]))


def test_actions_are_converted_to_the_backends_type():
    for given in (np.array([1, 0]), torch.tensor([1, 0])):
        assert isinstance(HOST.to_env_actions(given), np.ndarray)
        assert HOST.to_env_actions(given).tolist() == DEVICE.to_env_actions(given).tolist() == [1, 0]


def test_other_array_types_are_refused_with_advice():
    assert isinstance(array_backend_of({"a": (np.zeros(2),)}), NumpyBackend)
    assert isinstance(array_backend_of({"policy": torch.zeros(2)}), TorchBackend)
    with pytest.raises(ConfigurationError, match=r"builtins\.list.*JaxToTorch"):
        array_backend_of([0.0])


def alone(seeds, actions):
    """Step single envs in a loop: the first observations, and next_obs and obs of each step."""
    encoding = ObservationEncoder(Photographer.observation_space, swap_channels=True)

    def row(observation):
        return encoding.encode(encoding.as_batch(observation)[0])[0]

    envs, first, steps = [Photographer() for _ in seeds], [], []
    for env, seed in zip(envs, seeds, strict=True):
        first.append(row(env.reset(seed=seed)[0]))
    for each in actions:
        rows = []
        for env, action in zip(envs, each, strict=True):
            after, _, terminated, truncated, _ = env.step(action)
            before_the_next = env.reset()[0] if terminated or truncated else after
            rows.append((row(before_the_next), row(after)))
        steps.append([np.stack(column) for column in zip(*rows, strict=True)])
    return encoding, np.stack(first), steps


@pytest.mark.parametrize("backend", ["sync", "async", "workers"])
def test_observations_with_images_are_bit_identical_with_every_backend(backend):
    seeds = [3, 1, 4, 1]
    actions = np.random.default_rng(0).integers(4, size=(15, 4))
    encoding, first, steps = alone(seeds, actions)
    env = VecEnvAdapter(
        make_vect_envs(Photographer, 4, backend=backend, num_workers=2 if backend == "workers" else None)
    )
    env.set_num_members(2)
    assert len(env.columns) == (2 if backend == "workers" else 1)  # two halves, which step in turn
    np.testing.assert_array_equal(encoding.encode(env.reset(seeds)), first)
    cut = 0
    for action, (obs, next_obs) in zip(actions, steps, strict=True):
        transition = env.step(action)
        np.testing.assert_array_equal(encoding.encode(transition.obs), obs)
        np.testing.assert_array_equal(encoding.encode(transition.next_obs), next_obs)
        cut += int((transition.truncated & ~transition.terminated).sum())
    assert cut > 0
    env.close()
