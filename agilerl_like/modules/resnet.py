"""The evolvable residual network: one convolution, then blocks x + outer(f(inner(f(x)))), then one linear layer.

After He et al. (2016), with the activations in front of the convolutions, so that the stream
from the first convolution to the last activation is linear.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from torch import Tensor, nn

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.conv_layers import (
    CHANNEL_STEPS,
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
from agilerl_like.modules.residual_trunk import ResidualModule, ResidualSpec
from agilerl_like.modules.spec import Arguments, OperatorKind


@dataclass(frozen=True)
class ResNetSpec(ResidualSpec, ImageSpec):
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
    UNION_FIELDS = ("channel_size", "max_channel_size")
    WIDTH, WIDTH_LIMITS, AMOUNT = "channel_size", ("min_channel_size", "max_channel_size"), "channels"
    WIDTH_STEPS = CHANNEL_STEPS

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_sizes(least_width=1)
        for field in ("kernel_size", "stride_size"):
            if getattr(self, field) < 1:
                raise ConfigurationError(f"{field}={getattr(self, field)!r} must be at least 1")
        if self.kernel_size % 2 == 0:
            raise ConfigurationError(f"kernel_size={self.kernel_size!r} must be odd: a block keeps the image's size")
        if SKIP in self.fading:
            raise ConfigurationError(f"fading={self.fading!r}: a residual network has no layer that can be skipped")

    @property
    def num_activations(self) -> int:
        """All activations of the blocks fade together."""
        return 1

    def geometry(self, num_axes: int, stride: int) -> Geometry:
        """Return the geometry of a convolution over images of so many axes."""
        return Geometry((self.kernel_size,) * num_axes, (stride,) * num_axes, (self.kernel_size // 2,) * num_axes)

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        if operator == "change_activation" and not self.is_fading:
            return self.activation_choices()
        return super().choices(operator)

    def apply(self, operator: str, **arguments: int | float | str) -> ResNetSpec:
        if operator == "change_activation":
            return self.with_activation(str(arguments["activation"]))
        return super().apply(operator, **arguments)

    def describe(self) -> str:
        """Channels x kernel / stride + number of blocks."""
        return f"{self.channel_size}x{self.kernel_size}/{self.stride_size}+{self.num_blocks}"

    def stack_key(self) -> Hashable:
        """All but the channels, which are padded where every activation maps 0 to 0."""
        channels = 0 if self.may_be_padded else self.channel_size
        extents = self.kernel_size, self.stride_size, self.num_blocks, self.scale_factor
        return super().stack_key(), extents, self.activation_names, channels

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


class EvolvableResNet(ResidualModule[ResNetSpec], ImageEncoder[ResNetSpec]):
    """A convolution, residual blocks and a linear layer: `[..., *input_shape] -> [..., num_outputs]`.

    Raises:
        ConfigurationError: the stride leaves nothing of the image.
    """

    OUTPUT_READS = "flat"

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
        self.blocks = nn.ModuleList(Block(spec, len(size), before) for _ in range(spec.num_blocks))
        self.activation = Activation(width, spec.activation, before)
        self._add_output_layer("stream", width, stem_size, width * spec.scale_factor * prod(stem_size))

    def convolutions(self) -> Iterable[tuple[Conv, float]]:
        """The outer convolutions have no activation behind them, so their gain is 1."""
        yield self.stem, 2**0.5
        for block in self._blocks:
            yield block.inner, 2**0.5
            yield block.outer, 1.0

    def trunk(self, batches: ImageBatches, consumer: str = "output") -> ImageBatches:
        members = self.members
        if consumer == "stem":
            return batches
        stream = self.stem(batches)
        for i, block in enumerate(self._blocks):
            batches = apply_activation(block.first, stream, stream, members)
            if consumer == f"blocks.{i}.inner":
                return batches
            sums = block.inner(batches)
            batches = apply_activation(block.second, sums, sums, members)
            if consumer == f"blocks.{i}.outer":
                return batches
            stream = [change.add_(x) for x, change in zip(stream, block.outer(batches), strict=True)]
        return apply_activation(self.activation, stream, stream, members)

    def layer_output(self, name: str, outputs: Tensor, inputs: Tensor) -> Tensor:
        if name.endswith("inner"):
            block = self._blocks[int(name.split(".")[1])]
            return block.second(outputs.clone(), inputs)
        return super().layer_output(name, outputs, inputs)
