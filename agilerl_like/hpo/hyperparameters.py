"""Which hyperparameters evolution may change, between which bounds, and in what steps.

A step multiplies by a factor, as in Population Based Training (Jaderberg et al. 2017), with three repairs. An integer
moves by at least one and is rounded at random: 4 * 1.2 is not stuck at 4. A step that would cross a bound lands
anywhere before it: gamma in [0.8, 0.999] does not just bounce between the ends. Where the range contains zero or less,
a step is at least a hundredth of the range: zero can be left and crossed. So every value can be reached from every
other, with the usual factors even without resampling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeAlias

import numpy as np

from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.hpo.frozen_mapping import FrozenMapping

Number: TypeAlias = int | float
Scale: TypeAlias = Literal["auto", "linear", "log", "log_complement", "power_of_two"]

SCALES = ("auto", "linear", "log", "log_complement", "power_of_two")
REAL = (int, float, np.integer, np.floating)
DTYPES: dict[Any, type] = {int: int, float: float, "int": int, "float": float}
SMALLEST_SHARE = 0.01  # of the range: the least step where multiplication alone could not pass zero


@dataclass(frozen=True)
class RLParameter:
    """The range of one hyperparameter and how it moves in it; it holds no value.

    `scale` sets how the range is sampled: uniformly (`linear`), uniformly in the logarithm (`log`), uniformly in the
    logarithm of 1 - value, by which a step also multiplies (`log_complement`, for gamma and gae_lambda), or uniformly
    over the powers of two (`power_of_two`, which also steps by doubling and halving, whatever the factors); `auto` is
    `log` where the range is positive and spans a factor of ten or more, else `linear`. `resample` is the probability
    that a mutation samples from the range instead of taking a step. With a factor of 1 a float takes no step in that
    direction, and an integer a step of one.
    """

    min: Number
    max: Number
    shrink_factor: float = 0.8
    grow_factor: float = 1.2
    dtype: type[int] | type[float] | Literal["int", "float"] = float
    scale: Scale = field(default="auto", kw_only=True)
    resample: float = field(default=0.2, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields, and resolve `dtype` and `scale`."""
        if self.dtype not in DTYPES:
            raise ConfigurationError(f"dtype={self.dtype!r} is not allowed; it must be int or float")
        if self.scale not in SCALES:
            raise unknown_name("scale", self.scale, SCALES)
        self._set("dtype", DTYPES[self.dtype])
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
        return asdict(self) | {"dtype": DTYPES[self.dtype].__name__}

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


class HyperparameterConfig(FrozenMapping[RLParameter]):
    """The hyperparameters that evolution may change, by name: `HyperparameterConfig(lr=RLParameter(1e-5, 1e-2))`.

    It holds ranges and no values and is immutable, so members can share it.
    """

    __slots__ = ()

    def __init__(self, **parameters: RLParameter) -> None:
        """Take one `RLParameter` for each name."""
        for name, parameter in parameters.items():
            if not isinstance(parameter, RLParameter):
                raise ConfigurationError(f"hp_config.{name}={parameter!r} must be an RLParameter")
        super().__init__(parameters)

    def sample(self, rng: np.random.Generator) -> dict[str, Number]:
        """Return one sample from every range, to start members at different points."""
        return {name: parameter.resample_value(rng) for name, parameter in self.items()}

    def check(self, values: Mapping[str, Any]) -> None:
        """Raise `ConfigurationError` unless `values` has every name of this config, each within its range."""
        for name, parameter in self.items():
            if name not in values:
                raise unknown_name("hp_config", name, values)
            parameter.check(name, values[name])

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return plain data that `from_json` reads."""
        return {name: parameter.to_json() for name, parameter in self.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Mapping[str, Any]]) -> HyperparameterConfig:
        """Read what `to_json` wrote."""
        return cls(**{name: RLParameter.from_json(parameter) for name, parameter in data.items()})


def _round_at_random(value: float, rng: np.random.Generator) -> int:
    """Round up with probability equal to the fraction, so that the mean is the value itself."""
    whole = math.floor(value)
    return whole + bool(rng.random() < value - whole)


def _is_power_of_two(value: Number) -> bool:
    return value >= 1 and int(value) & (int(value) - 1) == 0
