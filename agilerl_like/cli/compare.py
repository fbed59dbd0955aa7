"""`agilerl-like compare`: runs side by side on the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from tyro.conf import Positional

from agilerl_like.cli.output import write_line, write_table
from agilerl_like.cli.runs import HEAD, open_together, row
from agilerl_like.errors import ConfigurationError, ExitCode
from agilerl_like.reporting import formatting
from agilerl_like.reporting.charts import distinct_names
from agilerl_like.reporting.estimates import (
    FEW,
    NOTE_ON_FEW,
    Estimate,
    best_at,
    bootstrap_difference,
    bootstrap_of_runs,
    interquartile_mean,
    interval_name,
    mean_name,
    probability_of_improvement,
    why_not_comparable,
)
from agilerl_like.reporting.run_history import RunHistory
from agilerl_like.saved_runs import Run, configs_of, differing_settings
from agilerl_like.saved_runs.differences import MISSING

POINTS = 4
"""Equal parts of the steps at which the best fitness so far is compared."""


def compare(runs: Positional[tuple[Path, ...]], /) -> int:
    """Compare runs: outcome, best fitness at equal steps, what each found, and which settings differ.

    Runs that differ in the seed and the section `run` alone, but not in its `callbacks`, are of one method. Each method
    of several runs has a mean with its interval, and each two of them the difference of their means.

    Args:
        runs: Folders of two runs or more.
    """
    if len(runs) < 2:
        raise ConfigurationError(f"runs={len(runs)}; allowed are the folders of two runs or more")
    opened, methods = open_together(runs)
    write_table(HEAD, [row(run) for run in opened])
    records, names = [run.records for run in opened], distinct_names([run.name for run in opened])
    ends = [float(one.per_generation("time/total_timesteps")[-1]) for one in records]
    shortest = min(ends)
    if math.isfinite(shortest):
        write_line(
            f"\nbest fitness so far at equal training steps (up to {formatting.printable(_end(records, names, ends))})"
        )
        at = [shortest * (n + 1) / POINTS for n in range(POINTS)]
        best = [best_at(one, at) for one in records]
        best_of = {its: np.array([one for one, of in zip(best, methods, strict=True) if of == its]) for its in methods}
        table = [[name, *map(formatting.known_fitness, values)] for name, values in zip(names, best, strict=True)]
        reason = why_not_comparable(records)
        write_table(("run", *map(formatting.count, at)), table + ([] if reason else _pooled(best_of)))
        if not reason:
            _write_methods(best_of, shortest)
            if any(1 < len(its) < FEW for its in best_of.values()):
                write_line(NOTE_ON_FEW)
            if "" not in best_of and (alone := [its for its, values in best_of.items() if len(values) == 1]):
                write_line(f"without a mean, because of one run each: {formatting.printable('; '.join(alone))}")
        else:
            write_line(f"no mean over the runs, because {formatting.printable(reason)}")
    _write_found(opened, names)
    _write_differences(opened, names)
    return ExitCode.DONE


def _end(runs: Sequence[RunHistory], names: Sequence[str], ends: Sequence[float]) -> str:
    """Return where the comparison ends, and which runs are the cause if others are longer."""
    shortest, longer = min(ends), [end for end in ends if end > min(ends)]
    if not longer:
        return formatting.count(shortest)
    cause = (
        f"{name}, {formatting.outcome(run.outcome)}"
        for name, run, end in zip(names, runs, ends, strict=True)
        if end == shortest
    )
    return (
        f"{formatting.count(shortest)}, the end of {'; '.join(cause)}; left out or resumed, it would be up to "
        f"{formatting.count(min(longer))}"
    )


def _pooled(best: Mapping[str, np.ndarray]) -> list[list[str]]:
    """Return for each method of several runs the rows of its mean and interval; a column needs every run's fitness.

    The name of a method is before those of its rows if there are several.
    """
    rows = []
    for method, values in best.items():
        if (size := len(values)) > 1:
            pooled = [bootstrap_of_runs(column) for column in values.T]
            name = f"{method}: " if len(best) > 1 else ""
            rows.append(
                [f"{name}{mean_name(size)} of {size} runs", *(formatting.known_fitness(its.value) for its in pooled)]
            )
            if interval := interval_name(size):
                rows.append([f"{name}{interval}", *map(_interval, pooled)])
    return rows


def _interval(its: Estimate) -> str:
    return f"{formatting.fitness(its.low)} to {formatting.fitness(its.high)}" if math.isfinite(its.low) else MISSING


def _write_methods(best: Mapping[str, np.ndarray], env_steps: float) -> None:
    """Print for each two methods of several runs how far the first is above the second after these steps."""
    last = {its: values[:, -1] for its, values in best.items() if len(values) > 1 and np.isfinite(values[:, -1]).all()}
    rows = []
    for (one, first), (two, second) in combinations(last.items(), 2):
        gap = bootstrap_difference(first, second, interquartile_mean)
        share = probability_of_improvement(first, second)
        interval = f"{_interval(gap)}{' rough' if gap.is_rough else ''}"
        rows.append([f"{one} less {two}", formatting.known_fitness(gap.value), interval, f"{share:.0%}"])
    if rows:
        write_line(f"\nmethods after {formatting.count(env_steps)} training steps: differences of their means")
        write_table(("methods", "difference", "95 % interval", "the first is better"), rows)


def _write_found(runs: list[Run], run_names: list[str]) -> None:
    """Print the hyperparameters that the best agent of each run has, its architecture, and its number of weights."""
    best = [run.records.rows[run.records.best_row] for run in runs]
    found = [run.records.active_hyperparameters(run.records.best_row) for run in runs]
    rows = [
        [name, *(formatting.hyperparameter(its[name]) if name in its else MISSING for its in found)]
        for name in dict.fromkeys(name for its in found for name in its)
    ]
    rows.append(["architecture", *(row["architecture"] or MISSING for row in best)])
    rows.append(["weights", *(f"{row['parameters']:,.0f}" for row in best)])
    write_line("\nhyperparameters and architecture of each run's best agent")
    write_table(("best agent", *run_names), rows)


def _write_differences(runs: list[Run], run_names: list[str]) -> None:
    """Print the settings that differ, each under the name that it has as an option, with a column for each run."""
    rows = [row for row in differing_settings(configs_of(runs)) if row[0] not in ("run.dir", "run.name")]
    write_line(f"\nsettings: {'those that differ' if rows else 'equal'}")
    if rows:
        write_table(("setting", *run_names), rows)
