"""Action masks: which actions each env allows in its current state, read from `info["action_mask"]`.

An env may leave its mask out of some infos; its row then allows every action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Discrete, MultiDiscrete

from agilerl_like.envs.array_backend import Array, ArrayBackend, NumpyBackend
from agilerl_like.envs.spaces import mask_size
from agilerl_like.errors import ConfigurationError, EnvStepError


class ActionMasks:
    """Reads and checks the action masks of a vector env with one action space."""

    def __init__(self, space: Space) -> None:
        self.space, self.size = space, mask_size(space)
        self.array_backend: ArrayBackend = NumpyBackend()
        self._has_masks = False
        self._slices = mask_slices(space)
        self._blocked: Array | None = None  # rows that ever allowed nothing; tensors only

    def read(self, info: Mapping[str, Any], rows: np.ndarray, *, ended: Array | None = None) -> Array | None:
        """Return the mask [len(rows), size] of the current observations, or None before the first mask of the env.

        `rows` are the row numbers, for error messages. `ended` [len(rows)] marks rows whose next action is ignored: an
        env may allow nothing after its episode's end, which counts as everything.
        """
        given = info.get("action_mask")
        if given is None:
            return self.all_allowed(len(rows)) if self._has_masks else None
        if not self.size:
            raise ConfigurationError(f"info['action_mask'] is given for {self.space}, whose actions have no masks")
        self._has_masks = True
        present = info.get("_action_mask")
        if isinstance(given, np.ndarray) and given.dtype == object:
            given = [np.ones(self.size) if row is None else row for row in given]
        mask = self._as_bool(given)
        if tuple(mask.shape) != (len(rows), self.size):
            raise ConfigurationError(
                f"info['action_mask'] has shape {tuple(mask.shape)}; allowed for {self.space} in {len(rows)} envs is "
                f"{(len(rows), self.size)}"
            )
        if present is not None:
            mask = mask | ~self.array_backend.as_array(present, np.bool_, copy=False)[:, None]
        blocked = self._blocked_rows(mask)
        if ended is not None:
            mask = mask | (blocked & ended)[:, None]
            blocked = blocked & ~ended
        self._check_none(blocked, mask, rows)
        return mask

    def read_last(self, info: Mapping[str, Any], rows: np.ndarray) -> Array | None:
        """Return the mask of the last observations of episodes after which the next ones began in the same step.

        It is in `final_info`, as gymnasium's vector envs merge it; None without that. A row that has no mask there,
        or one that allows nothing, allows everything.
        """
        final = info.get("final_info")
        if not isinstance(final, Mapping):
            return None
        return self.read(final, rows, ended=~self.array_backend.zeros(len(rows), dtype=np.bool_))

    def all_allowed(self, rows: int) -> Array:
        """Return a mask [rows, size] that allows every action."""
        return ~self.array_backend.zeros(rows, self.size, dtype=np.bool_)

    def check(self) -> None:
        """Raise EnvStepError if a mask of tensors ever allowed nothing; this waits for the device."""
        if self._blocked is not None and bool(self._blocked.any()):
            row = int(self._blocked.nonzero()[0])
            raise EnvStepError(f"env {row}: action_mask allowed no action in one of its last steps")

    def _as_bool(self, given: Any) -> Array:
        try:
            return self.array_backend.as_array(given, np.bool_, copy=True)
        except ValueError as fault:  # rows of unequal length
            raise ConfigurationError(f"info['action_mask'] has rows of unequal shape: {given!r}") from fault

    def _blocked_rows(self, mask: Array) -> Array:
        """Return the rows of a mask in which some choice allows nothing."""
        blocked = self.array_backend.zeros(len(mask), dtype=np.bool_)
        for columns in self._slices:
            blocked = blocked | ~mask[:, columns].any(1)
        return blocked

    def _check_none(self, blocked: Array, mask: Array, rows: np.ndarray) -> None:
        if not isinstance(blocked, np.ndarray):  # a tensor is only read in `check`
            self._blocked = blocked if self._blocked is None else self._blocked | blocked
        elif blocked.any():
            first = int(np.argmax(blocked))
            values = mask[first].astype(int).tolist()
            raise EnvStepError(f"env {rows[first]}: action_mask={values} allows no action")


def mask_slices(space: Space) -> list[slice]:
    """Return the mask columns of each choice of an action, in each of which at least one entry must be True."""
    if isinstance(space, Discrete):
        return [slice(None)]
    if isinstance(space, MultiDiscrete):
        stops = np.cumsum(space.nvec)
        return [slice(stop - count, stop) for stop, count in zip(stops.tolist(), space.nvec.tolist(), strict=True)]
    return []  # MultiBinary: a bit that may not be 1 can still be 0


def is_legal(space: Space, action: Any, mask: np.ndarray | None) -> bool:
    """Whether an action lies in the space and, for a mask `[choices]` of a Discrete or MultiDiscrete space, is allowed.

    Booleans are not numbers here.
    """
    try:
        given = np.asarray(action)
    except ValueError:
        return False
    wanted = np.asarray(space.sample())
    if given.shape != wanted.shape or given.dtype == np.bool_ or given.dtype == object:
        return False
    if not np.can_cast(given.dtype, wanted.dtype, "same_kind") or not space.contains(given.astype(wanted.dtype)[()]):
        return False
    if mask is None or not isinstance(space, Discrete | MultiDiscrete):
        return True
    choices = np.atleast_1d(given - space.start)
    return all(bool(mask[columns][choice]) for columns, choice in zip(mask_slices(space), choices, strict=True))
