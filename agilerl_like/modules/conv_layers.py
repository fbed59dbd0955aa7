"""Convolutions written once, for one member or a whole stack, and what every encoder of images has in common.

A weight is `[out, in, *kernel]`, or `[P, out, in, *kernel]` when stacked; an image is `[C, L]`, `[C, H, W]` or
`[C, D, H, W]`. How a stack is convolved fastest depends on its size, so between its layers it is a list of *parts*,
each `[B, channels, *size]`: one part in which all members' channels lie side by side (one grouped convolution a layer),
or one for each member. A member by itself is one part.
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
from agilerl_like.modules.base import Arguments, EvolvableModule, Spec, UnitMaps, check_input_output_sizes, check_limits
from agilerl_like.modules.layers import (
    ACTIVATIONS,
    SKIP,
    ZERO_PRESERVING,
    Activation,
    LayerNorm,
    Linear,
    check_activation,
    default_weights,
)
from agilerl_like.modules.module_utils import Layer

CHANNEL_STEPS = (8, 16, 32)
"""How many channels a mutation adds or removes (AgileRL's choice)."""

MAX_GROUPED_SIZE = 2**16
"""Up to so many numbers from a member's widest layer, a stack is convolved in one grouped convolution a layer."""
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

MAX_REFIT_IMAGES = 256
MAX_REFIT_PATCHES = 4096
"""Of how many patches of how many images a convolution is refitted; more are thinned out evenly."""

CONVOLUTIONS: tuple[Callable[..., Tensor], ...] = (F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED: tuple[Callable[..., Tensor], ...] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)

ImageSpecT = TypeVar("ImageSpecT", bound="ImageSpec")
ImageBatches = list[Tensor]


class Geometry(NamedTuple):
    """Where a convolution looks, on each axis of the image."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    def output_size(self, layer: int, size: Sequence[int]) -> tuple[int, ...]:
        """The size of what layer number `layer` gives of an image of this size.

        Raises:
            ConfigurationError: the kernel is larger than the padded image, or a stride larger than the image.
        """
        for length, kernel, stride, padding in zip(size, *self, strict=True):
            if kernel > length + 2 * padding:
                raise ConfigurationError(
                    f"kernel_size entry={kernel} of layer {layer} is larger than its input, "
                    f"which is {_times(size)} and padded by {padding}"
                )
            if stride > length:
                raise ConfigurationError(
                    f"stride_size entry={stride} of layer {layer} leaves nothing of its input, which is {_times(size)}"
                )
        return tuple((n + 2 * p - k) // s + 1 for n, k, s, p in zip(size, *self, strict=True))


def _times(size: Sequence[int]) -> str:
    return "x".join(map(str, size))


def output_sizes(geometries: Iterable[Geometry], size: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The size of the image after each layer."""
    sizes, now = [], tuple(size)
    for layer, geometry in enumerate(geometries):
        now = geometry.output_size(layer, now)
        sizes.append(now)
    return tuple(sizes)


class Conv(Layer):
    """A convolution of parts: `[B, in, *size] -> [B, out, *size output_size]` each."""

    def __init__(self, num_inputs: int, num_outputs: int, geometry: Geometry) -> None:
        super().__init__()
        self.geometry = geometry
        self.weight = nn.Parameter(
            default_weights(num_outputs, num_inputs, *geometry.kernel, fan_in=num_inputs * prod(geometry.kernel))
        )
        self.bias = nn.Parameter(torch.zeros(num_outputs))

    def reset_(self, gain: float, generator: torch.Generator) -> None:
        """Draw weights that are orthogonal as a matrix `[out, columns]`, and zero biases (Saxe et al. 2014)."""
        nn.init.orthogonal_(self.weight, gain, generator=generator)
        nn.init.zeros_(self.bias)

    def reset_uniform_(self, generator: torch.Generator) -> None:
        """Draw weights uniformly in +-1/sqrt(columns), and zero biases."""
        bound = self.weight[0].numel() ** -0.5
        nn.init.uniform_(self.weight, -bound, bound, generator=generator)
        nn.init.zeros_(self.bias)

    def matrix(self) -> Tensor:
        """The weights `[out, columns]` (of one member): a view."""
        return self.weight.view(len(self.weight), -1)

    def forward(self, parts: ImageBatches) -> ImageBatches:
        geometry, groups = self.geometry, 1
        weights, biases = (self.weight,), (self.bias,)
        if self.bias.dim() == 2 and len(parts) == 1:
            weights, biases, groups = (self.weight.flatten(0, 1),), (self.bias.flatten(),), len(self.bias)
        elif self.bias.dim() == 2:  # unbinding has one gradient for all, where indexing would have one for each
            weights, biases = self.weight.unbind(), self.bias.unbind()
        convolve = CONVOLUTIONS[len(geometry.kernel) - 1]
        return [
            convolve(x, weight, bias, geometry.stride, geometry.padding, groups=groups)
            for x, weight, bias in zip(parts, weights, biases, strict=True)
        ]

    def patches(self, x: Tensor) -> Tensor:
        """What stands under the kernel `[rows, columns]` of images `[B, in, *size]`, at all or evenly many places."""
        num_axes = len(self.geometry.kernel)
        if any(self.geometry.padding):
            x = F.pad(x, [padding for padding in reversed(self.geometry.padding) for _ in range(2)])
        for axis, (kernel, stride) in enumerate(zip(self.geometry.kernel, self.geometry.stride, strict=True)):
            x = x.unfold(2 + axis, kernel, stride)
        x = x.movedim(1, 1 + num_axes)  # [B, *size after, in, *kernel]
        places = x.shape[: 1 + num_axes]
        rows = torch.arange(prod(places), device=x.device)
        if len(rows) > MAX_REFIT_PATCHES:
            rows = torch.linspace(0, len(rows) - 1, MAX_REFIT_PATCHES, dtype=torch.float64, device=x.device).long()
        return x[torch.unravel_index(rows, places)].flatten(1)


def compose_kernels(second: Tensor, first: Conv) -> Tensor:
    """The kernel that does what `first` and then the kernel `second` do, cut to the size of `second`.

    `first` is one that keeps an image's size; `second` is `[out, channels, *kernel]`. Nothing is lost by the cut where
    `second` looks at the whole image at once.
    """
    return TRANSPOSED[len(first.geometry.kernel) - 1](second, first.weight, padding=first.geometry.padding)


# -- a stack between its layers


def split_members(x: Tensor, count: int) -> ImageBatches:
    """Take a stack `[P, B, C, *size]` apart into one part or into P."""
    return [x.transpose(0, 1).flatten(1, 2)] if count == 1 else list(x.unbind())


def join_members(parts: ImageBatches, members: int) -> Tensor:
    """Put parts together to `[P, B, C, *size]`."""
    if len(parts) > 1:
        return torch.stack(parts)
    x = parts[0]
    return x.unflatten(1, (members, x.shape[1] // members)).transpose(0, 1)


def apply_norm(norm: nn.Module, parts: ImageBatches, members: int) -> ImageBatches:
    """Normalise over the channels, at each place by itself; what comes out must not be overwritten."""
    if not isinstance(norm, LayerNorm):
        return parts
    x = join_members(parts, members).movedim(2, -1)  # [P, B, *size, C]
    y = norm(x.flatten(1, -2)).view(x.shape)
    return split_members(y.movedim(-1, 2), len(parts))


def apply_activation(
    activation: Activation, parts: ImageBatches, inputs: ImageBatches, members: int, *, keep: bool = False
) -> ImageBatches:
    """Apply an activation; the parts may be overwritten unless told to keep them. `inputs` is what the layer read."""
    if activation.before:
        x, layer_input = join_members(parts, members), join_members(inputs, members)
        y = activation(x.flatten(2), layer_input.flatten(2))
        return split_members(y.view(x.shape), len(parts))
    function = ACTIVATIONS[activation.activation] if keep else activation.apply_
    return [function(x) for x in parts]


# -- encoders of images


@runtime_checkable
class ImageLeaf(Protocol):
    """Where an image stands in a row that holds an observation."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels first."""
        ...

    def read(self, rows: Tensor) -> Tensor:
        """The images `[..., *shape]` as floats."""
        ...


class PlainImage(NamedTuple):
    """The leaf of an observation that is an image already."""

    shape: tuple[int, ...]

    def read(self, rows: Tensor) -> Tensor:
        """What there is."""
        return rows


def as_image_leaf(inputs: ImageLeaf | Sequence[int]) -> ImageLeaf:
    """Where images stand in what an encoder is given; a plain shape says that it is given images.

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
class ImageSpec(Spec):
    """What the specs of all encoders of images have in common."""

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
    """What each activation and the output's fade from; empty where nothing fades."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_limits(self, "min_channel_size", "max_channel_size")
        check_activation("activation", self.activation)
        check_activation("output_activation", self.output_activation)

    @property
    def num_activations(self) -> int:
        """How many activations fade, but for the output's."""
        raise NotImplementedError

    def _check_fading(self) -> None:
        if self.fading and len(self.fading) != self.num_activations + 1:
            raise ConfigurationError(
                f"fading={self.fading!r} must be empty or have {self.num_activations + 1} entries, "
                "the last of them for the output"
            )
        for before in self.fading:
            if before not in ("", SKIP):
                check_activation("fading", before)

    def activation_choices(self) -> tuple[Arguments, ...]:
        """Every other activation that does something."""
        return tuple({"activation": name} for name in ACTIVATIONS if name not in (self.activation, "Identity"))

    def channel_choices(self, operator: str, channels: int) -> list[int]:
        """By how many channels "add_channel" or "remove_channel" may change a layer of so many."""
        sign, limit = (1, self.max_channel_size) if operator == "add_channel" else (-1, self.min_channel_size)
        return sorted({step for wish in CHANNEL_STEPS if (step := min(wish, sign * (limit - channels))) > 0})

    def with_activation(self: ImageSpecT, activation: str) -> ImageSpecT:
        """The spec that fades to another activation; the output's goes along if it was the same."""
        if activation == self.activation:
            return self
        output_follows = self.output_activation == self.activation
        fading = (self.activation,) * self.num_activations + (self.activation if output_follows else "",)
        output = activation if output_follows else self.output_activation
        return self.evolve(activation=activation, output_activation=output, fading=fading)

    @property
    def is_fading(self) -> bool:
        return bool(self.fading)

    def without_fading(self: ImageSpecT) -> ImageSpecT:
        return self.evolve(fading=())

    @property
    def activation_names(self) -> tuple[str, ...]:
        return self.activation, self.output_activation, *self.fading

    @property
    def may_be_narrower(self) -> bool:
        """Whether zeros make up for missing channels in a stack: every function gives 0 for 0."""
        return {self.activation, *self.fading} <= ZERO_PRESERVING


class ImageEncoder(EvolvableModule[ImageSpecT]):
    """Convolutions, and a linear layer that reads all that they give: `[..., *input_shape] -> [..., num_outputs]`.

    `inputs` is the shape of the images, or a leaf that reads them from rows. A kind of encoder adds its layers, calls
    `_add_output_layer`, and says with `trunk` how they follow each other.
    """

    def __init__(self, spec: ImageSpecT, inputs: ImageLeaf | Sequence[int], num_outputs: int) -> None:
        super().__init__()
        self.spec, self.inputs, self.num_outputs = spec, inputs, num_outputs
        self.image = as_image_leaf(inputs)
        check_input_output_sizes(prod(self.image.shape), num_outputs)

    def _add_output_layer(self, last_group: str, channels: int, size: Sequence[int], widest: int) -> None:
        """Add the output layer, which reads a group of so many channels; `widest` is the most that a layer gives."""
        self.last_group, self.size, self.widest = last_group, tuple(size), widest
        before = self.spec.fading[-1] if self.spec.fading else ""
        self.output = Linear(channels * prod(size), self.num_outputs)
        self.output_activation = Activation(self.num_outputs, self.spec.output_activation, before)

    def convolutions(self) -> Iterable[tuple[Conv, float]]:
        """Each convolution, and the gain of its initial weights."""
        raise NotImplementedError

    def trunk(self, parts: ImageBatches, reader: str = "output") -> ImageBatches:
        """What one of the linear maps reads of images."""
        raise NotImplementedError

    def reset_(self, generator: torch.Generator, *, output_gain: float) -> None:
        for conv, gain in self.convolutions():
            if self.spec.init_layers:
                conv.reset_(gain, generator)
            else:
                conv.reset_uniform_(generator)
        if self.spec.init_layers:
            self.output.reset_(output_gain, generator)
        else:
            self.output.reset_uniform_(min(output_gain, 1.0), generator)

    def finish_fading_(self) -> None:
        for layer in self.modules():
            if isinstance(layer, Activation):
                layer.finish_fading_()
        self.spec = self.spec.without_fading()

    @property
    def members(self) -> int:
        """How many members are stacked; 1 where this is one by itself."""
        return len(self.output.bias) if self.output.bias.dim() == 2 else 1

    def forward(self, x: Tensor) -> Tensor:
        images = self.image.read(x)
        lead = images.shape[: images.dim() - len(self.image.shape)]
        flat = self.flat(images)
        return self.output_activation(self.output(flat), flat).view(*lead, self.num_outputs)

    def flat(self, images: Tensor) -> Tensor:
        """What the output layer reads: `[n, columns]`, or `[P, B, columns]` when stacked."""
        x = join_members(self.trunk(self.parts(images)), self.members).flatten(2)
        return x if self.output.bias.dim() == 2 else x[0]

    def parts(self, images: Tensor) -> ImageBatches:
        """Images as the trunk takes them."""
        stack = (
            images if self.output.bias.dim() == 2 else images.reshape(1, -1, *images.shape[-len(self.image.shape) :])
        )
        is_small = stack.shape[1] * self.widest <= MAX_GROUPED_SIZE
        return split_members(stack, 1 if is_small or stack.is_cuda else len(stack))  # on a GPU launches are dear

    def output_kernel(self) -> Tensor:
        """The output layer's weights as a kernel over the whole image `[out, channels, *size]` (of one member)."""
        return self.output.weight.view(self.num_outputs, -1, *self.size)

    def expand_maps(self, maps: UnitMaps) -> UnitMaps:
        """A flattened channel is all its places: unit u becomes u*n to u*n + n-1."""
        if self.last_group not in maps:
            return {}
        places, channels = prod(self.size), maps[self.last_group].unsqueeze(1)
        return {"flat": torch.where(channels < 0, -1, channels * places + torch.arange(places)).flatten()}

    def layer_input(self, name: str, x: Tensor) -> Tensor:
        if name == "output":
            return self.flat(self.image.read(x))
        few = x[:: 1 + (len(x) - 1) // MAX_REFIT_IMAGES]  # an image has many patches
        (part,) = self.trunk(self.parts(self.image.read(few)), name)
        return cast(Conv, self.get_submodule(name)).patches(part)

    def layer_output(self, name: str, outputs: Tensor, inputs: Tensor) -> Tensor:
        return self.output_activation(outputs.clone(), inputs) if name == "output" else outputs
