"""An evolvable memory that reads a whole window of time at once: `[time, features]` in one observation.

It forgets everything between two observations; what it says is what it remembers at the window's end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from agilerl_like.modules.lstm import EvolvableLSTM, LSTMSpec, Sequences


@dataclass(frozen=True)
class HistoryLSTMSpec(LSTMSpec):
    """The architecture of an `EvolvableHistoryLSTM`: that of a memory."""

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
        said, _ = self.unroll(*self._windows(x))
        return said[..., -1, :].reshape(*x.shape[:-1], self.num_outputs)

    def layer_input(self, name: str, x: Tensor | Sequences) -> Tensor:
        windows = self._windows(cast(Tensor, x))
        return super().layer_input(name, Sequences(*(part[0] for part in windows)))

    def _windows(self, x: Tensor) -> Sequences:
        """Every window is a sequence that begins an episode; all with a leading member axis."""
        steps = x.reshape(self._members, -1, *self.window)  # [P, S, L, in]
        starts = steps.new_zeros(steps.shape[:-1])
        starts[..., 0] = 1.0
        return Sequences(steps, starts, steps.new_zeros(*steps.shape[:2], *self.state_shape))
