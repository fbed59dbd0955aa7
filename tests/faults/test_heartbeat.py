"""Real processes that are killed, stopped, or exit: how the other ranks end, and their messages."""

import ctypes
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import wait

import psutil
import pytest
import torch.distributed as dist
from slowness import slowness

from agilerl_like.distributed.heartbeat import HeartbeatMonitor, NullMonitor, open_store
from agilerl_like.errors import EnvStepError

CODE, INTERVAL = 75, 0.1
SLOWNESS = float(os.environ.setdefault("SLOWNESS_OF_WATCH_TESTS", str(slowness())))  # one for all processes of a test
TIMEOUT, SLACK, LONG = 1.5 * SLOWNESS, 6.0 * SLOWNESS, 60.0 * SLOWNESS  # seconds
ADVICE = "The last saved generation is 7; resume with: agilerl-like resume runs/lander"

processes = multiprocessing.get_context("forkserver")  # torch is loaded once
processes.set_forkserver_preload(["agilerl_like.distributed.heartbeat", "pytest"])


# ---- in each process


def live(rank, size, folder, pipe, cause="", elsewhere=False, timeout=TIMEOUT):
    """One rank, which executes the orders of a pipe and else blocks in `recv`.

    The last rank's `cause` of exit is known from when the folder has a file `exited` on.
    """

    def describe_exit(lost):
        return cause if lost == size - 1 and (folder / "exited").exists() else ""

    os.dup2(os.open(folder / f"{rank}.err", os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
    if elsewhere:
        socket.gethostname = lambda: f"machine-{rank}"
    store = open_store("127.0.0.1", 0, rank, size) if rank == 0 else None
    pipe.send(store.port if store else 0)
    store = open_store("127.0.0.1", pipe.recv(), rank, size) if store is None else (pipe.recv(), store)[1]
    monitor = HeartbeatMonitor(
        store, rank, size, code=CODE, timeout=timeout, interval=INTERVAL, describe_exit=describe_exit
    )
    monitor.record_checkpoint(7, "agilerl-like resume runs/lander")  # before the first heartbeats can end this process
    with monitor:
        while (order := pipe.recv()) != "end":
            pipe.send(ORDERS[order](monitor, folder))


def meet(monitor, folder):
    wait_until(lambda: all(peer.heartbeat.pid for peer in monitor.peers))


def fail(monitor, folder):
    raise EnvStepError("the env returned\nNaN")


def ask(monitor, folder):
    monitor.request_stop(signal.SIGTERM)


def hear(monitor, folder):
    wait_until(lambda: monitor.stop_signal)
    return monitor.stop_signal


def see_0_leave(monitor, folder):
    wait_until(lambda: monitor.peers[0].heartbeat.left)


def hold_the_interpreter(monitor, folder):
    ctypes.PyDLL(None).usleep(int(0.6 * TIMEOUT * 1e6))  # meanwhile no thread of this process runs any Python


def speak_slowly(monitor, folder):
    publish = monitor._publish
    monitor._publish = lambda **news: (threading.Event().wait(0.3 * TIMEOUT), publish(**news))


def join(monitor, folder):
    size, name = len(monitor.peers) + 1, f"file://{folder}/group"
    dist.init_process_group("gloo", name, rank=monitor.rank, world_size=size, timeout=timedelta(seconds=LONG))
    dist.barrier()


def barrier(monitor, folder):
    try:
        dist.barrier()
    except RuntimeError:
        monitor.wait_for_diagnosis()
        raise


ORDERS = {
    do.__name__: do for do in (meet, fail, ask, hear, see_0_leave, hold_the_interpreter, speak_slowly, join, barrier)
}


def wait_until(true):
    deadline, pause = time.monotonic() + LONG, threading.Event()
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError
        pause.wait(0.01)


# ---- in the test's own


class Ranks:
    def __init__(self, size, folder, started=None, **how):
        self.folder, self.pipes, self.processes = folder, [], []
        with ExitStack() as self.stack:
            for rank in range(started or size):
                pipe, its_end = processes.Pipe()
                process = processes.Process(target=live, args=(rank, size, folder, its_end), kwargs=how)
                process.start()
                self.stack.callback(process.join, LONG)
                self.stack.callback(process.kill)
                its_end.close()
                self.pipes.append(pipe)
                self.processes.append(process)
            ports = [self.hear(rank) for rank in range(len(self.pipes))]
            for pipe in self.pipes:
                pipe.send(ports[0])
            self.stack = self.stack.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    def hear(self, rank):
        assert self.pipes[rank].poll(LONG)
        return self.pipes[rank].recv()

    def order(self, order, *ranks):
        for rank in ranks:
            self.pipes[rank].send(order)

    def do(self, order, *ranks):
        self.order(order, *ranks)
        return [self.hear(rank) for rank in ranks]

    def signal(self, number, *ranks):
        for rank in ranks:
            os.kill(self.processes[rank].pid, number)

    def name(self, rank, host=None):
        return f"rank {rank} (pid {self.processes[rank].pid} on {host or socket.gethostname()})"

    def codes(self, *ranks):
        for rank in ranks:
            self.processes[rank].join(LONG)
        return [self.processes[rank].exitcode for rank in ranks]

    def run_on(self, seconds):
        """Say whether all are still there so many seconds later."""
        return not wait([process.sentinel for process in self.processes], seconds)

    def said(self):
        """(rank, first line, second line) of each message."""
        for rank in range(len(self.processes)):
            lines = (self.folder / f"{rank}.err").read_text().splitlines()
            for number, line in enumerate(lines):
                if line.startswith("agilerl-like: "):
                    yield rank, line.removeprefix("agilerl-like: "), lines[number + 1]


@pytest.fixture
def start(tmp_path):
    with ExitStack() as stack:
        yield lambda size, **how: stack.enter_context(Ranks(size, tmp_path, **how))


GONE = "exited without a message (SIGKILL, out of memory, or a crash), so all ranks end."
STOPPED = "was stopped by a signal (SIGSTOP), so all ranks end."


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_rank_ends_ranks_that_wait_in_a_collective(start, victim):
    ranks, others = start(3), [rank for rank in range(3) if rank != victim]
    ranks.do("join", 0, 1, 2)
    ranks.do("meet", 0, 1, 2)
    ranks.order("barrier", *others)
    began = time.monotonic()
    ranks.signal(signal.SIGKILL, victim)
    assert ranks.codes(*others) == [CODE, CODE]
    assert time.monotonic() - began < TIMEOUT + SLACK
    assert list(ranks.said()) == [(others[0], f"{ranks.name(victim)} {GONE}", ADVICE)]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_ends_the_others_after_the_timeout(start, victim):
    ranks, others = start(3), [rank for rank in range(3) if rank != victim]
    ranks.do("join", 0, 1, 2)
    ranks.do("meet", 0, 1, 2)
    ranks.order("barrier", *others)
    began = time.monotonic()
    ranks.signal(signal.SIGSTOP, victim)
    assert ranks.codes(*others) == [CODE, CODE]
    assert TIMEOUT - 2 * INTERVAL < time.monotonic() - began < TIMEOUT + SLACK
    assert ranks.codes(victim) == [CODE]  # it was woken, and sees that the others have given it up
    assert list(ranks.said()) == [(others[0], f"{ranks.name(victim)} {STOPPED}", ADVICE)]


def test_a_rank_stopped_long_after_its_last_heartbeat_exits_silently(start):
    ranks = start(3)  # the others count from that sign, so it stands still for less than their patience
    ranks.do("meet", 0, 1, 2)
    ranks.do("speak_slowly", 1)
    threading.Event().wait(TIMEOUT)
    ranks.signal(signal.SIGSTOP, 1)
    assert ranks.codes(0, 1, 2) == [CODE, CODE, CODE]
    assert list(ranks.said()) == [(0, f"{ranks.name(1)} {STOPPED}", ADVICE)]


def test_a_silent_rank_on_another_machine_is_lost(start):
    ranks = start(3, elsewhere=True)
    ranks.do("meet", 0, 1, 2)
    ranks.signal(signal.SIGKILL, 1)
    assert ranks.codes(0, 2) == [CODE, CODE]
    ((who, what, then),) = ranks.said()
    assert (who, then) == (0, ADVICE)
    silent = r"has sent no heartbeat for \d+ s, so all ranks end."
    assert re.fullmatch(re.escape(ranks.name(1, "machine-1")) + f" {silent}", what)


def test_without_the_store_one_rank_reports_on_each_machine(start):
    ranks = start(3, elsewhere=True)
    ranks.do("meet", 0, 1, 2)
    ranks.signal(signal.SIGKILL, 0)
    assert ranks.codes(1, 2) == [CODE, CODE]
    assert [(rank, said.partition(" has ")[0]) for rank, said, _ in ranks.said()] == [
        (1, ranks.name(0, "machine-0")),
        (2, ranks.name(0, "machine-0")),
    ]


def test_a_rank_that_never_started_is_lost(start):
    ranks = start(3, started=2)
    assert ranks.codes(0, 1) == [CODE, CODE]
    assert list(ranks.said()) == [(0, "rank 2 has never sent a heartbeat, so all ranks end.", ADVICE)]


def test_a_rank_that_failed_before_its_first_heartbeat_is_lost_at_once(start, tmp_path):
    (tmp_path / "exited").touch()
    ranks = start(3, started=2, cause="ended with exit code 1", timeout=2 * LONG)  # `codes` waits for LONG at most
    assert ranks.codes(0, 1) == [CODE, CODE]
    assert list(ranks.said()) == [(0, "rank 2 ended with exit code 1, so all ranks end.", ADVICE)]


def test_the_parent_process_reports_the_cause(start, tmp_path):
    ranks = start(2, cause="was killed by SIGKILL")
    ranks.do("meet", 0, 1)
    (tmp_path / "exited").touch()
    ranks.signal(signal.SIGKILL, 1)
    assert ranks.codes(0) == [CODE]
    assert list(ranks.said()) == [(0, f"{ranks.name(1)} was killed by SIGKILL, so all ranks end.", ADVICE)]


@pytest.mark.parametrize(("faulty", "speaker"), [(0, 1), (1, 0)])
def test_an_error_of_a_rank_is_reported_by_another(start, faulty, speaker):
    ranks = start(3)
    ranks.order("fail", faulty)
    assert ranks.codes(faulty, speaker, 2) == [1, CODE, CODE]
    error = "exited with EnvStepError: the env returned NaN, so all ranks end."
    assert list(ranks.said()) == [(speaker, f"{ranks.name(faulty)} {error}", ADVICE)]


def test_an_error_of_all_ranks_is_not_reported(start):
    ranks = start(2)
    ranks.order("fail", 0, 1)
    assert ranks.codes(0, 1) == [1, 1]
    assert list(ranks.said()) == []


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_that_has_finished_is_not_lost(start, first):
    ranks, others = start(3), [rank for rank in range(3) if rank != first]
    ranks.do("meet", 0, 1, 2)
    ranks.order("end", first)
    if first == 0:
        ranks.do("see_0_leave", *others)  # it waits for the others as long as its patience lasts, and goes
    assert ranks.codes(first) == [0]
    assert not wait([ranks.processes[rank].sentinel for rank in others], TIMEOUT + 5 * INTERVAL)
    ranks.order("end", *others)
    assert ranks.codes(*others) == [0, 0]
    assert list(ranks.said()) == []


def test_a_stop_request_reaches_every_rank(start):
    ranks = start(3)
    ranks.do("ask", 2)
    assert ranks.do("hear", 0, 1, 2) == [signal.SIGTERM] * 3
    ranks.order("end", 0, 1, 2)
    assert ranks.codes(0, 1, 2) == [0, 0, 0]


def test_a_busy_interpreter_and_suspended_ranks_are_not_lost(start):
    ranks = start(2)
    ranks.do("meet", 0, 1)
    ranks.do("hold_the_interpreter", 0, 1)
    ranks.do("hold_the_interpreter", 1)
    ranks.signal(signal.SIGSTOP, 0, 1)
    wait_until(lambda: all(psutil.Process(one.pid).status() == psutil.STATUS_STOPPED for one in ranks.processes))
    assert ranks.run_on(TIMEOUT + 5 * INTERVAL)
    ranks.signal(signal.SIGCONT, 0, 1)
    assert ranks.run_on(TIMEOUT)
    ranks.order("end", 0, 1)
    assert ranks.codes(0, 1) == [0, 0]
    assert list(ranks.said()) == []


def test_the_null_monitor_has_the_same_methods():
    with NullMonitor() as monitor:
        monitor.record_checkpoint(1, "")
        monitor.wait_for_diagnosis()
        assert monitor.stop_signal == 0
        monitor.request_stop(signal.SIGINT)
        monitor.request_stop(signal.SIGTERM)
        assert monitor.stop_signal == signal.SIGINT  # the first one counts
    methods = {name for name in vars(NullMonitor) if not name.startswith("__")}
    assert methods == {"record_checkpoint", "request_stop", "wait_for_diagnosis", "leave"}
    assert {name for name in vars(HeartbeatMonitor) if not name.startswith("_")} <= methods
