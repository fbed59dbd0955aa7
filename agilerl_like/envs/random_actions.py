"""Random actions that an env allows, to time it and to check it; free of torch, because worker processes import it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete

MASK = "action_mask"


def sample_legal_action(env: gym.Env, info: Mapping[str, Any]) -> Any:
    """Return a random action that the env allows in its state; `info` is what it returned last."""
    sample = getattr(env.unwrapped, "sample_legal", None)
    return sample_masked(env.action_space, info.get(MASK)) if sample is None else sample()


def sample_masked(space: gym.Space, mask: Any) -> Any:
    """Return a random action of a space under a flat action mask, as `envs.spaces.mask_size` describes it, or None."""
    if mask is None or not isinstance(space, (Discrete, MultiDiscrete, MultiBinary)):
        return space.sample()
    flags = np.asarray(mask).ravel().astype(np.int8)
    if isinstance(space, Discrete):
        return space.sample(mask=flags)
    if isinstance(space, MultiDiscrete):
        return space.sample(mask=tuple(np.split(flags, np.cumsum(space.nvec)[:-1])))
    return space.sample(mask=np.where(flags, 2, 0).astype(np.int8).reshape(space.shape))  # 2: either value
