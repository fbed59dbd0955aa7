"""How child processes end: the text for messages, where it is written, and a signal to them when their parent ends.

Workers of envs import this module, so it does not import torch.
"""

from __future__ import annotations

import ctypes
import signal
import sys

_SET_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


def ending_signal(exitcode: int) -> str:
    """Return the name of the signal that ended a process, "" if none did."""
    if exitcode >= 0:
        return ""
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"


def describe_exit(exitcode: int) -> str:
    """Describe how a process ended, as the end of a sentence about it."""
    name = ending_signal(exitcode)
    return f"was killed by {name}" if name else f"ended with exit code {exitcode}"


def write_stderr(text: str) -> None:
    """Write to standard error at once; nothing in a program that began with this stream closed."""
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()


def request_signal_at_parents_end(number: int) -> None:
    """Let Linux send this process a signal when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, number)
