"""Numbers, durations and mutations as short text, without digits that are only noise; and printable text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from agilerl_like.hpo.schedules import SCHEDULED

_SPARKS = "▁▂▃▄▅▆▇█"


def printable(text: str) -> str:
    """Return a text with an escape in place of each character that is not printable, newlines too.

    Commands, and names of folders and in their files, may have sequences that control a terminal and make YAML
    unreadable, and bytes that are not UTF-8.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def hyperparameter(value: Any, *, scientific: bool = False) -> str:
    """Return a hyperparameter in about seven characters: `2048`, `0.995`, `3.2e-4`; choices as in YAML: `true`."""
    if isinstance(value, bool) or value is None:
        return "none" if value is None else str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(hyperparameter, value))}]"
    if isinstance(value, Integral | str):
        return str(value)
    if abs(value) < 1e6 and float(value).is_integer():  # a whole number of metrics.csv, which are all read as floats
        return str(int(value))
    if math.isfinite(value) and (scientific or not 0.01 <= abs(value) < 10_000):
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:.4g}" if 0.9 <= abs(value) < 1 else f"{value:.3g}"  # the last digit of a discount matters


def hyperparameters(values: Sequence[Any]) -> list[str]:
    """Return the values of one hyperparameter in the same notation, so that they can be compared at a glance."""
    if not all(is_number(value) for value in values):
        return [hyperparameter(value) for value in values]
    tiny = any(0 < abs(value) < 0.01 for value in values)
    return [hyperparameter(value, scientific=tiny and abs(value) < 1) for value in values]


def scheduled(values: Mapping[str, Any], trained: Mapping[str, Any]) -> str:
    """Return what schedules made of a member's hyperparameters, with their factors: `lr 7.8e-4 (factor 0.17)`.

    `trained` are means over the member's updates, by name. A hyperparameter without a schedule is left out, also one
    that has the name of a metric, such as the `sigma` of CMAES.
    """
    numbers = {name: own for name, own in values.items() if name in SCHEDULED and is_number(own)}
    pairs = {name: (own, trained[name]) for name, own in numbers.items() if name in trained}
    changed = {name: (own, mean) for name, (own, mean) in pairs.items() if is_scheduled(own, mean)}
    return ", ".join(
        f"{name} {hyperparameter(mean)} (factor {mean / own:.2g})" for name, (own, mean) in changed.items()
    )


def is_scheduled(own: float, trained: float) -> bool:
    """Whether a schedule changed a hyperparameter, of which `trained` is the rounded mean over updates."""
    return own != 0 and math.isfinite(own) and math.isfinite(trained) and not math.isclose(own, trained, rel_tol=1e-3)


def is_number(value: Any) -> bool:
    """Whether a value is a number, and no flag."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def returns(values: Iterable[float], *, signed: bool = False) -> list[str]:
    """Return fitnesses with the decimals that suit the largest; a value that is not finite is empty."""
    values = list(values)
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    decimals = 0 if largest >= 1000 else 1 if largest >= 10 else 2 if largest >= 0.1 or largest == 0 else 4
    sign = "+" if signed else ""
    return [f"{value:{sign}.{decimals}f}" if math.isfinite(value) else "" for value in values]


def fitness(value: float) -> str:
    """Return one fitness; `nan` and `inf` as such."""
    return returns([value])[0] or str(value)


def known_fitness(value: float) -> str:
    """Return one fitness; `-` if there is none, as of a run that was stopped before its first evaluation."""
    return fitness(value) if math.isfinite(value) else "-"


def with_error(value: float, error: float) -> str:
    """Return a fitness with its standard error, if that is known: `146.8 ± 32.0`; `-` if there is none."""
    shown, its = returns([value, error])
    return f"{shown or '-'}{f' ± {its}' if shown and its else ''}"


def with_named_error(value: float, error: float) -> str:
    """Return a fitness as `with_error` does, with the name of what ± means: `146.8 ± 32.0 (standard error)`."""
    has_error = math.isfinite(value) and math.isfinite(error)
    return f"{with_error(value, error)}{' (standard error)' if has_error else ''}"


def count(value: float) -> str:
    """Return a large number in three digits: `950`, `12.4k`, `3M`."""
    for limit, divisor, unit in ((1e3, 1, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M"), (math.inf, 1e9, "G")):
        if abs(value) < limit * 0.9995:
            return f"{value / divisor:.3g}{unit}"
    return str(value)


def number_of(number: int, what: str, plural: str = "s") -> str:
    """Return a number of things: `1 member`, `2 processes`, with the ending of the plural."""
    return f"{number} {what}{'' if number == 1 else plural}"


def duration(seconds: float) -> str:
    """Return `0:42`, `12:05` or `3:07:09`; `-:--` if it is not known."""
    if not math.isfinite(seconds):
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def outcome(reason: str) -> str:
    """Return the reason for which a run ended as it is shown; files have the name of the setting."""
    return "time limit reached" if reason == "max_seconds over" else reason


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last `width` finite values as a row of blocks, lowest to highest."""
    shown = [value for value in values if math.isfinite(value)][-width:]
    if len(shown) < 2:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(_SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_SPARKS[round((value - low) * scale)] for value in shown)


def shares(seconds_by_part: Mapping[str, float]) -> list[str]:
    """Return each part's share of the sum, largest first: `env 41%`."""
    whole = sum(seconds_by_part.values())
    ordered = sorted(seconds_by_part.items(), key=lambda item: -item[1])
    return [f"{part} {seconds / whole:.0%}" for part, seconds in ordered if whole > 0 and seconds / whole >= 0.005]


def mutation(record: Mapping[str, Any]) -> str:
    """Return a mutation with its arguments: `lr 1e-3 → 1.2e-3`, `encoder.add_node (layer 0, nodes 32)`."""
    kind, operator, details = record["kind"], record.get("operator", ""), record.get("details", {})
    if kind == "none":
        return ""
    if kind == "rl_hp":
        return ", ".join(_change(name, change) for name, change in details.items())
    arguments = ", ".join(f"{name} {_value(value)}" for name, value in details.items())
    label = "weights perturbed" if kind == "parameters" else operator or kind
    return f"{label} ({arguments})" if arguments else label


def _change(name: str, change: Sequence[Any]) -> str:
    before, after = hyperparameters(list(change))
    return f"{name} {before} → {after}"


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return f"{_value(value[0])} → {_value(value[1])}"
    return hyperparameter(value) if isinstance(value, (int, float)) else str(value)
