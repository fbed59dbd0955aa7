"""Schedules: a factor on a hyperparameter's own value that depends on a run's progress.

Progress is the number of env steps at the start of an update's rollout over the run's `max_steps`: 0 for the first
update, below 1 for the last. Updates of OpenAIES wait for the ends of episodes, so theirs is the number before the last
step of the envs. The hyperparameter itself stays the member's own, so evolution changes the scale and the schedule the
course over time, and nothing has to be saved to resume. A schedule is a name ("linear"), a list of (progress, factor)
points with straight lines between them, or any function of progress.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias, cast

from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.registry import Registry, function_name, registered

Points: TypeAlias = tuple[tuple[float, float], ...]
Schedule: TypeAlias = str | Points | Callable[[float], float]

ADAPTIVE = "kl"
"""The `lr_schedule` that depends on the KL of the last epoch instead of progress."""
LR_SCHEDULE = "lr_schedule"
"""The setting that is another name of schedules.lr."""
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
        raise ConfigurationError(f"{_field(name)}={schedule!r} failed at progress={at:g}: {error!r}") from error
    if not 0 <= value < math.inf:
        raise ConfigurationError(
            f"{_field(name)}={schedule!r} gives {value!r} at progress={at:g}; allowed are finite factors of at least 0"
        )
    return value


def check_schedules(schedules: Mapping[str, Any] | None, allowed: Sequence[str] = SCHEDULED) -> FrozenMapping[Schedule]:
    """Return schedules by hyperparameter, of which `allowed` may have one, with lists as tuples.

    Raises:
        ConfigurationError: a hyperparameter cannot have a schedule, a name is unknown, points are not in order or
            outside their bounds, or a function leaves its bounds.
    """
    if not isinstance(schedules or {}, Mapping):
        raise ConfigurationError(
            f"schedules={schedules!r:.100}; allowed is a mapping from {', '.join(allowed)} to schedules"
        )
    checked = {}
    for name, schedule in (schedules or {}).items():
        if name not in allowed:
            raise unknown_name("schedules", name, allowed)
        checked[name] = _checked(name, schedule)
    return FrozenMapping(checked)


def check_schedule_of_lr(schedules: Mapping[str, Any] | None) -> FrozenMapping[Schedule]:
    """As `check_schedules`, for algorithms that schedule lr alone."""
    return check_schedules(schedules, allowed=("lr",))


def check_lr_schedule(schedule: Any) -> Schedule | None:
    """Return a schedule of `lr`, with lists as tuples; errors as `check_schedules`."""
    return schedule if schedule is None or schedule == ADAPTIVE else _checked(LR_SCHEDULE, schedule)


def check_known(schedules: Mapping[str, Schedule], lr_schedule: Schedule | None) -> None:
    """Raise ConfigurationError if a schedule is the name of a function that is not registered.

    Settings that are read from a file may have such names, since a script can set the functions afterwards.
    """
    for name, schedule in {**schedules, LR_SCHEDULE: lr_schedule}.items():
        if isinstance(schedule, str) and schedule not in (*SCHEDULES, ADAPTIVE):
            raise ConfigurationError(
                f"{_field(name)}={schedule!r} is unknown; allowed are {', '.join(SCHEDULES)}, points [progress, "
                "factor] and, in Python, a function. Register a function of your own under this name in the process "
                f"that trains: register('schedule', {schedule!r}, function), or by an entry point in "
                "agilerl_like.schedules"
            )


def schedule_to_json(schedule: Schedule | None) -> Any:
    """Return plain data that `check_lr_schedule` reads; a function is represented by its name."""
    if schedule is None:
        return None
    return [[*point] for point in schedule] if isinstance(schedule, tuple) else _name_of(schedule)


def schedules_to_json(schedules: Mapping[str, Schedule]) -> dict[str, Any]:
    """Return plain data that `check_schedules` reads; a function is represented by its name."""
    return {name: schedule_to_json(schedule) for name, schedule in schedules.items()}


def _field(name: str) -> str:
    """Return the setting that has the schedule of a hyperparameter."""
    return name if name == LR_SCHEDULE else f"schedules.{name}"


def with_functions(schedules: Mapping[str, Schedule], given: Mapping[str, Schedule]) -> FrozenMapping[Schedule]:
    """Return loaded schedules with the functions of `given` in place of those that a file can only name."""
    return FrozenMapping(
        {name: with_function(schedule, given.get(name)) or schedule for name, schedule in schedules.items()}
    )


def with_function(schedule: Schedule | None, given: Schedule | None) -> Schedule | None:
    """Return a loaded schedule, or `given` if that is the function of which the file has the name."""
    return given if callable(given) and schedule == _name_of(given) else schedule


def _checked(name: str, schedule: Any) -> Schedule:
    if isinstance(schedule, str):
        if schedule not in SCHEDULES and ":" not in schedule:
            raise unknown_name(_field(name), schedule, (*SCHEDULES, *([ADAPTIVE] if name == LR_SCHEDULE else [])))
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
        raise ConfigurationError(f"{_field(name)}={given!r:.100}; {allowed}")
    for point in given:
        if not isinstance(point, Sequence) or isinstance(point, str) or len(point) != 2:
            raise ConfigurationError(f"{_field(name)}: point {point!r:.100}; {allowed}")
        for label, value in zip(("progress", "factor"), point, strict=True):
            highest = 1.0 if label == "progress" else math.inf
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= highest or math.isinf(value):
                raise ConfigurationError(
                    f"{_field(name)}: {label}={value!r:.100} in point {list(point)!r:.100}; allowed are "
                    f"{'numbers from 0 to 1' if label == 'progress' else 'finite numbers of at least 0'}"
                )
    points = tuple((float(at), float(value)) for at, value in given)
    if any(later[0] <= earlier[0] for earlier, later in pairwise(points)):
        raise ConfigurationError(f"{_field(name)}={given!r:.100}; allowed are points of increasing progress")
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
            f"{_field(name)}={schedule!r} is a function, which a file cannot store; set agent.schedules, or register "
            f"it under this name: register('schedule', {schedule!r}, function)"
        )
    return SCHEDULES[schedule]


def _name_of(schedule: Schedule) -> str:
    if not callable(schedule):
        return str(schedule)
    return SCHEDULES.name_of(schedule) or function_name(schedule)
