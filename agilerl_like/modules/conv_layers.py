"""Convolutions for one member or a stack, and the base of all encoders of images.

A weight is `[out, in, *kernel]`, or `[P, out, in, *kernel]` when stacked; an image is `[C, L]`, `[C, H, W]` or
`[C, D, H, W]`. The fastest way to convolve a stack depends on its size. Between layers a stack is therefore a list of
batches `[B, channels, *size]`: one batch in which all members' channels are concatenated (one grouped convolution a
layer), or one batch for each member. A single member is one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.evolvable_module import EvolvableModule, UnitMaps
from agilerl_like.modules.layers import (
    ZERO_PRESERVING,
    Activation,
    LayerNorm,
    Linear,
    default_weights,
    draw_weights_,
)
from agilerl_like.modules.spec import FadingSpec, check_input_output_sizes, check_limits

CHANNEL_STEPS = (8, 16, 32)
"""How many channels a mutation adds or removes (AgileRL's choice)."""

MAX_GROUPED_SIZE = 2**16
"""Largest number of outputs of a member's widest layer for which a stack uses grouped convolutions."""
# Milliseconds of all convolutions for P=8 (median; torch 2.13, oneDNN, two cores of an AMD EPYC), one thread / two:
#                                    grouped       member by member
# 10x10,  batch 4,    forward       0.6 /  0.4       2.3 /   1.6     10x10x6: 16 and 32 channels of kernel 3
# 10x10,  batch 16,   forward       1.8 /  0.9       3.8 /   2.0
# 10x10,  batch 128,  both ways      78 /   36        40 /    20
# 84x84,  batch 1,    forward       3.7 /  2.4       4.1 /   2.9     84x84x4: 32, 64, 64 of kernels 8, 4, 3
# 84x84,  batch 16,   forward        47 /   28        31 /    23
# 84x84,  batch 64,   both ways     621 /  326       378 /   201
# While learning, patches and one batched product took twice as long as the members one by one, or longer; stacking the
# members again after every layer cost 6 to 49 %; channels-last memory gained 10 % at 84x84 and lost as much at 10x10.
# Nothing was measured on a GPU.

CHANNELS_HINT = "; swap_channels=True reads images whose channels are the last axis, False those whose are the first"

MAX_REFIT_IMAGES = 256
MAX_REFIT_PATCHES = 4096
"""Most images and most patches on which a convolution is refitted; more are subsampled evenly."""

CONVOLUTIONS: tuple[Callable[..., Tensor], ...] = (F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED: tuple[Callable[..., Tensor], ...] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)

ImageSpecT = TypeVar("ImageSpecT", bound="ImageSpec")
ImageBatches = list[Tensor]
"""Batches `[B, channels, *size]`: one for all members of a stack, or one for each."""


class Geometry(NamedTuple):
    """Kernel, stride and padding of a convolution on each axis of the image."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    def output_size(self, layer: int, size: Sequence[int]) -> tuple[int, ...]:
        """Return the size of the image that a layer outputs for an image of this size; `layer` is its number.

        Raises:
            ConfigurationError: the kernel is larger than the padded image, or a stride larger than the image.
        """
        for length, kernel, stride, padding in zip(size, *self, strict=True):
            if kernel > length + 2 * padding:
                raise ConfigurationError(
                    f"kernel_size entry={kernel} of layer {layer} is larger than its input, "
                    f"which is {_times(size)} and padded by {padding}{CHANNELS_HINT if layer == 0 else ''}"
                )
            if stride > length:
                raise ConfigurationError(
                    f"stride_size entry={stride} of layer {layer} leaves nothing of its input, which is {_times(size)}"
                )
        return tuple((n + 2 * p - k) // s + 1 for n, k, s, p in zip(size, *self, strict=True))


def _times(size: Sequence[int]) -> str:
    return "x".join(map(str, size))


def output_sizes(geometries: Iterable[Geometry], size: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the size of the image after each layer."""
    sizes, current = [], tuple(size)
    for layer, geometry in enumerate(geometries):
        current = geometry.output_size(layer, current)
        sizes.append(current)
    return tuple(sizes)


class Conv(nn.Module):
    """A convolution of batches `[B, in, *size] -> [B, out, *output size]`."""

    def __init__(self, num_inputs: int, num_outputs: int, geometry: Geometry) -> None:
        super().__init__()
        self.geometry = geometry
        self.weight = nn.Parameter(
            default_weights(num_outputs, num_inputs, *geometry.kernel, fan_in=num_inputs * prod(geometry.kernel))
        )
        self.bias = nn.Parameter(torch.zeros(num_outputs))

    def reset_(self, gain: float, generator: torch.Generator, *, orthogonal: bool = True) -> None:
        """Draw initial weights and set biases to zero; see `draw_weights_`."""
        draw_weights_(self.weight, gain, generator, orthogonal=orthogonal)
        nn.init.zeros_(self.bias)

    def matrix(self) -> Tensor:
        """Return the weights `[out, columns]` of one member as a view."""
        return self.weight.view(len(self.weight), -1)

    def forward(self, batches: ImageBatches) -> ImageBatches:
        geometry, groups = self.geometry, 1
        weights, biases = (self.weight,), (self.bias,)
        if self.bias.dim() == 2 and len(batches) == 1:
            weights, biases, groups = (self.weight.flatten(0, 1),), (self.bias.flatten(),), len(self.bias)
        elif self.bias.dim() == 2:  # `unbind` has one gradient for all members, indexing has one for each
            weights, biases = self.weight.unbind(), self.bias.unbind()
        convolve = CONVOLUTIONS[len(geometry.kernel) - 1]
        return [
            convolve(x, weight, bias, geometry.stride, geometry.padding, groups=groups)
            for x, weight, bias in zip(batches, weights, biases, strict=True)
        ]

    def extra_repr(self) -> str:
        """Return the sizes, for `print`."""
        kernel, stride, padding = self.geometry
        inputs, outputs = self.weight.shape[-1 - len(kernel)], self.bias.shape[-1]
        return f"num_inputs={inputs}, num_outputs={outputs}, {kernel=}, {stride=}, {padding=}"

    def patches(self, x: Tensor) -> Tensor:
        """Return the kernel's inputs `[rows, columns]` in images `[B, in, *size]`; many are subsampled evenly."""
        num_axes = len(self.geometry.kernel)
        if any(self.geometry.padding):
            x = F.pad(x, [padding for padding in reversed(self.geometry.padding) for _ in range(2)])
        for axis, (kernel, stride) in enumerate(zip(self.geometry.kernel, self.geometry.stride, strict=True)):
            x = x.unfold(2 + axis, kernel, stride)
        x = x.movedim(1, 1 + num_axes)  # [B, *output size, in, *kernel]
        positions = x.shape[: 1 + num_axes]
        rows = torch.arange(prod(positions), device=x.device)
        if len(rows) > MAX_REFIT_PATCHES:
            rows = torch.linspace(0, len(rows) - 1, MAX_REFIT_PATCHES, dtype=torch.float64, device=x.device).long()
        return x[torch.unravel_index(rows, positions)].flatten(1)


def compose_kernels(second: Tensor, first: Conv) -> Tensor:
    """Return one kernel that approximates `first` followed by the kernel `second`, cut to the size of `second`.

    `first` must keep the image's size; `second` is `[out, channels, *kernel]`. The cut loses nothing where `second`
    covers the whole image.
    """
    return TRANSPOSED[len(first.geometry.kernel) - 1](second, first.weight, padding=first.geometry.padding)


# -- a stack between its layers


def split_members(x: Tensor, count: int) -> ImageBatches:
    """Split a stack `[P, B, C, *size]` into one batch or into P."""
    return [x.transpose(0, 1).flatten(1, 2)] if count == 1 else list(x.unbind())


def join_members(batches: ImageBatches, members: int) -> Tensor:
    """Join batches to `[P, B, C, *size]`."""
    if len(batches) > 1:
        return torch.stack(batches)
    x = batches[0]
    return x.unflatten(1, (members, x.shape[1] // members)).transpose(0, 1)


def apply_norm(norm: nn.Module, batches: ImageBatches, members: int) -> ImageBatches:
    """Normalise over the channels at each position; the results must not be overwritten."""
    if not isinstance(norm, LayerNorm):
        return batches
    x = join_members(batches, members).movedim(2, -1)  # [P, B, *size, C]
    y = norm(x.flatten(1, -2)).view(x.shape)
    return split_members(y.movedim(-1, 2), len(batches))


def apply_activation(activation: Activation, batches: ImageBatches, inputs: ImageBatches, members: int) -> ImageBatches:
    """Apply an activation; `inputs` are the layer's."""
    if activation.before:
        x, layer_input = join_members(batches, members), join_members(inputs, members)
        y = activation(x.flatten(2), layer_input.flatten(2))
        return split_members(y.view(x.shape), len(batches))
    return [activation.uniform(x) for x in batches]


# -- encoders of images


@runtime_checkable
class ImageLeaf(Protocol):
    """Reads an image from rows that hold observations."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels first."""
        ...

    def read(self, rows: Tensor) -> Tensor:
        """Return the images `[..., *shape]` as floats."""
        ...


class PlainImage(NamedTuple):
    """The leaf of observations that are images."""

    shape: tuple[int, ...]

    def read(self, rows: Tensor) -> Tensor:
        """Return the images unchanged."""
        return rows


def as_image_leaf(inputs: ImageLeaf | Sequence[int]) -> ImageLeaf:
    """Return the leaf that reads images from an encoder's inputs; a plain shape is that of images as inputs.

    Raises:
        ConfigurationError: it is no shape of an image.
    """
    leaf = inputs if isinstance(inputs, ImageLeaf) else PlainImage(tuple(inputs))
    if len(leaf.shape) not in (2, 3, 4) or min(leaf.shape) < 1:
        raise ConfigurationError(
            f"input_shape={tuple(leaf.shape)} must be that of an image, channels first: "
            "(C, L), (C, H, W) or (C, D, H, W)"
        )
    return leaf


@dataclass(frozen=True, kw_only=True)
class ImageSpec(FadingSpec):
    """Base of the specs of all encoders of images."""

    BOUNDS: ClassVar[Mapping[str, tuple[str, str]]] = {"channel_size": ("min_channel_size", "max_channel_size")}

    activation: str = "ReLU"
    """Activation of the convolutions."""
    output_activation: str = "Identity"
    """Activation of the linear output layer."""
    min_channel_size: int = 16
    """Fewest channels that a mutation may leave."""
    max_channel_size: int = 256
    """Most channels that a mutation may make."""
    init_layers: bool = True
    """Orthogonal initial weights; otherwise uniform in +-1/sqrt(columns)."""
    fading: tuple[str, ...] = ()
    """Previous activation of each activation and the output's while they fade in; otherwise empty."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_limits(self, "min_channel_size", "max_channel_size")
        self._check_activations()

    @property
    def may_be_padded(self) -> bool:
        """Whether missing channels may be zeros in a stack: every activation maps 0 to 0."""
        return {self.activation, *self.fading} <= ZERO_PRESERVING


class ImageEncoder(EvolvableModule[ImageSpecT]):
    """Convolutions and a linear layer that reads all of their outputs: `[..., *input_shape] -> [..., num_outputs]`.

    `inputs` is the shape of the images, or a leaf that reads them from rows. A kind of encoder adds its layers, calls
    `_add_output_layer` and defines `trunk`.
    """

    def __init__(self, spec: ImageSpecT, inputs: ImageLeaf | Sequence[int], num_outputs: int) -> None:
        super().__init__()
        self.spec, self.inputs, self.num_outputs = spec, inputs, num_outputs
        self.image = as_image_leaf(inputs)
        check_input_output_sizes(prod(self.image.shape), num_outputs)

    def _add_output_layer(self, last_group: str, channels: int, size: Sequence[int], widest: int) -> None:
        """Add the output layer, which reads a group of so many channels; `widest` is the largest output of a layer."""
        self.last_group, self.size, self.widest = last_group, tuple(size), widest
        before = self.spec.fading[-1] if self.spec.fading else ""
        self.output = Linear(channels * prod(size), self.num_outputs)
        self.output_activation = Activation(self.num_outputs, self.spec.output_activation, before)

    def convolutions(self) -> Iterable[tuple[Conv, float]]:
        """Yield each convolution with the gain of its initial weights."""
        raise NotImplementedError

    def trunk(self, batches: ImageBatches, consumer: str = "output") -> ImageBatches:
        """Return the input of one of the linear maps, given images."""
        raise NotImplementedError

    def reset_(self, generator: torch.Generator, *, output_gain: float) -> None:
        for layer, gain in (*self.convolutions(), (self.output, output_gain)):
            layer.reset_(gain, generator, orthogonal=self.spec.init_layers)

    @property
    def members(self) -> int:
        """Number of stacked members; 1 for a single one."""
        return len(self.output.bias) if self.output.bias.dim() == 2 else 1

    def forward(self, x: Tensor) -> Tensor:
        images = self.image.read(x)
        lead = images.shape[: images.dim() - len(self.image.shape)]
        flat = self.flat(images)
        return self.output_activation(self.output(flat), flat).view(*lead, self.num_outputs)

    def flat(self, images: Tensor) -> Tensor:
        """Return the inputs of the output layer: `[n, columns]`, or `[P, B, columns]` when stacked."""
        x = join_members(self.trunk(self.batches(images)), self.members).flatten(2)
        return x if self.output.bias.dim() == 2 else x[0]

    def batches(self, images: Tensor) -> ImageBatches:
        """Split images for the trunk."""
        stacked = self.output.bias.dim() == 2
        stack = images if stacked else images.reshape(1, -1, *images.shape[-len(self.image.shape) :])
        if len(stack) == 1:
            return split_members(stack, 1)
        is_small = stack.shape[1] * self.widest <= MAX_GROUPED_SIZE
        return split_members(stack, 1 if is_small or stack.is_cuda else len(stack))  # on a GPU launches dominate

    def output_kernel(self) -> Tensor:
        """Return one member's output weights as a kernel over the whole image `[out, channels, *size]`."""
        return self.output.weight.view(self.num_outputs, -1, *self.size)

    def expand_maps(self, maps: UnitMaps) -> UnitMaps:
        """A flattened channel is all its n positions: unit u becomes u*n to u*n + n-1."""
        if self.last_group not in maps:
            return {}
        positions, channels = prod(self.size), maps[self.last_group].unsqueeze(1)
        return {"flat": torch.where(channels < 0, -1, channels * positions + torch.arange(positions)).flatten()}

    def layer_input(self, name: str, x: Tensor) -> Tensor:
        if name == "output":
            return self.flat(self.image.read(x))
        few = x[:: 1 + (len(x) - 1) // MAX_REFIT_IMAGES]  # each image has many patches
        (batch,) = self.trunk(self.batches(self.image.read(few)), name)
        return cast(Conv, self.get_submodule(name)).patches(batch)

    def layer_output(self, name: str, outputs: Tensor, inputs: Tensor) -> Tensor:
        return self.output_activation(outputs.clone(), inputs) if name == "output" else outputs
