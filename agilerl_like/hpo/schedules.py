"""Schedules: a factor on a hyperparameter's own value that depends on a run's progress.

Progress is the number of env steps at the start of an update's rollout over the run's `max_steps`: 0 for the first
update, below 1 for the last. The hyperparameter itself stays the member's own, so evolution changes the scale and the
schedule the course over time, and nothing has to be saved to resume. A schedule is a name ("linear"), a list of
(progress, factor) points with straight lines between them, or any function of progress.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias, cast

from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.registry import Registry, registered

Points: TypeAlias = tuple[tuple[float, float], ...]
Schedule: TypeAlias = str | Points | Callable[[float], float]

SCHEDULED = ("lr", "ent_coef", "clip_coef", "vf_coef")
"""Hyperparameters that may have a schedule."""
CHECKED_AT = tuple(step / 10 for step in range(11))
"""Values of progress at which a function is tried when it is set."""


def constant(progress: float) -> float:
    """Return 1."""
    return 1.0


def linear(progress: float) -> float:
    """Return a factor that falls from 1 to 0 in a straight line."""
    return 1.0 - progress


def cosine(progress: float) -> float:
    """Return a factor that falls from 1 to 0 along half a cosine (Loshchilov and Hutter 2017)."""
    return (1.0 + math.cos(math.pi * progress)) / 2


SCHEDULES: Registry[Callable[[float], float]] = registered(
    "schedule", {"constant": constant, "linear": linear, "cosine": cosine}
)
"""Named schedules; `register("schedule", name, function)` adds one, which configurations can name."""


def factor(name: str, schedule: Schedule, progress: float) -> float:
    """Return the factor on the hyperparameter `name`; `progress` is clipped to 0 to 1.

    Raises:
        ConfigurationError: a function raises, or returns a number that is negative or not finite; or it is a script's
            function, and was not registered by the process that loaded the agent.
    """
    at = min(max(progress, 0.0), 1.0)
    if not isinstance(schedule, str) and not callable(schedule):
        return _interpolated(schedule, at)
    try:
        value = float(_function(name, schedule)(at))
    except ConfigurationError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise ConfigurationError(f"schedules.{name}={schedule!r} failed at progress={at:g}: {error!r}") from error
    if not 0 <= value < math.inf:
        raise ConfigurationError(
            f"schedules.{name}={schedule!r} gives {value!r} at progress={at:g}; "
            "allowed are finite factors of at least 0"
        )
    return value


def check_schedules(schedules: Mapping[str, Any] | None) -> FrozenMapping[Schedule]:
    """Return schedules by hyperparameter, with lists as tuples.

    Raises:
        ConfigurationError: a hyperparameter cannot have a schedule, a name is unknown, points are not in order or
            outside their bounds, or a function leaves its bounds.
    """
    if not isinstance(schedules or {}, Mapping):
        raise ConfigurationError(
            f"schedules={schedules!r:.100}; allowed is a mapping from {', '.join(SCHEDULED)} to schedules"
        )
    checked = {}
    for name, schedule in (schedules or {}).items():
        if name not in SCHEDULED:
            raise unknown_name("schedules", name, SCHEDULED)
        checked[name] = _checked(name, schedule)
    return FrozenMapping(checked)


def schedules_to_json(schedules: Mapping[str, Schedule]) -> dict[str, Any]:
    """Return plain data that `check_schedules` reads; a function is represented by its name."""
    return {
        name: [[*point] for point in schedule] if isinstance(schedule, tuple) else _name_of(schedule)
        for name, schedule in schedules.items()
    }


def settings_to_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with their schedules as plain data, and without the key where there are none."""
    schedules = schedules_to_json(check_schedules(settings.get("schedules")))
    rest = {name: value for name, value in settings.items() if name != "schedules"}
    return {**rest, "schedules": schedules} if schedules else rest


def with_functions(schedules: Mapping[str, Schedule], given: Mapping[str, Schedule]) -> FrozenMapping[Schedule]:
    """Return loaded schedules with the functions of `given` in place of those that a file can only name."""
    return FrozenMapping(
        {**schedules, **{name: own for name, own in given.items() if schedules.get(name) == _name_of(own)}}
    )


def _checked(name: str, schedule: Any) -> Schedule:
    if isinstance(schedule, str):
        if schedule not in SCHEDULES and ":" not in schedule:
            raise unknown_name(f"schedules.{name}", schedule, SCHEDULES)
        return schedule
    if not callable(schedule):
        return _checked_points(name, schedule)
    function = cast(Callable[[float], float], schedule)
    for progress in CHECKED_AT:
        factor(name, function, progress)
    return function


def _checked_points(name: str, given: Any) -> Points:
    allowed = "allowed are a name, a function of progress, or points [progress, factor] such as [[0, 1], [0.5, 0.1]]"
    if not isinstance(given, Sequence) or not given:
        raise ConfigurationError(f"schedules.{name}={given!r:.100}; {allowed}")
    for point in given:
        if not isinstance(point, Sequence) or isinstance(point, str) or len(point) != 2:
            raise ConfigurationError(f"schedules.{name}: point {point!r:.100}; {allowed}")
        for label, value in zip(("progress", "factor"), point, strict=True):
            highest = 1.0 if label == "progress" else math.inf
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= highest or math.isinf(value):
                raise ConfigurationError(
                    f"schedules.{name}: {label}={value!r:.100} in point {list(point)!r:.100}; allowed are "
                    f"{'numbers from 0 to 1' if label == 'progress' else 'finite numbers of at least 0'}"
                )
    points = tuple((float(at), float(value)) for at, value in given)
    if any(later[0] <= earlier[0] for earlier, later in pairwise(points)):
        raise ConfigurationError(f"schedules.{name}={given!r:.100}; allowed are points of increasing progress")
    return points


def _interpolated(points: Points, progress: float) -> float:
    """Return the factor on the line between two points; before the first and after the last point it is constant."""
    for (start, low), (end, high) in pairwise(points):
        if start <= progress <= end:
            return low + (high - low) * (progress - start) / (end - start)
    return points[0][1] if progress < points[0][0] else points[-1][1]


def _function(name: str, schedule: str | Callable[[float], float]) -> Callable[[float], float]:
    if not isinstance(schedule, str):
        return schedule
    if schedule not in SCHEDULES:
        raise ConfigurationError(
            f"schedules.{name}={schedule!r} is a function that no file holds; set agent.schedules, or register it "
            f"under this name: register('schedule', {schedule!r}, function)"
        )
    return SCHEDULES[schedule]


def _name_of(schedule: Schedule) -> str:
    if not callable(schedule):
        return str(schedule)
    return SCHEDULES.name_of(schedule) or f"{schedule.__module__}:{getattr(schedule, '__qualname__', schedule)}"
