"""Whether this machine has room for what is asked of it: an absurd count is refused before anything is made of it.

What is compared is the least that will certainly be needed, with all the memory that there is, in use or not. So
nothing is refused that could have run; what is merely too much is left to the machine.
"""

from __future__ import annotations

import psutil

from agilerl_like.errors import ConfigurationError

UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def check_room(named: str, count: int, each: int, what: str) -> None:
    """Raise ConfigurationError unless `count` things of at least `each` bytes fit into this machine's memory.

    `named` is the setting that asks for them, with its value; `what` they are, in the plural.
    """
    have = psutil.virtual_memory().total
    if count * each > have:
        raise ConfigurationError(
            f"{named} needs at least {in_words(count * each)} of memory; this machine has {in_words(have)}: allowed "
            f"are at most {have // each} {what}"
        )


def in_words(size: float) -> str:
    """A number of bytes as people say it."""
    power = 0
    while size >= 1000 and power < len(UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.3g} {UNITS[power]}"
