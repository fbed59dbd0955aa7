"""How the arithmetic is run, which changes no result beyond rounding: compiled or not, in which precision, or alone.

None of it is needed for correctness. `compile` turns a minibatch step into a few fused kernels (on a GPU one CUDA
graph): that takes some 10 to 30 seconds for every new combination of shapes, and a C++ compiler on a CPU, so it pays in
long runs whose architectures stay. Where the limit on recompilations is reached, new shapes run uncompiled.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar

import torch

Precision = Literal["float32", "bfloat16"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(variable, "64")
# oneDNN, and torch's binding of it (the second variable), compile each convolution for its shape and cache by default
# 1,024 of them (60 to 180 kB each), long after mutations have changed the shapes. Both read their variable at the first
# convolution. A population of equal CNNs uses about 30 entries; a miss costs 0.4 ms.


@dataclass(frozen=True)
class Execution:
    """Switches that are the same for all members of a population."""

    compile: bool = False
    precision: Precision = "float32"
    """Type of the products in the networks; weights, moments, losses and statistics are float32 always."""
    per_member: bool = False
    """Every member by itself (see `apart`)."""

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Where the networks are to be computed."""
        if self.precision == "float32":  # entering a disabled autocast takes as long as a kernel
            return nullcontext()
        return torch.autocast(device.type, dtype=torch.bfloat16)

    def compiled(self, function: FunctionT, device: torch.device) -> FunctionT:
        """The function, compiled if that is asked for; what was compiled for one population serves the next.

        It returns a tuple of tensors.
        """
        return _compiled(function, device.type) if self.compile else function


@cache
def _compiled(function: Any, device: str) -> Any:
    if device != "cuda":
        return torch.compile(function, dynamic=False)
    graph = torch.compile(function, dynamic=False, mode="reduce-overhead")

    def replay(*args: Any) -> tuple[torch.Tensor, ...]:
        torch.compiler.cudagraph_mark_step_begin()
        return tuple(x.clone() for x in graph(*args))  # a graph's output is overwritten when it runs again

    return replay
