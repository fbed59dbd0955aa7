"""Limits of this machine: memory, which absurd counts in a setting would exceed, and CPU cores.

The memory check compares the least that is certainly needed with all memory that is installed, in use or not. So no
run is refused that could have worked; the operating system handles the rest.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache

import psutil

from agilerl_like.errors import ConfigurationError

UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def check_memory(named: str, count: int, each: int, what: str) -> None:
    """Raise ConfigurationError unless `count` things of at least `each` bytes fit into this machine's memory.

    `named` is the setting with its value, `what` the things in the plural.
    """
    total, needed = psutil.virtual_memory().total, count * each
    if needed > total:
        raise ConfigurationError(
            f"{named} needs at least {format_bytes(needed)} of memory; this machine has {format_bytes(total)}: allowed "
            f"are at most {total // each} {what}"
        )


def format_bytes(size: float) -> str:
    """Return a number of bytes with a unit: 1.5 GB."""
    power = 0
    while size >= 1000 and power < len(UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.3g} {UNITS[power]}"


def available_cores() -> int:
    """Return this process's share of the CPU cores.

    Launchers (torchrun, accelerate, ours) set `LOCAL_WORLD_SIZE` to the number of processes on this machine.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, usable // int(processes)) if processes.isdecimal() and int(processes) else usable


def release_free_memory() -> None:
    """Return the free pages of the C heap to the system; has no effect without glibc.

    Offspring free tensors of many sizes between objects that stay, so the heap fragments and resident memory grows
    by tens of kB per generation although no more is in use. Takes about a millisecond.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
