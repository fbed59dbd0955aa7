"""A rollout cut into sequences, through which gradients flow back in time (truncated backpropagation, Werbos 1990).

Every step of every env is in at least one sequence, however short the last one is: it is filled up with rows that do
not count. An episode that begins inside a sequence empties the memory there, so nothing flows across.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor


class BPTTSequenceType(str, Enum):
    """How sequences follow each other."""

    CHUNKED = "chunked"
    """Each begins where the one before ends."""
    MAXIMUM = "maximum"
    """One begins at every step."""
    FIFTY_PERCENT_OVERLAP = "fifty_percent_overlap"
    """Each begins in the middle of the one before."""


class SequenceSplit(NamedTuple):
    """Sequences of `length` steps, of which one begins every `stride` steps."""

    length: int
    stride: int

    @classmethod
    def of_kind(cls, kind: BPTTSequenceType, length: int) -> SequenceSplit:
        """The cut for sequences of a kind and of so many steps."""
        strides = {
            BPTTSequenceType.CHUNKED: length,
            BPTTSequenceType.MAXIMUM: 1,
            BPTTSequenceType.FIFTY_PERCENT_OVERLAP: max(1, length // 2),
        }
        return cls(length, strides[BPTTSequenceType(kind)])

    def times(self, steps: int) -> Tensor:
        """The step `[C, L]` that stands at each place of a sequence; beyond `steps` there is none."""
        length = min(self.length, steps)
        begins = torch.arange(0, steps - length + self.stride, self.stride)
        return begins.unsqueeze(1) + torch.arange(length)

    def of(self, rows: Tensor, steps: int) -> Tensor:
        """Rows `[P, T E, …]` as sequences `[P, C E, L, …]`; where there is none stands the last one once more."""
        if self == SINGLE_STEP:
            return rows.unsqueeze(2)
        times = self.times(steps)
        by_time = rows.unflatten(1, (steps, -1))  # [P, T, E, …]
        picked = by_time.index_select(1, times.clamp(max=steps - 1).flatten().to(rows.device))
        return picked.unflatten(1, times.shape).transpose(2, 3).flatten(1, 2)

    def beginnings(self, states: Tensor) -> Tensor:
        """What was remembered where each sequence begins, `[P, C E, …]` of `[P, T, E, …]`."""
        return states.index_select(1, self.times(states.shape[1])[:, 0].to(states.device)).flatten(1, 2)

    def inside(self, steps: int, device: torch.device) -> Tensor:
        """1 where there is a step, `[C, L]`."""
        return (self.times(steps) < steps).float().to(device)


SINGLE_STEP = SequenceSplit(1, 1)
"""Every step by itself: for networks without memory."""
