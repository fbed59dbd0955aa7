"""Means with intervals: what evolution gained by each mutation, and several runs together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting import formatting
from agilerl_like.reporting.records import OffspringRecord
from agilerl_like.reporting.run_history import FITNESS, RunHistory

RESAMPLES = 2000
DRAWN_AT_ONCE = 2**22
"""Most values of resamples that are in memory together, 64 MB with their places: a long run has many births."""
LEAST = 4
"""Fewest values of which an interquartile mean leaves out any, and which have an interval."""
FEW = 8
"""Fewest values of which an interval is not called rough."""
NOTE_ON_FEW = (
    f"an interval needs {LEAST} values; of fewer than {FEW} it is rough, because it holds the true value in 86 to 91 % "
    "of cases"
)
"""Coverage of `bootstrap` for normal values."""
SHRUNK = "shrunk weights"
"""Name of what clones with shrunk and perturbed weights brought, whatever their mutations."""


class Estimate(NamedTuple):
    """A statistic of some values with its 95 % interval; nan where there are too few values."""

    value: float
    low: float
    high: float
    num_values: int

    @property
    def is_rough(self) -> bool:
        """Whether it has an interval of few values, which is too narrow."""
        return LEAST <= self.num_values < FEW

    def text(self, *, signed: bool = False) -> str:
        """Return the statistic with its interval, `12.0 [8.0, 15.5]`; an interval of few values is called rough."""
        value, low, high = formatting.returns(self[:3], signed=signed)
        interval = f" [{low}, {high}]{' rough' if self.is_rough else ''}" if low else ""
        return f"{value or '-'}{interval}"


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean without the lowest and the highest quarter (rounded down) along the last axis.

    Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice".
    """
    ordered = np.sort(values, axis=-1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(-1)


def mean_name(num_values: int) -> str:
    """Return what `interquartile_mean` is of so many values: below `LEAST` no quarter is left out."""
    return "mean" if num_values < LEAST else "interquartile mean"


def interval_name(num_values: int) -> str:
    """Return the name of an interval of so many values: rough below `FEW`; "" below `LEAST`, where there is none."""
    return "" if num_values < LEAST else f"{'rough ' if num_values < FEW else ''}95 % interval"


def bootstrap(
    values: Sequence[float] | np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray] = lambda drawn: drawn.mean(-1),
) -> Estimate:
    """Return a statistic of values, with the percentile interval of resampling `LEAST` of them or more.

    The statistic reduces the last axis of an array.

    Raises:
        ConfigurationError: a value is not finite, such as nan for a run that failed: the caller leaves it out or gives
            it a value, because both change the result; or `values` or `statistic` have other dimensions.
    """
    known = _checked(values)
    if not known.size:
        return Estimate(math.nan, math.nan, math.nan, 0)
    value = float(statistic(known))
    if known.size < LEAST:
        return Estimate(value, math.nan, math.nan, known.size)
    low, high = np.quantile(_resampled(known, statistic, np.random.default_rng(0)), [0.025, 0.975])
    return Estimate(value, float(low), float(high), known.size)


def bootstrap_of_runs(values: np.ndarray) -> Estimate:
    """Return the interquartile mean of one value of each run, with its interval; nan where a run has no value yet."""
    return bootstrap(values if np.isfinite(values).all() else (), interquartile_mean)


def bootstrap_difference(
    first: Sequence[float] | np.ndarray,
    second: Sequence[float] | np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
) -> Estimate:
    """Return the statistic of the first values less that of the second, with the percentile interval of both.

    The number of values is that of the side that has fewer; below `LEAST` there is no interval. Arguments and errors
    are those of `bootstrap`.
    """
    one, two = _checked(first), _checked(second)
    fewest = min(one.size, two.size)
    value = float(statistic(one) - statistic(two)) if fewest else math.nan
    if fewest < LEAST:
        return Estimate(value, math.nan, math.nan, fewest)
    rng = np.random.default_rng(0)
    drawn = [_resampled(values, statistic, rng) for values in (one, two)]
    low, high = np.quantile(drawn[0] - drawn[1], [0.025, 0.975])
    return Estimate(value, float(low), float(high), fewest)


