"""Random legal actions: by the mask in the info, and for every agent of a multi-agent env."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from agilerl_like.envs.backend_timing import prefer_workers
from agilerl_like.envs.random_actions import sample_masked, sample_of


@pytest.mark.parametrize(
    ("space", "mask", "allowed"),
    [
        (Discrete(4, start=1), [0, 1, 0, 1], {2, 4}),
        (MultiDiscrete([2, 3]), [0, 1, 1, 0, 1], {(1, 0), (1, 2)}),
        (MultiBinary(2), [False, True], {(0, 0), (0, 1)}),
        (Discrete(2), None, {0, 1}),
    ],
)
def test_samples_obey_the_mask(space, mask, allowed):
    space.seed(0)
    samples = [np.asarray(sample_masked(space, mask)).tolist() for _ in range(40)]
    assert {tuple(sample) if isinstance(sample, list) else sample for sample in samples} == allowed


def test_bounds_that_mean_none_are_sampled_as_infinite_ones():
    big = np.float32(np.finfo(np.float32).max)
    space = Box(np.array([-big, 3.0, -1.0, -big], np.float32), np.array([big, big, 1.0, 5.0], np.float32), seed=0)
    samples = np.stack([sample_of(space) for _ in range(200)])
    assert samples.dtype == np.float32
    assert (np.abs(samples) < 100).all()
    assert ((samples[:, 1] >= 3) & (np.abs(samples[:, 2]) <= 1) & (samples[:, 3] <= 5)).all()
    assert len(np.unique(samples[:, 0])) == 200
    again = Box(space.low, space.high, seed=0)
    np.testing.assert_array_equal([sample_of(again) for _ in range(200)], samples)  # they follow from the space's seed


class Strict(gym.Env):
    """Allows one of fifty actions, a different one in every step, and raises on the others."""

    observation_space, action_space = Box(0, 1, (1,)), Discrete(50)
    allowed = 0

    def tell(self):
        return {"action_mask": np.arange(50) == self.allowed}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), self.tell()

    def step(self, action):
        assert action == self.allowed, "illegal"
        self.allowed = (self.allowed + 7) % 50
        return np.zeros(1, np.float32), 0.0, False, False, self.tell()


def test_timing_uses_legal_actions():
    _, why = prefer_workers(Strict, num_envs=4, num_workers=2)
    assert why.startswith("a step of 4 envs takes ")
