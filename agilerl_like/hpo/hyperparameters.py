"""Which hyperparameters evolution may change, between which bounds or among which values, and in what steps.

A step multiplies by a factor, as in Population Based Training (Jaderberg et al. 2017), with three repairs. An integer
moves by at least one and is rounded at random: 4 * 1.2 is not stuck at 4. A step that would cross a bound lands
anywhere before it: gamma in [0.8, 0.999] does not just bounce between the ends. Where the range contains zero or less,
a step is at least a hundredth of the range: zero can be left and crossed. So every value can be reached from every
other, with the usual factors even without resampling.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, TypeAlias, cast

import numpy as np

from agilerl_like.errors import ConfigurationError, check_init_names, set_tuple_field, unknown_name
from agilerl_like.hpo.choice import Choice, checked_when, when_to_json
from agilerl_like.hpo.frozen_mapping import FrozenMapping

Number: TypeAlias = int | float
Scale: TypeAlias = Literal["auto", "linear", "log", "log_complement", "one_minus", "power_of_two"]

SCALES = ("auto", "linear", "log", "log_complement", "one_minus", "power_of_two")
REAL = (int, float, np.integer, np.floating)
DTYPES: dict[Any, type] = {int: int, float: float, "int": int, "float": float}
SMALLEST_SHARE = 0.01  # of the range: the least step where multiplication alone could not pass zero


@check_init_names
@dataclass(frozen=True)
class RLParameter:
    """The range of one hyperparameter and how it moves in it; it holds no value.

    `scale` sets how the range is sampled: uniformly (`linear`), uniformly in the logarithm (`log`), uniformly in the
    logarithm of 1 - value, by which a step also multiplies (`one_minus` for gamma and gae_lambda; `log_complement` is
    its other name), or uniformly over the powers of two (`power_of_two`, which also steps by doubling and halving,
    whatever the factors); `auto` is `log` where the range is positive and spans a factor of ten or more, else `linear`.
    `resample` is the probability that a mutation samples from the range instead of taking a step. With a factor of 1 a
    float takes no step in that direction, and an integer a step of one. `when` names choices on which the
    hyperparameter depends, as in `Choice`.
    """

    min: Number
    max: Number
    shrink_factor: float = 0.8
    grow_factor: float = 1.2
    dtype: type[int] | type[float] | Literal["int", "float"] = float
    scale: Scale = field(default="auto", kw_only=True)
    resample: float = field(default=0.2, kw_only=True)
    when: Mapping[str, Any] = field(default_factory=FrozenMapping, kw_only=True)

    size: ClassVar[int] = 1
    """Number of its coordinates."""
    categories: ClassVar[tuple[int, ...]] = (0,)
    """For each coordinate the number of its unordered values; 0 for numbers."""
    is_numeric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields, and resolve `dtype` and `scale`."""
        self._set("when", checked_when(self.when))
        for name in ("shrink_factor", "grow_factor", "resample"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigurationError(f"{name}={value!r} must be a number")
        if not isinstance(self.dtype, type | str) or self.dtype not in DTYPES:
            raise ConfigurationError(f"dtype={self.dtype!r} is not allowed; it must be int or float")
        if self.scale not in SCALES:
            raise unknown_name("scale", self.scale, SCALES)
        self._set("dtype", DTYPES[self.dtype])
        if self.scale == "one_minus":
            self._set("scale", "log_complement")
        for bound in ("min", "max"):
            self._set(bound, self._typed(bound, getattr(self, bound)))
        if self.scale == "auto":
            self._set("scale", "log" if 0 < 10 * self.min <= self.max else "linear")
        if self.scale == "power_of_two":
            self._set("shrink_factor", 0.5)
            self._set("grow_factor", 2.0)
        self._check_consistency()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_consistency(self) -> None:
        if self.min > self.max:
            raise ConfigurationError(f"min={self.min!r} must not be greater than max={self.max!r}")
        if self.scale == "log" and self.min <= 0:
            raise ConfigurationError(f"min={self.min!r} must be positive on the scale 'log'")
        if self.scale == "log_complement" and (self.max >= 1 or self.dtype is not float):
            raise ConfigurationError(
                f"max={self.max!r} must be less than 1, and dtype float, on the scale 'log_complement'"
            )
        if self.scale == "power_of_two":
            if self.dtype is not int:
                raise ConfigurationError(f"dtype={self.dtype!r} must be int on the scale 'power_of_two'")
            for bound, value in (("min", self.min), ("max", self.max)):
                if not _is_power_of_two(value):
                    raise ConfigurationError(f"{bound}={value!r} must be a power of two on the scale 'power_of_two'")
        if not 0 < self.shrink_factor <= 1:
            raise ConfigurationError(f"shrink_factor={self.shrink_factor!r} must be greater than 0 and at most 1")
        if not 1 <= self.grow_factor < math.inf:
            raise ConfigurationError(f"grow_factor={self.grow_factor!r} must be finite and at least 1")
        if not 0 <= self.resample <= 1:
            raise ConfigurationError(f"resample={self.resample!r} must be a probability, between 0 and 1")
        if self.resample == 0 and 1 in (self.shrink_factor, self.grow_factor):
            raise ConfigurationError(
                f"resample={self.resample!r} must be above 0 where shrink_factor={self.shrink_factor!r} or "
                f"grow_factor={self.grow_factor!r} is 1: some values could never be reached again"
            )

    def _typed(self, name: str, value: Any) -> Number:
        """Return a finite number as a Python `dtype`; raise `ConfigurationError` for anything else."""
        if not isinstance(value, REAL) or isinstance(value, bool) or not math.isfinite(value):
            raise ConfigurationError(f"{name}={value!r} must be a finite number")
        if self.dtype is float:
            return float(value)
        if value != int(value):
            raise ConfigurationError(f"{name}={value!r} must be a whole number, because dtype is int")
        return int(value)

    def check(self, name: str, value: Any) -> None:
        """Raise `ConfigurationError` if `value`, called `name` in the message, is not a legal one."""
        if value is None:
            raise ConfigurationError(f"{name}=None is no number to begin with; set {self.min!r} to {self.max!r}")
        typed = self._typed(name, value)
        if typed < self.min or typed > self.max:
            raise ConfigurationError(f"{name}={value!r} lies outside its range [{self.min!r}, {self.max!r}]")
        if self.scale == "power_of_two" and not _is_power_of_two(typed):
            raise ConfigurationError(f"{name}={value!r} must be a power of two")

    def clip(self, value: Number) -> Number:
        """Return the legal value nearest to `value`."""
        bounded = min(max(value, self.min), self.max)
        if self.dtype is float:
            return float(bounded)
        return 2 ** round(math.log2(bounded)) if self.scale == "power_of_two" else round(bounded)

    def at_most(self, limit: Number) -> Number:
        """Return the largest legal value that does not exceed a limit, or else the smallest."""
        if self.scale == "power_of_two":
            return self.clip(2 ** math.floor(math.log2(limit)))
        return self.clip(math.floor(limit) if self.dtype is int else limit)

    def at_least(self, limit: Number) -> Number:
        """Return the smallest legal value that is not below a limit, or else the largest."""
        if self.scale == "power_of_two":
            return self.clip(2 ** math.ceil(math.log2(limit)))
        return self.clip(math.ceil(limit) if self.dtype is int else limit)

    def times(self, factor: int) -> RLParameter:
        """Return the range of multiples of the values."""
        return replace(self, min=self.min * factor, max=self.max * factor, scale="linear")

    def legal_values(self) -> dict[str, Any]:
        """Return the values that a setting must allow, by their name in messages."""
        return {"min": self.min, "max": self.max}

    def mutate(self, value: Number, rng: np.random.Generator) -> Number:
        """Return another legal value: a fresh draw with probability `resample`, else one step away."""
        if rng.random() < self.resample:
            drawn = self.resample_value(rng)
            if drawn != value:
                return drawn
        return self.perturb(value, rng)

    def resample_value(self, rng: np.random.Generator) -> Number:
        """Return a sample from the whole range, uniform on this parameter's scale."""
        return self.quantile(rng.random())

    def quantile(self, share: float) -> Number:
        """Return the value below which this share of the samples from the range lies."""

        def between(low: float, high: float) -> float:
            return low + (high - low) * share

        # an integer represents the unit interval around it, so that both ends are as likely as the rest
        margin = 0.5 if self.dtype is int else 0.0
        if self.scale == "power_of_two":
            return self.clip(2.0 ** round(between(math.log2(self.min) - margin, math.log2(self.max) + margin)))
        low, high = self.min - margin, self.max + margin
        if self.scale == "log_complement":
            return self.clip(1 - math.exp(between(math.log(1 - low), math.log(1 - high))))
        if self.scale == "log":
            return self.clip(math.exp(between(math.log(low), math.log(high))))
        return self.clip(between(low, high))

    def perturb(self, value: Number, rng: np.random.Generator) -> Number:
        """Return the value one step up or down, with equal chance; at a bound the only direction that is left."""
        here = self.clip(value)
        up = bool(rng.random() < 0.5)
        if here == (self.max if up else self.min):
            up = not up
        if self.min == self.max:
            return here
        target = rng.uniform(*self._landing(here, up))
        if self.dtype is float:
            return self.clip(target)
        outcomes = self._outcomes(here, up)
        return min(max(_round_at_random(target, rng), outcomes[0]), outcomes[-1])

    def sampled_at(self, shares: Iterable[float]) -> Number:
        """Return the `quantile` of a point of the unit interval."""
        (share,) = shares
        return self.quantile(share)

    def step(self, value: Number, sd: float, rng: np.random.Generator) -> Number:
        """Return the value after a normal step of `sd` of the range, on its own scale; reflected at the bounds."""
        return self.from_unit(self.to_unit(value) + rng.normal(0.0, sd), rng)

    def blend(self, one: Number, other: Number, rng: np.random.Generator) -> Number:
        """Return a value between two others, or at most half of their distance beyond either, on its own scale."""
        here, there = self.to_unit(one), self.to_unit(other)
        place = np.clip(here + rng.uniform(-0.5, 1.5) * (there - here), 0.0, 1.0)
        return self.from_unit(float(place), rng)

    def to_units(self, value: Number) -> tuple[float, ...]:
        """Return the coordinate of a value."""
        return (self.to_unit(value),)

    def from_units(self, units: Iterable[float], rng: np.random.Generator | None = None) -> Number:
        """Return the value at a coordinate."""
        (unit,) = units
        return self.from_unit(unit, rng)

    def to_unit(self, value: Number) -> float:
        """Return where a value lies in its range, on this parameter's scale: 0 at `min`, 1 at `max`."""
        low, here, high = map(self._scaled, (self.min, self.clip(value), self.max))
        return 0.5 if low == high else (here - low) / (high - low)

    def from_unit(self, unit: float, rng: np.random.Generator | None = None) -> Number:
        """Return the legal value at a place on this parameter's scale; places beyond [0, 1] are reflected.

        An integer is rounded at random, so that a sequence of small steps is not stuck, or to the nearest without
        `rng`.
        """
        unit = 1 - abs(1 - unit % 2)  # reflected at both ends, as often as needed
        low, high = self._scaled(self.min), self._scaled(self.max)
        place = low + (high - low) * unit
        if self.scale == "power_of_two":
            return self.clip(2 ** (round(place) if rng is None else _round_at_random(place, rng)))
        value = self._unscaled(place)
        if self.dtype is float or rng is None:
            return self.clip(value)
        return self.clip(_round_at_random(value, rng))

    def _scaled(self, value: Number) -> float:
        match self.scale:
            case "log":
                return math.log(value)
            case "log_complement":
                return -math.log(1 - value)
            case "power_of_two":
                return math.log2(value)
        return float(value)

    def _unscaled(self, place: float) -> float:
        match self.scale:
            case "log":
                return math.exp(place)
            case "log_complement":
                return 1 - math.exp(-place)
        return place

    def neighbours(self, value: int) -> tuple[int, ...]:
        """Return the integers that one step from `value` can lead to, whatever the draw, in ascending order."""
        here = self.clip(value)
        return (*self._outcomes(here, up=False), *self._outcomes(here, up=True))

    def _landing(self, here: Number, up: bool) -> tuple[Number, Number]:
        """Return the interval a step ends in: one point, or all the way to the bound which that point would cross."""
        if self.scale == "log_complement":
            target = 1 - (1 - here) * (self.shrink_factor if up else self.grow_factor)
            if self.min <= target <= self.max:
                return target, target
            return (here, self.max) if up else (self.min, here)
        target = here * (self.grow_factor if up == (here > 0) else self.shrink_factor)
        least = SMALLEST_SHARE * (self.max - self.min) if self.min <= 0 else 0.0
        if abs(target - here) < least:
            target = here + least if up else here - least
        if self.min <= target <= self.max:
            return target, target
        return (here, self.max) if up else (self.min, here)

    def _outcomes(self, here: Number, up: bool) -> range:
        """Return the integers that a step in one direction can lead to after rounding; empty at the bound."""
        low, high = self._landing(here, up)
        if up:
            nearest = min(int(here) + 1, int(self.max))
            return range(max(math.floor(low), int(here) + 1), max(math.ceil(high), nearest) + 1)
        nearest = max(int(here) - 1, int(self.min))
        return range(min(math.floor(low), nearest), min(math.ceil(high), int(here) - 1) + 1)

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        numbers = {name: value for name, value in vars(self).items() if name != "when"}
        return numbers | {"dtype": DTYPES[self.dtype].__name__} | when_to_json(self.when)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RLParameter:
        """Read what `to_json` wrote, or the same fields from a configuration file."""
        known = [known.name for known in fields(cls)]
        for name in data:
            if name not in known:
                raise unknown_name("RLParameter field", name, known)
        for name in ("min", "max"):
            if name not in data:
                raise ConfigurationError(f"RLParameter {dict(data)!r} lacks {name!r}")
        return cls(**data)


@dataclass(frozen=True)
class NumberArray:
    """A hyperparameter that is a list of numbers, each with a range of its own, such as Adam's two decay rates.

    A mutation moves each number with probability 1/2, and at least one. `when` is that of `Choice`.
    """

    each: tuple[RLParameter, ...]
    when: Mapping[str, Any] = field(default_factory=FrozenMapping, kw_only=True)

    is_numeric: ClassVar[bool] = False

    def __post_init__(self) -> None:
        set_tuple_field(self, "each")
        object.__setattr__(self, "when", checked_when(self.when))
        if not self.each or not all(isinstance(one, RLParameter) and not one.when for one in self.each):
            raise ConfigurationError(f"each={list(self.each)!r}; allowed is a list of RLParameter without conditions")

    @property
    def size(self) -> int:
        """The number of its coordinates."""
        return len(self.each)

    @property
    def categories(self) -> tuple[int, ...]:
        """0 for each coordinate."""
        return (0,) * len(self.each)

    def legal_values(self) -> dict[str, Any]:
        """Return the values that a setting must allow, by their name in messages."""
        return {"each.min": [one.min for one in self.each], "each.max": [one.max for one in self.each]}

    def check(self, name: str, value: Any) -> None:
        """Raise `ConfigurationError` if `value`, called `name` in the message, is not a legal one."""
        if not isinstance(value, list | tuple) or len(value) != len(self.each):
            raise ConfigurationError(f"{name}={value!r}; allowed is a list of {len(self.each)} numbers")
        for number, (range_, own) in enumerate(zip(self.each, value, strict=True)):
            range_.check(f"{name}.{number}", own)

    def clip(self, value: Iterable[Number]) -> tuple[Number, ...]:
        """Return the legal value nearest to `value`."""
        return tuple(range_.clip(own) for range_, own in zip(self.each, value, strict=True))

    def mutate(self, value: Iterable[Number], rng: np.random.Generator) -> tuple[Number, ...]:
        """Return another legal value."""
        moves = rng.random(len(self.each)) < 0.5
        if not moves.any():
            moves[rng.integers(len(moves))] = True
        moved = zip(self.each, value, moves, strict=True)
        return tuple(range_.mutate(own, rng) if moves_now else own for range_, own, moves_now in moved)

    def resample_value(self, rng: np.random.Generator) -> tuple[Number, ...]:
        """Return a sample from each range."""
        return tuple(range_.resample_value(rng) for range_ in self.each)

    def sampled_at(self, shares: Iterable[float]) -> tuple[Number, ...]:
        """Return the quantiles of a point of the unit cube."""
        return tuple(range_.quantile(share) for range_, share in zip(self.each, shares, strict=True))

    def step(self, value: Iterable[Number], sd: float, rng: np.random.Generator) -> tuple[Number, ...]:
        """Return the numbers after a normal step of each."""
        return tuple(range_.step(own, sd, rng) for range_, own in zip(self.each, value, strict=True))

    def blend(self, one: Iterable[Number], other: Iterable[Number], rng: np.random.Generator) -> tuple[Number, ...]:
        """Return numbers between two values', each by itself."""
        return tuple(range_.blend(a, b, rng) for range_, a, b in zip(self.each, one, other, strict=True))

    def to_units(self, value: Iterable[Number]) -> tuple[float, ...]:
        """Return the coordinates of a value."""
        return tuple(range_.to_unit(own) for range_, own in zip(self.each, value, strict=True))

    def from_units(self, units: Iterable[float], rng: np.random.Generator | None = None) -> tuple[Number, ...]:
        """Return the value at coordinates."""
        return tuple(range_.from_unit(unit, rng) for range_, unit in zip(self.each, units, strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        return {"each": [one.to_json() for one in self.each], **when_to_json(self.when)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NumberArray:
        """Read what `to_json` wrote."""
        for name in data:
            if name not in ("each", "when"):
                raise unknown_name("NumberArray field", name, ("each", "when"))
        return cls(tuple(map(RLParameter.from_json, data["each"])), when=data.get("when", {}))


Parameter: TypeAlias = RLParameter | Choice | NumberArray
"""What evolution may do with one hyperparameter."""


class HyperparameterConfig(FrozenMapping[Parameter]):
    """The hyperparameters that evolution may change, by name: `HyperparameterConfig(lr=RLParameter(1e-5, 1e-2))`.

    A hyperparameter is a range (`RLParameter`), a `Choice`, or a `NumberArray`. One whose condition (`when`) is not met
    is inactive: its value stays as it is and has no influence on the search. It holds no values and is immutable, so
    members can share it.
    """

    __slots__ = ("_in_order",)

    def __init__(self, **parameters: Parameter) -> None:
        """Take one parameter for each name."""
        for name, parameter in parameters.items():
            if not isinstance(parameter, RLParameter | Choice | NumberArray):
                raise ConfigurationError(
                    f"hp_config.{name}={parameter!r} must be an RLParameter, a Choice or a NumberArray"
                )
        super().__init__(parameters)
        self._check_conditions()
        self._in_order = self._parents_first()

    def _check_conditions(self) -> None:
        """Raise `ConfigurationError` unless conditions name values of choices."""
        for name, parameter in self.items():
            for parent, values in parameter.when.items():
                choice = self.get(parent)
                if not isinstance(choice, Choice):
                    choices = [other for other, its in self.items() if isinstance(its, Choice) and other != name]
                    if choice is None:
                        reason = "is none of the hyperparameters that are searched"
                    else:
                        reason = "is a range of numbers"
                    others = ", ".join(choices) or f"choices, as in {parent}: [a, b] beside {name}"
                    raise ConfigurationError(f"hp_config.{name}.when={parent!r} {reason}; allowed are {others}")
                for value in values:
                    choice.check(f"hp_config.{name}.when.{parent}", value)

    def _parents_first(self) -> tuple[str, ...]:
        """Return the names, each after those on which it depends; `ConfigurationError` for a circle."""
        ordered: list[str] = []
        left = list(self)
        while left:
            ready = [name for name in left if not set(self[name].when) & set(left)]
            if not ready:
                chain = [left[0]]
                while chain[-1] not in chain[:-1]:
                    chain.append(next(parent for parent in self[chain[-1]].when if parent in left))
                circle = " -> ".join(chain[chain.index(chain[-1]) :])
                raise ConfigurationError(
                    f"hp_config.{chain[-1]}.when: the conditions are a circle ({circle}), in which no hyperparameter "
                    "could be decided first"
                )
            ordered += ready
            left = [name for name in left if name not in ready]
        return tuple(ordered)

    @property
    def parents_first(self) -> tuple[str, ...]:
        """The names, each after those on which it depends."""
        return self._in_order

    @property
    def size(self) -> int:
        """The number of coordinates of all hyperparameters."""
        return sum(parameter.size for parameter in self.values())

    @property
    def categories(self) -> tuple[int, ...]:
        """For each coordinate the number of its unordered values; 0 for numbers."""
        return tuple(count for parameter in self.values() for count in parameter.categories)

    @property
    def has_several_values(self) -> bool:
        """Whether any of the hyperparameters can have more than one value."""
        lowest, highest = (self.sampled_at([share] * self.size) for share in (0.0, math.nextafter(1.0, 0.0)))
        return lowest != highest

    def is_active(self, name: str, values: Mapping[str, Any]) -> bool:
        """Whether the condition of a hyperparameter is met by the values of the others."""
        return all(
            self.is_active(parent, values) and self._choice(parent).matches(values[parent], wanted)
            for parent, wanted in self[name].when.items()
        )

    def _choice(self, name: str) -> Choice:
        return cast(Choice, self[name])

    def active(self, values: Mapping[str, Any]) -> dict[str, Parameter]:
        """Return the hyperparameters whose condition is met."""
        return {name: parameter for name, parameter in self.items() if self.is_active(name, values)}

    def resolve(
        self, old: Mapping[str, Any], changed: Mapping[str, Any], rng: np.random.Generator | None = None
    ) -> dict[str, Any]:
        """Return the changes without those of inactive hyperparameters, and with a sample of those that became active.

        `old` are the values of all before. Without `rng` those that became active keep their value.
        """
        values, resolved = dict(old), {}
        for name in self._in_order:
            if not self.is_active(name, values):
                continue
            if name in changed:
                values[name] = resolved[name] = changed[name]
            elif rng is not None and not self.is_active(name, old):
                values[name] = resolved[name] = self[name].resample_value(rng)
        return resolved

    def taken_over(self, own: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a member after it takes over those of another, which may have other ranges.

        Numbers become the nearest legal ones. The own value stays where the other member has none, one that is none of
        the choices here, or None where a number is needed. Values of inactive hyperparameters are not limited.
        """
        values = dict(own)
        for name in self._in_order:
            parameter, value = self[name], other.get(name, own[name])
            if not self.is_active(name, values):
                values[name] = value
            elif isinstance(parameter, Choice):
                if parameter.matches(value, parameter.values):
                    values[name] = value
            elif value is not None:
                values[name] = parameter.clip(value)
        return {name: values[name] for name in self}

    def sample(self, rng: np.random.Generator) -> dict[str, Any]:
        """Return one sample of every hyperparameter that is active in it."""
        return self.resolve({}, {name: parameter.resample_value(rng) for name, parameter in self.items()})

    def sampled_at(self, shares: Iterable[float]) -> dict[str, Any]:
        """Return the values at a point `[D]` of the unit cube, of those that are active there."""
        rest = iter(shares)
        values = {
            name: parameter.sampled_at([next(rest) for _ in range(parameter.size)]) for name, parameter in self.items()
        }
        return self.resolve({}, values)

    def covers(self, values: Mapping[str, Any]) -> bool:
        """Whether values, of a member that may have other ranges, have coordinates here.

        They have if each name is among them, the value of each choice is one of this configuration's, and a range has
        a number, not the None of a choice.
        """
        return self.keys() <= values.keys() and all(
            its.matches(values[name], its.values) if isinstance(its, Choice) else values[name] is not None
            for name, its in self.active(values).items()
        )

    def to_units(self, values: Mapping[str, Any]) -> list[float]:
        """Return the coordinates `[D]` of values in [0, 1]; nan where a hyperparameter is inactive."""
        active = self.active(values)
        found: list[float] = []
        for name, parameter in self.items():
            found += parameter.to_units(values[name]) if name in active else [math.nan] * parameter.size
        return found

    def from_units(self, units: Iterable[float], rng: np.random.Generator) -> dict[str, Any]:
        """Return the values at coordinates `[D]`; those with a coordinate that is nan are left out."""
        rest, values = iter(units), {}
        for name, parameter in self.items():
            own = [next(rest) for _ in range(parameter.size)]
            if not any(map(math.isnan, own)):
                values[name] = parameter.from_units(own, rng)
        return values

    def without_inactive(self, units: np.ndarray) -> np.ndarray:
        """Return coordinates `[N, D]` with nan for those of hyperparameters that are inactive at each of the points."""
        if not any(parameter.when for parameter in self.values()):
            return units
        begins = dict(zip(self, np.cumsum([0, *(its.size for its in self.values())]).tolist(), strict=False))
        masked = np.array(units, dtype=float)
        for name in self._in_order:
            is_active = np.ones(len(masked), dtype=bool)
            for parent, wanted in self[name].when.items():
                choice = self._choice(parent)
                is_active &= [
                    math.isfinite(place) and choice.matches(choice.from_units((place,)), wanted)
                    for place in masked[:, begins[parent]].tolist()
                ]
            masked[~is_active, begins[name] : begins[name] + self[name].size] = math.nan
        return masked

    def times(self, name: str, factor: int) -> HyperparameterConfig:
        """Return the hyperparameters with the numbers of one multiplied, in the conditions of the others, too."""
        scaled = {}
        for other, parameter in self.items():
            when = {
                parent: tuple(value * factor for value in values) if parent == name else values
                for parent, values in parameter.when.items()
            }
            scaled[other] = replace(parameter, when=when)
        scaled[name] = cast("RLParameter | Choice", scaled[name]).times(factor)
        return HyperparameterConfig(**scaled)

    def check(self, values: Mapping[str, Any]) -> None:
        """Raise `ConfigurationError` unless `values` has every name, each active one within its range or choices."""
        for name in self._in_order:
            if name not in values:
                raise unknown_name("hp_config", name, values)
            if self.is_active(name, values):
                self[name].check(name, values[name])

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return plain data that `from_json` reads."""
        return {name: parameter.to_json() for name, parameter in self.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Mapping[str, Any]]) -> HyperparameterConfig:
        """Read what `to_json` wrote."""
        return cls(**{name: parameter_from_json(parameter) for name, parameter in data.items()})


def parameter_from_json(data: Mapping[str, Any]) -> Parameter:
    """Read what `to_json` of any parameter wrote."""
    if "choices" in data:
        return Choice.from_json(data)
    return NumberArray.from_json(data) if "each" in data else RLParameter.from_json(data)


def _round_at_random(value: float, rng: np.random.Generator) -> int:
    """Round up with probability equal to the fraction, so that the mean is the value itself."""
    whole = math.floor(value)
    return whole + bool(rng.random() < value - whole)


def _is_power_of_two(value: Number) -> bool:
    return value >= 1 and int(value) & (int(value) - 1) == 0
