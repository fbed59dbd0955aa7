"""One env step on its way into a replay buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.agilerl.absent import absent_from

__getattr__ = absent_from(__name__)

PART = "tuple_obs_"
"""Begins the names of the parts of an observation that is a tuple, as AgileRL stores them; their places follow."""


class Transition:
    """Observations, actions, rewards, next observations and flags of a step, `[B, …]` each, on a device.

    `batch_size` has no effect.
    """

    def __init__(
        self, obs: Any, action: Any, next_obs: Any, reward: Any, done: Any, batch_size: Any = (), device: Any = None
    ) -> None:
        self.obs, self.action, self.next_obs, self.reward, self.done = obs, action, next_obs, reward, done
        self.batch_size, self.device = batch_size, device

    def to_tensordict(self) -> TensorDict:
        """Return the step as tensors: rewards, flags and fractions as floats, whole numbers as such."""
        return TensorDict(
            {
                "obs": _observation(self.obs),
                "action": torch.as_tensor(np.asarray(self.action)),
                "next_obs": _observation(self.next_obs),
                "reward": torch.as_tensor(np.asarray(self.reward)).to(torch.float32),
                "done": torch.as_tensor(np.asarray(self.done)).to(torch.float32),
            },
            device=self.device,
        )


def transition_to_tensordict(transition: Transition) -> TensorDict:
    """Return a step as a TensorDict."""
    return transition.to_tensordict()


def _observation(data: Any) -> Any:
    """Return an observation as tensors; those of whole numbers, as of a Discrete space, keep their type."""
    if isinstance(data, tuple):
        data = {f"{PART}{place}": part for place, part in enumerate(data)}
    if isinstance(data, Mapping):
        return TensorDict({name: _observation(part) for name, part in data.items()})
    tensor = data if isinstance(data, Tensor) else torch.as_tensor(np.asarray(data))
    return tensor.to(torch.float32) if tensor.is_floating_point() else tensor


def observation_of(space: gymnasium.Space, stored: Any) -> Any:
    """Return a stored observation as an env of this space has it: with tuples in place of their names."""
    if not isinstance(stored, Mapping):
        return stored
    entries = dict(stored.items())
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: observation_of(space[name], part) for name, part in entries.items() if name in space.spaces}
    parts = [*space] if isinstance(space, gymnasium.spaces.Tuple) else []
    names = [f"{PART}{place}" for place in range(len(parts))]
    if {*entries} != {*names}:
        return stored
    return tuple(observation_of(part, entries[name]) for part, name in zip(parts, names, strict=True))
