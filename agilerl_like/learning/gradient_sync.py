"""Gradient synchronisation between processes that hold replicas of one member and step parts of its envs.

Every replica has the whole rollout and computes the same advantages. Each computes the gradient of its slice of every
minibatch, and the gradients are summed, so the member is updated as in one process, up to rounding.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from agilerl_like.learning.rollout_buffer import Rollout


class GradientSync:
    """A single process; `ReplicaGroup` overrides the methods for several."""

    rank: int = 0
    """Rank of this process among the replicas."""
    num_ranks: int = 1
    """Number of replicas."""

    def __deepcopy__(self, memo: dict[int, Any]) -> GradientSync:
        """Return itself: a copied population synchronises with the same processes."""
        return self

    def env_slice(self, envs: int) -> slice:
        """Return which of a member's envs this process steps."""
        return slice(envs * self.rank // self.num_ranks, envs * (self.rank + 1) // self.num_ranks)

    def local_slice(self, minibatch: slice) -> slice:
        """Return the sequences of a minibatch that this process computes gradients of."""
        mine = self.env_slice(minibatch.stop - minibatch.start)
        return slice(minibatch.start + mine.start, minibatch.start + mine.stop)

    def all_gather(self, rollout: Rollout) -> Rollout:
        """Return the rollout of all envs, given that of the envs of this process."""
        return rollout

    def all_reduce_(self, x: Tensor) -> Tensor:
        """Sum a tensor over all replicas in place, and return it."""
        return x


NO_SYNC = GradientSync()
"""No other replicas."""
