"""What a loop by hand collected, in AgileRL's tuple, as the rollout that a cohort learns from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl_like.errors import ConfigurationError
from agilerl_like.learning.digest import Experience
from agilerl_like.learning.rollout import LastObservations, Rollout
from agilerl_like.networks.distributions import ActionDistribution

NAMES = ("states", "actions", "log_probs", "rewards", "dones", "values", "next_state", "next_done")
Experiences = tuple[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any], Any, Any]
"""`NAMES`, in this order: the first six are lists over time of arrays `[E, …]`."""


def as_rollout(
    experiences: Experiences | None,
    encode: Callable[[Any], Tensor],
    distribution: ActionDistribution,
    *,
    remembered: Callable[[Tensor], Tensor],
    action_masks: Sequence[Any] | None = None,
) -> tuple[Rollout, Experience]:
    """Return the rollout `[T, 1, E, …]` of one agent, and what its loop measured itself.

    `dones[t]` says that step t *begins* an episode, so step t - 1 ended one. One flag cannot tell a time limit from an
    end; every end counts as a termination. `remembered` gives what the agent remembered before the first step
    `[E, M, K, H]`, and is told `dones[0]` `[E]`.

    Raises:
        ConfigurationError: a part is missing, is not as long or as wide as the others, or holds NaN or infinity.
    """
    if experiences is None or len(experiences) != len(NAMES):
        raise ConfigurationError(f"experiences must be ({', '.join(NAMES)}); train_on_policy collects them by itself")
    states, actions, log_probs, rewards, dones, values, next_state, next_done = experiences
    steps = len(states)
    named = dict(zip(NAMES[1:6], experiences[1:6], strict=True))
    for name, part in (named if action_masks is None else {**named, "action_masks": action_masks}).items():
        if len(part) != steps:
            raise ConfigurationError(f"experiences: {name} has {len(part)} steps; states has {steps}")
    if steps == 0:
        raise ConfigurationError("experiences: states has no steps; at least one is needed")
    observations = torch.stack([encode(state) for state in states]).unsqueeze(1)  # [T, 1, E, D]
    shape, device = (steps, observations.shape[2]), observations.device

    def numbers(name: str, part: Sequence[Any]) -> Tensor:
        return torch.from_numpy(_numbers(name, part, shape)).to(device).unsqueeze(1)  # [T, 1, E]

    raw = torch.stack([distribution.from_env(np.asarray(row)) for row in actions]).to(device).unsqueeze(1)
    ended = numbers("dones", [*dones[1:], next_done])
    rollout = Rollout(
        observations=observations,
        actions=raw,
        rewards=numbers("rewards", rewards),
        terminated=ended,
        ended=ended,
        valid=torch.ones_like(ended),
        next_observations=encode(next_state).unsqueeze(0),
        last_observations=LastObservations.none(observations),
        masks=None if action_masks is None else _flags(action_masks, shape).to(device).unsqueeze(1),
        state=remembered(torch.from_numpy(_numbers("dones", dones[:1], (1, shape[1]))[0]).to(device)).unsqueeze(0),
    )
    return rollout, Experience(numbers("log_probs", log_probs), numbers("values", values))


def _flags(masks: Sequence[Any], shape: tuple[int, int]) -> Tensor:
    array = np.stack([np.asarray(row, dtype=np.bool_) for row in masks])
    if array.ndim != 3 or array.shape[:2] != shape:
        raise ConfigurationError(f"experiences: action_masks has shape {array.shape}; allowed is {(*shape, 'choices')}")
    return torch.from_numpy(array)


def _numbers(name: str, part: Sequence[Any], shape: tuple[int, int]) -> np.ndarray:
    array = np.stack([np.asarray(row, dtype=np.float32).reshape(-1) for row in part])
    if array.shape != shape:
        raise ConfigurationError(f"experiences: {name} has shape {array.shape}; allowed is {shape}")
    if not np.isfinite(array).all():
        found = array[~np.isfinite(array)][0]
        raise ConfigurationError(f"experiences: {name} holds {found}; allowed are finite numbers")
    return array
