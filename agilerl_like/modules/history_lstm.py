"""An evolvable recurrent network over a window of time `[time, features]` within one observation.

Its hidden state starts at zero for every observation; the output is the hidden state at the window's end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from agilerl_like.modules.recurrent import EvolvableLSTM, LSTMSpec, Sequences


@dataclass(frozen=True)
class HistoryLSTMSpec(LSTMSpec):
    """The architecture of an `EvolvableHistoryLSTM`."""

    def multiply_adds(self, padded: LSTMSpec, inputs: Sequence[int], num_outputs: int) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]  # built for a window
        time, features = inputs
        return time * super().multiply_adds(padded, features, num_outputs)


class EvolvableHistoryLSTM(EvolvableLSTM):
    """Recurrent layers over windows: `[…, time * features] -> […, spec.hidden_state_size]`."""

    def __init__(self, spec: HistoryLSTMSpec, inputs: Sequence[int]) -> None:
        super().__init__(spec, inputs[1])
        self.window = tuple(inputs)  # time, features

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return (math.prod(self.window),)

    def rebuild(self, spec: Any) -> EvolvableHistoryLSTM:
        return EvolvableHistoryLSTM(spec, self.window)

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # needs no state
        outputs, _ = self.unroll(*self._windows(x))
        return outputs[..., -1, :].reshape(*x.shape[:-1], self.num_outputs)

    def layer_input(self, name: str, x: Tensor | Sequences) -> Tensor:
        windows = self._windows(cast(Tensor, x))
        return super().layer_input(name, Sequences(*(part[0] for part in windows)))

    def _windows(self, x: Tensor) -> Sequences:
        """Return the windows as sequences `[P, S, L, in]` that each begin an episode."""
        steps = x.reshape(self._members, -1, *self.window)  # [P, S, L, in]
        first, others = steps.new_ones(*steps.shape[:2], 1), steps.new_zeros(*steps.shape[:2], steps.shape[2] - 1)
        starts = torch.cat([first, others], -1)
        return Sequences(steps, starts, steps.new_zeros(*steps.shape[:2], *self.state_shape))
