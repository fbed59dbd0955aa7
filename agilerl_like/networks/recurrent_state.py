"""Hidden states of recurrent networks, and how rows are arranged in sequences.

A network without recurrence treats each row as a sequence of length one: it accepts a `SequenceInfo` and ignores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.memories import MEMORIES
from agilerl_like.modules.memory_module import MemoryModule, MemorySpec
from agilerl_like.modules.recurrent import EvolvableLSTM
from agilerl_like.modules.transformer import EvolvableTransformer
from agilerl_like.networks.identity_module import EmptySpec, IdentityModule


class SequenceInfo(NamedTuple):
    """Arrangement of rows `[…, S L, …]` in S sequences of L steps.

    A hidden state `[…, M, K, H]` belongs to M recurrent modules (the actor's and the critic's), with K vectors of H
    units each.
    """

    starts: Tensor  # […, S, L], 1 where an episode begins and the hidden state resets
    state: Tensor  # […, S, M, K, H], hidden state before the first step

    @classmethod
    def beginning(cls, sequences: Tensor, shape: tuple[int, int, int], dtype: torch.dtype) -> SequenceInfo:
        """Return the arrangement of sequences `[…, S, L, D]` that each begin an episode."""
        *batch, length, _ = sequences.shape
        starts = torch.zeros(*batch, length, dtype=dtype, device=sequences.device)
        starts[..., 0] = 1.0
        return cls(starts, torch.zeros(*batch, *shape, dtype=dtype, device=sequences.device))

    @property
    def is_set(self) -> bool:
        """Whether rows are arranged in sequences; they are not for networks without recurrence."""
        return self.starts.dim() > 1


NO_SEQUENCE = SequenceInfo(torch.zeros(0), torch.zeros(0))
"""Rows that are not arranged in sequences."""


def resize_hidden(state: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a hidden state `[…, M, K, H]` cut or padded with zeros to another shape `(M, K, H)`."""
    if state.shape[-3:] == tuple(shape):
        return state
    memories, vectors, units = shape
    missing = (number for axis in (-1, -2, -3) for number in (0, max(0, shape[axis] - state.shape[axis])))
    return F.pad(state[..., :memories, :vectors, :units], tuple(missing))


RecurrentModule = IdentityModule | MemoryModule[Any]


def make_recurrent(spec: EmptySpec | MemorySpec, inputs: int) -> RecurrentModule:
    """Build the recurrent module of a spec for `inputs` features.

    Raises:
        ConfigurationError: a user's own memory returns outputs or states of another shape than its spec.
    """
    if isinstance(spec, EmptySpec):
        return IdentityModule(spec, inputs)
    memory = next(kind.module for kind in MEMORIES.values() if kind.spec is type(spec))(spec, inputs)
    if not isinstance(memory, (EvolvableLSTM, EvolvableTransformer)):
        _check_step(memory)
    return memory


@torch.no_grad()
def _check_step(memory: MemoryModule[Any]) -> None:
    """Raise ConfigurationError unless a step returns the shapes that the spec gives."""
    rows, state = torch.zeros(2, memory.inputs), torch.zeros(2, *memory.state_shape)
    outputs, after = memory.step(rows, state)
    for what, found, allowed in (
        ("outputs", outputs, (2, memory.spec.hidden_state_size)),
        ("a state", after, tuple(state.shape)),
    ):
        if tuple(found.shape) != allowed:
            raise ConfigurationError(
                f"memory_config: {type(memory).__name__}.step returns {what} of shape {tuple(found.shape)}; "
                f"allowed is {allowed}, as its spec gives, for two inputs"
            )


def apply_recurrent(memory: RecurrentModule, rows: Tensor, sequence_info: SequenceInfo, which: int) -> Tensor:
    """Return a recurrent module's outputs `[…, S L, H]` for rows `[…, S L, D]`; `which` selects its hidden state."""
    if isinstance(memory, IdentityModule):
        return rows
    if not sequence_info.is_set:  # every row begins an episode
        return memory.step(rows, rows.new_zeros(*rows.shape[:-1], *memory.state_shape))[0]
    sequences = rows.unflatten(-2, sequence_info.starts.shape[-2:])
    return memory.unroll(sequences, sequence_info.starts, sequence_info.state[..., which, :, :])[0].flatten(-3, -2)
