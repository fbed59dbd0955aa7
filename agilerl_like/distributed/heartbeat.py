"""Sees that another process of a run is dead or stands still, and ends this one too, with one message for them all.

Every rank tells the others each second that it lives, through a store that rank 0 keeps. This takes two threads: a call
to a store whose process was stopped returns never, whatever timeout was set, so one thread talks and another sees
whether the first still gets answers. Both end the process by themselves, for its main thread may wait in a collective
for ever.
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

TIMEOUT = 20.0
"""Seconds without a sign of life after which a rank counts as dead."""
INTERVAL = 1.0
"""Seconds between two signs of life."""
GRACE = 5.0
"""Seconds that the others have for leaving before the rank that speaks for all."""


def open_store(host: str, port: int, rank: int, size: int, timeout: float = 60.0) -> TCPStore:
    """Open the store of a watch: rank 0 keeps it, and with port 0 chooses one, found in the store's `port`."""
    seconds = timedelta(seconds=timeout)
    return TCPStore(host, port, size, is_master=rank == 0, timeout=seconds, wait_for_workers=False)


class NullMonitor:
    """The watch of a process that is alone: the same methods, and nothing to see.

    `stop_signal` is the signal that asked all ranks to stop, 0 if none did.
    """

    def __init__(self) -> None:
        self.stop_signal = 0
        self._advice = "No generation is saved yet."

    def __enter__(self) -> NullMonitor:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        done = error is None or (isinstance(error, SystemExit) and not error.code)
        self.leave("" if done else " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":"))

    def record_checkpoint(self, generation: int, resume_command: str) -> None:
        """Remember the last generation that is saved, and how to go on from it."""
        self._advice = f"The last saved generation is {generation}; to go on: {resume_command}"

    def request_stop(self, signal: int) -> None:
        """Let every rank find this signal in `stop_signal` within two seconds; a signal handler may call it."""
        self.stop_signal = self.stop_signal or signal

    def wait_for_diagnosis(self) -> None:
        """Wait until the watch knows whether another rank's end made a collective fail.

        If so it ends this process; if the call returns, the failure has another cause.
        """

    def leave(self, error: str = "") -> None:
        """Stop watching and being watched; with an error, the others end soon and say it."""


class Heartbeat(NamedTuple):
    """What a rank tells the others, each time with another `beat`."""

    pid: int
    host: str
    machine: str
    beat: int = 0
    stop: int = 0
    """The signal that asks all ranks to stop."""
    left: bool = False
    error: str = ""
    """Why it left, if not because its work was done."""
    lost: tuple[int, ...] = ()
    """The ranks because of whose end it left."""


class Peer:
    """Another rank, as far as it can be seen from here."""

    def __init__(self, rank: int, machine: str) -> None:
        self.rank, self.machine = rank, machine
        self.heartbeat = Heartbeat(0, "", "")
        self.silence = 0.0
        self._payload = b""
        self._process: psutil.Process | None = None

    @property
    def is_local(self) -> bool:
        """Whether its pid means anything on this machine."""
        return self.heartbeat.machine == self.machine

    def update(self, payload: bytes, seconds: float) -> None:
        """Take what it told last, so many seconds after the time before."""
        if payload == self._payload:
            self.silence += seconds
            return
        self._payload, self.silence = payload, 0.0
        self.heartbeat = Heartbeat(*json.loads(payload))
        if self.is_local and self._process is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process = psutil.Process(self.heartbeat.pid)

    def state(self) -> str:
        """Return psutil's word for the state of a process on this machine, "unknown" for one elsewhere."""
        if not self.is_local:
            return "unknown"
        try:
            return self._process.status() if self._process and self._process.is_running() else psutil.STATUS_DEAD
        except psutil.NoSuchProcess:
            return psutil.STATUS_DEAD
        except psutil.Error:
            return "unknown"

    def has_exited(self) -> bool:
        """Whether its process has ended, as far as one can know."""
        return self.state() in (psutil.STATUS_DEAD, psutil.STATUS_ZOMBIE)

    def resume(self) -> None:
        """Let it go on if a signal stopped it."""
        if self._process is not None and self.state() == psutil.STATUS_STOPPED:
            self._process.resume()

    def describe(self, describe_exit: str) -> str:
        """Say in words who it is and what became of it; `describe_exit` is what its parent knows."""
        where = f" (pid {self.heartbeat.pid} on {self.heartbeat.host})" if self.heartbeat.pid else ""
        return f"rank {self.rank}{where} {self._describe_failure(describe_exit)}"

    def _describe_failure(self, describe_exit: str) -> str:
        if not self.heartbeat.pid:
            return "has never given a sign of life"
        if self.heartbeat.error:
            return f"left with {self.heartbeat.error}"
        if describe_exit:
            return describe_exit
        if self.has_exited():
            return "is gone without a word (SIGKILL, out of memory, or a crash)"
        if self.state() == psutil.STATUS_STOPPED:
            return "was stopped by a signal (SIGSTOP)"
        return f"has given no sign of life for {self.silence:.0f} s"


class HeartbeatMonitor(NullMonitor):
    """Watches the other ranks of a run while its `with` block lasts, and is watched by them.

    If one dies, stands still for `timeout` seconds or leaves with an error, the lowest of the others writes one
    message to stderr, and all of them end with exit code `code`. `describe_exit` may know more of a rank's end than can be
    seen from here, as the parent of its process does; it returns "" if not.
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
        self.peers = [Peer(other, machine) for other in range(size) if other != rank]  # as they are seen from here
        self._keys = [_key(peer.rank) for peer in self.peers]
        self._rounds = 0
        self._error = ""
        self._leaving, self._finished, self._aborting = Event(), Event(), Lock()
        # the others count from its last sign, which may be older than what made it stand still
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

    # -- the thread that talks

    def _exchange_loop(self) -> None:
        try:
            for peer in self.peers:  # so that nobody waits for a rank that never came
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
        """Tell that this rank lives, hear the others, and end if one of them has ended."""
        gone = {peer.rank for peer in self.peers if peer.has_exited()}  # before one hears whether they left a word
        if 0 in gone:
            raise ConnectionError("the store has gone with rank 0")  # torch would write pages about it
        self._publish(stop=self.stop_signal)
        self._read_peers(seconds)
        for peer in self.peers:
            self.request_stop(peer.heartbeat.stop)
        staying = [peer for peer in self.peers if not peer.heartbeat.left]
        lost = {peer.rank for peer in staying if peer.rank in gone or peer.silence >= self.timeout}
        if not self._error:  # of one's own, which others may share
            lost |= {peer.rank for peer in self.peers if peer.heartbeat.error}
            lost.update(*(peer.heartbeat.lost for peer in self.peers))
        if lost:
            self._abort(lost, reachable=True)

    def _publish(self, **news: Any) -> None:
        self._heartbeat = self._heartbeat._replace(beat=self._heartbeat.beat + 1, **news)
        self._publish_timer.seconds()
        self.store.set(_key(self.rank), json.dumps(self._heartbeat))

    def _read_peers(self, seconds: float) -> None:
        for peer, payload in zip(self.peers, self.store.multi_get(self._keys), strict=True):
            peer.update(payload, seconds)
        self._rounds += 1

    def _sign_off(self) -> None:
        if self._error:
            self._finished.wait(self.interval)  # another's end may be behind the error, and be seen only now
            self._exchange(self.interval)
        self._publish(left=True, error=self._error, stop=self.stop_signal)
        if self.rank == 0:  # the store goes with this process
            self._wait_for_exits(self.peers, self.timeout, reachable=True)

    # -- the thread that sees whether the other one gets answers

    def _watchdog_loop(self) -> None:
        rounds, silence = 0, 0.0
        while not self._finished.wait(self.interval):
            seconds = self._watchdog_timer.seconds()
            rounds, silence = self._rounds, silence + seconds if rounds == self._rounds else 0.0
            if silence >= self.timeout:
                self.peers[0].silence = silence
                self._abort_without_store()

    # -- the end

    def _abort_without_store(self) -> None:
        """End this process unless rank 0 took the store along when its work was done."""
        if self.rank == 0 or not self.peers[0].heartbeat.left:
            self._abort({0}, reachable=False)

    def _abort(self, lost: set[int], *, reachable: bool) -> NoReturn:
        """End this process because those are lost; `reachable` says that the others can be told so through the store.

        Who speaks leaves last: whoever had not seen yet what happened must not take the others' leaving for the cause.
        Without the store this holds on each machine by itself, where one process can see the others.
        """
        if self._aborting.acquire(timeout=2 * GRACE):  # if not, the other thread is at it, and the store hangs
            others = [peer for peer in self.peers if peer.rank not in lost and not peer.heartbeat.left]
            if not reachable:
                others = [peer for peer in others if peer.is_local and not peer.has_exited()]
            stood_still = self._watchdog_timer.was_suspended() and self._publish_timer.was_suspended()
            given_up = self.rank in lost or stood_still  # by the others
            speaks = not given_up and all(self.rank < peer.rank for peer in others)
            with contextlib.suppress(Exception):  # whatever a store or a stderr raises that has gone
                if reachable:
                    self._publish(lost=tuple(lost), left=not speaks)
                if speaks:
                    self._print_failure(lost)
                    self._wait_for_exits(others, GRACE, reachable=reachable)
                    for peer in self.peers:  # for a launcher waits for one that stands still
                        if peer.rank in lost:
                            peer.resume()  # and it finds that it was given up
        os._exit(self.code)

    def _print_failure(self, lost: set[int]) -> None:
        fates = [peer.describe(self.describe_exit(peer.rank)) for peer in self.peers if peer.rank in lost]
        sys.stderr.write(f"\nagilerl-like: {'; '.join(fates)}, so all ranks end.\n{self._advice}\n")
        sys.stderr.flush()
        sys.stdout.flush()

    def _wait_for_exits(self, others: Iterable[Peer], seconds: float, *, reachable: bool) -> None:
        """Stay until those have left, but no longer than so many seconds."""
        end = time.monotonic() + seconds
        pause = Event()
        while not all(peer.heartbeat.left or peer.has_exited() for peer in others) and time.monotonic() < end:
            pause.wait(self.interval / 10)
            if reachable:
                self._read_peers(0.0)


class _ActiveTimer:
    """How long a thread has looked on: time in which its whole process stood still does not count.

    It was away if it has not looked for `absence` seconds, all at once.
    """

    def __init__(self, interval: float, absence: float) -> None:
        self.interval, self.absence = interval, absence
        self._last, self._woke = time.monotonic(), -math.inf

    def seconds(self) -> float:
        """Return the seconds since the call before, two intervals at most."""
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        if seconds >= self.absence:
            self._woke = now
        return min(seconds, 2 * self.interval)

    def was_suspended(self) -> bool:
        """Whether it was away, until less than `absence` seconds ago."""
        self.seconds()
        return time.monotonic() - self._woke < self.absence


def _key(rank: int) -> str:
    return f"agilerl_like/watch/{rank}"


def _machine() -> str:
    """Name the table of processes in which this one's pid stands: each machine and each container has its own."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(parts)
