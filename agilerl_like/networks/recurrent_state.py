"""What a network remembers of an episode, and how rows follow each other in time.

A network without memory is the case of sequences of length one: it is given a `Course` like any other and looks at
none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from agilerl_like.modules.recurrent import EvolvableLSTM, LSTMSpec
from agilerl_like.networks.passage import Absent, Passage


class Course(NamedTuple):
    """How rows `[…, S L, …]` follow each other: S sequences of L steps.

    A state `[…, M, K, H]` is what M memories (an actor's and its critic's) remember: K vectors of H units each.
    """

    starts: Tensor  # […, S, L], 1 where an episode begins: nothing is remembered from before
    state: Tensor  # […, S, M, K, H], before the first step

    @classmethod
    def beginning(cls, sequences: Tensor, shape: tuple[int, int, int], dtype: torch.dtype) -> Course:
        """Sequences `[…, S, L, D]` of which each begins an episode."""
        *batch, length, _ = sequences.shape
        starts = torch.zeros(*batch, length, dtype=dtype, device=sequences.device)
        starts[..., 0] = 1.0
        return cls(starts, torch.zeros(*batch, *shape, dtype=dtype, device=sequences.device))

    @property
    def is_told(self) -> bool:
        """Whether anybody asks: networks without memory do not."""
        return self.starts.dim() > 1

    def map(self, change: Callable[[Tensor], Tensor]) -> Course:
        """The course with both tensors changed alike."""
        return Course(change(self.starts), change(self.state)) if self.is_told else self


TIMELESS = Course(torch.zeros(0), torch.zeros(0))
"""For networks that do not ask."""


def fitted(state: Tensor, shape: Sequence[int]) -> Tensor:
    """A state `[…, M, K, H]` where there is more room, or less: units that are not there remember 0."""
    if state.shape[-3:] == tuple(shape):
        return state
    memories, vectors, units = shape
    missing = (number for axis in (-1, -2, -3) for number in (0, max(0, shape[axis] - state.shape[axis])))
    return F.pad(state[..., :memories, :vectors, :units], tuple(missing))


Memory = Passage | EvolvableLSTM


def make_memory(spec: Absent | LSTMSpec, inputs: int) -> Memory:
    """Build the memory of a spec; it reads `inputs` numbers and gives `num_outputs`."""
    return Passage(spec, inputs) if isinstance(spec, Absent) else EvolvableLSTM(spec, inputs)


def remember(memory: Memory, rows: Tensor, course: Course, which: int) -> Tensor:
    """What a memory says of rows `[…, S L, D]` along their course: `[…, S L, H]`; `which` of the states is its own."""
    if isinstance(memory, Passage):
        return rows
    if not course.is_told:  # every row begins an episode of its own
        return memory.step(rows, rows.new_zeros(*rows.shape[:-1], *memory.state_shape))[0]
    sequences = rows.unflatten(-2, course.starts.shape[-2:])
    return memory.unroll(sequences, course.starts, course.state[..., which, :, :])[0].flatten(-3, -2)
