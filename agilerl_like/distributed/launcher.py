"""Starts the other processes of a run on this machine; the calling one is rank 0, and none of them outlives it.

They are new interpreters that import the caller's script, so a script must not start them while it is imported.
torch's launchers are not used: they restart or wait where a run must end within seconds with one message that names
rank, pid and signal, and they report neither a script without a main guard nor an argument that cannot be pickled.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from threading import Thread
from types import FunctionType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from agilerl_like.errors import ConfigurationError, ExitCode
from agilerl_like.processes import describe_exit, ending_signal, request_signal_at_parents_end, write_stderr
from agilerl_like.resources import available_cores

STARTUP_TIMEOUT = 120.0
"""Seconds that a process has for its imports."""
GRACE = 5.0
"""Seconds that a process has to exit by itself after a failure, and again after SIGTERM."""
RENDEZVOUS_TIMEOUT = 600.0
"""Seconds that all processes have to join one process group."""
JOIN_TIMEOUT = 60.0
"""Seconds that a process has to exit by itself after success."""

_CONTEXT: Any = multiprocessing.get_context("spawn")
_CHILD_OF = "AGILERL_LIKE_CHILD_OF"
_DAEMONIC = "a daemonic process, such as a worker of multiprocessing.Pool, which cannot start others"
_UNGUARDED = 79  # the exit code of a child whose script starts processes while it is imported


class ProcessExit(NamedTuple):
    """A process that failed; `signal` is the name of the signal that ended it, "" if none did."""

    rank: int
    pid: int
    exitcode: int
    signal: str

    @classmethod
    def of(cls, rank: int, process: SpawnProcess) -> ProcessExit:
        """Return how a process ended."""
        code = process.exitcode or 0
        return cls(rank, process.pid or 0, code, ending_signal(code))

    def __str__(self) -> str:
        return describe_exit(self.exitcode)


class WorkerProcesses:
    """The processes with rank 1 and higher."""

    def __init__(self) -> None:
        self._processes: dict[int, SpawnProcess] = {}

    def failed(self) -> list[ProcessExit]:
        """Return the processes that have failed so far."""
        return [ProcessExit.of(rank, process) for rank, process in self._processes.items() if process.exitcode]

    def describe_exit(self, rank: int) -> str:
        """Describe how this rank failed, for a `HeartbeatMonitor`; "" if it has not."""
        return next((str(failed) for failed in self.failed() if failed.rank == rank), "")

    def start(
        self, processes: int, target: Callable[..., object], arguments: Sequence[Any], port: int, threads: int
    ) -> None:
        """Start the processes with so many threads each, and return when each has imported what it needs."""
        pipes: dict[int, Connection] = {}
        for rank in range(1, processes):
            pipes[rank], remote = _CONTEXT.Pipe(duplex=False)
            work = (remote, threads, target, rank, *arguments)
            process = _CONTEXT.Process(target=_worker_main, args=work, name=f"rank {rank}")
            with _environment(rank, processes, port, threads), _sigint_blocked():
                process.start()
            self._processes[rank] = process
            remote.close()
        end = time.monotonic() + STARTUP_TIMEOUT
        with contextlib.ExitStack() as stack:
            for pipe in pipes.values():
                stack.enter_context(pipe)
            for rank, pipe in pipes.items():
                wait([pipe, self._processes[rank].sentinel], max(0.0, end - time.monotonic()))
                if not _is_ready(pipe):
                    raise ConfigurationError(self._startup_error(rank, processes))

    def _startup_error(self, rank: int, processes: int) -> str:
        process = self._processes[rank]
        process.join(GRACE)
        if process.exitcode == _UNGUARDED:
            return (
                f"processes={processes} imports this script again in each new process, where it must not start "
                f"processes too; what it does when run belongs under: if __name__ == '__main__':"
            )
        which = f"processes={processes}: rank {rank} (pid {process.pid})"
        if process.exitcode is None:
            return f"{which} had not finished its imports after {STARTUP_TIMEOUT:g} s"
        return f"{which} {ProcessExit.of(rank, process)} before its work began; its output above may say why"

    @contextmanager
    def guard_rendezvous(self, what: str = "joining the process group") -> Iterator[None]:
        """End all processes with one message and `ExitCode.TEMPFAIL` if one ends while this block lasts.

        Joining a process group waits for every rank, for hours and in a call that no exception interrupts; a
        `HeartbeatMonitor` detects a rank that ended only when all have joined.
        """
        reader, writer = multiprocessing.Pipe(duplex=False)
        guard = Thread(target=self._abort_on_exit, args=(reader, what), daemon=True, name="rendezvous guard")
        guard.start()
        try:
            yield
        finally:
            writer.send(True)
            guard.join()
            reader.close()
            writer.close()

    def _abort_on_exit(self, joined: Connection, what: str) -> None:
        ready = wait([joined, *(process.sentinel for process in self._processes.values())], RENDEZVOUS_TIMEOUT)
        if joined in ready:
            return
        failures = []
        for rank, process in self._processes.items():
            if process.sentinel in ready:
                process.join()
                failures.append(f"rank {rank} (pid {process.pid}) {self.describe_exit(rank) or 'ended'}")
        reason = f"{'; '.join(failures)} while" if failures else f"{RENDEZVOUS_TIMEOUT:g} s were not enough for"
        write_stderr(f"\nagilerl-like: {reason} {what}, so all ranks end. Nothing was trained.\n")
        if sys.stdout is not None:
            sys.stdout.flush()
        for process in self._processes.values():
            process.kill()
        os._exit(ExitCode.TEMPFAIL)  # the main thread waits for a process that will never join

    def shutdown(self, patience: float) -> None:
        """Wait so many seconds for all processes to exit, then terminate and kill those that have not."""
        try:
            self._join(patience)
            for process in self._processes.values():
                process.terminate()
            self._join(GRACE)
        finally:  # also after a second Ctrl-C
            for process in self._processes.values():
                process.kill()
            self._join(GRACE)

    def _join(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for process in self._processes.values():
            process.join(max(0.0, end - time.monotonic()))


@contextmanager
def worker_processes(
    processes: int, target: Callable[..., object], arguments: Sequence[Any] = ()
) -> Iterator[WorkerProcesses]:
    """Run `target(rank, *arguments)` in new processes for the ranks from 1 on, while the caller is rank 0.

    While the block lasts, the caller has the environment variables of rank 0, as torchrun sets them; when it ends, so
    have the processes. Each has as many torch threads as the caller, but together no more than there are cores:
    threads that wait for each other on too few cores take up to ten times as long.

    Raises:
        ConfigurationError: the target or an argument cannot be sent to another process, or one could not start; or this
            process has an Accelerator or a process group.
    """
    check_launch(processes, target, arguments)
    workers = WorkerProcesses()
    if processes == 1:
        yield workers
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads_before = torch.get_num_threads()
    threads = min(threads_before, max(1, available_cores() // processes))
    patience = 0.0
    try:
        workers.start(processes, target, arguments, port, threads)
        patience = GRACE
        torch.set_num_threads(threads)
        with _environment(0, processes, port, threads):
            yield workers
        patience = JOIN_TIMEOUT
    finally:
        torch.set_num_threads(threads_before)
        workers.shutdown(patience)


def unavailable_reason() -> str:
    """Return why this process should not start others, as `processes="auto"` decides it; "" if it may."""
    if multiprocessing.current_process().daemon:
        return f"this is {_DAEMONIC}"
    if not _has_main_file():
        return "a notebook or prompt has no file that other processes could import"
    if its_group := _group_of_script():
        return f"this script has {its_group}"
    return ""


def is_sendable(value: object) -> bool:
    """Return whether a value can be pickled for another process; nothing is changed, as tensors in shared memory."""
    try:
        _PickleCheck(io.BytesIO()).dump(value)
    except Exception:  # whatever the value's own __reduce__ raises
        return False
    return True


def check_launch(processes: int, target: Callable[..., object], arguments: Sequence[Any]) -> None:
    """Raise ConfigurationError unless `worker_processes` can start these processes.

    A process that was started itself, whose script starts processes while it is imported, exits.
    """
    if os.environ.get(_CHILD_OF) == str(os.getppid()):
        raise SystemExit(_UNGUARDED)  # the parent reports it, once for all
    if processes < 1:
        raise ConfigurationError(f"processes={processes!r} must be at least 1")
    if processes == 1:
        return
    if multiprocessing.current_process().daemon:
        raise ConfigurationError(f"processes={processes} in {_DAEMONIC}; allowed there is processes=1")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigurationError(
            f"processes={processes} cannot be started by one of WORLD_SIZE={os.environ['WORLD_SIZE']} processes that a "
            f"launcher has started already; allowed under a launcher is processes=1"
        )
    if its_group := _group_of_script():
        raise ConfigurationError(
            f"processes={processes} cannot be started by a script that has {its_group}; "
            "allowed are processes=1, a launcher (accelerate launch, torchrun), or a script without one"
        )
    for name, value in (("target", target), *((f"arguments[{i}]", value) for i, value in enumerate(arguments))):
        try:
            _PickleCheck(io.BytesIO()).dump(value)
        except Exception as error:  # whatever the value's own __reduce__ raises
            raise ConfigurationError(
                f"processes={processes}: {name}={value!r:.100} cannot be sent to another process ({error}); "
                f"allowed is what can be pickled, such as a function at the top level of a file"
            ) from error


class _PickleCheck(ForkingPickler):
    """Also refuses what another process could not import: definitions of a notebook or a prompt."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            return int, ()  # can be sent; torch would move it to shared memory
        if isinstance(obj, (FunctionType, type)) and obj.__module__ == "__main__" and not _has_main_file():
            raise ConfigurationError(f"{obj.__qualname__} is defined in no file that another process could import")
        return NotImplemented


