"""What a saved document must hold: read strictly, for a stranger may have written it.

A file is small and may describe something huge. Within an `Outline` a network is built without memory, so that its
shapes can be compared with those that are stored before anything is made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.overrides import TorchFunctionMode

MAX_COUNT = 2**128
"""What no counter reaches."""


class Outline(TorchFunctionMode):
    """Within it, tensors that modules are built of have a shape and no memory; ValueError if there are far too many."""

    def __init__(self, expected: int) -> None:
        super().__init__()
        self._left = 100 + 10 * expected

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        self._left -= 1
        if self._left < 0:
            raise ValueError("its architecture has far more layers than its tensors are for")
        return func(*args, **(kwargs | {"device": "meta"} if "device" in kwargs else kwargs))


def text_in(document: Mapping[str, Any], name: str) -> str:
    """A text of a saved document; ValueError if it is something else."""
    if not isinstance(document[name], str):
        raise ValueError(f"{name}={document[name]!r:.100} must be a text")
    return document[name]


def count_in(document: Mapping[str, Any], name: str) -> int:
    """A counter of a saved document; ValueError if it is something else."""
    return whole(name, document[name])


def numbers_in(document: Mapping[str, Any], name: str) -> list[float]:
    """A list of numbers of a saved document; ValueError if it is something else."""
    entries = document[name]
    if not isinstance(entries, list) or not all(type(entry) in (int, float) for entry in entries):
        raise ValueError(f"{name}={entries!r:.100} must be a list of numbers")
    if any(type(entry) is int and abs(entry) > MAX_COUNT for entry in entries):
        raise ValueError(f"{name} has a number beyond all counting")
    return [float(entry) for entry in entries]


def whole(name: str, value: Any) -> int:
    """A counter, which is called so; ValueError if it is something else."""
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise ValueError(f"{name}={value!r:.100} must be a whole number of at least 0")
    return value
