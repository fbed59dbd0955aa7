"""Callbacks: how the console, the record files, trackers and users receive the events of a run and can stop it.

A run outlives its reporters: one whose pipe is closed or whose disk is full (`OSError`) is dropped with a warning to
the others. A `DurableReporter` is kept, because it holds the unwritten records in memory and writes them later. Any
other exception of a callback ends the run: it is saved, and then one `CallbackError` names the callback.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from agilerl_like.errors import CheckpointError, ConfigurationError, unknown_name
from agilerl_like.reporting.records import GenerationRecord, OffspringRecord, RunRecord, SummaryRecord

LAST_EVENTS = ("on_run_end", "break_off", "close")
"""Events after which no training follows."""
MAX_TAGS, MAX_TAG_LENGTH = 100, 100
"""Most tags that the callbacks of a run may track, and their longest; each is a column of metrics.csv."""


class CallbackError(RuntimeError):
    """A callback raised an exception, which is the cause; the run was saved before."""


@dataclass
class RunContext:
    """A run as its callbacks see it."""

    record: RunRecord
    population: Any = None
    """The members that this process trains; a `Population` or `MultiAgentPopulation`."""
    generation: int = 0
    env_steps: int = 0
    """Training steps of all members so far."""
    stop_reason: str | None = None
    """Why a callback requested to stop; None if none did."""
    _tracked: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Sum and count of the values of this generation, by tag."""
    _tags: set[str] = field(default_factory=set)
    """All tags of the run."""

    def track(self, tag: str, value: float) -> None:
        """Record a number of the user's own in the current generation.

        The mean over the generation is `callback/TAG` in metrics.csv and in all trackers, and the console shows it.
        A value of `on_offspring` counts for the next generation.

        Raises:
            ValueError: the tag is no printable text of 1 to `MAX_TAG_LENGTH` characters, or a further one after
                `MAX_TAGS`; the value is not a number.
        """
        if not isinstance(tag, str) or not tag.isprintable() or not 0 < len(tag) <= MAX_TAG_LENGTH:
            raise ValueError(f"tag={tag!r:.200}; allowed is printable text of 1 to {MAX_TAG_LENGTH} characters")
        if tag not in self._tags and len(self._tags) >= MAX_TAGS:
            raise ValueError(f"tag={tag!r} is one more than the {MAX_TAGS} tags that a run may track")
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor of several numbers
            raise ValueError(f"value={value!r:.200} of tag={tag!r}; allowed is one number") from error
        self._tags.add(tag)
        total, count = self._tracked.get(tag, (0.0, 0))
        self._tracked[tag] = total + number, count + 1

    @property
    def tracked(self) -> dict[str, tuple[float, int]]:
        """Sum and count of the values since the last `pop_tracked`, by tag."""
        return dict(self._tracked)

    def restore_tracked(self, values: Mapping[str, tuple[float, int]]) -> None:
        """Continue with the `tracked` values of a checkpoint."""
        self._tracked |= values
        self._tags |= values.keys()

    def pop_tracked(self) -> dict[str, float]:
        """Return the means of the values since the last call, by tag."""
        means = {tag: total / count for tag, (total, count) in self._tracked.items()}
        self._tracked.clear()
        return means

    def stop(self, reason: str = "") -> None:
        """End the run as Ctrl-C does, but without an error: it is saved and returned, and can be resumed.

        In `on_generation` the run ends with this generation, and resumes from there. In any other method the current
        generation is broken off, and the run resumes from its last checkpoint.
        """
        if self.stop_reason is None:
            self.stop_reason = reason


