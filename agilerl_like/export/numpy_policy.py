"""A policy as Python source that needs numpy alone: the traced graph, with each operation written in numpy.

The file has the weights inside (base64 of an npz archive), so it can be copied to a machine without torch, for example
a robot. Only the operations that the graph uses are written, each from `OPERATIONS`.
"""

from __future__ import annotations

import base64
import io
import operator
import runpy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import fx

from agilerl_like.errors import ConfigurationError
from agilerl_like.export import numpy_operations
from agilerl_like.export.policy_module import PolicyInput, PolicyModule

SYMBOLS = {operator.mul: "*", operator.add: "+", operator.sub: "-", operator.floordiv: "//"}
"""Arithmetic of sizes in a graph."""

TEMPLATE = '''"""The policy of an agent that agilerl-like trained. It needs numpy alone.

`policy({arguments})` returns {results}. The batch is the first axis of each array:

{inputs}

An input of another shape, or with a value that is not allowed, is a ValueError that names it.
{memory}"""

import base64
import io
import math

import numpy as np


def as_batch(name, array, shape, dtype, limits=None):
    array, dtype = np.asarray(array), np.dtype(dtype)
    if array.ndim != len(shape) + 1 or array.shape[1:] != shape:
        raise ValueError(f"{{name}} has shape {{array.shape}}; allowed is {{('batch', *shape)}}")
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{{name}} has dtype {{array.dtype}}; allowed is {{dtype}}")
    with np.errstate(invalid="ignore", over="ignore"):
        batch = array.astype(dtype, copy=False)
    wrong = ~np.isfinite(batch) if dtype.kind == "f" else batch != array
    if limits is not None:
        wrong |= (array < np.array(limits[0])) | (array > np.array(limits[1]))
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        allowed = f"finite numbers of {{dtype}}" if dtype.kind == "f" else "whole numbers"
        if limits is not None:
            low, high = (np.broadcast_to(limit, array.shape)[place] for limit in limits)
            allowed += f" from {{low}} to {{high}}"
        raise ValueError(f"{{name}} has {{array[place]}} among numbers of {{array.dtype}}; allowed are {{allowed}}")
    return batch


def check_batches(**inputs):
    sizes = {{name: len(array) for name, array in inputs.items()}}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"the inputs have batches of {{sizes}}; allowed is one size")


{operations}

def policy({arguments}):
    {body}

{initial}

WEIGHTS = dict(np.load(io.BytesIO(base64.b64decode("""
{weights}"""))))
'''
MEMORY = """
An episode begins with zeros as `hidden_state`, which `initial_hidden_state(batch)` returns; each later step takes the
`next_hidden_state` of the step before.
The rows of an LSTM's state are the output h and the cell c of each layer; a GRU has one row for each layer.
"""
INITIAL = """
def initial_hidden_state(batch=1):
    return np.zeros((batch, *{shape}), np.{dtype})

"""
TITLE = TEMPLATE.partition("\n")[0]
"""The first line of exported files."""


