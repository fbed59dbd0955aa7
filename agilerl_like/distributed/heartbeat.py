"""Detects that another rank of a run died or hangs, and ends all ranks with one message.

Every rank publishes a heartbeat each second in a store that rank 0 hosts. This takes two threads: a call to a store
whose host was stopped never returns, whatever its timeout, so one thread exchanges heartbeats and a watchdog checks
that the first one makes progress. Both end the process themselves, because the main thread may be blocked in a
collective.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import psutil
from torch.distributed import DistError, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]  # documented there

from agilerl_like.processes import write_stderr

TIMEOUT = 20.0
"""Seconds without a heartbeat after which a rank counts as dead."""
INTERVAL = 1.0
"""Seconds between two heartbeats."""
GRACE = 5.0
"""Seconds that the other ranks have to exit before the rank that printed the message exits."""


def open_store(host: str, port: int, rank: int, size: int, timeout: float = 60.0) -> TCPStore:
    """Open the store of the heartbeats, hosted by rank 0; with port 0 it chooses one, found in the store's `port`."""
    seconds = timedelta(seconds=timeout)
    return TCPStore(host, port, size, is_master=rank == 0, timeout=seconds, wait_for_workers=False)


class NullMonitor:
    """The monitor of a single process: the same methods, without peers.

    `stop_signal` is the signal that stops all ranks, 0 if none does.
    """

    def __init__(self) -> None:
        self.stop_signal = 0
        self.before_exit: Callable[[], None] = lambda: None
        """Called before the failure of another rank ends this process; its exceptions are ignored."""
        self._advice = "No generation is saved yet."

    def __enter__(self) -> NullMonitor:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        done = error is None or (isinstance(error, SystemExit) and not error.code)
        self.leave("" if done else " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":"))

    def record_checkpoint(self, generation: int, resume_command: str) -> None:
        """Set the generation and the command that a failure message names."""
        self._advice = f"The last saved generation is {generation}; resume with: {resume_command}"

    def request_stop(self, stop_signal: int) -> None:
        """Set `stop_signal` on every rank within two seconds; a signal handler may call it.

        The first signal stays; it replaces a callback's request, which is negative.
        """
        if self.stop_signal <= 0 and stop_signal:
            self.stop_signal = stop_signal

    def wait_for_diagnosis(self) -> None:
        """Wait until the monitor knows whether another rank's exit made a collective fail.

        If so it ends this process; if the call returns, the failure has another cause.
        """

    def leave(self, error: str = "") -> None:
        """Stop monitoring; with an error, the other ranks end soon and report it."""


class Heartbeat(NamedTuple):
    """The message of one rank; `beat` differs each time."""

    pid: int
    host: str
    machine: str
    beat: int = 0
    stop: int = 0
    """The signal that stops all ranks."""
    left: bool = False
    error: str = ""
    """The error with which the rank left."""
    lost: tuple[int, ...] = ()
    """The failed ranks because of which the rank left."""


class Peer:
    """Another rank, as observed by this one."""

    def __init__(self, rank: int, machine: str) -> None:
        self.rank, self.machine = rank, machine
        self.heartbeat = Heartbeat(0, "", "")
        self.silence = 0.0
        self._payload = b""
        self._process: psutil.Process | None = None

    @property
    def is_local(self) -> bool:
        """Whether the peer's pid is valid on this machine."""
        return self.heartbeat.machine == self.machine

    def update(self, payload: bytes, seconds: float) -> None:
        """Process the peer's latest message, so many seconds after the previous update."""
        if payload == self._payload:
            self.silence += seconds
            return
        self._payload, self.silence = payload, 0.0
        self.heartbeat = Heartbeat(*json.loads(payload))
        if self.is_local and self._process is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process = psutil.Process(self.heartbeat.pid)

    def state(self) -> str:
        """Return psutil's status of the process, "unknown" on another machine."""
        if not self.is_local:
            return "unknown"
        try:
            return self._process.status() if self._process and self._process.is_running() else psutil.STATUS_DEAD
        except psutil.NoSuchProcess:
            return psutil.STATUS_DEAD
        except psutil.Error:
            return "unknown"

    def has_exited(self) -> bool:
        """Whether the process is known to have ended."""
        return self.state() in (psutil.STATUS_DEAD, psutil.STATUS_ZOMBIE)

    def resume(self) -> None:
        """Continue the process if a signal stopped it."""
        if self._process is not None and self.state() == psutil.STATUS_STOPPED:
            self._process.resume()

    def describe(self, cause: str) -> str:
        """Describe the rank's failure; `cause` is what its parent process knows, "" if nothing."""
        where = f" (pid {self.heartbeat.pid} on {self.heartbeat.host})" if self.heartbeat.pid else ""
        return f"rank {self.rank}{where} {self._describe_failure(cause)}"

    def _describe_failure(self, cause: str) -> str:
        if self.heartbeat.error:
            return f"exited with {self.heartbeat.error}"
        if cause:
            return cause
        if not self.heartbeat.pid:
            return "has never sent a heartbeat"
        if self.has_exited():
            return "exited without a message (SIGKILL, out of memory, or a crash)"
        if self.state() == psutil.STATUS_STOPPED:
            return "was stopped by a signal (SIGSTOP)"
        return f"has sent no heartbeat for {self.silence:.0f} s"


class HeartbeatMonitor(NullMonitor):
    """Exchanges heartbeats with the other ranks while its `with` block lasts.

    If a rank dies, is silent for `timeout` seconds or leaves with an error, the lowest of the other ranks writes one
    message to stderr, and all exit with `code`. `describe_exit(rank)` returns the cause of an exit if this process
    knows it, as the parent of that rank does, else "".
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        code: int,
        timeout: float = TIMEOUT,
        interval: float = INTERVAL,
        describe_exit: Callable[[int], str] = lambda rank: "",
    ) -> None:
        super().__init__()
        self.store, self.rank, self.code, self.timeout, self.interval = store, rank, code, timeout, interval
        self.describe_exit = describe_exit
        machine = _machine()
        self._heartbeat = Heartbeat(os.getpid(), socket.gethostname(), machine)
        self.peers = [Peer(other, machine) for other in range(size) if other != rank]
        self._keys = [_key(peer.rank) for peer in self.peers]
        self._rounds = 0
        self._error = ""
        self._leaving, self._finished, self._aborting = Event(), Event(), Lock()
        # the other ranks count from this one's last heartbeat, which may be older than the suspension
        self._watchdog_timer, self._publish_timer = _ActiveTimer(interval, timeout / 2), _ActiveTimer(interval, timeout)
        self._threads = [
            Thread(target=work, daemon=True, name=work.__name__) for work in (self._exchange_loop, self._watchdog_loop)
        ]

    def __enter__(self) -> HeartbeatMonitor:
        for thread in self._threads:
            thread.start()
        return self

    def wait_for_diagnosis(self) -> None:
        self._finished.wait(self.timeout + GRACE + 2 * self.interval)

    def leave(self, error: str = "") -> None:
        if not self._leaving.is_set():
            self._error = error
            self._leaving.set()
            self._finished.wait(self.timeout + GRACE)
            self._finished.set()
            for thread in self._threads:
                thread.join(GRACE)

    # -- the thread that exchanges heartbeats

    def _exchange_loop(self) -> None:
        try:
            for peer in self.peers:  # a rank that never starts has a key too, so that reading does not block
                self.store.compare_set(_key(peer.rank), "", json.dumps(peer.heartbeat))
            timer = _ActiveTimer(self.interval, self.timeout)
            self._exchange(0.0)
            while not self._leaving.wait(self.interval):
                self._exchange(timer.seconds())
            self._sign_off()
        except (DistError, ConnectionError):
            self._abort_without_store()
        self._finished.set()

    def _exchange(self, seconds: float) -> None:
        """Publish a heartbeat, read the others, and abort if a rank failed."""
        exited = {peer.rank for peer in self.peers if peer.has_exited()}  # before their last messages are read
        exited |= {peer.rank for peer in self.peers if not peer.heartbeat.pid and self.describe_exit(peer.rank)}
        if 0 in exited:
            raise ConnectionError("the store has gone with rank 0")  # torch would write pages about it
        self._publish(stop=self.stop_signal)
        self._read_peers(seconds)
        for peer in self.peers:
            self.request_stop(peer.heartbeat.stop)
        staying = [peer for peer in self.peers if not peer.heartbeat.left]
        lost = {peer.rank for peer in staying if peer.rank in exited or peer.silence >= self.timeout}
        if not self._error:  # else the other ranks may have failed with the same error
            lost |= {peer.rank for peer in self.peers if peer.heartbeat.error}
            lost.update(*(peer.heartbeat.lost for peer in self.peers))
        if lost:
            self._abort(lost, reachable=True)

    def _publish(self, **changes: Any) -> None:
        self._heartbeat = self._heartbeat._replace(beat=self._heartbeat.beat + 1, **changes)
        self._publish_timer.seconds()
        self.store.set(_key(self.rank), json.dumps(self._heartbeat))

    def _read_peers(self, seconds: float) -> None:
        for peer, payload in zip(self.peers, self.store.multi_get(self._keys), strict=True):
            peer.update(payload, seconds)
        self._rounds += 1

    def _sign_off(self) -> None:
        if self._error:
            self._finished.wait(self.interval)  # another rank's exit may be the cause, and be visible only now
            self._exchange(self.interval)
        self._publish(left=True, error=self._error, stop=self.stop_signal)
        if self.rank == 0:  # the store ends with this process
            self._wait_for_exits(self.peers, self.timeout, reachable=True)

    # -- the watchdog thread

    def _watchdog_loop(self) -> None:
        rounds, silence = 0, 0.0
        while not self._finished.wait(self.interval):
            seconds = self._watchdog_timer.seconds()
            rounds, silence = self._rounds, silence + seconds if rounds == self._rounds else 0.0
            if silence >= self.timeout:
                self.peers[0].silence = silence
                self._abort_without_store()

    # -- failure

    def _abort_without_store(self) -> None:
        """Abort, unless rank 0 closed the store because its work was done."""
        if self.rank == 0 or not self.peers[0].heartbeat.left:
            self._abort({0}, reachable=False)

    def _abort(self, lost: set[int], *, reachable: bool) -> NoReturn:
        """End this process because the ranks `lost` failed; `reachable`: whether the store still works.

        The reporting rank exits last, so that slower ranks do not mistake the other ranks' exit for the original
        failure. Without the store one rank reports on each machine, because only local processes are visible.
        """
        if self._aborting.acquire(timeout=2 * GRACE):  # if not, the other thread aborts, and the store hangs
            others = [peer for peer in self.peers if peer.rank not in lost and not peer.heartbeat.left]
            if not reachable:
                others = [peer for peer in others if peer.is_local and not peer.has_exited()]
            was_suspended = self._watchdog_timer.was_suspended() and self._publish_timer.was_suspended()
            is_lost = self.rank in lost or was_suspended  # to the other ranks
            reports = not is_lost and all(self.rank < peer.rank for peer in others)
            with contextlib.suppress(Exception):  # the store or stderr may be gone
                if reachable:
                    self._publish(lost=tuple(lost), left=not reports)
                if reports:
                    self._print_failure(lost)
                    self._wait_for_exits(others, GRACE, reachable=reachable)
                    for peer in self.peers:  # a launcher would wait for a stopped rank, which exits once it continues
                        if peer.rank in lost:
                            peer.resume()
            with contextlib.suppress(Exception):
                self.before_exit()
        os._exit(self.code)

    def _print_failure(self, lost: set[int]) -> None:
        failures = [peer.describe(self.describe_exit(peer.rank)) for peer in self.peers if peer.rank in lost]
        write_stderr(f"\nagilerl-like: {'; '.join(failures)}, so all ranks end.\n{self._advice}\n")
        if sys.stdout is not None:
            sys.stdout.flush()

    def _wait_for_exits(self, others: Iterable[Peer], seconds: float, *, reachable: bool) -> None:
        """Wait until these ranks have left, for at most so many seconds."""
        end = time.monotonic() + seconds
        pause = Event()
        while not all(peer.heartbeat.left or peer.has_exited() for peer in others) and time.monotonic() < end:
            pause.wait(self.interval / 10)
            if reachable:
                self._read_peers(0.0)


class _ActiveTimer:
    """Measures time between calls without the time in which the whole process was suspended.

    A gap of at least `absence` seconds between two calls counts as a suspension.
    """

    def __init__(self, interval: float, absence: float) -> None:
        self.interval, self.absence = interval, absence
        self._last, self._resumed = time.monotonic(), -math.inf

    def seconds(self) -> float:
        """Return the seconds since the previous call, two intervals at most."""
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        if seconds >= self.absence:
            self._resumed = now
        return min(seconds, 2 * self.interval)

    def was_suspended(self) -> bool:
        """Whether a suspension ended less than `absence` seconds ago."""
        self.seconds()
        return time.monotonic() - self._resumed < self.absence


def _key(rank: int) -> str:
    return f"agilerl_like/watch/{rank}"


def _machine() -> str:
    """Return an id of the pid namespace of this process: each machine and each container has its own."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(parts)
