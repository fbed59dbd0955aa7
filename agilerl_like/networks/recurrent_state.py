"""What a network remembers of an episode, and how rows follow each other in time.

A network without memory is the case of sequences of length one: it is given a `SequenceInfo` like any other and looks at
none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from agilerl_like.modules.recurrent import EvolvableLSTM, LSTMSpec
from agilerl_like.networks.identity_module import EmptySpec, IdentityModule


class SequenceInfo(NamedTuple):
    """How rows `[…, S L, …]` follow each other: S sequences of L steps.

    A state `[…, M, K, H]` is what M memories (an actor's and its critic's) remember: K vectors of H units each.
    """

    starts: Tensor  # […, S, L], 1 where an episode begins: nothing is remembered from before
    state: Tensor  # […, S, M, K, H], before the first step

    @classmethod
    def beginning(cls, sequences: Tensor, shape: tuple[int, int, int], dtype: torch.dtype) -> SequenceInfo:
        """Sequences `[…, S, L, D]` of which each begins an episode."""
        *batch, length, _ = sequences.shape
        starts = torch.zeros(*batch, length, dtype=dtype, device=sequences.device)
        starts[..., 0] = 1.0
        return cls(starts, torch.zeros(*batch, *shape, dtype=dtype, device=sequences.device))

    @property
    def is_set(self) -> bool:
        """Whether anybody asks: networks without memory do not."""
        return self.starts.dim() > 1

    def map(self, change: Callable[[Tensor], Tensor]) -> SequenceInfo:
        """The course with both tensors changed alike."""
        return SequenceInfo(change(self.starts), change(self.state)) if self.is_set else self


NO_SEQUENCE = SequenceInfo(torch.zeros(0), torch.zeros(0))
"""For networks that do not ask."""


def resize_hidden(state: Tensor, shape: Sequence[int]) -> Tensor:
    """A state `[…, M, K, H]` where there is more room, or less: units that are not there remember 0."""
    if state.shape[-3:] == tuple(shape):
        return state
    memories, vectors, units = shape
    missing = (number for axis in (-1, -2, -3) for number in (0, max(0, shape[axis] - state.shape[axis])))
    return F.pad(state[..., :memories, :vectors, :units], tuple(missing))


RecurrentModule = IdentityModule | EvolvableLSTM


def make_recurrent(spec: EmptySpec | LSTMSpec, inputs: int) -> RecurrentModule:
    """Build the memory of a spec; it reads `inputs` numbers and gives `num_outputs`."""
    return IdentityModule(spec, inputs) if isinstance(spec, EmptySpec) else EvolvableLSTM(spec, inputs)


def apply_recurrent(memory: RecurrentModule, rows: Tensor, sequence_info: SequenceInfo, which: int) -> Tensor:
    """What a memory says of rows `[…, S L, D]` along their course: `[…, S L, H]`; `which` of the states is its own."""
    if isinstance(memory, IdentityModule):
        return rows
    if not sequence_info.is_set:  # every row begins an episode of its own
        return memory.step(rows, rows.new_zeros(*rows.shape[:-1], *memory.state_shape))[0]
    sequences = rows.unflatten(-2, sequence_info.starts.shape[-2:])
    return memory.unroll(sequences, sequence_info.starts, sequence_info.state[..., which, :, :])[0].flatten(-3, -2)
