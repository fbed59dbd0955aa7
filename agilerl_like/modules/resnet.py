"""The evolvable residual network: one convolution, then blocks x + outer(f(inner(f(x)))), then one linear layer.

After He et al. (2016), with the activations in front of the convolutions, so that nothing stands in the way from the
first convolution to the last activation: a block whose outer convolution is zero changes nothing, whatever f is.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.modules.base import Arguments, OperatorKind, UnitAxes, UnitChange, check_limits, check_range
from agilerl_like.modules.conv_layers import (
    Conv,
    Geometry,
    ImageBatches,
    ImageEncoder,
    ImageLeaf,
    ImageSpec,
    apply_activation,
    as_image_leaf,
)
from agilerl_like.modules.inplace_mutation import mutation_method
from agilerl_like.modules.layers import SKIP, Activation
from agilerl_like.modules.module_utils import listed


@dataclass(frozen=True)
class ResNetSpec(ImageSpec):
    """The architecture of an `EvolvableResNet`."""

    channel_size: int = 32
    """Channels of the image that the blocks add to."""
    kernel_size: int = 3
    """Side of every kernel; odd, so that a block keeps the size of the image."""
    stride_size: int = 1
    """Step of the first convolution; the blocks' is 1."""
    num_blocks: int = 1
    """Number of residual blocks."""
    scale_factor: int = 4
    """How many times wider a block is inside: it is as many times slower."""
    min_blocks: int = 1
    """Fewest blocks that a mutation may leave."""
    max_blocks: int = 4
    """Most blocks that a mutation may make."""

    OPERATORS: ClassVar[Mapping[str, OperatorKind]] = {
        "add_block": "layer",
        "remove_block": "layer",
        "add_channel": "node",
        "remove_channel": "node",
        "change_activation": "activation",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_limits(self, "min_blocks", "max_blocks")
        check_range("num_blocks", self.num_blocks, self.min_blocks, self.max_blocks)
        check_range("channel_size", self.channel_size, self.min_channel_size, self.max_channel_size)
        for field in ("kernel_size", "stride_size", "scale_factor"):
            if getattr(self, field) < 1:
                raise ConfigurationError(f"{field}={getattr(self, field)!r} must be at least 1")
        if self.kernel_size % 2 == 0:
            raise ConfigurationError(f"kernel_size={self.kernel_size!r} must be odd: a block keeps the image's size")
        self._check_fading()
        if SKIP in self.fading:
            raise ConfigurationError(f"fading={self.fading!r}: there is nothing to skip")

    @property
    def num_activations(self) -> int:
        """All of the blocks' fade together."""
        return 1

    def geometry(self, num_axes: int, stride: int) -> Geometry:
        """Where a convolution looks in an image of so many axes."""
        return Geometry((self.kernel_size,) * num_axes, (stride,) * num_axes, (self.kernel_size // 2,) * num_axes)

    # -- mutations

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        if self.fading:  # one change at a time
            return ()
        if operator == "add_block":
            return tuple({"block": i} for i in range(self.num_blocks + 1)) if self.num_blocks < self.max_blocks else ()
        if operator == "remove_block":
            return tuple({"block": i} for i in range(self.num_blocks)) if self.num_blocks > self.min_blocks else ()
        if operator == "change_activation":
            return self.activation_choices()
        return tuple({"channels": channels} for channels in self.channel_choices(operator, self.channel_size))

    def apply(self, operator: str, **arguments: int | float | str) -> ResNetSpec:
        if operator == "add_block":
            return self.evolve(num_blocks=self.num_blocks + 1)
        if operator == "remove_block":
            return self.evolve(num_blocks=self.num_blocks - 1)
        if operator == "add_channel":
            return self.evolve(channel_size=self.channel_size + int(arguments["channels"]))
        if operator == "remove_channel":
            return self.evolve(channel_size=self.channel_size - int(arguments["channels"]))
        if operator == "change_activation":
            return self.with_activation(str(arguments["activation"]))
        raise unknown_name("operator", operator, self.OPERATORS)

    @property
    def depth(self) -> int:
        return self.num_blocks

    def describe(self) -> str:
        """Channels x kernel / stride, and how many blocks."""
        return f"{self.channel_size}x{self.kernel_size}/{self.stride_size}+{self.num_blocks}"

    # -- beside others in a stack

    def stack_key(self) -> Hashable:
        """All but channels, which zeros make up for where a function gives 0 for 0."""
        channels = 0 if self.may_be_narrower else self.channel_size
        return self.kernel_size, self.stride_size, self.num_blocks, self.scale_factor, self.activation_names, channels

    @classmethod
    def padded_union(cls, specs: Sequence[ResNetSpec]) -> ResNetSpec:
        """As wide as the widest."""
        return specs[0].evolve(
            channel_size=max(spec.channel_size for spec in specs),
            max_channel_size=max(spec.max_channel_size for spec in specs),
        )

    def multiply_adds(self, padded: ResNetSpec, inputs: ImageLeaf | Sequence[int], num_outputs: int) -> int:
        first, *size = as_image_leaf(inputs).shape
        geometry, width = self.geometry(len(size), self.stride_size), padded.channel_size
        columns = first + 2 * self.num_blocks * self.scale_factor * width
        return prod(geometry.output_size(0, size)) * width * (columns * prod(geometry.kernel) + num_outputs)


class Block(nn.Module):
    """The layers of one residual block."""

    def __init__(self, spec: ResNetSpec, num_axes: int, before: str) -> None:
        super().__init__()
        channels, inside = spec.channel_size, spec.channel_size * spec.scale_factor
        self.first = Activation(channels, spec.activation, before)
        self.inner = Conv(channels, inside, spec.geometry(num_axes, 1))
        self.second = Activation(inside, spec.activation, before)
        self.outer = Conv(inside, channels, spec.geometry(num_axes, 1))


class EvolvableResNet(ImageEncoder[ResNetSpec]):
    """A convolution, residual blocks and a linear layer: `[..., *input_shape] -> [..., num_outputs]`.

    Raises:
        ConfigurationError: the stride leaves nothing of the image.
    """

    add_block = mutation_method("add_block")
    remove_block = mutation_method("remove_block")
    add_channel = mutation_method("add_channel")
    remove_channel = mutation_method("remove_channel")
    change_activation = mutation_method("change_activation")

    def __init__(self, spec: ResNetSpec, inputs: ImageLeaf | Sequence[int], num_outputs: int) -> None:
        super().__init__(spec, inputs, num_outputs)
        first, *size = self.image.shape
        geometry, width = spec.geometry(len(size), spec.stride_size), spec.channel_size
        before = spec.fading[0] if spec.fading else ""
        stem_size = geometry.output_size(0, size)
        self.stem = Conv(first, width, geometry)
        self.blocks = listed(Block(spec, len(size), before) for _ in range(spec.num_blocks))
        self.activation = Activation(width, spec.activation, before)
        self._add_output_layer("stream", width, stem_size, width * spec.scale_factor * prod(stem_size))

    def _blocks(self) -> list[Block]:
        return [cast(Block, block) for block in self.blocks]

    def convolutions(self) -> Iterable[tuple[Conv, float]]:
        """What a block adds is drawn without the gain that makes up for an activation."""
        yield self.stem, 2**0.5
        for block in self._blocks():
            yield block.inner, 2**0.5
            yield block.outer, 1.0

    def trunk(self, parts: ImageBatches, reader: str = "output") -> ImageBatches:
        members = self.members
        if reader == "stem":
            return parts
        stream = self.stem(parts)
        for i, block in enumerate(self._blocks()):
            parts = apply_activation(block.first, stream, stream, members, keep=True)
            if reader == f"blocks.{i}.inner":
                return parts
            sums = block.inner(parts)
            parts = apply_activation(block.second, sums, sums, members)
            if reader == f"blocks.{i}.outer":
                return parts
            stream = [change.add_(x) for x, change in zip(stream, block.outer(parts), strict=True)]
        return apply_activation(self.activation, stream, stream, members)

    # -- mutations

    input_consumers = ("stem",)

    def unit_axes(self) -> UnitAxes:
        kernel = ("",) * (len(self.image.shape) - 1)
        unit_axes: UnitAxes = {"output.weight": ("out", "flat"), "output.bias": ("out",)}
        unit_axes |= {"stem.weight": ("stream", "in", *kernel), "stem.bias": ("stream",)}
        for i in map(str, range(len(self.blocks))):
            unit_axes[f"blocks.{i}.inner.weight"] = (i, "stream", *kernel)
            unit_axes[f"blocks.{i}.inner.bias"] = (i,)
            unit_axes[f"blocks.{i}.outer.weight"] = ("stream", i, *kernel)
            unit_axes[f"blocks.{i}.outer.bias"] = ("stream",)
        return unit_axes

    def unit_change(self, operator: str, arguments: Arguments) -> UnitChange:
        if operator == "remove_block":
            behind = range(int(arguments["block"]) + 1, len(self.blocks))
            inner = ((f"blocks.{i}.inner", f"blocks.{i - 1}.inner") for i in behind)
            return UnitChange(consumers=(*inner, ("output", "output")))
        channels, scale = int(arguments.get("channels", 0)), self.spec.scale_factor
        if operator == "add_channel":
            return UnitChange({"stream": channels, **{str(i): channels * scale for i in range(len(self.blocks))}})
        if operator == "remove_channel":
            fixed_maps = {str(i): _keep_largest(block, channels * scale) for i, block in enumerate(self._blocks())}
            return UnitChange({"stream": -channels}, fixed_maps, (("output", "output"),))
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
            block = self._blocks()[int(arguments["block"])]
            block.inner.reset_(2**0.5, generator)
            nn.init.zeros_(block.outer.weight)
            nn.init.zeros_(block.outer.bias)

    def layer_output(self, name: str, outputs: Tensor, inputs: Tensor) -> Tensor:
        if name.endswith("inner"):
            block = cast(Block, self.get_submodule(name.removesuffix(".inner")))
            return block.second(outputs.clone(), inputs)
        return super().layer_output(name, outputs, inputs)


def _keep_largest(block: Block, removed: int) -> Tensor:
    """The map of a block's inner channels without those that say least, by the lengths of their weights."""
    said = block.inner.weight.flatten(1).norm(dim=1) * block.outer.weight.transpose(0, 1).flatten(1).norm(dim=1)
    return said.topk(len(said) - removed).indices.sort().values.cpu()