def probability_of_improvement(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float:
    """Return the probability that one of the first values is above one of the second; ties count half.

    Agarwal et al. 2021, as `interquartile_mean`; nan without values. A value that is not finite is an error, as in
    `bootstrap`.
    """
    one, two = _checked(first), _checked(second)
    gaps = one[:, None] - two
    return float(((gaps > 0) + (gaps == 0) / 2).mean()) if gaps.size else math.nan


def _checked(values: Sequence[float] | np.ndarray) -> np.ndarray:
    given = np.asarray(values, dtype=float)
    if given.ndim != 1:
        raise ConfigurationError(f"values have the shape {given.shape}; allowed is one number for each run")
    if lost := int((~np.isfinite(given)).sum()):
        raise ConfigurationError(
            f"values={given.tolist()!r}: {lost} of them are not finite; allowed are finite numbers, so that a run that "
            "failed is left out or has a value by intention"
        )
    return given


def _resampled(
    values: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], rng: np.random.Generator
) -> np.ndarray:
    found, at_once = [], max(1, DRAWN_AT_ONCE // values.size)
    for start in range(0, RESAMPLES, at_once):
        shape = min(at_once, RESAMPLES - start), values.size
        found.append(statistic(rng.choice(values, shape)))
        if np.shape(found[-1]) != shape[:1]:
            raise ConfigurationError(
                f"statistic returns the shape {np.shape(found[-1])} for an array of shape {shape}; allowed is a "
                "function that reduces the last axis, such as lambda drawn: np.mean(drawn, axis=-1)"
            )
    return np.concatenate(found)


def operator_gains(history: RunHistory) -> dict[str, list[float]]:
    """Return for each mutation operator the gains of its members, by the name of the operator.

    The gain is the fitness of a member after its first generation less that of its parent one generation before; of a
    clone of the best agent, less that of this agent in the generation that it was cloned from. It holds what a
    generation of training brings, too: the operator "clone, unchanged" is the comparison.
    """
    fitness = history.column(FITNESS)
    gains: dict[str, list[float]] = {}
    for row, before in enumerate(history.before):
        if history.is_birth(row) and math.isfinite(gain := fitness[row] - fitness[before]):
            gains.setdefault(_operators(history, row, history.births_of(row)), []).append(gain)
    unchanged = gains.pop("None", None)
    ordered = dict(sorted(gains.items(), key=lambda item: -len(item[1])))
    return ordered if unchanged is None else {"clone, unchanged": unchanged, **ordered}


def operator_effects(history: RunHistory) -> dict[str, list[float]]:
    """Return for each mutation operator its members' fitness less that of their parents after the same generation.

    A parent that survives trains on as it was, on the same env seeds. So unlike `operator_gains` this has no bias from
    the choice of parents: those that had luck are parents, and lose it again. Clones of the best agent do not count,
    because their parent has trained on for more than a generation; nor do clones of a parent that was changed itself in
    the same selection (`mutate_survivors`, `mutate_elite`).
    """
    fitness = history.column(FITNESS)
    changed = {(birth.generation, birth.uid) for birth in history.births if birth.survives and _names(birth)}
    row_of = {(row["generation"], row["uid"]): number for number, row in enumerate(history.rows)}
    effects: dict[str, list[float]] = {}
    for number, own in enumerate(history.rows):
        parent = row_of.get((own["generation"], own["parent_uid"]), -1)
        if not history.is_birth(number) or parent < 0 or _is_of_earlier(history, number):
            continue
        birth = history.births_of(number)[-1:]  # not that of the parent, with which the member is compared
        if any((one.generation, one.parent_uid) in changed for one in birth):
            continue
        if math.isfinite(effect := fitness[number] - fitness[parent]):
            effects.setdefault(_operators(history, number, birth), []).append(effect)
    unchanged = effects.pop("None", None)
    ordered = dict(sorted(effects.items(), key=lambda item: -len(item[1])))
    return ordered if unchanged is None else {"clone, unchanged": unchanged, **ordered}


def _operators(history: RunHistory, row: int, births: Sequence[OffspringRecord]) -> str:
    """Return the operators of the births that led to a row's member; several are one name."""
    if not births:
        return history.rows[row]["mutation"] or "None"
    if any(birth.shrunk for birth in births):  # which changes fitness by more than any mutation
        return SHRUNK
    return " + ".join(dict.fromkeys(name for birth in births for name in _names(birth))) or "None"


def _names(birth: OffspringRecord) -> list[str]:
    return [_operator(change) for change in birth.mutations if change["kind"] != "none"]


def _is_of_earlier(history: RunHistory, row: int) -> bool:
    """Whether the row before a member's first one is not of the generation just before: a clone of the best agent."""
    return history.rows[history.before[row]]["generation"] != history.rows[row]["generation"] - 1


def _operator(change) -> str:
    if change["kind"] == "rl_hp":
        names = list(change.get("details", {}))
        return names[0] if len(names) == 1 else "several hyperparameters"
    if change["kind"] == "parameters":
        return "noise on weights"
    return change.get("operator", "") or change["kind"]


class Pooled(NamedTuple):
    """The best fitness so far of several runs together, by env steps."""

    env_steps: np.ndarray
    """Up to the end of the shortest run."""
    estimates: list[Estimate]
    num_runs: int

    @property
    def mean_name(self) -> str:
        """What the values of the estimates are."""
        return mean_name(self.num_runs)

    @property
    def interval_name(self) -> str:
        """What their intervals are; "" if there are none."""
        return interval_name(self.num_runs)


def why_not_comparable(histories: Sequence[RunHistory]) -> str:
    """Return why the fitness of runs has no common mean; "" if it has one."""
    envs = sorted({str(run.document.get("env", "")) for run in histories})
    kinds = sorted({run.fitness for run in histories})
    if len(envs) > 1:
        return f"they have different envs: {', '.join(envs)}"
    if len(kinds) > 1:
        return f"they have different fitness: {', '.join(kinds)}"
    return "their fitness is a rating, which depends on the opponents of each run" if kinds == ["rating"] else ""


def pooled(histories: Sequence[RunHistory], points: int = 500) -> Pooled | None:
    """Return the interquartile mean of the best fitness so far, with its interval, up to the end of the shortest run.

    It is computed where a generation of any run ends, of many such ends at `points` of them. It is None for fewer than
    two runs, and if one ended before another had its first generation.
    """
    curves = [(h.per_generation("time/total_timesteps"), best_so_far(h)) for h in histories]
    curves = [(steps, best) for steps, best in curves if np.isfinite(steps).all()]
    begin, end = max([steps[0] for steps, _ in curves], default=0), min([steps[-1] for steps, _ in curves], default=0)
    if len(curves) < 2 or begin > end:
        return None
    grid = np.unique(np.concatenate([steps for steps, _ in curves]))
    grid = grid[(grid >= begin) & (grid <= end)]
    grid = grid[np.unique(np.linspace(0, len(grid) - 1, min(points, len(grid))).round().astype(int))]
    values = np.array([_at(grid, steps, best) for steps, best in curves])
    return Pooled(grid, [bootstrap_of_runs(column) for column in values.T], len(curves))


def pooled_by_method(histories: Sequence[RunHistory], methods: Sequence[str] = ()) -> dict[str, Pooled]:
    """Return the runs of each method together; `methods`: the name of each run's, left out if there is one method."""
    names = methods or [""] * len(histories)
    its = {name: [run for run, of in zip(histories, names, strict=True) if of == name] for name in names}
    return {name: found for name, runs in its.items() if (found := pooled(runs)) is not None}


def best_at(history: RunHistory, env_steps: Sequence[float]) -> np.ndarray:
    """Return the fitness of the best agent so far after these env steps; nan before the end of a generation."""
    return _at(np.array(env_steps), history.per_generation("time/total_timesteps"), best_so_far(history))


def _at(grid: np.ndarray, steps: np.ndarray, best: np.ndarray) -> np.ndarray:
    ended = np.searchsorted(steps, grid, side="right")
    return np.where(ended > 0, best[ended - 1], np.nan)


def best_with_error(history: RunHistory) -> str:
    """Return the fitness of a run's best agent with its standard error, if that is known, as text."""
    error = history.rows[-1].get("population/best_ever_standard_error", math.nan)
    return formatting.with_error(float(best_so_far(history)[-1]), error)


def best_so_far(history: RunHistory) -> np.ndarray:
    """Return the fitness of the best agent so far, by generation; without confirmed ones, of the evaluations."""
    confirmed = history.per_generation("population/best_ever")
    if np.isfinite(confirmed).any():
        return confirmed
    fitness = history.column(FITNESS)
    best = [np.nanmax([-math.inf, *fitness[start:stop]]) for start, stop in history.generations]
    return np.maximum.accumulate(np.array(best))
