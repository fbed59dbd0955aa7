"""`agilerl-like compare`: runs side by side on the terminal."""

from __future__ import annotations

import difflib
import math
from pathlib import Path

import yaml
from tyro.conf import Positional

from agilerl_like.cli.output import write_line, write_table
from agilerl_like.cli.runs import HEAD, row
from agilerl_like.errors import ConfigurationError, ExitCode
from agilerl_like.reporting import formatting
from agilerl_like.reporting.estimates import best_so_far, bootstrap, interquartile_mean
from agilerl_like.reporting.run_history import CONFIG
from agilerl_like.saved_runs import Run

POINTS = 4
"""Equal parts of the steps at which the best fitness so far is compared."""


def compare(runs: Positional[tuple[Path, ...]], /) -> int:
    """Compare runs: outcome, best fitness at equal steps, what each found, and which settings differ.

    Args:
        runs: Folders of two runs or more.
    """
    if len(runs) < 2:
        raise ConfigurationError(f"runs={len(runs)}; allowed are the folders of two runs or more")
    opened = [Run.open(folder) for folder in runs]
    write_table(HEAD, [row(run) for run in opened])
    records = [run.records for run in opened]
    steps = [one.per_generation("time/total_timesteps") for one in records]
    shortest = min(float(own[-1]) for own in steps)
    if math.isfinite(shortest):
        write_line(f"\nbest fitness so far at equal steps (up to {formatting.count(shortest)}, the shortest run)")
        at = [shortest * (n + 1) / POINTS for n in range(POINTS)]
        best = [
            [float(best_so_far(one)[own <= step][-1]) if (own <= step).any() else math.nan for step in at]
            for one, own in zip(records, steps, strict=True)
        ]
        table = [[one.name, *map(formatting.fitness, values)] for one, values in zip(records, best, strict=True)]
        pooled = [bootstrap([values[n] for values in best], interquartile_mean) for n in range(POINTS)]
        table.append(["interquartile mean", *(formatting.fitness(one.value) for one in pooled)])
        table.append(
            ["95 % interval", *(f"{formatting.fitness(e.low)} to {formatting.fitness(e.high)}" for e in pooled)]
        )
        write_table(("run", *map(formatting.count, at)), table)
    _write_differences(opened)
    return ExitCode.DONE


def _write_differences(runs: list[Run]) -> None:
    """Print the settings in which each run differs from the first."""
    texts = [yaml.safe_dump(run.config, sort_keys=True).splitlines() if _has_config(run) else [] for run in runs]
    for run, text in zip(runs[1:], texts[1:], strict=True):
        lines = [
            line
            for line in difflib.unified_diff(texts[0], text, n=0, lineterm="")
            if line[0] in "+-" and not line.startswith(("+++", "---"))
        ]
        write_line(f"\nsettings of {runs[0].name} (-) and {run.name} (+): {'equal' if not lines else ''}")
        for line in lines:
            write_line(f"  {line}")


def _has_config(run: Run) -> bool:
    return (run.folder / CONFIG).is_file()
