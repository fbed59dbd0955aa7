"""What can be written to a file and found again: import paths of functions, and plain data."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

from agilerl_like.errors import ConfigurationError


def module_of(field: str, value: str, module_name: str) -> ModuleType:
    """Import the module that a field's value names; a ConfigurationError says if that cannot be done."""
    if not all(module_name.split(".")):  # relative to nothing
        raise ConfigurationError(f"{field}={value!r}: {module_name!r} is no module's name; allowed is 'package.module'")
    try:
        return importlib.import_module(module_name)
    except ImportError as fault:
        raise ConfigurationError(f"{field}={value!r}: module {module_name!r} cannot be imported ({fault})") from fault


def import_path(field: str, thing: Callable[..., Any]) -> str:
    """Return "package.module:function", if that leads back to a thing; a ConfigurationError says if it does not."""
    module_name = getattr(thing, "__module__", None) or "__main__"
    attribute = getattr(thing, "__qualname__", "")
    found = None
    if module_name != "__main__" and attribute.isidentifier():
        found = getattr(importlib.import_module(module_name), attribute, None)
    if found is not thing:
        raise ConfigurationError(
            f"{field}={thing!r} cannot be written to a file; allowed are ids and functions at the top of a module that "
            "can be imported ('package.module:function')"
        )
    return f"{module_name}:{attribute}"


def plain(field: str, value: Any) -> Any:
    """Return a value as JSON would give it back; a ConfigurationError says if it cannot be written."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as fault:
        raise ConfigurationError(f"{field}={value!r} cannot be written to a file: {fault}") from fault
