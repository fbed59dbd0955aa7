"""What this machine has room for: an absurd count is refused before anything is made of it, and cores are shared.

What is compared is the least that will certainly be needed, with all the memory that there is, in use or not. So
nothing is refused that could have run; what is merely too much is left to the machine.
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

    `named` is the setting that asks for them, with its value; `what` they are, in the plural.
    """
    have = psutil.virtual_memory().total
    if count * each > have:
        raise ConfigurationError(
            f"{named} needs at least {format_bytes(count * each)} of memory; this machine has {format_bytes(have)}: allowed "
            f"are at most {have // each} {what}"
        )


def format_bytes(size: float) -> str:
    """A number of bytes as people say it."""
    power = 0
    while size >= 1000 and power < len(UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.3g} {UNITS[power]}"


def available_cores() -> int:
    """How many CPU cores are this process's, which shares them with those started together with it on this machine.

    Launchers say in `LOCAL_WORLD_SIZE` how many these are (torchrun, accelerate, and we ourselves).
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, usable // int(told)) if told.isdecimal() and int(told) else usable


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
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):  # no C library to look into (Windows)
        return None
