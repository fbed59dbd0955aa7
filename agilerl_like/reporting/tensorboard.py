"""Curves in TensorBoard: `member/<slot>/…` and `population/…` over the env steps of the whole population.

The events are written by the `tensorboard` package itself, whose writer needs neither torch nor TensorFlow.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

from agilerl_like.errors import ConfigurationError
from agilerl_like.reporting.measures import scalars
from agilerl_like.reporting.records import GenerationRecord, RunRecord
from agilerl_like.reporting.reporter import Reporter


class TensorBoardReporter(Reporter):
    """Writes one event a generation into `log_dir`; see it with `tensorboard --logdir <log_dir>`."""

    def __init__(self, log_dir: Path | str):
        if importlib.util.find_spec("tensorboard") is None:
            raise ConfigurationError("tensorboard=True needs one more package: pip install 'agilerl-like[tensorboard]'")
        self.log_dir = Path(log_dir)
        self._writer: Any = None

    def start(self, run: RunRecord) -> None:
        """Open a new event file; the files of earlier processes stay and are shown as one run."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(self.log_dir))

    def generation(self, record: GenerationRecord) -> None:
        """Write every finite number of the generation."""
        event_pb2 = importlib.import_module(
            "tensorboard.compat.proto.event_pb2"
        )  # their members exist at run time only
        summary_pb2 = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        values = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record).items()]
        summary = summary_pb2.Summary(value=values)
        self._writer.add_event(event_pb2.Event(wall_time=time.time(), step=record.env_steps, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
