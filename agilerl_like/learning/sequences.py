"""Splitting a rollout into sequences for truncated backpropagation through time (Werbos 1990).

Every step of every env is in at least one sequence; a last sequence that is too short is padded with rows of weight 0.
Where an episode begins inside a sequence the hidden state resets, so no gradient flows across.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor


class BPTTSequenceType(StrEnum):
    """How sequences overlap."""

    CHUNKED = "chunked"
    """Each sequence begins where the previous one ends."""
    MAXIMUM = "maximum"
    """A sequence begins at every step."""
    FIFTY_PERCENT_OVERLAP = "fifty_percent_overlap"
    """Each sequence begins in the middle of the previous one."""


class SequenceSplit(NamedTuple):
    """Sequences of `length` steps, of which one begins every `stride` steps."""

    length: int
    stride: int

    @classmethod
    def of_kind(cls, kind: BPTTSequenceType, length: int) -> SequenceSplit:
        """Return the split for sequences of a kind and length."""
        strides = {
            BPTTSequenceType.CHUNKED: length,
            BPTTSequenceType.MAXIMUM: 1,
            BPTTSequenceType.FIFTY_PERCENT_OVERLAP: max(1, length // 2),
        }
        return cls(length, strides[BPTTSequenceType(kind)])

    def times(self, steps: int) -> Tensor:
        """Return the time step of each entry of each sequence, `[C, L]`; values from `steps` on are padding."""
        length = min(self.length, steps)
        begins = torch.arange(0, steps - length + self.stride, self.stride)
        return begins.unsqueeze(1) + torch.arange(length)

    def of(self, rows: Tensor, steps: int) -> Tensor:
        """Return rows `[P, T E, …]` as sequences `[P, C E, L, …]`; padding repeats the last row."""
        if self == SINGLE_STEP:
            return rows.unsqueeze(2)
        times = self.times(steps)
        by_time = rows.unflatten(1, (steps, -1))  # [P, T, E, …]
        picked = by_time.index_select(1, times.clamp(max=steps - 1).flatten().to(rows.device))
        return picked.unflatten(1, times.shape).transpose(2, 3).flatten(1, 2)

    def begins(self, steps: int) -> list[int]:
        """Return the step at which each sequence begins; the first is step 0."""
        return self.times(steps)[:, 0].tolist()

    def inside(self, steps: int, device: torch.device) -> Tensor:
        """Return 1 for steps and 0 for padding, `[C, L]`."""
        return (self.times(steps) < steps).float().to(device)


SINGLE_STEP = SequenceSplit(1, 1)
"""Sequences of one step: for networks without recurrence."""
