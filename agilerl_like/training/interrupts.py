"""Ctrl-C and SIGTERM, heard as a wish to stop after the current step; a second one stops at once."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Interrupts:
    """Turns Ctrl-C and SIGTERM into a wish to stop after the current step; a second one stops at once."""

    asked: bool = False
    signal: int = 0
    _previous: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _hear(self, number: int, _frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked, self.signal = True, number
