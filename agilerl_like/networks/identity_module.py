"""The module in place of a recurrent module or a head that a network does not have."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agilerl_like.modules.evolvable_module import EvolvableModule, UnitAxes, UnitChange
from agilerl_like.modules.spec import Arguments, Spec


@dataclass(frozen=True)
class EmptySpec(Spec):
    """The architecture of an absent part."""

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        return ()

    def stack_key(self) -> Hashable:
        return None

    @classmethod
    def padded_union(cls, specs: Sequence[Any]) -> EmptySpec:
        return cls()

    def multiply_adds(self, padded: Any, inputs: Any, num_outputs: int) -> int:
        return 0

    def describe(self) -> str:
        return ""


class IdentityModule(EvolvableModule[EmptySpec]):
    """Returns its input; its hidden state is empty."""

    state_shape = (0, 0)

    def __init__(self, spec: EmptySpec, inputs: int, num_outputs: int | None = None) -> None:
        super().__init__()
        self.spec, self.inputs, self.num_outputs = spec, inputs, inputs

    def reset_(self, generator: torch.Generator, *, output_gain: float) -> None:
        """Do nothing: there are no weights."""

    def forward(self, x: Tensor) -> Tensor:
        return x

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return input and hidden state unchanged, as a recurrent module's step."""
        return x, state

    def unit_axes(self) -> UnitAxes:
        return {}

    def unit_change(self, operator: str, arguments: Arguments) -> UnitChange:
        return UnitChange()
