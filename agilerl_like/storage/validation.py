"""Builds records from documents of a run folder, validated against the annotations of their fields.

A valid digest does not make a document valid, because anyone can write both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field, TypeAdapter, ValidationError

from agilerl_like.errors import CheckpointError

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


def short_repr(value: Any) -> str:
    """Return the beginning of a value's repr; Python refuses to print integers of many digits."""
    if isinstance(value, int) and abs(value) >= 2**64:
        return f"<integer of {int(math.log10(2) * value.bit_length())} digits>"
    try:
        return f"{value!r:.100}"
    except (ValueError, RecursionError):
        return f"<{type(value).__name__}>"
