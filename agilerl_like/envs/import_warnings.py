"""The filter of warnings in which envs are made.

Box2D is built with SWIG, and crashes the interpreter if a warning of its import is turned into an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_IS_ENTERED: ContextVar[bool] = ContextVar("_IS_ENTERED", default=False)


@contextmanager
def import_warnings_ignored() -> Iterator[None]:
    """Ignore the warnings of SWIG's modules within this context, which may be nested.

    Python shows a warning again after each change of filters, so the envs of a vector env are made within one context:
    a warning that they have in common is then shown once.
    """
    if _IS_ENTERED.get():
        yield
        return
    token = _IS_ENTERED.set(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "builtin type .* has no __module__", DeprecationWarning)
            yield
    finally:
        _IS_ENTERED.reset(token)
