"""Output for users during and after training: console, files, trackers and a plot.

Everything here receives plain records and depends on no agent or algorithm. Importing it loads no optional package.
"""

from agilerl_like.reporting.callback import Callback, CallbackError, CallbackList, Reporter, RunContext
from agilerl_like.reporting.console import ConsoleReporter
from agilerl_like.reporting.files import (
    CsvReporter,
    LineageReporter,
    UpdatesReporter,
    read_lineage,
    read_metrics,
    read_updates,
)
from agilerl_like.reporting.patience import Patience
from agilerl_like.reporting.plot import figure, figure_of_runs, plot_run, plot_runs
from agilerl_like.reporting.records import (
    NO_PARENT,
    BestRecord,
    GenerationRecord,
    MemberRecord,
    OffspringRecord,
    RunRecord,
    SummaryRecord,
    UpdateRecord,
    fittest,
)
from agilerl_like.reporting.trackers import TensorBoardReporter, TrackerReporter, WandbReporter, tracker_reporter

__all__ = [
    "NO_PARENT",
    "BestRecord",
    "Callback",
    "CallbackError",
    "CallbackList",
    "ConsoleReporter",
    "CsvReporter",
    "GenerationRecord",
    "LineageReporter",
    "MemberRecord",
    "OffspringRecord",
    "Patience",
    "Reporter",
    "RunContext",
    "RunRecord",
    "SummaryRecord",
    "TensorBoardReporter",
    "TrackerReporter",
    "UpdateRecord",
    "UpdatesReporter",
    "WandbReporter",
    "figure",
    "figure_of_runs",
    "fittest",
    "plot_run",
    "plot_runs",
    "read_lineage",
    "read_metrics",
    "read_updates",
    "tracker_reporter",
]
