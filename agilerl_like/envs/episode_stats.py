"""Returns of episodes: those that run are added up step by step, those that ended are told when somebody asks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from agilerl_like.envs.array_backend import Array, ArrayBackend


class FinishedEpisodes(NamedTuple):
    """What ended in each of N envs: how many episodes, and the sum of their returns."""

    counts: np.ndarray  # [N] int64
    returns: np.ndarray  # [N] float64


class EpisodeTracker:
    """Adds up the rewards of the running episodes of N envs, and what came of those that ended."""

    def __init__(self, num_envs: int, arrays: ArrayBackend) -> None:
        self._arrays = arrays
        self.running = arrays.zeros(num_envs, dtype=np.float64)
        self._counts = arrays.zeros(num_envs, dtype=np.int64)
        self._returns = arrays.zeros(num_envs, dtype=np.float64)

    def update(self, rewards: Array, ended: Array) -> None:
        """Count one step of each env `[N]`, and the episodes that it ended."""
        self.running += rewards
        if self._arrays.maybe_any(ended):
            self._counts += ended
            self._returns += self._arrays.where(ended, self.running, 0.0)
            self.running = self._arrays.where(~ended, self.running, 0.0)

    def take(self) -> FinishedEpisodes:
        """Return what ended since the last call; tensors are waited for."""
        arrays = self._arrays
        taken = FinishedEpisodes(*(arrays.to_numpy(part).copy() for part in (self._counts, self._returns)))
        self._counts[:] = 0
        self._returns[:] = 0.0
        return taken
