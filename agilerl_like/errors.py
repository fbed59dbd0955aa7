"""The errors a user can meet, one class for each thing a caller may want to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """How the command ends; after a signal it is 128 + its number (SIGINT 130, SIGPIPE 141, SIGTERM 143).

    The numbers above 63 are those of sysexits.h.
    """

    DONE = 0
    UNSOLVED = 1
    """A probe was not solved."""
    MISTAKE = 2
    """The configuration or the arguments are wrong."""
    DISK = 74
    """Something could not be read or written."""
    FAULT = 75
    """The run broke off, and may be resumed: an env, a process of it, or the numbers of all members failed."""


class Terminated(SystemExit):
    """The process ends at once because it was asked to twice; `sys.exit` in an environment is another matter."""


class ConfigurationError(ValueError):
    """A setting is wrong: the message names the field, its value and what is allowed (`ExitCode.MISTAKE`)."""


class EnvironmentFault(RuntimeError):
    """An environment broke its contract while it ran, for example by returning NaN."""


class CheckpointError(RuntimeError):
    """A checkpoint is missing, damaged, foreign or of an unknown version."""


class NoHealthyMember(RuntimeError):
    """Every member of a population has a fitness, loss or weight that is not finite, so nobody can be a parent."""


def unknown_name(field: str, value: object, allowed: Iterable[str]) -> ConfigurationError:
    """Build the error for a name that is not among `allowed`, with the nearest ones first."""
    names = {name.lower(): name for name in sorted(allowed)}
    near = [names[key] for key in difflib.get_close_matches(str(value).lower(), names, n=3, cutoff=0.5)]
    hint = (
        f"did you mean {' or '.join(map(repr, near))}?" if near else f"allowed are: {', '.join([*names.values()][:40])}"
    )
    return ConfigurationError(f"{field}={value!r} is unknown; {hint}")
