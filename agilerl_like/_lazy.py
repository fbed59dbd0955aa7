"""Packages that import a name on first access, so that a worker process that only steps envs never imports torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def lazy_attributes(
    package: str, names: Sequence[str], modules: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose `names` are in its `modules`, tried in this order."""

    def load(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        for candidate in modules if name in names else ():
            module = import_module(f"{package}.{candidate}")
            if hasattr(module, name):
                return vars(sys.modules[package]).setdefault(name, getattr(module, name))
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load, lambda: sorted({*vars(sys.modules[package]), *names})
