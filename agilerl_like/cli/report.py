"""`agilerl-like report`: the report of one run, or of several side by side."""

from __future__ import annotations

from pathlib import Path

from tyro.conf import Positional

from agilerl_like.cli.output import write_line
from agilerl_like.cli.runs import open_together
from agilerl_like.errors import ConfigurationError, ExitCode
from agilerl_like.reporting.formatting import printable
from agilerl_like.reporting.importance import effects_lines, hyperparameter_effects, operator_lines
from agilerl_like.reporting.report import REPORT, write_report
from agilerl_like.reporting.run_history import RunHistory

EFFECTS = (
    "mean effect of mutations: a clone's fitness less its parent's, both after the clone's first generation\n"
    "(where the parent survived as it was; report.html has the gain over the generation before, too)"
)


def write_findings(run: RunHistory, name: str = "") -> None:
    """Print which hyperparameters mattered in a run, and what each kind of mutation brought."""
    blocks = {"what mattered": effects_lines(hyperparameter_effects(run)), EFFECTS: operator_lines(run)}
    for title, lines in blocks.items():
        if lines:
            write_line(f"\n{f'{name}: ' if name else ''}{title}")
        for line in lines:
            write_line(f"  {line}")


def report(runs: Positional[tuple[Path, ...]], /, out: Path | None = None) -> int:
    """Write what evolution did to one HTML file: family tree, fitness, schedules, effect of each mutation.

    Several runs are drawn side by side, with their interquartile mean (below 4 runs the mean, without an interval), or
    one for each method, whose runs differ in the seed and the section `run` alone, but not in its `callbacks`. A run
    that is still running is drawn as far as it is.

    Args:
        runs: Folders of runs.
        out: The file; left out: report.html in the folder of the run, for several runs in the working directory.
    """
    if not runs:
        raise ConfigurationError("runs are missing; allowed is the folder of a run, or several")
    target = out or (runs[0] if len(runs) == 1 else Path()) / REPORT
    given, methods = open_together(runs)
    opened = [run.records for run in given]
    for run in opened:
        for note in run.notes:
            write_line(printable(f"{run.name}: {note}"))
    write_line(printable(str(write_report(opened, target, methods))))
    for run in opened:
        write_findings(run, run.name if len(opened) > 1 else "")
    return ExitCode.DONE
