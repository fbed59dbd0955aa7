"""The evolvable convolutional network: convolutions, optional normalisation over channels, and one linear layer.

Its mutations never change the size of the image between layers: a new layer is an identity that keeps it, a kernel
grows by a ring of zeros together with one ring of padding, and only layers that keep the size can be removed. So the
columns of the linear layer never move. As in the MLP, changes that are not exact at once fade in (see `Activation`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.modules.cnn_defaults import LIMITS, default_conv_layers
from agilerl_like.modules.conv_layers import (
    CHANNEL_STEPS,
    Conv,
    Geometry,
    ImageBatches,
    ImageEncoder,
    ImageLeaf,
    ImageSpec,
    apply_activation,
    apply_norm,
    as_image_leaf,
    compose_kernels,
    output_sizes,
)
from agilerl_like.modules.evolvable_module import EvolvableModule, UnitAxes, UnitChange, UnitMaps
from agilerl_like.modules.inplace_mutation import mutation_method
from agilerl_like.modules.layers import SKIP, Activation, LayerNorm
from agilerl_like.modules.mlp import IDEMPOTENT
from agilerl_like.modules.spec import Arguments, OperatorKind, check_field_type, check_limits, check_range, size_steps

Extent = int | tuple[int, ...]
"""A length: one for all axes of the image, or one for each."""

NEW_KERNEL_SIZE = 3

LISTS = ("channel_size", "kernel_size", "stride_size", "padding")
"""Fields of a `CNNSpec` with an entry for each convolution."""


@dataclass(frozen=True)
class CNNSpec(ImageSpec):
    """The architecture of an `EvolvableCNN`; the four lists have an entry for each convolution.

    An entry of `kernel_size`, `stride_size` or `padding` is one number, or a list of one for each axis of the image.
    A configuration that gives none of the four lists gets the convolutions that suit the image
    (`default_conv_layers`).
    """

    channel_size: tuple[int, ...] = (32, 32)
    """Output channels of each convolution."""
    kernel_size: tuple[Extent, ...] = ()
    """Side of each kernel; 3 unless given."""
    stride_size: tuple[Extent, ...] = ()
    """Step of each convolution; 1 unless given."""
    padding: tuple[Extent, ...] = ()
    """Zeros around the input of each convolution; 0 unless given."""
    min_hidden_layers: int = 1
    """Fewest convolutions that a mutation may leave."""
    max_hidden_layers: int = 6
    """Most convolutions that a mutation may make."""
    max_kernel_size: int = 9
    """Largest side of a kernel that a mutation may make."""
    layer_norm: bool = False
    """Normalise over the channels at each position before the activation."""

    OPERATORS: ClassVar[Mapping[str, OperatorKind]] = {
        "add_layer": "layer",
        "remove_layer": "layer",
        "add_channel": "node",
        "remove_channel": "node",
        "change_kernel": "node",
        "change_activation": "activation",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, usual, least in (("kernel_size", 3, 1), ("stride_size", 1, 1), ("padding", 0, 0)):
            entries, layers = getattr(self, field), len(self.channel_size)
            entries = (usual,) * layers if entries == () else entries
            object.__setattr__(self, field, _extents(field, entries, least, layers))
        check_limits(self, "min_hidden_layers", "max_hidden_layers")
        layers = len(self.channel_size)
        check_range(self, "number of layers in channel_size", layers, "min_hidden_layers", "max_hidden_layers")
        for channels in self.channel_size:
            check_range(self, "channel_size entry", channels, "min_channel_size", "max_channel_size")
        if self.max_kernel_size < NEW_KERNEL_SIZE:
            raise ConfigurationError(
                f"max_kernel_size={self.max_kernel_size!r} must be at least {NEW_KERNEL_SIZE}, a new layer's kernel"
            )
        for kernel in self.kernel_size:
            if largest(kernel) > self.max_kernel_size:
                raise ConfigurationError(f"kernel_size entry={kernel} is above max_kernel_size={self.max_kernel_size}")
        if self.layer_norm and self.min_channel_size < 2:
            raise ConfigurationError("min_channel_size=1 is too few for layer_norm=True, which leaves nothing of one")
        for layer, before in enumerate(self.fading):
            if before == SKIP and not self._can_be_skipped(layer):
                raise ConfigurationError(
                    f"fading={self.fading!r}: only a convolution whose output has the shape of its input can be skipped"
                )

    @classmethod
    def defaults_for(cls, inputs: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if inputs is None or not given.keys().isdisjoint(LISTS):
            return super().defaults_for(inputs, given)
        limits = {name: given.get(name, getattr(cls, name)) for name in LIMITS}
        for name, limit in limits.items():
            check_field_type(name, limit, "int")
        return default_conv_layers(as_image_leaf(inputs).shape[1:], **limits)

    @property
    def num_activations(self) -> int:
        return len(self.channel_size)

    def _can_be_skipped(self, layer: int) -> bool:
        """Whether a layer has as many output as input channels, and keeps the size of the image."""
        inside = 0 < layer < len(self.channel_size)
        return inside and self.channel_size[layer - 1] == self.channel_size[layer] and self.keeps_size(layer)

    def keeps_size(self, layer: int) -> bool:
        """Whether a layer's output is as large as its input, so that the layer can be removed and added again."""
        kernel, padding = self.kernel_size[layer], self.padding[layer]
        return (
            self.stride_size[layer] == 1
            and isinstance(kernel, int)
            and isinstance(padding, int)
            and kernel == 2 * padding + 1
        )

    def geometries(self, num_axes: int) -> tuple[Geometry, ...]:
        """Return the layers' geometries for images of so many axes.

        Raises:
            ConfigurationError: an entry has another number of axes.
        """
        kinds = ("kernel_size", "stride_size", "padding")
        return tuple(
            Geometry(*(_spread(kind, getattr(self, kind)[layer], num_axes, layer) for kind in kinds))
            for layer in range(len(self.channel_size))
        )

    # -- mutations

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        if self.fading:  # one change at a time
            return ()
        layers = range(len(self.channel_size))
        if operator == "add_layer":
            return tuple({"layer": i} for i in layers) if len(layers) < self.max_hidden_layers else ()
        if operator == "remove_layer":  # never the first: no layer can be added before the others
            removable = [i for i in layers[1:] if self.keeps_size(i)] if len(layers) > self.min_hidden_layers else []
            return tuple({"layer": i} for i in removable)
        if operator == "change_activation":
            return self.activation_choices()
        if operator == "change_kernel":
            return tuple({"layer": i, "by": by} for i in layers for by in (-2, 2) if self._may_change_kernel(i, by))
        low, high = self.min_channel_size, self.max_channel_size
        return tuple(
            {"layer": i, "channels": channels}
            for i in layers
            for channels in size_steps(operator, self.channel_size[i], low, high, CHANNEL_STEPS)
        )

    def _may_change_kernel(self, layer: int, by: int) -> bool:
        kernel, padding = self.kernel_size[layer], self.padding[layer]
        if by > 0:
            return largest(kernel) + by <= self.max_kernel_size
        return smallest(kernel) + by >= 1 and smallest(padding) >= 1

    def apply(self, operator: str, **arguments: int | float | str) -> CNNSpec:
        if operator not in self.OPERATORS:
            raise unknown_name("operator", operator, self.OPERATORS)
        if operator == "change_activation":
            return self.with_activation(str(arguments["activation"]))
        layer = int(arguments["layer"])
        if operator == "add_layer":
            return self._with_layer_behind(layer)
        if operator == "remove_layer":
            return self.evolve(**{name: _without(getattr(self, name), layer) for name in LISTS})
        if operator == "change_kernel":
            by = int(arguments["by"])
            return self.evolve(
                kernel_size=_changed(self.kernel_size, layer, by), padding=_changed(self.padding, layer, by // 2)
            )
        by = int(arguments["channels"]) * (1 if operator == "add_channel" else -1)
        return self.evolve(channel_size=_changed(self.channel_size, layer, by))

    def _with_layer_behind(self, layer: int) -> CNNSpec:
        index, fading = layer + 1, ()
        if self.layer_norm or self.activation not in IDEMPOTENT:
            fading = tuple(SKIP if i == index else "" for i in range(len(self.channel_size) + 2))
        return self.evolve(
            channel_size=_inserted(self.channel_size, index, self.channel_size[layer]),
            kernel_size=_inserted(self.kernel_size, index, NEW_KERNEL_SIZE),
            stride_size=_inserted(self.stride_size, index, 1),
            padding=_inserted(self.padding, index, NEW_KERNEL_SIZE // 2),
            fading=fading,
        )

    @property
    def depth(self) -> int:
        return len(self.channel_size)

    def describe(self) -> str:
        """Channels x kernel / stride of each layer."""
        layers = zip(self.channel_size, self.kernel_size, self.stride_size, strict=True)
        return "-".join(f"{channels}x{kernel}/{stride}" for channels, kernel, stride in layers)

    # -- in a stack

    def stack_key(self) -> Hashable:
        """All but the channels, which are padded where every activation maps 0 to 0."""
        channels = () if self.may_be_padded else self.channel_size
        extents = self.kernel_size, self.stride_size, self.padding
        return super().stack_key(), extents, self.activation_names, self.layer_norm, channels

    @classmethod
    def padded_union(cls, specs: Sequence[CNNSpec]) -> CNNSpec:
        """Each layer is as wide as the widest."""
        return specs[0].evolve(
            channel_size=tuple(max(widths) for widths in zip(*(spec.channel_size for spec in specs), strict=True)),
            max_channel_size=max(spec.max_channel_size for spec in specs),
        )

    def multiply_adds(self, padded: CNNSpec, inputs: ImageLeaf | Sequence[int], num_outputs: int) -> int:
        shape = as_image_leaf(inputs).shape
        channels, geometries = (shape[0], *padded.channel_size), padded.geometries(len(shape) - 1)
        sizes = output_sizes(geometries, shape[1:])
        layers = zip(pairwise(channels), geometries, sizes, strict=True)
        convolutions = sum(i * o * prod(geometry.kernel) * prod(size) for (i, o), geometry, size in layers)
        return convolutions + channels[-1] * prod(sizes[-1]) * num_outputs


def _extents(field: str, entries: tuple[object, ...], least: int, layers: int) -> tuple[Extent, ...]:
    """Check a list of extents; equal lengths on all axes become one number, so that equal specs are equal."""
    if not isinstance(entries, tuple) or len(entries) != layers:
        raise ConfigurationError(f"{field}={entries!r} must be a list with an entry for each of the {layers} layers")
    return tuple(_extent(field, entry, least) for entry in entries)


def _extent(field: str, entry: object, least: int) -> Extent:
    lengths = tuple(entry) if isinstance(entry, list | tuple) else (entry,)
    if not lengths or any(type(length) is not int or length < least for length in lengths):
        raise ConfigurationError(
            f"{field} entry={entry!r} must be a whole number of at least {least}, "
            "or a list of them with one for each axis of the image"
        )
    whole_numbers = cast(tuple[int, ...], lengths)
    return whole_numbers[0] if len(set(whole_numbers)) == 1 else whole_numbers


def _spread(field: str, extent: Extent, num_axes: int, layer: int) -> tuple[int, ...]:
    if isinstance(extent, int):
        return (extent,) * num_axes
    if len(extent) != num_axes:
        raise ConfigurationError(
            f"{field} entry={extent} of layer {layer} has {len(extent)} entries for an image of {num_axes} axes"
        )
    return extent


def largest(extent: Extent) -> int:
    """Return the longest side."""
    return extent if isinstance(extent, int) else max(extent)


def smallest(extent: Extent) -> int:
    """Return the shortest side."""
    return extent if isinstance(extent, int) else min(extent)


def _changed(entries: tuple[Extent, ...], index: int, by: int) -> tuple[Extent, ...]:
    entry = entries[index]
    changed = entry + by if isinstance(entry, int) else tuple(length + by for length in entry)
    return (*entries[:index], changed, *entries[index + 1 :])


def _inserted(entries: tuple[Extent, ...], index: int, entry: int) -> tuple[Extent, ...]:
    return (*entries[:index], entry, *entries[index:])


def _without(entries: tuple[Extent, ...], index: int) -> tuple[Extent, ...]:
    return (*entries[:index], *entries[index + 1 :])


class EvolvableCNN(ImageEncoder[CNNSpec]):
    """Convolutions of `spec.channel_size` and a linear layer: `[..., *input_shape] -> [..., num_outputs]`.

    Raises:
        ConfigurationError: a kernel is larger than its input, or a stride leaves nothing of it; the layer is named.
    """

    add_layer = mutation_method("add_layer")
    remove_layer = mutation_method("remove_layer")
    add_channel = mutation_method("add_channel")
    remove_channel = mutation_method("remove_channel")
    change_kernel = mutation_method("change_kernel")
    change_activation = mutation_method("change_activation")

    def __init__(self, spec: CNNSpec, inputs: ImageLeaf | Sequence[int], num_outputs: int) -> None:
        super().__init__(spec, inputs, num_outputs)
        first, *size = self.image.shape
        geometries = spec.geometries(len(size))
        fading = spec.fading or ("",) * (len(spec.channel_size) + 1)
        widths = pairwise((first, *spec.channel_size))
        self.convs = nn.ModuleList(Conv(i, o, geometry) for (i, o), geometry in zip(widths, geometries, strict=True))
        self.norms = nn.ModuleList(
            LayerNorm(width) if spec.layer_norm else nn.Identity() for width in spec.channel_size
        )
        self.activations = nn.ModuleList(
            Activation(width, spec.activation, before)
            for width, before in zip(spec.channel_size, fading[:-1], strict=True)
        )
        sizes = output_sizes(geometries, size)
        widest = max(width * prod(after) for width, after in zip(spec.channel_size, sizes, strict=True))
        self._add_output_layer(str(len(sizes) - 1), spec.channel_size[-1], sizes[-1], widest)

    def conv(self, i: int) -> Conv:
        """Return the convolution of layer `i`."""
        return cast(Conv, self.convs[i])

    def convolutions(self) -> Iterable[tuple[Conv, float]]:
        return ((self.conv(i), 2**0.5) for i in range(len(self.convs)))

    def trunk(self, batches: ImageBatches, consumer: str = "output") -> ImageBatches:
        for i, (norm, activation) in enumerate(zip(self.norms, self.activations, strict=True)):
            if consumer == f"convs.{i}":
                break
            sums = apply_norm(norm, self.conv(i)(batches), self.members)
            batches = apply_activation(cast(Activation, activation), sums, batches, self.members)
        return batches

    # -- mutations

    LAYER_LISTS, INSERT_OFFSET = ("convs", "norms", "activations"), 1
    input_consumers = ("convs.0",)

    def unit_axes(self) -> UnitAxes:
        axes: UnitAxes = {"output.weight": ("out", "flat"), "output.bias": ("out",)}
        groups = ["in", *(str(i) for i in range(len(self.convs)))]
        for i, (before, after) in enumerate(pairwise(groups)):
            kernel = (f"{i}.kernel.{axis}" for axis in range(len(self.conv(i).geometry.kernel)))
            axes[f"convs.{i}.weight"] = (after, before, *kernel)
            axes[f"convs.{i}.bias"] = (after,)
            for name in ("weight", "bias", "counted"):
                axes[f"norms.{i}.{name}"] = (after,)
        return axes

    def unit_change(self, operator: str, arguments: Arguments) -> UnitChange:
        layer, channels = int(arguments.get("layer", 0)), int(arguments.get("channels", 0))
        here, behind = f"convs.{layer}", f"convs.{layer + 1}" if layer + 1 < len(self.convs) else "output"
        if operator == "add_channel":
            return UnitChange({str(layer): channels})
        if operator == "remove_channel":
            return UnitChange({str(layer): -channels}, consumers=((behind, behind),))
        if operator == "change_kernel":
            shrinks = int(arguments["by"]) < 0
            return UnitChange(fixed_maps=self._taps(layer, shrinks), consumers=((here, here),) if shrinks else ())
        if operator == "remove_layer":
            return UnitChange(consumers=((behind, here if behind != "output" else behind),))
        return UnitChange()

    def _taps(self, layer: int, shrinks: bool) -> UnitMaps:
        """A kernel loses its outermost positions, or gets a ring of new ones."""
        ring = torch.tensor([-1])
        kept = [torch.arange(length) for length in self.conv(layer).geometry.kernel]
        return {
            f"{layer}.kernel.{axis}": fixed_maps[1:-1] if shrinks else torch.cat([ring, fixed_maps, ring])
            for axis, fixed_maps in enumerate(kept)
        }

    def source_name(self, name: str, operator: str, arguments: Arguments) -> str:
        if operator == "remove_layer" and name == self._replacement(int(arguments["layer"])) + ".weight":
            return ""  # it reads other channels
        return super().source_name(name, operator, arguments)

    def _replacement(self, layer: int) -> str:
        """Return the layer of this child that reads what a removed layer read."""
        return f"convs.{layer}" if layer < len(self.convs) else "output"

    def init_new_layer_(self, operator: str, arguments: Arguments, generator: torch.Generator) -> None:
        """A new layer is an identity."""
        if operator == "add_layer":
            new = self.conv(int(arguments["layer"]) + 1)
            nn.init.dirac_(new.weight)
            nn.init.zeros_(new.bias)

    def merge_removed_layer_(self, parent: EvolvableModule, operator: str, arguments: Arguments) -> None:
        """Compose the removed layer with the next one, without the activation between them."""
        if operator != "remove_layer":
            return
        before, layer = cast(EvolvableCNN, parent), int(arguments["layer"])
        removed, replacement = before.conv(layer), cast(Conv, self.get_submodule(self._replacement(layer)))
        is_last = layer + 1 == len(before.convs)
        kernel = before.output_kernel() if is_last else before.conv(layer + 1).weight
        replacement.weight.copy_(compose_kernels(kernel, removed).reshape(replacement.weight.shape))
        replacement.bias.add_(kernel.flatten(2).sum(2) @ removed.bias)

    def layer_output(self, name: str, outputs: Tensor, inputs: Tensor) -> Tensor:
        if name == "output":
            return super().layer_output(name, outputs, inputs)
        i = int(name.removeprefix("convs."))
        return cast(Activation, self.activations[i])(self.norms[i](outputs.clone()), inputs)
