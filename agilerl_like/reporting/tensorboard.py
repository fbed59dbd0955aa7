"""Curves in TensorBoard: `member/<slot>/…` and `population/…` over the env steps of the whole population.

The events are written by the `tensorboard` package itself, whose writer needs neither torch nor TensorFlow.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting.metrics import scalars
from agilerl_like.reporting.records import GenerationRecord, RunRecord
from agilerl_like.reporting.reporter import Reporter


class TensorBoardReporter(Reporter):
    """Writes one event a generation into `log_dir`; see it with `tensorboard --logdir <log_dir>`."""

    def __init__(self, log_dir: Path | str):
        if importlib.util.find_spec("tensorboard") is None:
            raise ConfigurationError("tensorboard=True needs one more package: pip install 'agilerl-like[tensorboard]'")
        self.log_dir = Path(log_dir).absolute()
        self._writer: Any = None
        self._goes_on = False

    def start(self, run: RunRecord) -> None:
        """Open a new event file; the files of earlier processes stay and are shown as one run."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._goes_on = any(self.log_dir.glob("*tfevents*"))
        self._writer = EventFileWriter(str(self.log_dir))

    def generation(self, record: GenerationRecord) -> None:
        """Write every finite number of the generation.

        What a process that was killed had written of it and of later ones is taken back: the run went on from there.
        """
        # the members of these modules exist at run time only
        events = importlib.import_module("tensorboard.compat.proto.event_pb2")
        summaries = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        now = {"wall_time": time.time(), "step": record.env_steps}
        if self._goes_on:
            self._goes_on = False
            self._writer.add_event(events.Event(session_log=events.SessionLog(status=events.SessionLog.START), **now))
        values = [summaries.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record).items()]
        self._writer.add_event(events.Event(summary=summaries.Summary(value=values), **now))
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
