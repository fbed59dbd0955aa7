"""Execution options that change results by rounding alone: compilation, precision, members computed separately.

`compile` turns forward pass, loss, backward pass and clip of a minibatch into one function of a few fused kernels (on a
GPU one CUDA graph, without the clip). Adam, which is one kernel on a CPU already, stays outside. Compiling takes 5 to
25 seconds for every new combination of shapes, and on a CPU needs a C++ compiler, so it is for long runs of fixed
architectures. New shapes run uncompiled once torch's limit on recompilations is reached.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar

import torch
from torch.utils._pytree import tree_map

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
    """Compute every member separately (see `per_member_learner`)."""

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context in which networks are computed."""
        if self.precision == "float32":  # entering a disabled autocast takes as long as a kernel
            return nullcontext()
        return torch.autocast(device.type, dtype=torch.bfloat16)

    def compiled(self, function: FunctionT, device: torch.device) -> FunctionT:
        """Return the function, compiled if `compile` is set; all populations share the compiled code."""
        return _compiled(function, device.type) if self.compile else function


@cache
def _compiled(function: Any, device: str) -> Any:
    """Compile a function, `torch.autograd.grad` in it included.

    Where the compiler fails, a warning gives the reason, and the function runs uncompiled from then on.
    """
    trace_autograd()
    replays = device == "cuda"  # CUDA graphs, whose outputs are overwritten when they run again
    graph, failed = torch.compile(function, dynamic=False, mode="reduce-overhead" if replays else None), False

    def run(*args: Any) -> Any:
        nonlocal failed
        if failed:
            return function(*args)
        if replays:
            torch.compiler.cudagraph_mark_step_begin()
        try:
            outputs = graph(*args)
        except torch.OutOfMemoryError:  # a RuntimeError, too, but none of the compiler
            raise
        except RuntimeError as error:  # what torch's compilers raise; an error of the function's own is raised again
            failed = True
            warnings.warn(f"compile=True has no effect, because {_reason(error)}", stacklevel=2)
            return function(*args)
        return tree_map(lambda x: x if x is None else x.clone(), outputs) if replays else outputs

    return run


def trace_autograd() -> None:
    """Let torch.compile trace `torch.autograd.grad`; a version without the option computes it outside of the graph."""
    options = torch._dynamo.config
    if hasattr(options, "trace_autograd_ops"):
        options.trace_autograd_ops = True


def _reason(error: RuntimeError) -> str:
    """Return why the compiler failed, and what to install if it is missing."""
    text = " ".join(str(error).split())
    if "C++ compiler" in text or "InvalidCxxCompiler" in text:
        return (
            "torch.compile found no C++ compiler; install g++ or clang++ (apt install g++, xcode-select --install), or "
            "name one in the environment variable CXX. The run continues uncompiled"
        )
    return f"torch.compile failed: {text[:200]}"
