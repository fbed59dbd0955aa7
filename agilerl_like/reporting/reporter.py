"""What a sink of a run's records is, and how several are one.

A run must outlive its reports: a sink whose pipe is closed or whose disk is full (`OSError`) is dropped with one
warning on the others, and training continues. A `DurableReporter` is not dropped: it holds what the disk has not taken,
and writes it later. Any other error is a bug and is raised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Protocol

from agilerl_like.reporting.records import GenerationRecord, OffspringRecord, RunRecord, SummaryRecord


class Reporter(Protocol):
    """A sink. A subclass overrides what it wants to hear; what it leaves alone does nothing."""

    def start(self, run: RunRecord) -> None:
        """Begin a run. Files are opened here and not at construction, so that building a sink changes nothing."""
        return

    def progress(self, env_steps: int) -> None:
        """Hear how many env steps all members have done; called after every rollout, so it must return at once."""
        return

    def generation(self, record: GenerationRecord) -> None:
        """Hear the result of one generation, before selection."""
        return

    def offspring(self, births: tuple[OffspringRecord, ...]) -> None:
        """Hear what evolution decided: one birth a slot, in the order of the slots."""
        return

    def warning(self, text: str) -> None:
        """Hear of something a person should know though the run goes on."""
        return

    def finish(self, summary: SummaryRecord) -> None:
        """Hear how the run ended."""
        return

    def close(self) -> None:
        """Let go of files and terminal; called once or more, whether or not the run finished."""
        return


class DurableReporter(Reporter):
    """A sink whose records must outlive a full disk and a power cut.

    A method that raises `OSError` has lost nothing: what it was told stays in memory and is written with what follows.
    """

    def sync(self) -> None:
        """Write to the disk itself all that was reported so far; called before a checkpoint that counts on it."""
        return

    def pop_warnings(self) -> list[str]:
        """Return what a person should be told of the file, once."""
        return []


class Reporters(Reporter):
    """Any number of sinks as one; with none it is silent."""

    def __init__(self, sinks: Iterable[Reporter] = ()):
        self._sinks = list(sinks)
        self._behind: list[Reporter] = []
        """Sinks of which a person knows that they could not write everything at once."""

    def __iter__(self) -> Iterator[Reporter]:
        return iter(tuple(self._sinks))

    def __len__(self) -> int:
        return len(self._sinks)

    def __enter__(self) -> Reporters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, run: RunRecord) -> None:
        """Begin in every sink."""
        self._each(lambda sink: sink.start(run))

    def progress(self, env_steps: int) -> None:
        """Pass the count on."""
        self._each(lambda sink: sink.progress(env_steps))

    def generation(self, record: GenerationRecord) -> None:
        """Pass the generation on."""
        self._each(lambda sink: sink.generation(record))

    def offspring(self, births: tuple[OffspringRecord, ...]) -> None:
        """Pass the births on."""
        self._each(lambda sink: sink.offspring(births))

    def warning(self, text: str) -> None:
        """Pass the warning on."""
        self._each(lambda sink: sink.warning(text))

    def finish(self, summary: SummaryRecord) -> None:
        """Pass the summary on."""
        self._each(lambda sink: sink.finish(summary))

    def sync(self) -> None:
        """Let every record reach the disk itself."""
        self._each(lambda sink: sink.sync() if isinstance(sink, DurableReporter) else None)

    def close(self) -> None:
        """Close every sink."""
        self._each(lambda sink: sink.close())

    def _each(self, tell: Callable[[Reporter], None]) -> None:
        for sink in self:
            if sink not in self._sinks:  # dropped meanwhile, when it was told of another's end
                continue
            try:
                tell(sink)
            except OSError as error:
                self._fail(sink, error)
            if isinstance(sink, DurableReporter):
                for text in sink.pop_warnings():
                    self.warning(text)

    def _fail(self, sink: Reporter, error: OSError) -> None:
        if not isinstance(sink, DurableReporter):
            self._drop(sink, error)
        elif sink not in self._behind:
            self._behind.append(sink)
            self.warning(
                f"{type(sink).__name__} is behind: {error}. Its records stay in memory and are written when the disk "
                "takes them."
            )

    def _drop(self, sink: Reporter, error: OSError) -> None:
        self._sinks.remove(sink)
        with contextlib.suppress(OSError):  # what failed to write fails again when its buffer is flushed
            sink.close()
        self.warning(f"{type(sink).__name__} stopped: {error}. Training goes on without it.")
