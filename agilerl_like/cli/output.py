"""Output of all commands: plain lines and one-line errors."""

from __future__ import annotations

import sys

from rich.console import Console

from agilerl_like.errors import ConfigurationError

PROGRAM = "agilerl-like"


def write_line(text: str) -> None:
    """Print a line without markup, highlighting or wrapping."""
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


def write_error(error: Exception, code: int) -> int:
    """Print an error in one line to stderr; return the exit code."""
    sys.stderr.write(f"{PROGRAM}: {' '.join(str(error).split())}\n")
    return code


def checked_seed(seed: int) -> int:
    """Return the seed.

    Raises:
        ConfigurationError: it is negative.
    """
    if seed < 0:
        raise ConfigurationError(f"seed={seed!r} must be at least 0")
    return seed
