"""The worker processes of a vector env as their parent sees them: started, listened to, found dead, ended.

They are started as new interpreters that load `worker.py` and nothing of the user's script, so a script needs no
`if __name__ == "__main__"`, and what it defines travels by value.
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

STARTUP = 120.0  # seconds for a worker's imports and for making its envs
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

Key = str | tuple[int, ...]  # of a request: its name, or the parts to be stepped


class WorkerExit(NamedTuple):
    """How a worker process ended; `hopeless` if it failed before its environments had ever been reset.

    `summary` is one line about `traceback`. `kind` is equal for two exceptions that an environment raised in the same
    way; "" if the process died without one, or of one that comes from outside.
    """

    cause: str
    kind: str
    summary: str
    traceback: str
    hopeless: bool


class WorkerHandle:
    """One worker, and the processes that take its place; `rows_by_group` says which rows of each part are its own."""

    def __init__(self, index: int, rows_by_group: Sequence[Sequence[int]], timeout: float) -> None:
        self.index, self.rows_by_group, self.timeout = index, rows_by_group, timeout
        self.rows = sorted(itertools.chain.from_iterable(rows_by_group))
        self.replies: dict[str | int, Any] = {}
        self.starts = 0
        self.is_ready = False  # has imported everything and made its envs
        self.failures = 0  # since each of its parts was last stepped without one
        self._proven = False  # has reset its envs, in this process or an earlier one
        self._unproven_groups: set[int] = set()

    def start(self, spec: WorkerSpec, memory: IO[bytes]) -> None:
        """Start a process; its answer under `ENVS_READY` says that its envs are there."""
        self.starts += 1
        self.is_ready = False
        self.replies.clear()
        self._failure: ReportedException | None = None  # the exception that the process reported before it ended
        self._unproven_groups = {group for group, rows in enumerate(self.rows_by_group) if rows}
        self._log = anonymous_file()  # for what a dying interpreter writes
        self.pipe, its_end = Pipe()
        handed_down = (its_end.fileno(), memory.fileno(), self._log.fileno())
        self.process = subprocess.Popen(
            [sys.executable, "-c", _program(*handed_down)],
            stdin=subprocess.PIPE,
            pass_fds=handed_down,
            env=_environment(),
            start_new_session=True,  # Ctrl-C in the terminal is for the parent
        )
        its_end.close()
        self.set_deadline(STARTUP)
        self._send(CloudpickleWrapper(cast(Any, spec)))

    def send_request(self, key: Key, method: str, *arguments: Any) -> None:
        """Ask for something; the answer will be found under `key`, or those of a step under each of its parts."""
        self._send((key, method, arguments))

    def read_message(self) -> Key | None:
        """Take one message and return its key; None if there will be no more."""
        try:
            key, answer = self.pipe.recv()
        except (EOFError, OSError):
            return None
        if key == FAILED:
            self._failure = answer
            return key
        self.set_deadline(self.timeout)
        if isinstance(key, tuple):
            self.replies.update(zip(key, answer, strict=True))
            self._unproven_groups.difference_update(key)
            self.failures *= bool(self._unproven_groups)
        else:
            self.replies[key] = answer
        self.is_ready = True
        self._proven |= key not in (ENVS_READY, EPISODES_RESTARTED)
        return key

    def set_deadline(self, seconds: float) -> None:
        """Wait so long for its next message."""
        self._patience, self._deadline = seconds, time.monotonic() + seconds

    def is_responsive(self) -> bool:
        """Say whether the process lives and may still be waited for."""
        return self.process.poll() is None and time.monotonic() < self._deadline

    def kill_and_report(self) -> WorkerExit:
        """End the process unless it has ended, and find out how it went."""
        hangs = self.process.poll() is None and time.monotonic() >= self._deadline
        if hangs:
            self.process.send_signal(signal.SIGUSR1)  # it writes down where it hangs
        self._wait(0.2 if hangs else 1.0)  # who has closed the pipe ends in a moment
        self.process.kill()
        self._wait(1.0)
        self._read_failure()
        log = os.pread(self._log.fileno(), 10_000, 0).decode(errors="replace")
        failure = self._failure or ReportedException("", _innermost(log), log)
        hopeless = self._failure is not None and not (self._proven and self.is_ready)
        self.release()
        cause = f"gave no answer for {self._patience:g} s" if hangs else _how_it_ended(self.process.returncode)
        return WorkerExit(cause, failure.kind, failure.summary, failure.traceback, hopeless)

    def close_pipe(self) -> None:
        """Let the process close its envs and end."""
        self.pipe.close()

    def release(self) -> None:
        """End the process if it has not done so, and let go of all that belongs to it."""
        self.close_pipe()
        if self.process.poll() is None:
            self.process.kill()
            self._wait(1.0)
        cast(IO[bytes], self.process.stdin).close()
        self._log.close()

    def _read_failure(self) -> None:
        """Take what the process sent before it ended, which may have come after the last look at the pipe."""
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                key, answer = self.pipe.recv()
                if key == FAILED:
                    self._failure = answer

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def _send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # it is dead, as will be seen when it is listened to
            self.pipe.send(message)


def shutdown(workers: list[WorkerHandle]) -> None:
    """End all workers, within `CLOSE_TIMEOUT` and a moment, and forget them."""
    for worker in workers:
        worker.close_pipe()
    end = time.monotonic() + CLOSE_TIMEOUT
    while any(worker.process.poll() is None for worker in workers) and time.monotonic() < end:
        time.sleep(0.002)
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.release()
    workers.clear()


def anonymous_file() -> IO[bytes]:
    """Open a file without a name, in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("agilerl_like"), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _program(pipe: int, memory: int, log: int) -> str:
    path = [entry for entry in sys.path if isinstance(entry, str)]
    # the signal would come when the thread ends that starts the worker, so a thread of the user's must not ask for it
    dies_with_parent = threading.current_thread() is threading.main_thread()
    serve = f"serve({pipe}, {memory}, {log}, {os.getpid()}, dies_with_parent={dies_with_parent})"
    return f"import sys; sys.path[:] = {path!r}; from agilerl_like.envs.subproc.worker import serve; {serve}"


def _innermost(log: str) -> str:
    """Return the innermost frame that faulthandler wrote, or the last line of whatever else is in a worker's log."""
    lines = log.strip().splitlines() or ["no traceback"]
    frames = [line.strip() for line in lines if line.startswith("  File")]
    return frames[0] if "(most recent call first)" in log and frames else lines[-1]


def _environment() -> dict[str, str]:
    # with its parent's variables, a worker that loads MPI would believe to be a rank of it
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI_"))}
    return {**inherited, **ONE_THREAD}


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "cannot be ended"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