class Callback:
    """Receives the events of a run; a subclass overrides the methods it needs, the others do nothing.

    Callbacks run on the main process only. Any of them may call `run.stop(reason)`, and `run.track(tag, value)`, which
    records a number of its own beside those of the run.
    """

    def on_run_begin(self, run: RunContext) -> None:
        """Begin, or begin again: a run in which all members diverged restarts once from its last checkpoint.

        Files are opened here and not at construction, so that constructing has no side effects.
        """

    def on_step(self, run: RunContext) -> None:
        """Called after every step of the vector env, in the innermost loop."""

    def on_update(self, run: RunContext, metrics: Mapping[int, Mapping[str, float]]) -> None:
        """Receive the metrics of a learning update, by slot; only members that learned have an entry.

        Members that learn from a replay or have a table are reported about every 64 updates, and after each one only
        with `log_every="update"`, because reading metrics takes as long as their updates.
        """

    def on_generation(self, run: RunContext, record: GenerationRecord) -> None:
        """Receive the result of one generation, before selection."""

    def on_offspring(self, run: RunContext, offspring: tuple[OffspringRecord, ...]) -> None:
        """Receive what evolution decided, one record a slot; of initial members and replacements too."""

    def on_run_end(self, run: RunContext, summary: SummaryRecord) -> None:
        """Receive the end of the run, after it was saved."""

    def on_warning(self, text: str) -> None:
        """Receive a warning for the user; the run continues."""

    def close(self) -> None:
        """Release files and terminal; called at least once, whether or not the run finished."""


class Reporter(Callback):
    """A callback that only receives records, whose failure to write (`OSError`) does not end a run."""

    @property
    def shown_name(self) -> str:
        """Its name in warnings and errors."""
        return type(self).__name__

    def on_run_begin(self, run: RunContext) -> None:
        self.start(run.record)
        self.progress(run.env_steps)

    def on_update(self, run: RunContext, metrics: Mapping[int, Mapping[str, float]]) -> None:
        self.progress(run.env_steps)

    def on_generation(self, run: RunContext, record: GenerationRecord) -> None:
        self.generation(record)

    def on_offspring(self, run: RunContext, offspring: tuple[OffspringRecord, ...]) -> None:
        self.offspring(offspring)

    def on_run_end(self, run: RunContext, summary: SummaryRecord) -> None:
        self.finish(summary)

    def on_warning(self, text: str) -> None:
        self.warning(text)

    def start(self, run: RunRecord) -> None:
        """Begin a run."""

    def progress(self, env_steps: int) -> None:
        """Receive the env steps of all members so far; called after every update, so it must return quickly."""

    def generation(self, record: GenerationRecord) -> None:
        """Receive the result of one generation, before selection."""

    def offspring(self, births: tuple[OffspringRecord, ...]) -> None:
        """Receive what evolution decided: one record a slot, in the order of the slots."""

    def warning(self, text: str) -> None:
        """Receive a warning for the user; the run continues."""

    def finish(self, summary: SummaryRecord) -> None:
        """Receive the end of the run."""


class DurableReporter(Reporter):
    """A reporter whose records must survive a full disk and a power cut.

    A method that raises `OSError` has lost nothing: unwritten records stay in memory and are written with later ones.
    """

    def sync(self) -> None:
        """Write all records so far to the disk itself; called before a checkpoint is saved."""

    def pop_warnings(self) -> list[str]:
        """Return the warnings since the last call."""
        return []


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
"""The methods of a callback that are called at events of a run."""


