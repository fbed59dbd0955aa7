"""Observations that the critic reads and the policy does not (Pinto et al. 2018, asymmetric actor-critic).

A rollout has both in one row `[…, policy | critic]`; acting, evaluation and exported policies need the policy's part
alone. Where one part has images, rows are bytes, and the floats of the other part are four bytes each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from gymnasium.spaces import Dict
from torch import Tensor

from agilerl_like.envs.pytree import Tree
from agilerl_like.envs.spaces import FLOAT32_BYTES, ObservationEncoder
from agilerl_like.errors import ConfigurationError, unknown_name

POLICY = "policy"
"""The name of the policy's own observation in `critic_observation`."""


class PartEncoder(ObservationEncoder):
    """Encodes some entries of Dict observations; of a single one, `key`, its arrays without the Dict around them.

    It reads whole observations, and observations that have its own part alone.
    """

    def __init__(self, space: Space, key: str | None, **options: Any) -> None:
        super().__init__(space, **options)
        self.key = key

    def select(self, observation: Tree) -> Tree:
        is_whole = self.key is not None and isinstance(observation, Mapping) and self.key in observation
        return observation[self.key] if is_whole and not _has_entries(observation, self.space) else observation

    def float_titles(self) -> list[str]:
        titles = super().float_titles()
        if self.key is None:
            return titles
        return [title.replace("observation", f"observation.{self.key}", 1) for title in titles]


class AsymmetricEncoder:
    """Encodes observations as rows in which the policy's part precedes the critic's; `ObservationEncoder` for rollouts.

    `names` are the entries of a Dict space that the critic reads, and "policy" for what the policy reads, which is
    everything that is not named.

    Raises:
        ConfigurationError: the space is no Dict, a name is unknown, or nothing is left for the policy.
    """

    is_asymmetric = True

    def __init__(self, space: Space, names: Sequence[str], **options: Any) -> None:
        self.space, self.names = space, tuple(names)
        of_policy, of_critic = _keys(space, names)
        self.whole = ObservationEncoder(space, **options)
        self.policy, self.critic = (_part(space, keys, options) for keys in (of_policy, of_critic))
        self.parts = self.policy, self.critic
        is_bytes = any(part.dtype is torch.uint8 for part in self.parts)
        self.dtype = torch.uint8 if is_bytes else torch.float32
        widths = [part.size * (FLOAT32_BYTES if is_bytes and part.dtype is torch.float32 else 1) for part in self.parts]
        self._border, self.size = widths[0], sum(widths)

    @property
    def swap_channels(self) -> bool | None:
        """Whether its images have their channels last; None if some have and some have not."""
        return self.whole.swap_channels

    def encode(self, observation: Tree) -> np.ndarray:
        """Encode observations as `ObservationEncoder.encode`, as rows `[…, size]`."""
        return self.join([part.encode(observation) for part in self.parts], np)

    def join(self, parts: Sequence[Any], xp: Any) -> Any:
        """Return rows from the rows of policy and critic; `xp` is numpy or torch, the module of their arrays."""
        if self.dtype is torch.uint8:
            parts = [part if part.dtype == xp.uint8 else _as_bytes(part, xp) for part in parts]
        return xp.concatenate(list(parts), -1)

    def policy_rows(self, rows: Tensor) -> Tensor:
        """Return the policy's part of rows; rows that have nothing else are returned as they are."""
        return self._typed(rows[..., : self._border], self.policy) if self.has_critic_part(rows) else rows

    def critic_rows(self, rows: Tensor) -> Tensor:
        """Return the critic's part of rows."""
        return self._typed(rows[..., self._border :], self.critic)

    def has_critic_part(self, rows: Tensor) -> bool:
        """Whether rows are those of a rollout and not the policy's part alone."""
        return rows.dtype is self.dtype and rows.shape[-1] == self.size

    def _typed(self, rows: Tensor, part: ObservationEncoder) -> Tensor:
        return rows.view(torch.float32) if rows.dtype is torch.uint8 and part.dtype is torch.float32 else rows

    def float_columns(self, rows: Tensor) -> Tensor:
        """Return the float32 values of rows; a copy where rows are bytes."""
        if rows.is_floating_point():
            return rows
        pairs = zip(self.parts, (self.policy_rows(rows), self.critic_rows(rows)), strict=True)
        return torch.cat([part.float_columns(its) for part, its in pairs], -1)

    def float_titles(self) -> list[str]:
        """Return the title of the entry that each of `float_columns` belongs to."""
        return [title for part in self.parts for title in part.float_titles()]

    def random_rows(self, count: int, generator: torch.Generator) -> Tensor:
        """Return random rows as `ObservationEncoder.random_rows`."""
        return self.join([part.random_rows(count, generator) for part in self.parts], torch)

    def as_batch(self, observation: Any) -> tuple[Tree, bool]:
        """Return observations as `ObservationEncoder.as_batch`."""
        return self.whole.as_batch(observation)

    def __deepcopy__(self, memo: dict[int, Any]) -> AsymmetricEncoder:
        """Return the encoder itself: it is immutable, so copies of a network can share it."""
        return self


