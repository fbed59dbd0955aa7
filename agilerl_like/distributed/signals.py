"""Ctrl-C and SIGTERM, heard as a wish to stop after the current step; a second one stops at once."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass, field
from typing import Any

from agilerl_like.distributed.heartbeat import Unwatched, Watch
from agilerl_like.errors import Terminated


@dataclass
class Interrupts:
    """Turns Ctrl-C and SIGTERM, of this process or of another one of its run, into a wish to stop soon."""

    watch: Watch | Unwatched = field(default_factory=Unwatched)
    _own: int = 0
    _previous: dict[int, Any] = field(default_factory=dict)

    @property
    def signal(self) -> int:
        """SIGINT or SIGTERM; 0 if nobody asked to stop."""
        return self._own or self.watch.asked

    @property
    def asked(self) -> bool:
        """Whether somebody asked to stop."""
        return self.signal != 0

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _hear(self, number: int, _frame: object) -> None:
        if self._own == signal.SIGTERM == number:
            raise Terminated(128 + number)
        if self._own:
            raise KeyboardInterrupt
        self._own = number
        self.watch.ask_to_stop(number)
