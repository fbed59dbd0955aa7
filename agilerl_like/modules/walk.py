"""What a module consists of, by the names and in the order that torch gives, found in one walk.

Torch's own walks, generators within generators, take longer than most of what is done with what they find.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn


class Walk(NamedTuple):
    """A module's submodules (itself among them, without a name), parameters and buffers, each of them once."""

    modules: dict[str, nn.Module]
    parameters: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its parameters, and behind them its buffers."""
        return {**self.parameters, **self.buffers}


def walk(module: nn.Module) -> Walk:
    """Find everything that a module consists of."""
    found, seen = Walk({}, {}, {}), {id(None)}

    def note(kind: dict[str, Any], prefix: str, own: Mapping[str, Tensor | None]) -> None:
        for name, tensor in own.items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                kind[prefix + name] = tensor

    def visit(one: nn.Module, prefix: str) -> None:
        seen.add(id(one))
        found.modules[prefix[:-1]] = one
        if one._parameters:
            note(found.parameters, prefix, one._parameters)
        if one._buffers:
            note(found.buffers, prefix, one._buffers)
        for name, inner in one._modules.items():
            if inner is not None and id(inner) not in seen:
                visit(inner, f"{prefix}{name}.")

    visit(module, "")
    return found
