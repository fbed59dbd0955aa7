"""`agilerl-like runs`: a table of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from tyro.conf import Positional

from agilerl_like.cli.output import write_line, write_note, write_table
from agilerl_like.errors import CheckpointError, ConfigurationError, ExitCode
from agilerl_like.reporting import formatting
from agilerl_like.reporting.estimates import best_with_error
from agilerl_like.saved_runs import Run, find_runs, methods_of, runs_of_equal_seeds

HEAD = (
    "run",
    "env",
    "ended",
    "generations",
    "members",
    "training steps",
    "evaluation steps",
    "best ± standard error",
    "time",
    "begun",
)


def runs(folder: Positional[Path] = Path("runs"), /) -> int:
    """List the runs in a folder and below it: environment, outcome, best fitness, time.

    Args:
        folder: The folder, by default `runs`.
    """
    rows = [row(run, folder) for run in find_runs(folder)]
    if not rows:
        write_line(f"no runs in {formatting.printable(str(folder))}")
    else:
        write_table(HEAD, rows)
    return ExitCode.DONE


def open_together(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Open several runs; return them and the name of each one's method, with a note on runs of equal seeds.

    Raises:
        ConfigurationError: a folder has no files of a run, or is given twice, also under another path.
    """
    places = [folder.resolve() for folder in folders]
    for number, (folder, place) in enumerate(zip(folders, places, strict=True)):
        if place in places[:number]:
            raise ConfigurationError(f"runs={str(folder)!r} is given twice; allowed is each folder once")
    opened = [Run.open(folder) for folder in folders]
    methods = methods_of(opened)
    for seed, names in runs_of_equal_seeds(opened, methods):
        write_note(
            f"{', '.join(names)} are of one method and have seed={seed}: they are one run and its copies, or runs that "
            "depend on each other, so a mean and its interval count too many; leave all but one out"
        )
    return opened, methods


def row(run: Run, folder: Path = Path()) -> list[str]:
    """Return one run's fields of `HEAD`; a run that cannot be read has the reason in the place of `ended`."""
    path = run.display_path
    name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
    name = run.name if name == "." else name
    try:
        records = run.records
    except (ConfigurationError, CheckpointError) as error:
        is_damaged = isinstance(error, CheckpointError) and not run.is_running
        if is_damaged:
            write_note(f"{name} is unreadable: {error}")
        state = "running" if run.is_running else "unreadable" if is_damaged else "no records"
        return [name, "", state, *[""] * (len(HEAD) - 3)]
    last, document = records.rows[-1], records.document
    return [
        name,
        str(document.get("env", "")),
        formatting.outcome(records.outcome),
        str(len(records.generations)),
        records.sizes,
        formatting.count(last.get("time/total_timesteps", math.nan)),
        formatting.count(last.get("time/evaluation_timesteps", math.nan)),
        best_with_error(records),
        formatting.duration(last.get("time/time_elapsed", math.nan)),
        str(document.get("begun", "")).removesuffix(" UTC")[:16],
    ]