def numpy_source(module: PolicyModule, program: torch.export.ExportedProgram) -> str:
    """Return Python source with a function `policy` of the module's inputs.

    Raises:
        ConfigurationError: the network uses an operation that is not in `numpy_operations`; it is named.
    """
    with warnings.catch_warnings(action="ignore"):  # torch's own, about its internals
        graph = program.run_decompositions()
    stored = graph.graph_signature
    sources = {**stored.inputs_to_parameters, **stored.inputs_to_buffers, **stored.inputs_to_lifted_tensor_constants}
    tensors = {**graph.state_dict, **graph.constants}
    arguments = module.argument_names
    remaining = list(zip(arguments, module.inputs, strict=True))
    weights: dict[str, np.ndarray] = {}
    operations: dict[str, None] = {}  # an ordered set
    batches: dict[str, str] = {}
    lines = []
    for node in graph.graph.nodes:
        if node.op == "placeholder" and node.name in sources:
            if node.users:
                weights[node.name] = tensors[sources[node.name]].detach().cpu().numpy()
                lines.append(f"{node.name} = WEIGHTS[{node.name!r}]")
        elif node.op == "placeholder":
            name, its = remaining.pop(0)
            limits = "" if its.limits is None else f", {its.limits}"
            batches[node.name] = f"as_batch({name!r}, {name}, {its.shape}, {its.dtype.name!r}{limits})"
            if not remaining:  # all in one assignment, because the graph may use the name of one input for another
                lines.append(f"{', '.join(batches)} = {', '.join(batches.values())}")
            if not remaining and len(arguments) > 1:
                sizes = (f"{name}={batch}" for name, batch in zip(arguments, batches, strict=True))
                lines.append(f"check_batches({', '.join(sizes)})")
        elif node.op == "call_function":
            lines += _call(node, operations)
        elif node.op == "output":
            lines.append(f"return {', '.join(map(_value, node.args[0]))}")
    inputs = [
        f"    {name}: {its.dtype}, [{', '.join(map(str, ('batch', *its.shape)))}]{_range(its)}{_origin(name, its.name)}"
        for name, its in zip(arguments, module.inputs, strict=True)
    ]
    return TEMPLATE.format(
        arguments=", ".join(["*"] * module.has_named_inputs + arguments),
        results=" and ".join(module.output_names),
        inputs="\n".join(inputs),
        memory=MEMORY * module.recurrent,
        initial=INITIAL.format(shape=module.inputs[-1].shape, dtype=module.inputs[-1].dtype) * module.recurrent,
        operations="\n\n".join(map(numpy_operations.source_of, operations)),
        body="\n    ".join(lines),
        weights=_archive(weights),
    )


def _range(its: PolicyInput) -> str:
    """Return the limits of an input for the docstring."""
    return "" if its.limits is None else f", {its.limits[0]} to {its.limits[1]}"


def _origin(argument: str, name: str) -> str:
    """Return the name of an input for the docstring, quoted, if its argument does not show it."""
    return "" if argument == name.replace(".", "_") else f", from {name!a}".replace('"', r"\x22")


def _archive(arrays: dict[str, np.ndarray]) -> str:
    """Return an npz archive as lines of base64."""
    archive = io.BytesIO()
    np.savez_compressed(archive, **cast(Any, arrays))
    return base64.encodebytes(archive.getvalue()).decode()


def load_numpy_policy(path: Path) -> Callable[..., Any]:
    """Return the function `policy` of a file that `numpy_source` wrote, without writing bytecode beside it."""
    return runpy.run_path(str(path))["policy"]


def _call(node: fx.Node, operations: dict[str, None]) -> list[str]:
    """Return the lines of one operation of the graph, and add its name to `operations`."""
    arguments = [*map(_value, node.args)]
    if node.target in SYMBOLS:
        return [f"{node.name} = {f' {SYMBOLS[node.target]} '.join(arguments)}"]
    if node.target is operator.getitem:
        return [f"{node.name} = {arguments[0]}[{arguments[1]}]"]
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    if name.startswith("_assert"):
        return []
    if name not in numpy_operations.OPERATIONS:
        raise ConfigurationError(
            f"the policy cannot be written with numpy: its network uses torch's operation {node.target}, which this "
            "package does not write in numpy; allowed are .onnx and .pt2"
        )
    operations[name] = None
    keywords = [f"{key}={_value(its)}" for key, its in node.kwargs.items() if key in numpy_operations.KEYWORDS]
    return [f"{node.name} = aten_{name}({', '.join([*arguments, *keywords])})"]


def _value(value: Any) -> str:
    """Return an argument of an operation as Python source."""
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, torch.dtype):
        return f"np.{torch.empty(0, dtype=value).numpy().dtype.name}"
    if isinstance(value, float) and not np.isfinite(value):
        return f"float('{value}')"
    return repr(value)
