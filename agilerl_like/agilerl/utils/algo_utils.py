"""Helpers for spaces and observations of images."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Tuple

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.envs.pytree import tree_map
from agilerl_like.envs.spaces import mask_size

__getattr__ = absent_from(__name__)


def observation_space_channels_to_first(observation_space: gymnasium.Space) -> gymnasium.Space:
    """The space with the channels of its images `[H, W, C]` in front."""
    if isinstance(observation_space, Dict):
        return Dict({key: observation_space_channels_to_first(part) for key, part in observation_space.items()})
    if isinstance(observation_space, Tuple):
        return Tuple([observation_space_channels_to_first(part) for part in observation_space])
    if isinstance(observation_space, Box) and len(observation_space.shape) == 3:
        low, high = (np.moveaxis(side, -1, 0) for side in (observation_space.low, observation_space.high))
        return Box(low, high, dtype=observation_space.dtype)  # pyright: ignore[reportArgumentType]  # gymnasium's own
    return observation_space


transpose_image_space = observation_space_channels_to_first


def obs_channels_to_first(observation: Any) -> Any:
    """Observations `[…, H, W, C]` with their channels in front, `[…, C, H, W]`; vectors stay as they are."""
    return tree_map(lambda part: np.moveaxis(part, -1, -3) if np.ndim(part) in (3, 4) else part, observation)


def get_action_mask_size(space: gymnasium.Space) -> int:
    """How many flags a mask of a space has."""
    return mask_size(space)


def get_num_envs(env: Any) -> int:
    """How many copies a vector environment has; 1 for a single one."""
    return int(getattr(env, "num_envs", 1))
