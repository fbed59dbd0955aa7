"""What a person looks at while a population trains and afterwards: console, files, curves and a picture.

Everything here receives plain records and knows neither agents nor algorithms. Importing it loads no optional package.
"""

from agilerl_like.reporting.console import ConsoleReporter
from agilerl_like.reporting.files import CsvReporter, LineageReporter, read_lineage, read_metrics
from agilerl_like.reporting.plot import figure, plot_run
from agilerl_like.reporting.records import (
    NO_PARENT,
    BestRecord,
    GenerationRecord,
    MemberRecord,
    OffspringRecord,
    RunRecord,
    SummaryRecord,
    fittest,
)
from agilerl_like.reporting.reporter import Reporter, Reporters
from agilerl_like.reporting.trackers import TensorBoardReporter, TrackerReporter, WandbReporter, tracker_reporter

__all__ = [
    "NO_PARENT",
    "BestRecord",
    "ConsoleReporter",
    "CsvReporter",
    "GenerationRecord",
    "LineageReporter",
    "MemberRecord",
    "OffspringRecord",
    "Reporter",
    "Reporters",
    "RunRecord",
    "SummaryRecord",
    "TensorBoardReporter",
    "TrackerReporter",
    "WandbReporter",
    "figure",
    "fittest",
    "plot_run",
    "read_lineage",
    "read_metrics",
    "tracker_reporter",
]
