"""The evolvable SimBa network: one linear layer, then blocks x + outer(relu(inner(norm(x)))), then norm and outputs.

After Lee et al. (2024), "SimBa: Simplicity Bias for Scaling Up Parameters in Deep Reinforcement Learning". All blocks
normalise the stream that they add to. A new unit of the stream is normalised by the statistics of the earlier units
(see `layers.LayerNorm`), so that widening the stream changes no output either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from agilerl_like.modules.evolvable_module import UnitAxes
from agilerl_like.modules.inplace_mutation import mutation_method
from agilerl_like.modules.layers import Activation, LayerNorm, Linear, Residual, check_activation
from agilerl_like.modules.residual_trunk import ResidualModule, ResidualSpec
from agilerl_like.modules.spec import OperatorKind, check_input_output_sizes, num_floats


@dataclass(frozen=True)
class SimBaSpec(ResidualSpec):
    """The architecture of an `EvolvableSimBa`; sizes are in units."""

    hidden_size: int = 128
    """Width of the stream that the blocks add to."""
    num_blocks: int = 2
    """Number of residual blocks."""
    output_activation: str = "Identity"
    """Activation of the outputs."""
    output_vanish: bool = True
    """Has no effect, since the encoder's outputs are no policy: see `MLPSpec.output_vanish`, of the head."""
    init_layers: bool = True
    """Orthogonal initial weights; otherwise uniform in +-1/sqrt(inputs)."""
    scale_factor: int = 4
    """How many times wider a block is inside."""
    min_blocks: int = 1
    """Fewest blocks that a mutation may leave."""
    max_blocks: int = 4
    """Most blocks that a mutation may make."""
    min_mlp_nodes: int = 16
    """Narrowest stream that a mutation may leave."""
    max_mlp_nodes: int = 500
    """Widest stream that a mutation may make."""

    OPERATORS: ClassVar[Mapping[str, OperatorKind]] = {
        "add_block": "layer",
        "remove_block": "layer",
        "add_node": "node",
        "remove_node": "node",
    }
    STACK_FIELDS = ("scale_factor",)
    UNION_FIELDS = ("hidden_size", "num_blocks", "max_blocks", "max_mlp_nodes")
    WIDTH, WIDTH_LIMITS, AMOUNT = "hidden_size", ("min_mlp_nodes", "max_mlp_nodes"), "nodes"
    WIDTH_STEPS = (16, 32, 64)  # AgileRL's choice

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_sizes(least_width=2)
        check_activation("output_activation", self.output_activation)

    def multiply_adds(self, padded: SimBaSpec, inputs: Any, num_outputs: int) -> int:
        """Members without a block compute it too."""
        width = padded.hidden_size
        return width * (num_floats(inputs) + 2 * padded.num_blocks * self.scale_factor * width + num_outputs)

    def describe(self) -> str:
        return f"{self.num_blocks}x{self.hidden_size}"


class Block(nn.Module):
    """The function of one block, which is added to the stream."""

    def __init__(self, width: int, inside: int) -> None:
        super().__init__()
        self.norm = LayerNorm(width)
        self.inner = Linear(width, inside)
        self.outer = Residual(inside, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.relu(self.inner(self.norm(x))))


class EvolvableSimBa(ResidualModule[SimBaSpec]):
    """Pre-normalised residual blocks between two linear layers: `[..., inputs] -> [..., num_outputs]`."""

    add_block = mutation_method("add_block")
    remove_block = mutation_method("remove_block")
    add_node = mutation_method("add_node")
    remove_node = mutation_method("remove_node")

    def __init__(self, spec: SimBaSpec, inputs: int, num_outputs: int) -> None:
        super().__init__()
        check_input_output_sizes(inputs, num_outputs)
        self.spec, self.inputs, self.num_outputs = spec, inputs, num_outputs
        width = spec.hidden_size
        self.stem = Linear(inputs, width)
        self.blocks = nn.ModuleList(Block(width, width * spec.scale_factor) for _ in range(spec.num_blocks))
        self.norm = LayerNorm(width)
        self.output = Linear(width, num_outputs)
        self.activation = Activation(num_outputs, spec.output_activation)

    def reset_(self, generator: torch.Generator, *, output_gain: float) -> None:
        layers = [(self.stem, 1.0)]
        for block in self._blocks:
            layers += [(block.inner, 2**0.5), (block.outer, 1.0)]
        for layer, gain in (*layers, (self.output, output_gain)):
            layer.reset_(gain, generator, orthogonal=self.spec.init_layers)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.stem(x)
        for block in self.blocks:
            stream = stream + block(stream)
        y = self.output(self.norm(stream))
        return self.activation(y, y)

    # -- mutations

    def unit_axes(self) -> UnitAxes:
        axes = super().unit_axes()
        for norm in ("norm", *(f"blocks.{i}.norm" for i in range(len(self.blocks)))):
            axes |= {f"{norm}.{name}": ("stream",) for name in ("weight", "bias", "counted")}
        return axes

    def layer_input(self, name: str, x: Tensor) -> Tensor:
        if name == "stem":
            return x
        stream = self.stem(x)
        for i, block in enumerate(self._blocks):
            if name == f"blocks.{i}.inner":
                return block.norm(stream)
            stream = stream + block(stream)
        return self.norm(stream)

    def layer_output(self, name: str, outputs: Tensor, inputs: Tensor) -> Tensor:
        return torch.relu(outputs) if name.endswith("inner") else self.activation(outputs.clone(), outputs)
