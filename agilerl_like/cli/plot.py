"""`agilerl-like plot`: plot a run."""

from __future__ import annotations

from pathlib import Path

from tyro.conf import Positional

from agilerl_like.cli.output import write_line
from agilerl_like.errors import ExitCode
from agilerl_like.reporting.plot import plot_run


def plot(run: Positional[Path], /) -> int:
    """Plot a run: fitness, hyperparameters and network sizes over generations.

    Args:
        run: Folder of the run.
    """
    write_line(str(plot_run(run)))
    return ExitCode.DONE
