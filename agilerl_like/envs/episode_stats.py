"""Returns of episodes: the running ones are summed step by step, the finished ones are read on request."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from agilerl_like.envs.array_backend import Array, ArrayBackend


class FinishedEpisodes(NamedTuple):
    """For each of N envs, how many episodes ended and the sum of their returns."""

    counts: np.ndarray  # [N] int64
    returns: np.ndarray  # [N] float64


class EpisodeTracker:
    """Sums the rewards of the running episodes of N envs, and the returns of the finished ones."""

    def __init__(self, num_envs: int, array_backend: ArrayBackend) -> None:
        self._backend = array_backend
        self.running = array_backend.zeros(num_envs, dtype=np.float64)
        self._counts = array_backend.zeros(num_envs, dtype=np.int64)
        self._returns = array_backend.zeros(num_envs, dtype=np.float64)
        self._begun_by_others = array_backend.zeros(num_envs, dtype=np.bool_)
        """Envs whose running episode another member began."""
        self._at_start = ~self._begun_by_others
        """Envs in whose episode no step was taken."""

    def update(self, rewards: Array, ended: Array, valid: Array) -> None:
        """Add one step of each env, `[N]`; `ended` marks the episodes that it ended, `valid` the envs that took one.

        An episode that ended without a step in that env does not count, because the env's worker process has died in
        its midst, nor does one that began before a `discard`.
        """
        self.running += rewards
        self._at_start &= ~valid
        if self._backend.maybe_any(ended):
            counted = ended & valid & ~self._begun_by_others
            self._counts += counted
            self._returns += self._backend.where(counted, self.running, 0.0)
            self.running = self._backend.where(~ended, self.running, 0.0)
            self._begun_by_others &= ~ended
            self._at_start |= ended

    def discard(self, rows: slice) -> None:
        """Discard the finished and the running episodes of some envs, whose member was replaced."""
        self._begun_by_others[rows] = ~self._at_start[rows]
        self._counts[rows] = 0
        self._returns[rows] = 0.0

    def peek(self) -> FinishedEpisodes:
        """Return the episodes that ended since the last `take`; waits for the device if there is one."""
        return FinishedEpisodes(*(self._backend.to_numpy(array).copy() for array in (self._counts, self._returns)))

    def take(self) -> FinishedEpisodes:
        """Return the episodes that ended since the last call; waits for the device if there is one."""
        taken = self.peek()
        self._counts[:] = 0
        self._returns[:] = 0.0
        return taken
