"""Default convolutions for an image, derived from its height and width by one rule.

A long axis is strided over until fewer than `MIN_STRIDED_LENGTH` positions are left; then follow overlapping kernels of
3. For 84x84 images this is the network of Mnih et al. (2015): kernels 8, 4, 3, strides 4, 2, 1 and channels 32, 64, 64.
"""

from __future__ import annotations

from collections.abc import Sequence

MIN_STRIDED_LENGTH = 12
"""A shorter axis is not strided over: stride 2 with a kernel of 4 would leave less than 5 positions."""
MAX_STRIDE = 4
NARROW, WIDE = 32, 64
"""Channels of the first convolution, and of those after a stride."""

LIMITS = ("min_hidden_layers", "max_hidden_layers", "min_channel_size", "max_channel_size", "max_kernel_size")
"""Fields of a `CNNSpec` that limit the convolutions."""


def default_conv_layers(
    size: Sequence[int],
    *,
    min_hidden_layers: int,
    max_hidden_layers: int,
    min_channel_size: int,
    max_channel_size: int,
    max_kernel_size: int,
) -> dict[str, tuple[object, ...]]:
    """Return the lists of a `CNNSpec`, within these limits, for images of this size (without channels).

    Every kernel fits into its input, however small that is. The last convolution has stride 1, and there are at least
    two, as far as the limits allow. There is no padding.
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
    """Return the stride for an axis: 1, 2, or 4 for long axes."""
    stride = 1
    while stride < MAX_STRIDE and length >= stride * stride * MIN_STRIDED_LENGTH:
        stride *= 2
    return stride


def _side(length: int, stride: int) -> int:
    """Return the side of a kernel that overlaps its neighbours by half: 3 for stride 1, less for tiny images."""
    return 2 * stride if stride > 1 else min(3, length // 2 + 1)
