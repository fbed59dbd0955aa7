"""Who learns as one member: mostly a process alone, else several that share the member's envs.

All of them see the whole rollout and think the same of it; then each takes its part of every minibatch, and the
gradients are added up. So a member learns what it would learn in one process, but for rounding.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from agilerl_like.learning.rollout_buffer import Rollout


class GradientSync:
    """This process alone."""

    rank: int = 0
    """Which of the processes this is."""
    num_ranks: int = 1
    """How many there are."""

    def __deepcopy__(self, memo: dict[int, Any]) -> GradientSync:
        """A copy of a population learns with the same processes."""
        return self

    def env_slice(self, envs: int) -> slice:
        """Which of a member's envs are stepped here."""
        return slice(envs * self.rank // self.num_ranks, envs * (self.rank + 1) // self.num_ranks)

    def local_slice(self, minibatch: slice) -> slice:
        """The sequences of a minibatch that are learned from here."""
        mine = self.env_slice(minibatch.stop - minibatch.start)
        return slice(minibatch.start + mine.start, minibatch.start + mine.stop)

    def all_gather(self, rollout: Rollout) -> Rollout:
        """The rollout of all envs, of the one of those that are here."""
        return rollout

    def all_reduce_(self, x: Tensor) -> Tensor:
        """Add up what all have, in place; returns it."""
        return x


NO_SYNC = GradientSync()
"""Nobody else."""
