"""The convolutions that an image gets where a configuration names none, derived from its height and width by one rule.

A long axis is strided over until fewer than `MIN_STRIDED_LENGTH` places are left, then read by overlapping kernels of 3. For
84x84 images that gives the network of Mnih et al. (2015): kernels 8, 4, 3 with strides 4, 2, 1 and 32, 64, 64 channels.
"""

from __future__ import annotations

from collections.abc import Sequence

MIN_STRIDED_LENGTH = 12
"""An axis with fewer places is not strided over: stride 2 with a kernel of 4 would leave less than 5."""
MAX_STRIDE = 4
NARROW, WIDE = 32, 64
"""Channels of the first convolution, and of those behind a stride, where an image has fewer places."""

LIMITS = ("min_hidden_layers", "max_hidden_layers", "min_channel_size", "max_channel_size", "max_kernel_size")
"""Fields of a `CNNSpec` that the convolutions keep to."""


def default_conv_layers(
    size: Sequence[int],
    *,
    min_hidden_layers: int,
    max_hidden_layers: int,
    min_channel_size: int,
    max_channel_size: int,
    max_kernel_size: int,
) -> dict[str, tuple[object, ...]]:
    """Return the lists of a `CNNSpec`, within these limits, for images of these sides (that of the channels left out).

    Every kernel fits into what is left of the image, however small it is. The last convolution has stride 1, and there
    are at least two, as far as the limits allow. Nothing is padded.
    """
    channels, kernels, strides = list[int](), list[tuple[int, ...]](), list[tuple[int, ...]]()
    sides, width = tuple(size), NARROW
    while len(channels) < max_hidden_layers:
        steps = tuple(map(_stride, sides))
        kernel = tuple(min(_side(n, step), max_kernel_size) for n, step in zip(sides, steps, strict=True))
        channels.append(min(max(width, min_channel_size), max_channel_size))
        kernels.append(kernel)
        strides.append(steps)
        if max(steps) == 1 and len(channels) >= max(min_hidden_layers, 2):
            break
        width = WIDE if max(steps) > 1 else width
        sides = tuple((n - k) // step + 1 for n, k, step in zip(sides, kernel, steps, strict=True))
    return {"channel_size": tuple(channels), "kernel_size": tuple(kernels), "stride_size": tuple(strides)}


def _stride(length: int) -> int:
    """1 for few places, 2 for more, 4 for more than four times as many."""
    stride = 1
    while stride < MAX_STRIDE and length >= stride * stride * MIN_STRIDED_LENGTH:
        stride *= 2
    return stride


def _side(length: int, stride: int) -> int:
    """The side of a kernel that overlaps with its neighbours by half; 3 for stride 1, less where the image is tiny."""
    return 2 * stride if stride > 1 else min(3, length // 2 + 1)
