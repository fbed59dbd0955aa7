"""An evolvable encoder of a short text, such as a mission: an embedding of its words, and recurrent layers over them.

The text is a row of word numbers, one-hot `[words, vocabulary]`, in which 0 follows the last word. The output is the
hidden state after the last word, so it does not depend on how long other texts are; a text without words has zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.evolvable_module import UnitAxes
from agilerl_like.modules.history_lstm import EvolvableHistoryLSTM, HistoryLSTMSpec
from agilerl_like.modules.layers import Linear, draw_
from agilerl_like.modules.recurrent import LSTMSpec, Sequences


@dataclass(frozen=True)
class WordsSpec(HistoryLSTMSpec):
    """The architecture of an `EvolvableWords`."""

    cell: str = "GRU"
    """"LSTM", "GRU" or "minGRU"."""
    hidden_state_size: int = 32
    """Units of each layer, and number of outputs."""
    embedding_size: int = 16
    """Numbers that a word is embedded as. No mutation changes it."""

    STACK_FIELDS: ClassVar[tuple[str, ...]] = (*HistoryLSTMSpec.STACK_FIELDS, "embedding_size")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding_size < 1:
            raise ConfigurationError(f"embedding_size={self.embedding_size!r} must be at least 1")

    def multiply_adds(self, padded: LSTMSpec, inputs: Sequence[int], num_outputs: int) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]  # built for a text
        words, vocabulary = inputs
        embedded = super().multiply_adds(padded, (words, self.embedding_size), num_outputs)
        return words * vocabulary * self.embedding_size + embedded


class EvolvableWords(EvolvableHistoryLSTM):
    """Embedding and recurrent layers: `[…, words * vocabulary] -> […, spec.hidden_state_size]`."""

    def __init__(self, spec: WordsSpec, inputs: Sequence[int]) -> None:
        super().__init__(spec, (inputs[0], spec.embedding_size))
        self.window = tuple(inputs)  # words, vocabulary
        self.embedding = Linear(inputs[1], spec.embedding_size)

    def rebuild(self, spec: Any) -> EvolvableWords:
        return EvolvableWords(spec, self.window)

    def reset_(self, generator: torch.Generator, *, output_gain: float) -> None:
        """Draw initial weights; embeddings of words have a length of about 1."""
        super().reset_(generator, output_gain=output_gain)
        draw_(self.embedding.weight, nn.init.normal_, 0.0, self.inputs**-0.5, generator=generator)
        nn.init.zeros_(self.embedding.bias)

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # needs no state
        outputs, _ = self.unroll(*self._windows(x))
        is_word = 1 - x.reshape(*outputs.shape[:-1], -1)[..., 0]
        later = is_word.flip(-1).cumsum(-1).flip(-1)  # words from here to the end
        is_last = is_word * (later == 1)
        return (outputs * is_last.unsqueeze(-1)).sum(-2).reshape(*x.shape[:-1], self.num_outputs)

    def unit_axes(self) -> UnitAxes:
        return {**super().unit_axes(), "embedding.weight": ("", ""), "embedding.bias": ("",)}

    def _windows(self, x: Tensor) -> Sequences:
        one_hot, starts, state = super()._windows(x)
        embedded = self.embedding(one_hot.flatten(1, 2)).unflatten(1, one_hot.shape[1:3])
        return Sequences(embedded, starts, state)
