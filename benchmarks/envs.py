"""Environments with memory and images, made with gymnasium alone, so that every side can use them."""

from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import TimeLimit, TransformObservation
from minatar.gym import BaseEnv as MinAtar

from benchmarks.measurement import BREAKOUT, POSITIONS

LONGEST = 5_000
"""Steps of one game of Breakout, which a good player would not end."""


def make(name: str) -> gym.Env:
    """Make one env of ``measurement.NETWORK_ENVS``, images with their channels first."""
    return {POSITIONS: _positions, BREAKOUT: _breakout}[name]()


def _positions() -> gym.Env:
    env = gym.make("CartPole-v1")
    whole = cast(Box, env.observation_space)
    low, high = whole.low[[0, 2]], whole.high[[0, 2]]
    return TransformObservation(env, lambda state: state[[0, 2]], Box(low, high))


def _breakout() -> gym.Env:
    env = TimeLimit(MinAtar("breakout", use_minimal_action_set=True), LONGEST)
    return TransformObservation(env, _channels_first, Box(0, 1, (4, 10, 10), dtype=np.uint8))


def _channels_first(image: np.ndarray) -> Any:
    return np.ascontiguousarray(image.transpose(2, 0, 1), dtype=np.uint8)
