"""Whether others leave the machine alone: with strangers on it, two torch threads can lose a factor of ten or more."""

import os
import time
from pathlib import Path

from benchmarks.tables import lines_of

BUSY_SHARE = 0.1
"""The share of all cores from which on others disturb."""

SAMPLE_SECONDS = 1.0
"""Seconds of looking before a run."""


class OtherProcessLoad:
    """Watches what share of the machine goes to others than our children; knows nothing (0) outside Linux."""

    def __init__(self) -> None:
        self.machine, self.total, self.children = self._now()

    def share(self) -> float:
        """Return the share since construction."""
        machine, total, children = self._now()
        if total == self.total:
            return 0.0
        return max(0.0, (machine - self.machine - (children - self.children)) / (total - self.total))

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Return seconds of all cores: working or stolen, altogether, and those of our ended children."""
        lines = lines_of(Path("/proc/stat"))
        if not lines:
            return 0.0, 0.0, 0.0
        user, nice, system, idle, waiting, *rest = (int(word) for word in lines[0].split()[1:9])
        ticks = os.sysconf("SC_CLK_TCK")
        times = os.times()
        working = user + nice + system + sum(rest)
        return (
            working / ticks,
            (working + idle + waiting) / ticks,
            times.children_user + times.children_system,
        )


def wait_for_quiet(patience: float) -> None:
    """Return when others leave the machine alone, or when patience (in seconds) is at its end."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        bystanders = OtherProcessLoad()
        time.sleep(SAMPLE_SECONDS)
        if bystanders.share() <= BUSY_SHARE:
            return


def load_average() -> str:
    """Return the last minute's load: what else the machine was doing."""
    return f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown"