def _has_main_file() -> bool:
    main = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is not None or os.path.isfile(getattr(main, "__file__", None) or "")


def _group_of_script() -> str:
    """What of this process fixes its number of processes already, "" if nothing does."""
    state = sys.modules.get("accelerate.state")
    if state is not None and state.PartialState._shared_state:
        return "an Accelerator, which is of one process"
    if dist.is_available() and dist.is_initialized():
        return "a process group of torch.distributed"
    return ""


@contextmanager
def _environment(rank: int, processes: int, port: int, threads: int) -> Iterator[None]:
    """Set the environment variables of a rank, as torchrun does, and restore them."""
    values = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": processes,
        "LOCAL_WORLD_SIZE": processes,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": threads,
        "TORCHELASTIC_USE_AGENT_STORE": False,  # rank 0 has the store, and no agent of torchrun
        **({_CHILD_OF: os.getpid()} if rank else {}),
    }
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: str(value) for name, value in values.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Start processes with Ctrl-C blocked: the parent handles it, and they ignore it as soon as they run."""
    resource_tracker.ensure_running()  # if it started inside the block, it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_ready(pipe: Connection) -> bool:
    try:
        return pipe.poll() and pipe.recv()
    except EOFError:
        return False


# -- in a new process


def _worker_main(ready: Connection, threads: int, target: Callable[..., object], rank: int, *arguments: Any) -> None:
    """Run the target; exit soon after the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    del os.environ[_CHILD_OF]
    torch.set_num_threads(threads)
    Thread(target=_exit_with_parent, daemon=True).start()
    request_signal_at_parents_end(signal.SIGCONT)  # continues a stopped process, so that it notices and exits
    try:
        ready.send(True)
    except OSError:  # the parent has given up
        raise SystemExit(1) from None
    target(rank, *arguments)


def _exit_with_parent() -> None:
    """End this process soon after its parent's end, when its `HeartbeatMonitor` has had the time to report."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    while os.getppid() == parent.pid and not wait([parent.sentinel], 1.0):
        pass
    time.sleep(GRACE)
    os._exit(1)
