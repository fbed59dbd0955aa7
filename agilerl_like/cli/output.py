"""Output of all commands: plain lines and one-line errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console

from agilerl_like.errors import ConfigurationError
from agilerl_like.processes import write_stderr
from agilerl_like.reporting.formatting import printable

PROGRAM = "agilerl-like"


class PipedConsole(Console):
    """A console that leaves a closed pipe to `main`: rich would end the program with exit code 1."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def write_line(text: str) -> None:
    """Print lines without markup, emoji codes, highlighting or wrapping, each as `printable` returns it."""
    lines = "\n".join(map(printable, text.split("\n")))
    PipedConsole(markup=False, emoji=False, highlight=False).print(lines, soft_wrap=True)


def write_note(text: str) -> None:
    """Print a note to stderr, so that it does not mix with results."""
    lines = "\n".join(map(printable, text.split("\n")))
    write_stderr(f"{PROGRAM}: {lines}\n")


def write_error(error: Exception, code: int) -> int:
    """Print an error in one line to stderr; return the exit code."""
    write_stderr(f"{PROGRAM}: {printable(' '.join(str(error).split()))}\n")
    return code


def checked_seed(seed: int) -> int:
    """Return the seed.

    Raises:
        ConfigurationError: it is negative.
    """
    if seed < 0:
        raise ConfigurationError(f"seed={seed!r} must be at least 0")
    return seed


def checked_file(field: str, path: Path) -> Path:
    """Return the path of a file.

    Raises:
        ConfigurationError: it has no name, as "." and "/".
    """
    if not path.name:
        raise ConfigurationError(f"{field}={str(path)!r} has no name; allowed is the path of a file")
    return path


def write_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, each column as wide as its widest cell; columns of numbers are aligned right.

    Cells are printed as `printable` returns them.
    """
    lines = [[*map(printable, line)] for line in (head, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    right = [all(not row[n] or row[n][0] in "+-.0123456789" for row in lines[1:]) for n in range(len(head))]
    for line in lines:
        cells = [
            f"{' ' * (width - cell_len(cell))}{cell}" if is_right else f"{cell}{' ' * (width - cell_len(cell))}"
            for cell, width, is_right in zip(line, widths, right, strict=True)
        ]
        write_line("  ".join(cells).rstrip())
