"""Returns of the episodes that each env's policy has played, for algorithms that learn from returns alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.envs.vec_adapter import Transition
from agilerl_like.errors import EnvStepError


class ObservationMoments(NamedTuple):
    """The sums that mean and variance follow from, in float64: how many rows, their sum, and that of their squares."""

    rows: Tensor
    """`[P]`."""
    total: Tensor
    """`[P, size]`."""
    squares: Tensor
    """`[P, size]`."""

    @classmethod
    def zeros(cls, members: int, size: int, device: torch.device) -> ObservationMoments:
        """Return the moments of no rows."""
        zero = torch.zeros(members, size, dtype=torch.float64, device=device)
        return cls(zero.new_zeros(members), zero, zero.clone())

    def of(self, members: list[int]) -> ObservationMoments:
        """Return a copy of the moments of some members."""
        return ObservationMoments(*(numbers[members] for numbers in self))

    def add_(self, rows: Tensor, valid: Tensor) -> None:
        """Add rows `[P, e, size]` where `valid` `[P, e]` is 1."""
        rows, valid = rows.double(), valid.double()
        self.rows.add_(valid.sum(1))
        weighted = rows * valid.unsqueeze(-1)
        self.total.add_(weighted.sum(1))
        self.squares.add_((weighted * rows).sum(1))

    def as_rows(self) -> tuple[Tensor, Tensor]:
        """Return two rows of each member with that mean and variance, `[P, 2, size]`, and their weights `[P, 2]`."""
        count = self.rows.clamp(min=1.0).unsqueeze(1)
        mean = self.total / count
        std = (self.squares / count - mean.square()).clamp(min=0.0).sqrt()
        rows = torch.stack([mean - std, mean + std], 1)
        return rows.float(), (self.rows / 2).unsqueeze(1).expand(-1, 2).float()


class EpisodeReturns:
    """The mean return of each env's episodes since its member's policies changed, `[P, E]`.

    An episode counts if it began under the current policies, and has ended. The envs are not reset when policies
    change, and the rest of a running episode does not count. Where none counts, the return is the rewards so far of the
    episode that is running, or of its rest. The observations of the last `recent` steps are stored.
    """

    def __init__(
        self,
        members: int,
        envs: int,
        *,
        encoding: ObservationEncoder,
        device: torch.device,
        recent: int,
        describe_row: Callable[[int, int], str] = "member {}, env {} of its own".format,
    ) -> None:
        self.encoding, self.device, self.describe_row = encoding, device, describe_row
        zeros = torch.zeros(members, envs, device=device)
        self.sums, self.counts = zeros, zeros.clone()
        """Of the episodes that count."""
        self._running = zeros.clone()  # returns of the current episodes, under the current policies
        self._counts_when_ended = torch.ones_like(zeros, dtype=torch.bool)
        self._at_start = torch.ones_like(zeros, dtype=torch.bool)  # no step of the current episode was taken
        self.moments = ObservationMoments.zeros(members, encoding.num_floats, device)
        self._recent = torch.zeros(recent, members, envs, encoding.size, dtype=encoding.dtype, device=device)
        self._steps = 0
        # sums of each env's rewards and observations, which are finite if all of these are; float64 does not overflow
        self._totals = torch.zeros(2, members, envs, dtype=torch.float64, device=device)
        self.has_masks = False
        """Whether any step had action masks."""

    # -- writing

    def restart(self, place: int) -> None:
        """Begin again for a member whose policies have changed."""
        self.sums[place] = self.counts[place] = self._running[place] = 0.0
        self._counts_when_ended[place] = self._at_start[place]
        for numbers in self.moments:
            numbers[place] = 0.0

    def begin(self) -> int:
        """Return the place for the next step of all envs, among the last ones."""
        self._steps += 1
        return (self._steps - 1) % len(self._recent)

    def part(self, columns: slice) -> _Columns:
        """Return the share of some envs of every member."""
        return _Columns(self, columns)

    def put_actions(self, place: int, columns: slice, observations: Tensor) -> None:
        """Store observations `[P, e, D]` of a step."""
        self._recent[place, :, columns] = observations
        self._totals[1, :, columns] += self.encoding.float_columns(observations).sum(-1, dtype=torch.float64)

    def put_outcome(self, place: int, columns: slice, transition: Transition) -> None:
        """Add rewards `[P e]`, and end episodes."""
        shape = len(self.sums), -1
        reward, ended, valid = (
            torch.as_tensor(x, device=self.device).view(shape)
            for x in (transition.reward, transition.ended, transition.valid)
        )
        running, counting = self._running[:, columns], self._counts_when_ended[:, columns]
        running += reward
        self._totals[0, :, columns] += reward
        counted = ended & counting & valid  # an episode whose worker was lost has no return
        self.sums[:, columns] += running * counted
        self.counts[:, columns] += counted
        running *= ~ended
        counting |= ended
        at_start = self._at_start[:, columns]
        at_start &= ~valid
        at_start |= ended
        self.moments.add_(self.encoding.float_columns(self._recent[place, :, columns]), valid)

    # -- reading

    def reader(self, next_observations: Tensor, state: Tensor) -> EpisodeReturns:
        """Return what `learn` reads: the returns.

        Raises:
            EnvStepError: an observation or a reward was not finite.
        """
        if not bool(torch.isfinite(self._totals).all()):
            which, member, env = (~torch.isfinite(self._totals)).nonzero()[0].tolist()
            raise EnvStepError(
                f"{('reward', 'observation')[which]}={float(self._totals[which, member, env])} is not finite: "
                f"{self.describe_row(member, env)}"
            )
        return self

    @property
    def returns(self) -> Tensor:
        """The mean return of each env `[P, E]`; without an episode that counts, the rewards so far."""
        return torch.where(self.counts > 0, self.sums / self.counts.clamp(min=1.0), self._running)

    def recent(self, member: int) -> Tensor:
        """Return a member's observations of the last steps, `[T, E, D]`."""
        return self._recent[: min(self._steps, len(self._recent)), member]


class _Columns:
    """The share of some envs of every member."""

    def __init__(self, whole: EpisodeReturns, columns: slice) -> None:
        self._whole, self._columns = whole, columns

    def put_actions(self, place: int, observations: Tensor, actions: Tensor, mask: Tensor | None) -> None:
        self._whole.has_masks |= mask is not None
        self._whole.put_actions(place, self._columns, observations)

    def put_outcome(self, place: int, transition: Any) -> None:
        self._whole.put_outcome(place, self._columns, transition)
