"""Packages that load a name when it is first asked for: a worker process that only steps envs never loads torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def lazy_attributes(
    package: str, names: Sequence[str], homes: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose `names` live in its modules `homes`, the lightest first."""

    def load(name: str) -> Any:
        if name in homes:
            return import_module(f"{package}.{name}")
        for home in homes if name in names else ():
            module = import_module(f"{package}.{home}")
            if hasattr(module, name):
                return vars(sys.modules[package]).setdefault(name, getattr(module, name))
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load, lambda: sorted({*vars(sys.modules[package]), *names})
