"""Hyperparameters that are one of some values, and the conditions under which a hyperparameter has a meaning."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from agilerl_like.errors import ConfigurationError, check_init_names, check_scalar_fields, unknown_name
from agilerl_like.hpo.frozen_mapping import FrozenMapping, frozen
from agilerl_like.storage.validation import is_number_text

MIN_CHOICES = 2


def checked_when(when: Mapping[str, Any] | None) -> FrozenMapping[tuple[Any, ...]]:
    """Return a condition as a mapping from hyperparameters to the values of which each must have one."""
    if not isinstance(when or {}, Mapping):
        raise ConfigurationError(f"when={when!r}; allowed is a mapping such as {{'lr_schedule': 'kl'}}")
    conditions = {}
    for name, wanted in (when or {}).items():
        values = frozen(list(wanted)) if isinstance(wanted, list | tuple) else (wanted,)
        if not values:
            raise ConfigurationError(f"when={dict(when or {})!r} allows no value of {name!r}")
        conditions[name] = values
    return FrozenMapping(conditions)


def when_to_json(when: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Return the field `when` as plain data; {} without a condition."""
    return {"when": {name: plain(list(values)) for name, values in when.items()}} if when else {}


def plain(value: Any) -> Any:
    """Return tuples as lists."""
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


@check_init_names
@dataclass(frozen=True)
class Choice:
    """A hyperparameter that has one of `values`: text, flags, numbers, None, or lists of them.

    A mutation draws one of the other values, each equally likely. With `ordered` the values are an array whose
    neighbours are alike, such as [32, 64, 128]: a mutation moves to a neighbour, or draws with probability `resample`.
    `when` names choices and values on which the hyperparameter depends: it is changed only where each of them has one
    of its values, `when={"lr_schedule": "kl"}`, and drawn where a change first makes that true.
    """

    values: tuple[Any, ...]
    ordered: bool = field(default=False, kw_only=True)
    resample: float = field(default=0.2, kw_only=True)
    when: Mapping[str, Any] = field(default_factory=FrozenMapping, kw_only=True)

    size: ClassVar[int] = 1
    """Number of its coordinates."""

    def __post_init__(self) -> None:
        check_scalar_fields(self)
        if isinstance(self.values, str | Set) or not isinstance(self.values, Iterable):  # the order of a set varies
            raise ConfigurationError(f"choices={self.values!r}; allowed is a list of values")
        object.__setattr__(self, "values", frozen(list(self.values)))
        object.__setattr__(self, "when", checked_when(self.when))
        if len(self.values) < MIN_CHOICES:
            raise ConfigurationError(f"choices={plain(self.values)!r}; allowed are at least {MIN_CHOICES} values")
        for number, value in enumerate(self.values):
            if any(_equal(value, other) for other in self.values[:number]):
                raise ConfigurationError(f"choices={plain(self.values)!r} has {plain(value)!r} twice")
            if not _is_plain(value):
                raise ConfigurationError(
                    f"choices={plain(self.values)!r} has {value!r}; allowed are text that is no number, flags, "
                    "finite numbers, None, and lists of them"
                )
        kinds = {_kind(value) for value in self.values} - {"null"}
        if "number" in kinds and len(kinds) > 1:
            others = " and ".join(sorted(kinds - {"number"}))
            raise ConfigurationError(
                f"choices={plain(self.values)!r} mixes numbers with {others}; allowed are numbers alone, or with null"
            )
        if not 0 <= self.resample <= 1:
            raise ConfigurationError(f"resample={self.resample!r} must be a probability, between 0 and 1")

    @property
    def categories(self) -> tuple[int, ...]:
        """The number of unordered values of its coordinate; 0 for an ordered one."""
        return (0 if self.ordered else len(self.values),)

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)

    @property
    def min(self) -> Any:
        """The smallest of the values, which must be numbers."""
        return min(self.values)

    @property
    def max(self) -> Any:
        """The largest of the values, which must be numbers."""
        return max(self.values)

    def at_most(self, limit: float) -> Any:
        """Return the largest value that does not exceed a limit, or else the smallest; of numbers."""
        return max((value for value in self.values if value <= limit), default=self.min)

    def at_least(self, limit: float) -> Any:
        """Return the smallest value that is not below a limit, or else the largest; of numbers."""
        return min((value for value in self.values if value >= limit), default=self.max)

    def times(self, factor: int) -> Choice:
        """Return the choice between multiples of the values, which must be numbers."""
        return self.with_values(value * factor for value in self.values)

    def with_values(self, values: Iterable[Any]) -> Choice:
        """Return the choice between other values."""
        return Choice(tuple(values), ordered=self.ordered, resample=self.resample, when=self.when)

    def legal_values(self) -> dict[str, Any]:
        """Return the values that a setting must allow, by their name in messages."""
        return {f"choices.{number}": value for number, value in enumerate(self.values)}

    def index(self, name: str, value: Any) -> int:
        """Return the place of a value, called `name` in the message of the `ConfigurationError` for others."""
        for number, own in enumerate(self.values):
            if _equal(own, frozen(value)):
                return number
        if isinstance(value, str):
            raise unknown_name(name, value, map(str, self.values))
        allowed = ", ".join(repr(plain(own)) for own in self.values)
        raise ConfigurationError(f"{name}={value!r} is none of its choices; allowed are {allowed}")

    def matches(self, value: Any, wanted: Iterable[Any]) -> bool:
        """Whether a value is one of those that a condition names."""
        return any(_equal(frozen(value), one) for one in wanted)

    def check(self, name: str, value: Any) -> None:
        """Raise `ConfigurationError` if `value`, called `name` in the message, is none of the choices."""
        self.index(name, value)

    def mutate(self, value: Any, rng: np.random.Generator) -> Any:
        """Return another value."""
        here, count = self.index("value", value), len(self.values)
        if not self.ordered or rng.random() < self.resample:
            return self.values[(here + 1 + int(rng.integers(count - 1))) % count]
        up = bool(rng.random() < 0.5)
        if here == (count - 1 if up else 0):
            up = not up
        return self.values[here + 1 if up else here - 1]

    def resample_value(self, rng: np.random.Generator) -> Any:
        """Return one of the values, each equally likely."""
        return self.values[int(rng.integers(len(self.values)))]

    def sampled_at(self, shares: Iterable[float]) -> Any:
        """Return the value for a point of the unit interval, of which each value has an equal part."""
        (share,) = shares
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def step(self, value: Any, sd: float, rng: np.random.Generator) -> Any:
        """Return the value after a normal step; an unordered one stays, because it has no neighbours."""
        if not self.ordered:
            return value
        (here,) = self.to_units(value)
        return self.from_units((here + rng.normal(0.0, sd),), rng)

    def blend(self, one: Any, other: Any, rng: np.random.Generator) -> Any:
        """Return one of two values, each equally likely."""
        return one if rng.random() < 0.5 else other

    def to_units(self, value: Any) -> tuple[float, ...]:
        """Return the coordinate of a value, in [0, 1]."""
        here, count = self.index("value", value), len(self.values)
        return (here / (count - 1) if self.ordered else (here + 0.5) / count,)

    def from_units(self, units: Iterable[float], rng: np.random.Generator | None = None) -> Any:
        """Return the value at a coordinate; beyond [0, 1] it is reflected. An ordered one is rounded at random."""
        (unit,) = units
        unit = 1 - abs(1 - unit % 2)
        if not self.ordered:
            return self.sampled_at((unit,))
        place = unit * (len(self.values) - 1)
        lower = math.floor(place)
        is_upper = (place - lower >= 0.5) if rng is None else bool(rng.random() < place - lower)
        return self.values[min(lower + is_upper, len(self.values) - 1)]

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        ordered = {"ordered": True, "resample": self.resample} if self.ordered else {}
        return {"choices": plain(self.values), **ordered, **when_to_json(self.when)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Choice:
        """Read what `to_json` wrote, or the same fields from a configuration file."""
        known = ("choices", "ordered", "resample", "when")
        for name in data:
            if name not in known:
                raise unknown_name("Choice field", name, known)
        return cls(data["choices"], **{name: value for name, value in data.items() if name != "choices"})


def Bool(*, when: Mapping[str, Any] | None = None) -> Choice:  # noqa: N802  # it stands where Choice does
    """Return a choice between False and True."""
    return Choice((False, True), when=when or {})


def _equal(one: Any, other: Any) -> bool:
    """Whether two values are equal; a flag is no number."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _kind(value: Any) -> str:
    """Return the kind of a value; records of a run tell numbers from other kinds by it."""
    if value is None:
        return "null"
    kinds: dict[type, str] = {bool: "flags", str: "text", tuple: "lists"}
    return next((kind for type_, kind in kinds.items() if isinstance(value, type_)), "number")


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return not is_number_text(value)
    return value is None or (isinstance(value, int | float) and math.isfinite(value))
