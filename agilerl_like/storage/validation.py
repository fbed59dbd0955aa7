"""Builds records from documents of a run folder, validated against the annotations of their fields.

A valid digest does not make a document valid, because anyone can write both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from agilerl_like.errors import CheckpointError, short_repr

T = TypeVar("T")

NonNegativeInt = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
"""A counter."""
Number = Annotated[int, Field(strict=True, gt=-(2**63), lt=2**63)] | Annotated[float, Field(strict=True)]
"""An int stays an int."""
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Seconds = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Score = Annotated[float, Field(strict=True)]
"""A fitness: it may be nan or infinite."""
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True, max_length=10_000)]

MAX_LIST = 1000
"""Most entries of a hyperparameter that is a list."""


def is_plain_value(value: Any, depth: int = 3) -> bool:
    """Whether a value is text, a flag, a number or None, or a list of such."""
    if isinstance(value, list | tuple):
        return depth > 0 and len(value) <= MAX_LIST and all(is_plain_value(part, depth - 1) for part in value)
    if type(value) is int:
        return abs(value) < 2**63
    if type(value) is str:
        return len(value) <= 10_000 and not is_number_text(value)
    return value is None or type(value) in (bool, float)


def is_number_text(text: str) -> bool:
    """Whether a text reads as a number, so that a file of text could not tell it from one."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _checked_value(value: Any) -> Any:
    """Return a hyperparameter's value, its lists as tuples; ValueError if it is of another type."""
    if not is_plain_value(value):
        raise ValueError("allowed are numbers below 2**63, other text, flags, null, and lists of them")
    return _frozen(value)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


HyperparameterValue = Annotated[Any, AfterValidator(_checked_value)]
"""A number, or one of the values of a choice; an int stays an int."""


@cache
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)


def validate_record(kind: type[T], data: Any, where: str) -> T:
    """Return data as a `kind`, a dataclass.

    Raises:
        CheckpointError: names `where`, the first wrong field, its value and what is allowed.
    """
    known = [field.name for field in fields(cast(Any, kind))]
    unknown = sorted(map(str, data.keys() - {*known})) if isinstance(data, Mapping) else []
    if unknown:
        raise CheckpointError(f"{where}: {short_repr(unknown[0])} is unknown; allowed are {', '.join(known)}")
    try:
        return _adapter(kind).validate_python(data)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        field = ".".join(str(part) for part in first["loc"] if not str(part).startswith("function-"))
        more = f" (and {len(others)} more)" if others else ""
        raise CheckpointError(
            f"{where}: {field or 'it'}={short_repr(first['input'])}: {first['msg']:.300}{more}"
        ) from None
