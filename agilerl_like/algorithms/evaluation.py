"""Playing counted episodes: every member on the same seeds, none cut short because another one was quicker.

The subtlety is the count. Taking the first episodes that end, from whichever env, favours short ones; so each env
plays one episode of a given seed and what it does afterwards is ignored, until all have ended and the next round
begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from agilerl_like.envs.spaces import ObservationEncoding
from agilerl_like.envs.transitions import TransitionEnv

Policy = Callable[[Tensor, Tensor | None], np.ndarray]
"""Encoded observations `[N, D]` and masks `[N, M]` to the env's actions `[N, …]`."""


class Episodes(NamedTuple):
    """What P members scored in K episodes each."""

    returns: np.ndarray  # [P, K] float64
    lengths: np.ndarray  # [P, K] int64

    @property
    def steps(self) -> int:
        """Env steps of all members together."""
        return int(self.lengths.sum())


def evaluate(
    policy: Policy,
    env: TransitionEnv,
    seeds: Sequence[int],
    *,
    members: int,
    device: torch.device,
    max_steps: int | None = None,
) -> Episodes:
    """Play one episode for each of `seeds` and each of `members`, whose envs are equal blocks of the env's rows.

    `max_steps` cuts an episode that is longer.
    """
    envs = env.num_envs // members
    rounds = [_round(policy, env, seeds[i : i + envs], members, device, max_steps) for i in range(0, len(seeds), envs)]
    return Episodes(*(np.concatenate(parts, axis=1) for parts in zip(*rounds, strict=True)))


def _round(
    policy: Policy, env: TransitionEnv, seeds: Sequence[int], members: int, device: torch.device, max_steps: int | None
) -> tuple[np.ndarray, np.ndarray]:
    envs = env.num_envs // members
    encoding = ObservationEncoding(env.single_observation_space)
    playing = np.tile(np.arange(envs) < len(seeds), members)
    spare = [seeds[i % len(seeds)] for i in range(envs)]
    returns, lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, dtype=np.int64)
    observations = env.reset(spare * members)
    while playing.any():
        encoded = torch.from_numpy(encoding.encode(observations)).to(device)
        mask = None if env.action_mask is None else torch.from_numpy(env.action_mask).to(device)
        transition = env.step(policy(encoded, mask))
        observations = transition.obs
        counted = playing & transition.valid
        returns[counted] += transition.reward[counted]
        lengths[counted] += 1
        playing &= ~(transition.terminated | transition.truncated)
        if max_steps is not None:
            playing &= lengths < max_steps
    return tuple(x.reshape(members, envs)[:, : len(seeds)] for x in (returns, lengths))  # pyright: ignore[reportReturnType]  # a pair
