"""`agilerl-like compare`: runs side by side on the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tyro.conf import Positional

from agilerl_like.cli.output import write_line, write_table
from agilerl_like.cli.runs import HEAD, row
from agilerl_like.errors import CheckpointError, ConfigurationError, ExitCode
from agilerl_like.reporting import formatting
from agilerl_like.reporting.charts import distinct_names
from agilerl_like.reporting.estimates import best_at, bootstrap, interquartile_mean
from agilerl_like.reporting.run_history import CONFIG
from agilerl_like.saved_runs import Run

POINTS = 4
"""Equal parts of the steps at which the best fitness so far is compared."""
SHOWN = 2
"""Entries that are shown of a mapping that another run does not have."""
MISSING = "-"
"""The value of a setting that a run does not have."""


def compare(runs: Positional[tuple[Path, ...]], /) -> int:
    """Compare runs: outcome, best fitness at equal steps, what each found, and which settings differ.

    Args:
        runs: Folders of two runs or more.
    """
    if len(runs) < 2:
        raise ConfigurationError(f"runs={len(runs)}; allowed are the folders of two runs or more")
    opened = [Run.open(folder) for folder in runs]
    write_table(HEAD, [row(run) for run in opened])
    records, names = [run.records for run in opened], distinct_names([run.name for run in opened])
    shortest = min(float(one.per_generation("time/total_timesteps")[-1]) for one in records)
    if math.isfinite(shortest):
        write_line(f"\nbest fitness so far at equal steps (up to {formatting.count(shortest)}, the shortest run)")
        at = [shortest * (n + 1) / POINTS for n in range(POINTS)]
        best = [best_at(one, at) for one in records]
        table = [[name, *map(formatting.known_fitness, values)] for name, values in zip(names, best, strict=True)]
        envs = sorted({str(one.document.get("env", "")) for one in records})
        write_table(("run", *map(formatting.count, at)), table + (_pooled(best) if len(envs) == 1 else []))
        if len(envs) > 1:
            write_line(f"no mean over the runs, because they have different envs: {', '.join(envs)}")
    _write_found(opened, names)
    _write_differences(opened, names)
    return ExitCode.DONE


def _pooled(best: Sequence[np.ndarray]) -> list[list[str]]:
    """Return the rows of the interquartile mean and its interval; a column needs the fitness of every run."""
    columns = [values if np.isfinite(values).all() else [] for values in np.transpose(best)]
    pooled = [bootstrap(values, interquartile_mean) for values in columns]
    return [
        ["interquartile mean", *(formatting.known_fitness(one.value) for one in pooled)],
        [
            "95 % interval",
            *(
                f"{formatting.fitness(e.low)} to {formatting.fitness(e.high)}" if math.isfinite(e.low) else MISSING
                for e in pooled
            ),
        ],
    ]


def _write_found(runs: list[Run], run_names: list[str]) -> None:
    """Print the hyperparameters that the best agent of each run has."""
    best = [run.records.rows[run.records.best_row] for run in runs]
    names = dict.fromkeys(name for row in best for name in row if name.startswith("hp/"))
    if names:
        write_line("\nhyperparameters of each run's best agent")
        rows = [[name.removeprefix("hp/"), *(_value(row.get(name)) for row in best)] for name in names]
        write_table(("hyperparameter", *run_names), rows)


def _value(value: Any) -> str:
    return MISSING if value is None else formatting.hyperparameter(value)


def _write_differences(runs: list[Run], run_names: list[str]) -> None:
    """Print the settings that differ, each under the name that it has as an option, with a column for each run."""
    rows = [row for row in _rows(_configs(runs)) if row[0] not in ("run.dir", "run.name")]
    write_line(f"\nsettings: {'those that differ' if rows else 'equal'}")
    if rows:
        write_table(("setting", *run_names), rows)


def _configs(runs: list[Run]) -> list[dict[str, Any]]:
    """Return the settings of runs with all defaults; those of their files where one cannot be validated."""
    try:
        return [run.validated_config(trust=True).to_json() for run in runs]  # which imports nothing
    except (ConfigurationError, CheckpointError):
        return [run.config if _has_config(run) else {} for run in runs]


def _rows(values: Sequence[Any], name: str = "") -> Iterator[list[str]]:
    """Yield the name of each setting that differs, and its value in each run: `algorithm.lr`, 0.001, 0.002."""
    if all(value == values[0] for value in values):
        return
    mappings = [value for value in values if isinstance(value, Mapping)]
    texts = [_text(value) for value in values]
    is_absent = name not in ("", "hyperparameters") and (len(mappings) < len(values) or not all(mappings))  # in a run
    if not mappings or (all(map(_is_range, mappings)) and len({*texts}) > 1) or (is_absent and len({*texts}) > 1):
        yield [name, *texts]
        return
    for key in sorted({key for its in mappings for key in its}, key=str):
        theirs = [value.get(key, MISSING) if isinstance(value, Mapping) else MISSING for value in values]
        yield from _rows(theirs, f"{name}.{key}" if name else key)


def _is_range(value: Mapping[str, Any]) -> bool:
    return {"min", "max"} <= {*value}


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and _is_range(value):
        return f"{value['min']} to {value['max']}, {value.get('scale', 'auto')}"
    if isinstance(value, Mapping) and "name" in value:  # a strategy
        return str(value["name"])
    if isinstance(value, Mapping):
        entries = [f"{name} {its}" for name, its in value.items()]
        return ", ".join(entries[:SHOWN] + ["…"] * (len(entries) > SHOWN)) or MISSING
    return "none" if value is None else str(value)


def _has_config(run: Run) -> bool:
    return (run.folder / CONFIG).is_file()