class CallbackList(Callback):
    """Any number of callbacks as one.

    Raises:
        ConfigurationError: one is no `Callback`, or has a method whose name begins with `on_` and is none of `HOOKS`.
    """

    def __init__(self, callbacks: Iterable[Callback] = ()):
        self._callbacks = list(callbacks)
        for callback in self._callbacks:
            if not isinstance(callback, Callback):
                raise ConfigurationError(f"callback={callback!r:.100}; allowed are instances of Callback")
            for name in dir(type(callback)):
                if name.startswith("on_") and name not in HOOKS:
                    raise unknown_name(f"method of the callback {type(callback).__name__}", name, HOOKS)
        self._behind: list[Callback] = []
        """Durable reporters that have failed to write, which the user has been warned of."""
        self.failure: CallbackError | None = None
        """The first exception of a callback that ends the run."""
        self.guard: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        """The context in which callbacks that are no reporters are called; an exception of it counts as theirs."""
        self.check_folder: Callable[[], None] = lambda: None
        """Called before records are written; raises a CheckpointError if the run's folder is no longer in its place."""

    def __iter__(self) -> Iterator[Callback]:
        return iter(tuple(self._callbacks))

    def overrides(self, method: str) -> bool:
        """Whether any callback overrides a method of `Callback`."""
        return any(getattr(type(callback), method) is not getattr(Callback, method) for callback in self)

    def on_run_begin(self, run: RunContext) -> None:
        """Begin; an exception is raised at once, because nothing has been trained.

        Raises:
            CallbackError: names the callback.
        """
        self._call("on_run_begin", run)
        if self.failure is not None:
            raise self.failure

    def on_step(self, run: RunContext) -> None:
        self._call("on_step", run)

    def on_update(self, run: RunContext, metrics: Mapping[int, Mapping[str, float]]) -> None:
        self._call("on_update", run, metrics)

    def on_generation(self, run: RunContext, record: GenerationRecord) -> None:
        """Pass on a generation; reporters come last, because the others may still track values of it."""
        self.check_folder()
        reporters = [callback for callback in self if isinstance(callback, Reporter)]
        self._call("on_generation", run, record, to=[callback for callback in self if callback not in reporters])
        self._call("on_generation", run, replace(record, tracked=run.pop_tracked()), to=reporters)

    def on_offspring(self, run: RunContext, offspring: tuple[OffspringRecord, ...]) -> None:
        self.check_folder()
        self._call("on_offspring", run, offspring)

    def on_run_end(self, run: RunContext, summary: SummaryRecord) -> None:
        self.check_folder()
        self._call("on_run_end", run, summary)

    def on_warning(self, text: str) -> None:
        self._call("on_warning", text)

    def sync(self) -> None:
        """Write all records of durable reporters to the disk itself."""
        self.check_folder()
        self._call("sync")

    def break_off(self) -> None:
        """Record that the run ends without a summary, because of an error or a lost rank."""
        self.check_folder()
        self._call("break_off")

    def close(self) -> None:
        self._call("close")

    def _call(self, method: str, *arguments: Any, to: Iterable[Callback] | None = None) -> None:
        for callback in self if to is None else to:
            if callback not in self._callbacks or not hasattr(callback, method):  # dropped by a warning in this loop
                continue
            try:
                with contextlib.nullcontext() if isinstance(callback, Reporter) else self.guard():
                    getattr(callback, method)(*arguments)
            except Exception as error:
                if isinstance(error, OSError) and isinstance(callback, Reporter):
                    self._outlive(callback, error, is_last=method in LAST_EVENTS)
                elif method == "on_run_begin" and isinstance(error, ConfigurationError | CheckpointError):
                    raise
                else:
                    self._fail(callback, method, error)
            if isinstance(callback, DurableReporter):
                for text in callback.pop_warnings():
                    self.on_warning(text)

    def _outlive(self, reporter: Reporter, error: OSError, *, is_last: bool) -> None:
        name = reporter.shown_name
        if not isinstance(reporter, DurableReporter):
            self._drop(reporter)
            self.on_warning(f"{name} stopped: {error}.{'' if is_last else ' Training continues without it.'}")
        elif reporter not in self._behind:
            self._behind.append(reporter)
            self.on_warning(
                f"{name} cannot write: {error}. Its records stay in memory and are written when the disk accepts them."
            )

    def _fail(self, callback: Callback, method: str, error: Exception) -> None:
        self._drop(callback)
        if self.failure is None:
            name = callback.shown_name if isinstance(callback, Reporter) else type(callback).__name__
            self.failure = CallbackError(f"callback {name}.{method} raised {type(error).__name__}: {error}")
            self.failure.__cause__ = error

    def _drop(self, callback: Callback) -> None:
        self._callbacks.remove(callback)
        with contextlib.suppress(Exception):  # flushing its buffer may fail again
            callback.close()
