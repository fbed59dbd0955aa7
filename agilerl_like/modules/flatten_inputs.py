"""Encoders of vectors that read images too: every part of an observation is flattened, and all are put side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from agilerl_like.envs.spaces import Leaf
from agilerl_like.modules.base import EvolvableModule, Pull, Spec
from agilerl_like.modules.mlp import EvolvableMLP, MLPSpec
from agilerl_like.modules.simba import EvolvableSimBa, SimBaSpec

SpecT = TypeVar("SpecT", bound=Spec)


def flatten_leaves(leaves: Sequence[Leaf], rows: Tensor) -> Tensor:
    """What a network sees of rows `[…, D]`, as one vector each: `[…, sum of the leaves' sizes]`."""
    parts = [leaf.read(rows).flatten(-len(leaf.shape)) for leaf in leaves]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class FlattenedInputs(EvolvableModule[SpecT]):
    """A module of vectors that is built for leaves of an observation, and reads rows that hold them."""

    def __init__(self, spec: SpecT, inputs: Sequence[Leaf], num_outputs: int) -> None:
        super().__init__(spec, sum(leaf.size for leaf in inputs), num_outputs)  # pyright: ignore[reportCallIssue]  # the module of vectors behind it in the order of bases
        self.inputs = tuple(inputs)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(flatten_leaves(self.inputs, x))

    def pullback(self, x: Tensor, *, to_input: bool) -> tuple[Tensor, Pull]:
        return super().pullback(flatten_leaves(self.inputs, x), to_input=to_input)

    def layer_input(self, name: str, x: Tensor) -> Tensor:
        return super().layer_input(name, flatten_leaves(self.inputs, x))


class FlatMLP(FlattenedInputs[MLPSpec], EvolvableMLP):
    """An `EvolvableMLP` of flattened observations: rows `[…, D]` -> `[…, num_outputs]`."""


class FlatSimBa(FlattenedInputs[SimBaSpec], EvolvableSimBa):
    """An `EvolvableSimBa` of flattened observations: rows `[…, D]` -> `[…, num_outputs]`."""
