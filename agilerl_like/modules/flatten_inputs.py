"""Encoders of vectors for observations with images: all parts of an observation are flattened and concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from agilerl_like.envs.spaces import Leaf
from agilerl_like.modules.evolvable_module import EvolvableModule
from agilerl_like.modules.mlp import EvolvableMLP, MLPSpec
from agilerl_like.modules.simba import EvolvableSimBa, SimBaSpec
from agilerl_like.modules.spec import Spec

SpecT = TypeVar("SpecT", bound=Spec)


def flatten_leaves(leaves: Sequence[Leaf], rows: Tensor) -> Tensor:
    """Return rows `[…, D]` as vectors `[…, sum of the leaves' sizes]`."""
    parts = [leaf.read(rows).flatten(-len(leaf.shape)) for leaf in leaves]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class FlattenedInputs(EvolvableModule[SpecT]):
    """A module that reads vectors, built for the leaves of observations in rows."""

    def __init__(self, spec: SpecT, inputs: Sequence[Leaf], num_outputs: int) -> None:
        super().__init__(spec, sum(leaf.size for leaf in inputs), num_outputs)  # pyright: ignore[reportCallIssue]  # the next base is a module that reads vectors
        self.inputs = tuple(inputs)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(flatten_leaves(self.inputs, x))

    def layer_input(self, name: str, x: Tensor) -> Tensor:
        return super().layer_input(name, flatten_leaves(self.inputs, x))


class FlatMLP(FlattenedInputs[MLPSpec], EvolvableMLP):
    """An `EvolvableMLP` of flattened observations: rows `[…, D]` -> `[…, num_outputs]`."""


class FlatSimBa(FlattenedInputs[SimBaSpec], EvolvableSimBa):
    """An `EvolvableSimBa` of flattened observations: rows `[…, D]` -> `[…, num_outputs]`."""
