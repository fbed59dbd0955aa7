"""The interface of reporters, and several reporters as one.

A run outlives its reports: a reporter whose pipe is closed or whose disk is full (`OSError`) is dropped with a warning
to the others, and training continues. A `DurableReporter` is kept, because it holds the unwritten records in memory and
writes them later. Any other error is a bug and is raised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Protocol

from agilerl_like.reporting.records import GenerationRecord, OffspringRecord, RunRecord, SummaryRecord


class Reporter(Protocol):
    """Receives the records of a run; a subclass overrides the methods it needs, the others do nothing."""

    def start(self, run: RunRecord) -> None:
        """Begin a run. Files are opened here and not at construction, so that constructing has no side effects."""
        return

    def progress(self, env_steps: int) -> None:
        """Receive the env steps of all members so far; called after every rollout, so it must return quickly."""
        return

    def generation(self, record: GenerationRecord) -> None:
        """Receive the result of one generation, before selection."""
        return

    def offspring(self, births: tuple[OffspringRecord, ...]) -> None:
        """Receive what evolution decided: one record a slot, in the order of the slots."""
        return

    def warning(self, text: str) -> None:
        """Receive a warning for the user; the run continues."""
        return

    def finish(self, summary: SummaryRecord) -> None:
        """Receive the end of the run."""
        return

    def close(self) -> None:
        """Release files and terminal; called at least once, whether or not the run finished."""
        return


class DurableReporter(Reporter):
    """A reporter whose records must survive a full disk and a power cut.

    A method that raises `OSError` has lost nothing: unwritten records stay in memory and are written with later ones.
    """

    def sync(self) -> None:
        """Write all records so far to the disk itself; called before a checkpoint is saved."""
        return

    def pop_warnings(self) -> list[str]:
        """Return the warnings since the last call."""
        return []


class CallbackList(Reporter):
    """Any number of reporters as one."""

    def __init__(self, reporters: Iterable[Reporter] = ()):
        self._reporters = list(reporters)
        self._behind: list[Reporter] = []
        """Durable reporters that have failed to write, which the user has been warned of."""

    def __iter__(self) -> Iterator[Reporter]:
        return iter(tuple(self._reporters))

    def __len__(self) -> int:
        return len(self._reporters)

    def __enter__(self) -> CallbackList:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, run: RunRecord) -> None:
        self._call("start", run)

    def progress(self, env_steps: int) -> None:
        self._call("progress", env_steps)

    def generation(self, record: GenerationRecord) -> None:
        self._call("generation", record)

    def offspring(self, births: tuple[OffspringRecord, ...]) -> None:
        self._call("offspring", births)

    def warning(self, text: str) -> None:
        self._call("warning", text)

    def finish(self, summary: SummaryRecord) -> None:
        self._call("finish", summary)

    def sync(self) -> None:
        """Write all records of durable reporters to the disk itself."""
        self._call("sync")

    def close(self) -> None:
        self._call("close")

    def _call(self, method: str, *arguments: Any) -> None:
        for reporter in self:
            if reporter not in self._reporters or not hasattr(reporter, method):  # dropped by a warning in this loop
                continue
            try:
                getattr(reporter, method)(*arguments)
            except OSError as error:
                self._handle(reporter, error)
            if isinstance(reporter, DurableReporter):
                for text in reporter.pop_warnings():
                    self.warning(text)

    def _handle(self, reporter: Reporter, error: OSError) -> None:
        name = type(reporter).__name__
        if not isinstance(reporter, DurableReporter):
            self._reporters.remove(reporter)
            with contextlib.suppress(OSError):  # flushing the buffer fails again
                reporter.close()
            self.warning(f"{name} stopped: {error}. Training continues without it.")
        elif reporter not in self._behind:
            self._behind.append(reporter)
            self.warning(
                f"{name} cannot write: {error}. Its records stay in memory and are written when the disk accepts them."
            )
