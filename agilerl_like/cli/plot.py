"""`agilerl-like plot`: plot a run, or several together."""

from __future__ import annotations

from pathlib import Path

from tyro.conf import Positional

from agilerl_like.cli.output import write_line
from agilerl_like.cli.runs import open_together
from agilerl_like.errors import ConfigurationError, ExitCode
from agilerl_like.reporting.formatting import printable
from agilerl_like.reporting.plot import RUNS_PLOT, plot_run, plot_runs


def plot(runs: Positional[tuple[Path, ...]], /, out: Path | None = None) -> int:
    """Plot a run: fitness, hyperparameters, network sizes and metrics of learning over generations.

    Several runs of one env become one figure: the best fitness so far of each, and their interquartile mean with its
    95 % interval (below 4 runs the mean without one). Runs that differ in more than the seed and the section `run`, or
    in its `callbacks`, are of several methods: each has a colour, a mean and an interval of its own.

    Args:
        runs: Folders of runs.
        out: The file, which ends in .png, .pdf or .svg; left out: evolution.png in the folder of the run, for several
            runs runs.png in the working directory.
    """
    if not runs:
        raise ConfigurationError("runs are missing; allowed is the folder of a run, or several")
    if len(runs) == 1:
        path = plot_run(runs[0], out)
    else:
        _, methods = open_together(runs)
        path = plot_runs(runs, out or RUNS_PLOT, methods=methods)
    write_line(printable(str(path)))
    return ExitCode.DONE
