"""The evolvable SimBa network: one linear layer, then blocks x + outer(relu(inner(norm(x)))), then norm and outputs.

After Lee et al. (2024), "SimBa: Simplicity Bias for Scaling Up Parameters in Deep Reinforcement Learning". Nothing
stands in the way from the first layer to the last norm: a block whose outer map is zero changes nothing.

The one subtlety: all blocks normalise the stream that they add to. A newborn unit of it is normalised by the statistics
of those that were there before (see `layers.LayerNorm`), so that a wider stream changes nothing either.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.modules.base import (
    Arguments,
    EvolvableModule,
    OperatorKind,
    Spec,
    UnitAxes,
    UnitChange,
    check_input_output_sizes,
    check_range,
    num_floats,
)
from agilerl_like.modules.inplace_mutation import mutation_method
from agilerl_like.modules.layers import Activation, LayerNorm, Linear, check_activation
from agilerl_like.modules.module_utils import listed
from agilerl_like.modules.residual import Residual

NODE_STEPS = (16, 32, 64)
"""How many units of the stream a mutation adds or removes (AgileRL's choice)."""


@dataclass(frozen=True)
class SimBaSpec(Spec):
    """The architecture of an `EvolvableSimBa`; sizes are in units."""

    hidden_size: int = 128
    """Width of the stream that the blocks add to."""
    num_blocks: int = 2
    """Residual blocks."""
    output_activation: str = "Identity"
    """Activation of the outputs."""
    output_vanish: bool = True
    """Start the output layer with small weights, so that a new policy is near uniform."""
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

    def __post_init__(self) -> None:
        super().__post_init__()
        for low, high, least in (("min_blocks", "max_blocks", 1), ("min_mlp_nodes", "max_mlp_nodes", 2)):
            if not least <= getattr(self, low) <= getattr(self, high):
                raise ConfigurationError(
                    f"{low}={getattr(self, low)!r} must be at least {least} and at most {high}={getattr(self, high)!r}"
                )
        check_range("hidden_size", self.hidden_size, self.min_mlp_nodes, self.max_mlp_nodes)
        check_range("num_blocks", self.num_blocks, self.min_blocks, self.max_blocks)
        check_activation("output_activation", self.output_activation)
        if self.scale_factor < 1:
            raise ConfigurationError(f"scale_factor={self.scale_factor!r} must be at least 1")

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        if operator == "add_block":
            return tuple({"block": i} for i in range(self.num_blocks + 1)) if self.num_blocks < self.max_blocks else ()
        if operator == "remove_block":
            return tuple({"block": i} for i in range(self.num_blocks)) if self.num_blocks > self.min_blocks else ()
        sign, limit = (1, self.max_mlp_nodes) if operator == "add_node" else (-1, self.min_mlp_nodes)
        steps = sorted({min(step, sign * (limit - self.hidden_size)) for step in NODE_STEPS})
        return tuple({"nodes": nodes} for nodes in steps if nodes > 0)

    def apply(self, operator: str, **arguments: int | float | str) -> SimBaSpec:
        if operator not in self.OPERATORS:
            raise unknown_name("operator", operator, self.OPERATORS)
        sign = 1 if operator.startswith("add") else -1
        if operator.endswith("block"):
            return self.evolve(num_blocks=self.num_blocks + sign)
        return self.evolve(hidden_size=self.hidden_size + sign * int(arguments["nodes"]))

    # -- beside others in a stack

    def stack_key(self) -> Hashable:
        return self.scale_factor

    @classmethod
    def padded_union(cls, specs: Sequence[SimBaSpec]) -> SimBaSpec:
        names = ("hidden_size", "num_blocks", "max_blocks", "max_mlp_nodes")
        return specs[0].evolve(**{name: max(getattr(spec, name) for spec in specs) for name in names})

    def multiply_adds(self, padded: SimBaSpec, inputs: Any, num_outputs: int) -> int:
        """Members that lack a block compute it all the same."""
        width = padded.hidden_size
        return width * (num_floats(inputs) + 2 * padded.num_blocks * self.scale_factor * width + num_outputs)

    @property
    def activation_names(self) -> tuple[str, ...]:
        return (self.output_activation,)

    @property
    def depth(self) -> int:
        return self.num_blocks

    def describe(self) -> str:
        return f"{self.num_blocks}x{self.hidden_size}"


class Block(nn.Module):
    """What one block adds to the stream."""

    def __init__(self, width: int, inside: int) -> None:
        super().__init__()
        self.norm = LayerNorm(width)
        self.inner = Linear(width, inside)
        self.outer = Residual(inside, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inside(x))

    def inside(self, x: Tensor) -> Tensor:
        """What the outer map reads."""
        return torch.relu(self.inner(self.norm(x)))


class EvolvableSimBa(EvolvableModule[SimBaSpec]):
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
        self.blocks = listed(Block(width, width * spec.scale_factor) for _ in range(spec.num_blocks))
        self.norm = LayerNorm(width)
        self.output = Linear(width, num_outputs)
        self.activation = Activation(num_outputs, spec.output_activation)

    @property
    def _blocks(self) -> tuple[Block, ...]:
        return tuple(cast(Block, block) for block in self.blocks)

    def reset_(self, generator: torch.Generator, *, output_gain: float) -> None:
        self._draw(self.stem, 1.0, generator)
        for block in self._blocks:
            self._draw(block.inner, 2**0.5, generator)
            self._draw(block.outer, 1.0, generator)
        self._draw(self.output, output_gain, generator)

    def _draw(self, linear: Linear, gain: float, generator: torch.Generator) -> None:
        if self.spec.init_layers:
            linear.reset_(gain, generator)
        else:
            linear.reset_uniform_(min(gain, 1.0), generator)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.stem(x)
        for block in self.blocks:
            stream = stream + block(stream)
        y = self.output(self.norm(stream))
        return self.activation(y, y)

    # -- mutations

    input_consumers = ("stem",)

    def unit_axes(self) -> UnitAxes:
        unit_axes: UnitAxes = {"stem.weight": ("stream", "in"), "stem.bias": ("stream",)}
        unit_axes |= {"output.weight": ("out", "stream"), "output.bias": ("out",)}
        for i in map(str, range(len(self.blocks))):
            unit_axes |= {f"blocks.{i}.inner.weight": (i, "stream"), f"blocks.{i}.inner.bias": (i,)}
            unit_axes |= {f"blocks.{i}.outer.weight": ("stream", i), f"blocks.{i}.outer.bias": ("stream",)}
        for norm in ("norm", *(f"blocks.{i}.norm" for i in range(len(self.blocks)))):
            unit_axes |= {f"{norm}.{name}": ("stream",) for name in ("weight", "bias", "counted")}
        return unit_axes

    def unit_change(self, operator: str, arguments: Arguments) -> UnitChange:
        """A wider stream has wider blocks; of a narrower one those units stay that the outputs need."""
        if operator == "remove_block":
            behind = range(int(arguments["block"]) + 1, len(self.blocks))
            inner = ((f"blocks.{i}.inner", f"blocks.{i - 1}.inner") for i in behind)
            return UnitChange(consumers=(*inner, ("output", "output")))
        nodes, scale = int(arguments.get("nodes", 0)), self.spec.scale_factor
        if operator == "add_node":
            return UnitChange({"stream": nodes, **{str(i): nodes * scale for i in range(len(self.blocks))}})
        if operator == "remove_node":
            fixed_maps = {str(i): _keep_largest(block, nodes * scale) for i, block in enumerate(self._blocks)}
            return UnitChange({"stream": -nodes}, fixed_maps, (("output", "output"),))
        return UnitChange()

    def source_name(self, name: str, operator: str, arguments: Arguments) -> str:
        kind, _, rest = name.partition(".")
        if kind != "blocks" or operator not in ("add_block", "remove_block"):
            return name
        place, _, attribute = rest.partition(".")
        i, block = int(place), int(arguments["block"])
        if operator == "remove_block":
            return f"blocks.{i + (i >= block)}.{attribute}"
        return "" if i == block else f"blocks.{i - (i > block)}.{attribute}"

    def init_new_layer_(self, operator: str, arguments: Arguments, generator: torch.Generator) -> None:
        """A newborn block computes something and adds nothing."""
        if operator == "add_block":
            block = self._blocks[int(arguments["block"])]
            self._draw(block.inner, 2**0.5, generator)
            nn.init.zeros_(block.outer.weight)
            nn.init.zeros_(block.outer.bias)

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


def _keep_largest(block: Block, removed: int) -> Tensor:
    """The map of a block's inner units without those that say least, by the lengths of their weights."""
    said = block.inner.weight.norm(dim=1) * block.outer.weight.norm(dim=0)
    return said.topk(len(said) - removed).indices.sort().values.cpu()
