"""The parent's side of one worker process: start it, exchange messages, detect its end, shut it down.

A worker is a new interpreter that loads `worker.py` and nothing of the user's script. Scripts therefore need no
`if __name__ == "__main__"`, and functions defined in them are sent by value.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from typing import IO, Any, NamedTuple, cast

from gymnasium.vector.utils import CloudpickleWrapper

from agilerl_like.envs.env_errors import ReportedException
from agilerl_like.envs.subproc.worker import CLOSE_TIMEOUT, ENVS_READY, EPISODES_RESTARTED, FAILED, WorkerSpec
from agilerl_like.processes import describe_exit

STDERR = 2
STARTUP = 120.0  # seconds for a worker's imports, and for making each of its envs
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

Key = str | tuple[int, ...]  # of a request: its name, or the env groups of a step


class WorkerExit(NamedTuple):
    """How a worker process ended.

    `kind` identifies an exception by its type and source line, so that a repeated one is recognised; it is "" if the
    process ended without one, and for errors from outside, such as OSError. `summary` is one line about `traceback`.
    `is_fatal` is True if a restart cannot help, because the process failed before its environments were ever reset.
    """

    cause: str
    kind: str
    summary: str
    traceback: str
    is_fatal: bool


class WorkerHandle:
    """One worker and the processes that replace it; `rows_by_group` are its rows of each env group."""

    def __init__(self, index: int, rows_by_group: Sequence[Sequence[int]], timeout: float) -> None:
        self.index, self.rows_by_group, self.timeout = index, rows_by_group, timeout
        self.rows = sorted(itertools.chain.from_iterable(rows_by_group))
        self.replies: dict[str | int, Any] = {}
        self.starts = 0
        self.is_ready = False  # has finished its imports and made its envs
        self.failures = 0  # since every one of its groups has stepped without a failure
        self._has_reset = False  # has reset its envs, in this process or an earlier one
        self._unproven_groups: set[int] = set()

    def start(self, spec: WorkerSpec, memory: IO[bytes]) -> None:
        """Start a process; its reply under `ENVS_READY` arrives when its envs are made."""
        self.starts += 1
        self.is_ready = False
        self.replies.clear()
        self._failure: ReportedException | None = None  # reported by the process before it ended
        self._unproven_groups = {group for group, rows in enumerate(self.rows_by_group) if rows}
        self._log = anonymous_file()  # for the output of a crashing interpreter
        self.pipe, its_end = Pipe()
        inherited = (its_end.fileno(), memory.fileno(), self._log.fileno())
        self.process = subprocess.Popen(
            [sys.executable, "-c", _program(*inherited)],
            stdin=subprocess.PIPE,
            pass_fds=inherited,
            env=_environment(),
            start_new_session=True,  # Ctrl-C in the terminal is for the parent only
        )
        its_end.close()
        self._row: int | None = None
        self.set_deadline(max(STARTUP, self.timeout))
        self._send(CloudpickleWrapper(cast(Any, spec)))

    def send_request(self, key: Key, method: str, *arguments: Any) -> None:
        """Send a request; its reply will be stored under `key`, that of a step under each of its groups."""
        self._send((key, method, arguments))

    def read_message(self) -> Key | None:
        """Read one message and return its key, or None if the pipe is closed."""
        try:
            key, reply = self.pipe.recv()
        except (EOFError, OSError):
            return None
        if key == FAILED:
            self._failure = reply
            return key
        self.set_deadline(self.timeout)
        if isinstance(key, tuple):
            self.replies.update(zip(key, reply, strict=True))
            self._unproven_groups.difference_update(key)
            self.failures *= bool(self._unproven_groups)
        else:
            self.replies[key] = reply
        self.is_ready = True
        self._has_reset |= key not in (ENVS_READY, EPISODES_RESTARTED)
        return key

    def set_deadline(self, seconds: float) -> None:
        """Allow the next message to take so many seconds from now."""
        self._allowed_seconds, self._deadline = seconds, time.monotonic() + seconds

    def note_row(self, row: int) -> None:
        """Let the time limit begin once more if the worker is at another row: it holds for each env, not for all."""
        if row != self._row:
            self._row = row
            self.set_deadline(self._allowed_seconds)

    def is_responsive(self) -> bool:
        """Return whether the process is alive and its deadline has not passed."""
        return self.process.poll() is None and time.monotonic() < self._deadline

    def kill_and_report(self) -> WorkerExit:
        """End the process if it is still running, and return how it ended."""
        hangs = self.process.poll() is None and time.monotonic() >= self._deadline
        if hangs:
            self.process.send_signal(signal.SIGUSR1)  # it writes its traceback to the log
        self._wait(0.2 if hangs else 1.0)  # a process that has closed its pipe ends within moments
        self.kill()
        self._read_failure()
        log = os.pread(self._log.fileno(), 10_000, 0).decode(errors="replace")
        failure = self._failure or ReportedException("", _innermost_line(log), log)
        is_fatal = self._failure is not None and not self._has_reset
        self.release()
        limit = f"{self._allowed_seconds:g} s{' (step_timeout)' if self._allowed_seconds == self.timeout else ''}"
        code = self.process.returncode
        ended = "cannot be ended" if code is None else describe_exit(code)
        cause = f"gave no answer for {limit}" if hangs else ended
        return WorkerExit(cause, failure.kind, failure.summary, failure.traceback, is_fatal)

    def close_pipe(self) -> None:
        """Close the pipe, after which the process closes its envs and ends."""
        self.pipe.close()

    def kill(self) -> None:
        """End the process, and those that its envs have started and left, which would hold their ports and memory."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses it for a group that has ended
            os.killpg(self.process.pid, signal.SIGKILL)  # it leads a group of its own, which outlives it
        self._wait(1.0)

    def release(self) -> None:
        """End the process if it is still running, and release its resources."""
        self.close_pipe()
        self.kill()
        cast(IO[bytes], self.process.stdin).close()
        self._log.close()

    def _read_failure(self) -> None:
        """Read the messages that the process sent before it ended."""
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                key, reply = self.pipe.recv()
                if key == FAILED:
                    self._failure = reply

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def _send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # the process has ended, which the next read detects
            self.pipe.send(message)