def make_observation_encoder(space: Space, critic_observation: str | Sequence[str] = POLICY, **options: Any) -> Any:
    """Return the encoder of a space: an `AsymmetricEncoder` unless the critic reads what the policy reads.

    Raises:
        ConfigurationError: as `AsymmetricEncoder`.
    """
    names = observation_names(critic_observation)
    return ObservationEncoder(space, **options) if names == (POLICY,) else AsymmetricEncoder(space, names, **options)


def observation_names(critic_observation: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names in a `critic_observation`; ConfigurationError if there are none, or one is there twice."""
    names = (critic_observation,) if isinstance(critic_observation, str) else tuple(critic_observation)
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(f"critic_observation={critic_observation!r}; allowed are distinct names, at least one")
    return names


def _keys(space: Space, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the keys of the policy's part and of the critic's."""
    if not isinstance(space, Dict):
        raise ConfigurationError(
            f"critic_observation={_shown(names)} needs observations with such a key, but the observation space is "
            f"{space}; allowed is {POLICY!r}"
        )
    for name in names:
        if name != POLICY and name not in space.spaces:
            raise unknown_name("critic_observation", name, [POLICY, *space.spaces])
    of_policy = [key for key in space.spaces if key == POLICY or key not in names]
    if not of_policy:
        raise ConfigurationError(
            f"critic_observation={_shown(names)} leaves no observation for the policy; allowed are some of "
            f"{', '.join(space.spaces)}, and {POLICY!r} for what the policy observes"
        )
    return of_policy, [key for name in names for key in (of_policy if name == POLICY else [name])]


def _shown(names: Sequence[str]) -> str:
    return repr(names[0] if len(names) == 1 else list(names))


def _part(space: Any, keys: Sequence[str], options: Mapping[str, Any]) -> PartEncoder:
    """Return the encoder of some entries of a Dict space."""
    if len(keys) == 1:
        return PartEncoder(space[keys[0]], keys[0], **options)
    return PartEncoder(Dict([(key, space[key]) for key in keys]), None, **options)


def _has_entries(observation: Tree, space: Space) -> bool:
    """Return whether an observation has the entries of a space, and so has each of its parts."""
    if not isinstance(space, Dict) or not isinstance(observation, Mapping):
        return not isinstance(space, Dict) and not isinstance(observation, Mapping)
    return observation.keys() == space.spaces.keys() and all(
        _has_entries(observation[key], part) for key, part in space.spaces.items()
    )


def _as_bytes(floats: Any, xp: Any) -> Any:
    contiguous = np.ascontiguousarray(floats) if xp is np else floats.contiguous()
    return contiguous.view(xp.uint8)
