"""What a module consists of, by the names and in the order that torch gives, found in one walk.

Torch's own walks, generators within generators, take longer than most of what is done with what they find. Its
constructors take time too, in every birth: each attribute is set with care, by a method of Python's. `Layer` and
`listed` make the same at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

_OWN = tuple((name, type(value)) for name, value in vars(nn.Module()).items() if name != "training")


def blank_(module: nn.Module) -> None:
    """Give a module what torch keeps in every one, empty: its tensors, its submodules, and hooks."""
    own = vars(module)
    for name, kind in _OWN:
        own[name] = kind()


class Layer(nn.Module):
    """A module like any other, that is made in a third of the time."""

    def __init__(self) -> None:
        blank_(self)
        vars(self)["training"] = True


def listed(modules: Iterable[nn.Module]) -> nn.ModuleList:
    """A list of modules, made in a third of the time."""
    made = nn.ModuleList.__new__(nn.ModuleList)
    blank_(made)
    vars(made)["training"] = True
    made._modules.update((str(place), module) for place, module in enumerate(modules))
    return made


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
    found = Walk({}, {}, {})
    _visit(module, "", found, {id(None)})
    return found


def switch(module: nn.Module, training: bool) -> None:
    """Put a module and all that it consists of into training or evaluation mode, as its `train` would."""
    if type(module).train is not nn.Module.train:  # which may mean something else by it
        module.train(training)
        return
    vars(module)["training"] = training
    for inner in module._modules.values():
        if inner is not None:
            switch(inner, training)


def _visit(one: nn.Module, prefix: str, found: Walk, seen: set[int]) -> None:
    # not within `walk`: a function that knows itself and what was found would keep it until garbage is collected
    seen.add(id(one))
    found.modules[prefix[:-1]] = one
    if one._parameters:
        _note(found.parameters, prefix, one._parameters, seen)
    if one._buffers:
        _note(found.buffers, prefix, one._buffers, seen)
    for name, inner in one._modules.items():
        if inner is not None and id(inner) not in seen:
            _visit(inner, f"{prefix}{name}.", found, seen)


def _note(kind: dict[str, Any], prefix: str, own: Mapping[str, Tensor | None], seen: set[int]) -> None:
    for name, tensor in own.items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            kind[prefix + name] = tensor