def shutdown(workers: list[WorkerHandle]) -> None:
    """End all workers, within `CLOSE_TIMEOUT` and a moment, and empty the list."""
    for worker in workers:
        worker.close_pipe()
    end = time.monotonic() + CLOSE_TIMEOUT
    while any(worker.process.poll() is None for worker in workers) and time.monotonic() < end:
        time.sleep(0.002)
    for worker in workers:
        worker.release()
    workers.clear()


def anonymous_file() -> IO[bytes]:
    """Open a file without a name, in memory where the system supports it.

    A standard stream that is closed (`nohup … <&-`) is opened as the null device, also for workers: its descriptor
    would be that of the file, or of the pipe to a worker, and the worker would read its input from there, or print into
    it.
    """
    while (spare := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(spare, True)
    os.close(spare)
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("agilerl_like"), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _program(pipe: int, memory: int, log: int) -> str:
    path = [entry for entry in sys.path if isinstance(entry, str)]
    # Linux would send the signal when the thread that starts the worker ends, so only the main thread requests it
    dies_with_parent = threading.current_thread() is threading.main_thread()
    serve = f"serve({pipe}, {memory}, {log}, {os.getpid()}, dies_with_parent={dies_with_parent})"
    return f"import sys; sys.path[:] = {path!r}; from agilerl_like.envs.subproc.worker import serve; {serve}"


def _innermost_line(log: str) -> str:
    """Return the innermost frame that faulthandler wrote, or the last line of any other log."""
    lines = log.strip().splitlines() or ["no traceback"]
    frames = [line.strip() for line in lines if line.startswith("  File")]
    return frames[0] if "(most recent call first)" in log and frames else lines[-1]


def _environment() -> dict[str, str]:
    # with the parent's MPI variables, a worker that loads MPI would take itself for one of its ranks
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI_"))}
    return {**inherited, **ONE_THREAD}
