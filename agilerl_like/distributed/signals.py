"""Ctrl-C and SIGTERM as requests to stop after the current step; a second one stops at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from agilerl_like.distributed.heartbeat import HeartbeatMonitor, NullMonitor
from agilerl_like.errors import Terminated

BY_CALLBACK = -1
"""Takes the place of a signal's number if a callback requested to stop."""
NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
STDERR = 2
"""The file descriptor of standard error: a signal may arrive while Python's stream is locked."""


@dataclass
class StopRequests:
    """Handles SIGINT and SIGTERM, of this process or of another rank of its run, while its `with` block lasts."""

    monitor: HeartbeatMonitor | NullMonitor = field(default_factory=NullMonitor)
    announces: bool = True
    """Whether the first signal is answered by a line on standard error."""
    _signal: int = 0
    _ignores_callbacks: bool = False
    _previous_handlers: dict[int, Any] = field(default_factory=dict)

    @property
    def stop_signal(self) -> int:
        """SIGINT, SIGTERM or `BY_CALLBACK`; 0 if none was received."""
        received = self._signal or self.monitor.stop_signal
        return 0 if self._ignores_callbacks and received == BY_CALLBACK else received

    @property
    def asked(self) -> bool:
        """Whether a stop was requested."""
        return self.stop_signal != 0

    def request(self) -> None:
        """Ask all ranks to stop, for a callback."""
        self.monitor.request_stop(BY_CALLBACK)

    def ignore_callbacks(self) -> None:
        """Heed signals alone from now on: training has ended because a callback requested it."""
        self._ignores_callbacks = True

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not None:  # else its handler is not Python's, which cannot restore it
                    self._previous_handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: object) -> None:
        if self._signal == signal.SIGTERM == number:
            raise Terminated(128 + number)
        if self._signal:
            raise KeyboardInterrupt
        self._signal = number
        self.monitor.request_stop(number)
        if self.announces:
            _announce(number)


def _announce(number: int) -> None:
    """Write to standard error what a signal leads to; a terminal's line has the cursor of the progress display."""
    if sys.__stderr__ is None:  # it was closed when the program began, and its number may be that of another file
        return
    text = (
        f"{NAMES[signal.Signals(number)]}: training ends after the current step, the members are evaluated, and "
        "population and best agent are saved or returned; a second signal ends the run at once, and nothing is saved\n"
    )
    with contextlib.suppress(OSError):  # it was closed
        os.write(STDERR, ("\n" * os.isatty(STDERR) + text).encode())


def first_signal(signals: Iterable[int]) -> int:
    """Return the signal that stops a run of which each process received one or 0; a callback's request counts last."""
    return max(signals, key=abs, default=0)
