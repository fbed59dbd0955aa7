"""Torch's core operations (ATen) in numpy, as far as policies use them; each is copied into exported files as source.

A function is named `aten_` and torch's name, and has torch's arguments in torch's order. Functions may use `np` and
`math`, and no other name of this module.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

# ruff: noqa: D103  # each does what torch's operation of its name does


def aten_add(x, y, alpha=1):
    return np.add(x, y if alpha == 1 else alpha * y, dtype=np.result_type(x, y))


def aten_sub(x, y, alpha=1):
    return np.subtract(x, y if alpha == 1 else alpha * y, dtype=np.result_type(x, y))


def aten_mul(x, y):
    return np.multiply(x, y, dtype=np.result_type(x, y))


def aten_div(x, y):
    return np.true_divide(x, y)


def aten_neg(x):
    return -x


def aten_abs(x):
    return np.abs(x)


def aten_exp(x):
    return np.exp(x)


def aten_expm1(x):
    return np.expm1(x)


def aten_log(x):
    return np.log(x)


def aten_log1p(x):
    return np.log1p(x)


def aten_sqrt(x):
    return np.sqrt(x)


def aten_rsqrt(x):
    return 1 / np.sqrt(x)


def aten_pow(x, exponent):
    return np.power(x, np.asarray(exponent, x.dtype))


def aten_tanh(x):
    return np.tanh(x)


def aten_sigmoid(x):
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)), x.dtype)


def aten_relu(x):
    return np.maximum(x, np.zeros((), x.dtype))


def aten_leaky_relu(x, slope=0.01):
    return np.where(x > 0, x, x * np.asarray(slope, x.dtype))


def aten_elu(x, alpha=1.0, scale=1.0, input_scale=1.0):
    return (np.where(x > 0, scale * x, scale * alpha * np.expm1(np.minimum(x, 0) * input_scale))).astype(x.dtype)


def aten_gelu(x, approximate="none"):
    if approximate == "tanh":
        return (0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))).astype(x.dtype)
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return (0.5 * x * (1 + erf(x / math.sqrt(2)))).astype(x.dtype)


def aten_softplus(x, beta=1, threshold=20):
    return np.where(x * beta > threshold, x, np.logaddexp(0, x * beta) / beta).astype(x.dtype)


def aten_clamp(x, low=None, high=None):
    if low is not None:
        x = np.maximum(x, np.asarray(low, x.dtype))
    return x if high is None else np.minimum(x, np.asarray(high, x.dtype))


def aten_maximum(x, y):
    return np.maximum(x, y)


def aten_minimum(x, y):
    return np.minimum(x, y)


def aten_eq(x, y):
    return x == y


def aten_ne(x, y):
    return x != y


def aten_gt(x, y):
    return x > y


def aten_ge(x, y):
    return x >= y


def aten_lt(x, y):
    return x < y


def aten_le(x, y):
    return x <= y


def aten_bitwise_not(x):
    return ~x


def aten_logical_not(x):
    return np.logical_not(x)


def aten_where(condition, x, y):
    return np.where(condition, x, y)


def aten_addmm(bias, x, y, beta=1, alpha=1):
    return beta * bias + alpha * (x @ y) if (alpha, beta) != (1, 1) else bias + x @ y


def aten_mm(x, y):
    return x @ y


def aten_bmm(x, y):
    return np.matmul(x, y)


def aten_mean(x, axes=None, keepdim=False, dtype=None):
    return x.mean(None if axes is None else tuple(axes), keepdims=keepdim, dtype=dtype)


def aten_sum(x, axes=None, keepdim=False, dtype=None):
    return x.sum(None if not axes else tuple(axes), keepdims=keepdim, dtype=dtype)


def aten_argmax(x, axis=None, keepdim=False):
    return np.argmax(x, axis, keepdims=keepdim)


def aten_native_layer_norm(x, shape, weight, bias, eps):
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    mean = x.mean(axes, keepdims=True)
    scale = 1 / np.sqrt(x.var(axes, keepdims=True) + np.asarray(eps, x.dtype))
    y = (x - mean) * scale
    y = y if weight is None else y * weight
    return y if bias is None else y + bias, mean, scale


def aten_convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    if transposed or groups != 1 or set(dilation) != {1}:
        raise NotImplementedError("transposed, grouped and dilated convolutions")
    axes = tuple(range(2, x.ndim))
    x = np.pad(x, [(0, 0), (0, 0), *((size, size) for size in padding)])
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], axes)
    windows = windows[(slice(None), slice(None), *(slice(None, None, step) for step in stride))]
    inner = (1, *range(x.ndim, windows.ndim))
    y = np.moveaxis(np.tensordot(windows, weight, (inner, (1, *axes))), -1, 1)
    return y if bias is None else y + bias.reshape(-1, *(1,) * len(axes))


def aten_avg_pool2d(x, kernel, stride=(), padding=(0, 0)):
    x = np.pad(x, [(0, 0), (0, 0), *((size, size) for size in padding)])
    rows, columns = stride or kernel
    windows = np.lib.stride_tricks.sliding_window_view(x, tuple(kernel), (2, 3))[:, :, ::rows, ::columns]
    return windows.mean((-2, -1), dtype=x.dtype)


def aten_max_pool2d_with_indices(x, kernel, stride=(), padding=(0, 0)):
    x = np.pad(x, [(0, 0), (0, 0), *((size, size) for size in padding)], constant_values=-np.inf)
    rows, columns = stride or kernel
    windows = np.lib.stride_tricks.sliding_window_view(x, tuple(kernel), (2, 3))[:, :, ::rows, ::columns]
    return windows.max((-2, -1)), None


def aten_constant_pad_nd(x, pad, value=0):
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    return np.pad(x, [(0, 0)] * (x.ndim - len(pairs)) + pairs, constant_values=value)


def aten_view(x, shape):
    return x.reshape(shape)


def aten__unsafe_view(x, shape):
    return x.reshape(shape)


def aten_permute(x, axes):
    return x.transpose(axes)


def aten_unsqueeze(x, axis):
    return np.expand_dims(x, axis)


def aten_squeeze(x, axes):
    axes = axes if isinstance(axes, list) else [axes]
    return x.squeeze(tuple(axis for axis in axes if x.shape[axis] == 1))


def aten_expand(x, shape):
    return np.broadcast_to(x, [x.shape[i - len(shape)] if size == -1 else size for i, size in enumerate(shape)])


def aten_cat(parts, axis=0):
    return np.concatenate(parts, axis)


def aten_split_with_sizes(x, sizes, axis=0):
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def aten_slice(x, axis=0, start=None, stop=None, step=1):
    return x[(slice(None),) * (axis % x.ndim) + (slice(start, stop, step),)]


def aten_select(x, axis, index):
    return np.take(x, index, axis)


def aten_index_select(x, axis, index):
    return np.take(x, index, axis)


def aten_sym_size(x, axis):
    return x.shape[axis]


def aten_full(shape, value, dtype=np.float32):
    return np.full(shape, value, dtype)


def aten_full_like(x, value, dtype=None):
    return np.full_like(x, value, dtype=dtype)


def aten_scalar_tensor(value, dtype=np.float32):
    return np.asarray(value, dtype)


def aten_arange(start, stop, step=1, dtype=np.int64):
    return np.arange(start, stop, step).astype(dtype)


def aten__to_copy(x, dtype=None):
    return x if dtype is None else x.astype(dtype)


def aten_clone(x):
    return x


def aten_alias(x):
    return x


OPERATIONS: dict[str, Callable[..., Any]] = {
    name.removeprefix("aten_"): function for name, function in list(globals().items()) if name.startswith("aten_")
}
"""Functions by torch's name."""

KEYWORDS = frozenset({"alpha", "beta", "approximate", "dtype", "keepdim"})
"""Keyword arguments of torch's that change a result; the others choose a device or a memory layout."""


def source_of(name: str) -> str:
    """Return the source of an operation."""
    return inspect.getsource(OPERATIONS[name])
