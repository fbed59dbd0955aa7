"""Random legal actions, for timing and checking an env. Worker processes import this without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete

MASK = "action_mask"


def sample_legal_action(env: gym.Env, info: Mapping[str, Any]) -> Any:
    """Return a random action that the env allows now; `info` is the one that it returned last."""
    sample = getattr(env.unwrapped, "sample_legal", None)
    return sample_masked(env.action_space, info.get(MASK)) if sample is None else sample()


def sample_masked(space: gym.Space, mask: Any) -> Any:
    """Return a random action of a space under a flat action mask (see `envs.spaces.mask_size`), or under None."""
    if mask is None or not isinstance(space, (Discrete, MultiDiscrete, MultiBinary)):
        return space.sample()
    flags = np.asarray(mask).ravel().astype(np.int8)
    if isinstance(space, Discrete):
        return space.sample(mask=flags)
    if isinstance(space, MultiDiscrete):
        return space.sample(mask=tuple(np.split(flags, np.cumsum(space.nvec)[:-1])))
    return space.sample(mask=np.where(flags, 2, 0).astype(np.int8).reshape(space.shape))  # 2: either value
