"""The part that SimBa and ResNet share: residual blocks `x + outer(f(inner(x)))` on a stream of one width.

There is nothing between the blocks, so a block whose outer map is zero changes nothing, whatever f is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.modules.evolvable_module import EvolvableModule, UnitAxes, UnitChange
from agilerl_like.modules.spec import Arguments, Spec, check_limits, check_range, size_steps

ResidualSpecT = TypeVar("ResidualSpecT", bound="ResidualSpec")


class ResidualSpec(Spec):
    """A spec of `num_blocks` residual blocks, each `scale_factor` times wider inside than the stream."""

    WIDTH: ClassVar[str]
    """Field with the width of the stream."""
    WIDTH_LIMITS: ClassVar[tuple[str, str]]
    """Fields with its limits."""
    WIDTH_STEPS: ClassVar[Sequence[int]]
    """By how much a mutation changes it."""
    AMOUNT: ClassVar[str]
    """Argument of the operators that change it."""

    num_blocks: int
    min_blocks: int
    max_blocks: int
    scale_factor: int

    def _check_sizes(self, least_width: int) -> None:
        low, high = self.WIDTH_LIMITS
        check_limits(self, "min_blocks", "max_blocks")
        check_limits(self, low, high, least=least_width)
        check_range(self, self.WIDTH, self.width, low, high)
        check_range(self, "num_blocks", self.num_blocks, "min_blocks", "max_blocks")
        if self.scale_factor < 1:
            raise ConfigurationError(f"scale_factor={self.scale_factor!r} must be at least 1")

    @property
    def width(self) -> int:
        """Width of the stream."""
        return getattr(self, self.WIDTH)

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        if self.is_fading:  # one change at a time
            return ()
        if operator == "add_block":
            return tuple({"block": i} for i in range(self.num_blocks + 1)) if self.num_blocks < self.max_blocks else ()
        if operator == "remove_block":
            return tuple({"block": i} for i in range(self.num_blocks)) if self.num_blocks > self.min_blocks else ()
        low, high = (getattr(self, limit) for limit in self.WIDTH_LIMITS)
        return tuple({self.AMOUNT: amount} for amount in size_steps(operator, self.width, low, high, self.WIDTH_STEPS))

    def apply(self: ResidualSpecT, operator: str, **arguments: int | float | str) -> ResidualSpecT:
        if operator not in self.OPERATORS:
            raise unknown_name("operator", operator, self.OPERATORS)
        sign = 1 if operator.startswith("add") else -1
        if operator.endswith("block"):
            return self.evolve(num_blocks=self.num_blocks + sign)
        return self.evolve(**{self.WIDTH: self.width + sign * int(arguments[self.AMOUNT])})

    @property
    def depth(self) -> int:
        return self.num_blocks


class ResidualModule(EvolvableModule[ResidualSpecT]):
    """A module with a `stem`, `blocks` that have an `inner` and an `outer` map, and an `output` layer."""

    LAYER_LISTS = ("blocks",)
    OUTPUT_READS: ClassVar[str] = "stream"
    """Unit group that the output layer reads."""

    stem: Any
    blocks: nn.ModuleList

    @property
    def _blocks(self) -> list[Any]:
        return list(self.blocks)

    # -- mutations

    input_consumers = ("stem",)

    def unit_axes(self) -> UnitAxes:
        kernel = ("",) * (self.stem.weight.dim() - 2)
        axes: UnitAxes = {"stem.weight": ("stream", "in", *kernel), "stem.bias": ("stream",)}
        axes |= {"output.weight": ("out", self.OUTPUT_READS), "output.bias": ("out",)}
        for i in map(str, range(len(self.blocks))):
            axes |= {f"blocks.{i}.inner.weight": (i, "stream", *kernel), f"blocks.{i}.inner.bias": (i,)}
            axes |= {f"blocks.{i}.outer.weight": ("stream", i, *kernel), f"blocks.{i}.outer.bias": ("stream",)}
        return axes

    def unit_change(self, operator: str, arguments: Arguments) -> UnitChange:
        """A wider stream has wider blocks; a narrower one keeps the units that the output layer needs."""
        if operator == "remove_block":
            behind = range(int(arguments["block"]) + 1, len(self.blocks))
            inner = ((f"blocks.{i}.inner", f"blocks.{i - 1}.inner") for i in behind)
            return UnitChange(consumers=(*inner, ("output", "output")))
        amount = int(arguments.get(self.spec.AMOUNT, 0))
        inside = amount * self.spec.scale_factor
        if not amount:
            return UnitChange()
        if operator.startswith("add"):
            return UnitChange({"stream": amount, **{str(i): inside for i in range(len(self.blocks))}})
        maps = {str(i): _keep_largest(block, inside) for i, block in enumerate(self._blocks)}
        return UnitChange({"stream": -amount}, maps, (("output", "output"),))

    def init_new_layer_(self, operator: str, arguments: Arguments, generator: torch.Generator) -> None:
        """A new block computes something and adds nothing."""
        if operator == "add_block":
            block = self._blocks[int(arguments["block"])]
            block.inner.reset_(2**0.5, generator, orthogonal=getattr(self.spec, "init_layers"))  # noqa: B009  # a field of both kinds of spec
            nn.init.zeros_(block.outer.weight)
            nn.init.zeros_(block.outer.bias)


def _keep_largest(block: Any, removed: int) -> Tensor:
    """Return the unit map of a block's inner units without those with the smallest weights."""
    inner, outer = block.inner.weight, block.outer.weight
    size = inner.flatten(1).norm(dim=1) * outer.transpose(0, 1).flatten(1).norm(dim=1)
    return size.topk(len(size) - removed).indices.sort().values.cpu()
