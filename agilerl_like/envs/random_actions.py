"""Random legal actions, for timing and checking an env. Worker processes import this without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

MASK = "action_mask"
NO_BOUND = 1e30
"""Bounds of at least this magnitude mean no bound: environments use the largest float32."""


def is_bounded(space: Box) -> bool:
    """Return whether all bounds of a space are real ones."""
    return bool((np.abs([space.low, space.high]) < NO_BOUND).all())


def sample_of(space: gym.Space) -> Any:
    """Return a random sample of a space; a Box is sampled as if bounds that mean none were infinite."""
    if not isinstance(space, Box) or is_bounded(space):
        return space.sample()
    low = np.where(space.low <= -NO_BOUND, -np.inf, space.low)
    high = np.where(space.high >= NO_BOUND, np.inf, space.high)
    return Box(low, high, dtype=space.dtype.type, seed=int(space.np_random.integers(2**31))).sample()


def sample_legal_action(env: gym.Env, info: Mapping[str, Any]) -> Any:
    """Return a random action that the env allows now; `info` is the one that it returned last."""
    sample = getattr(env.unwrapped, "sample_legal", None)
    return sample_masked(env.action_space, info.get(MASK)) if sample is None else sample()


def sample_masked(space: gym.Space, mask: Any) -> Any:
    """Return a random action of a space under a flat action mask (see `envs.spaces.mask_size`), or under None."""
    if mask is None or not isinstance(space, (Discrete, MultiDiscrete, MultiBinary)):
        return sample_of(space)
    flags = np.asarray(mask).ravel().astype(np.int8)
    if isinstance(space, Discrete):
        return space.sample(mask=flags)
    if isinstance(space, MultiDiscrete):
        return space.sample(mask=tuple(np.split(flags, np.cumsum(space.nvec)[:-1])))
    return space.sample(mask=np.where(flags, 2, 0).astype(np.int8).reshape(space.shape))  # 2: either value
