"""The texts of help pages, with one line for each paragraph.

tyro wraps a text to the width of the terminal, but keeps most line breaks of the docstring that it took it from.
Without them a page has no short lines in the middle of a sentence.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructTypeInfo

from agilerl_like.hpo.frozen_mapping import FrozenMapping

CONTINUED_ARGUMENT = re.compile(r"\n {8,}")
"""A line break within the description of an argument in a docstring's `Args:`."""
CONTINUED_PARAGRAPH = re.compile(r"(?<=[^\n])\n(?=[^\s\-])")
"""A line break within a paragraph; lines that begin with an option stay lines."""


def unwrapped(function: Callable[..., int]) -> Callable[..., int]:
    """Return a function that calls this one, and whose docstring has one line for each paragraph and argument."""

    def command(*args: object, **kwargs: object) -> int:
        return function(*args, **kwargs)

    text = inspect.getdoc(function) or ""
    command.__doc__ = CONTINUED_PARAGRAPH.sub(" ", CONTINUED_ARGUMENT.sub(" ", text))
    command.__annotations__ = inspect.get_annotations(function, eval_str=True)
    vars(command)["__signature__"] = inspect.signature(function, eval_str=True)
    return command


class UnwrappedHelpRegistry(ConstructorRegistry):
    """tyro's rules for classes of settings, with each help text in one line, and without the `hidden` fields."""

    def __init__(self, hidden: Mapping[Any, Collection[str]] = FrozenMapping()) -> None:
        """`hidden` are names of fields by class."""
        super().__init__()
        self._hidden = hidden
        self._asks_default_rules = False
        self.struct_rule(self._unwrapped)

    def _unwrapped(self, info: StructTypeInfo) -> StructConstructorSpec | None:
        """Return what tyro's own rules return for a class: its fields that are shown, with unwrapped help texts."""
        if self._asks_default_rules:
            return None
        self._asks_default_rules = True
        try:
            spec = self.get_struct_spec(info)
        finally:
            self._asks_default_rules = False
        if not isinstance(spec, StructConstructorSpec):
            return None
        hidden = self._hidden.get(info.type, ())
        shown = [field for field in spec.fields if field.name not in hidden]
        return replace(spec, fields=tuple(replace(field, helptext=_one_line(field.helptext)) for field in shown))


def _one_line(text: str | Callable[[], str | None] | None) -> Callable[[], str | None]:
    """Return a function that returns the text in one line; tyro finds most texts late, by a function."""

    def found() -> str | None:
        given = text() if callable(text) else text
        return None if given is None else " ".join(given.split())

    return found
