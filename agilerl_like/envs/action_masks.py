"""Action masks: which actions a world allows in the state that it is in, as it says in `info["action_mask"]`.

A world may have masks and be silent for a while, and rows that say nothing may do everything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Discrete, MultiDiscrete

from agilerl_like.envs.array_backend import Array, ArrayBackend, NumpyBackend
from agilerl_like.envs.spaces import mask_size
from agilerl_like.errors import ConfigurationError, EnvStepError


class ActionMasks:
    """Reads the masks of an env."""

    def __init__(self, space: Space) -> None:
        self.space, self.size = space, mask_size(space)
        self.array_backend: ArrayBackend = NumpyBackend()
        self._seen = False
        self._choices = mask_slices(space)
        self._stuck: Array | None = None  # rows that once had no choice; tensors only

    def read(self, info: dict[str, Any], rows: np.ndarray, *, ignored: Array | None = None) -> Array | None:
        """Return the mask [len(rows), size] that goes with the observations; None as long as the world had none.

        `rows` are the envs' own, by which one without a choice is named. `ignored` ones [len(rows)] are those whose
        next action is ignored: a finished world may well allow nothing.
        """
        given = info.get("action_mask")
        if given is None:
            return self.free(len(rows)) if self._seen else None
        self._seen = True
        present = info.get("_action_mask")
        if isinstance(given, np.ndarray) and given.dtype == object:
            given = [np.ones(self.size) if row is None else row for row in given]
        mask = self._as_flags(given)
        if tuple(mask.shape) != (len(rows), self.size):
            raise ConfigurationError(
                f"info['action_mask'] has shape {tuple(mask.shape)}; allowed for {self.space} in {len(rows)} envs is "
                f"{(len(rows), self.size)}"
            )
        for free in (None if present is None else ~self.array_backend.to_bool(present, copy=False), ignored):
            mask = mask if free is None else mask | free[:, None]
        self._look_for_stuck(mask, rows)
        return mask

    def free(self, rows: int) -> Array:
        """Return a mask that allows everything."""
        return ~self.array_backend.zeros(rows, self.size, dtype=np.bool_)

    def check(self) -> None:
        """Raise EnvStepError if tensors allowed nothing somewhere since the beginning; waits for the device."""
        if self._stuck is not None and bool(self._stuck.any()):
            row = int(self._stuck.nonzero()[0])
            raise EnvStepError(f"env {row}: action_mask allowed no action in one of its last steps")

    def _as_flags(self, given: Any) -> Array:
        try:
            return self.array_backend.to_bool(given, copy=True)
        except ValueError as fault:  # rows of unequal length
            raise ConfigurationError(f"info['action_mask'] has rows of unequal shape: {given!r}") from fault

    def _look_for_stuck(self, mask: Array, rows: np.ndarray) -> None:
        for choice in self._choices:
            stuck = ~mask[:, choice].any(1)
            if not isinstance(stuck, np.ndarray):
                self._stuck = stuck if self._stuck is None else self._stuck | stuck
            elif stuck.any():
                place = int(np.argmax(stuck))
                named = f"env {rows[place]}: action_mask={mask[place].astype(int).tolist()}"
                raise EnvStepError(f"{named} allows no action")


def mask_slices(space: Space) -> list[slice]:
    """Return which entries of a mask belong to one choice, of which something must be left."""
    if isinstance(space, Discrete):
        return [slice(None)]
    if isinstance(space, MultiDiscrete):
        stops = np.cumsum(space.nvec)
        return [slice(stop - count, stop) for stop, count in zip(stops.tolist(), space.nvec.tolist(), strict=True)]
    return []  # a bit that may not be 1 can still be 0
