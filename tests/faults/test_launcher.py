"""Real processes: what they are given, how they end, and that none is left behind."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import ModuleType, SimpleNamespace

import psutil
import pytest
import torch
import torch.distributed as dist
from slowness import slowness

from agilerl_like.distributed import launcher
from agilerl_like.distributed.launcher import ProcessExit, worker_processes
from agilerl_like.distributed.process_group import init_process_group
from agilerl_like.errors import ConfigurationError, ExitCode

LONG = 60.0 * slowness()  # seconds
VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
    "TORCHELASTIC_USE_AGENT_STORE",
)


def wait_until(true):
    deadline, pause = time.monotonic() + LONG, threading.Event()
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError
        pause.wait(0.02)


def variables():
    return {name: os.environ.get(name) for name in VARIABLES}


def report(rank, folder, tensor):
    found = {"threads": torch.get_num_threads(), "tensor": tensor.tolist(), "pid": os.getpid(), **variables()}
    (folder / f"{rank}.json").write_text(json.dumps(found))


def join_group(rank):
    dist.init_process_group("gloo", timeout=timedelta(seconds=LONG))
    dist.barrier()
    dist.destroy_process_group()


def fall_or_stay_for_ever(rank, stays):
    if rank == 1:
        wait_until(stays.exists)
        raise SystemExit(3)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stays.touch()
    threading.Event().wait()


def fail_when_somebody_falls(workers):
    wait_until(workers.failed)
    raise ZeroDivisionError


def children():
    """Those of this process, but for multiprocessing's own helpers, which other tests may have started."""
    helpers = ("resource_tracker", "forkserver")
    return [one for one in psutil.Process().children() if not any(its in " ".join(one.cmdline()) for its in helpers)]


def test_ranks_have_their_variables_and_the_parents_are_restored(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "of old")
    monkeypatch.delenv("MASTER_PORT", raising=False)
    before = variables()
    with worker_processes(2, report, (tmp_path, torch.arange(2))) as workers:
        mine = variables()
    assert variables() == before
    assert workers.failed() == []
    assert not children()
    port, threads = mine["MASTER_PORT"], torch.get_num_threads()
    assert int(port) > 0
    theirs = json.loads((tmp_path / "1.json").read_text())
    assert theirs.pop("pid") != os.getpid()
    assert theirs == {"threads": threads, "tensor": [0, 1], **mine, "RANK": "1", "LOCAL_RANK": "1"}
    assert mine == {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": str(threads),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def test_processes_join_a_group_if_torchrun_started_the_caller_alone(monkeypatch):
    """Its agent has a store at another port, which the processes of the run must not take for that of rank 0."""
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with worker_processes(2, join_group) as workers:
        join_group(0)
    assert workers.failed() == []


@pytest.mark.parametrize(("cores", "each"), [(8, 3), (5, 2), (1, 1)])
def test_processes_have_no_more_threads_than_there_are_cores(tmp_path, monkeypatch, cores, each):
    monkeypatch.setattr(launcher, "available_cores", lambda: cores)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with worker_processes(2, report, (tmp_path, torch.arange(2))):
            assert torch.get_num_threads() == each
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    theirs = json.loads((tmp_path / "1.json").read_text())
    assert (theirs["threads"], theirs["OMP_NUM_THREADS"]) == (each, str(each))


def test_failed_processes_are_described_and_none_outlives_the_parent(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "GRACE", 0.5)
    with pytest.raises(ZeroDivisionError), worker_processes(3, fall_or_stay_for_ever, (tmp_path / "stays",)) as workers:
        fail_when_somebody_falls(workers)
    assert not children()
    first, second = workers.failed()
    assert first == ProcessExit(1, first.pid, 3, "")
    assert second == ProcessExit(2, second.pid, -signal.SIGKILL, "SIGKILL")
    assert [workers.describe_exit(rank) for rank in range(3)] == ["", "ended with exit code 3", "was killed by SIGKILL"]


class Fatal:
    def __reduce__(self):
        return sys.exit, (4,)


def test_a_process_that_fails_at_startup_is_named():
    message = r"processes=2: rank 1 \(pid \d+\) ended with exit code 4 before its work began"
    with pytest.raises(ConfigurationError, match=message), worker_processes(2, print, (Fatal(),)):
        pass
    assert not children()


def test_one_process_starts_no_others():
    before = variables()
    with worker_processes(1, lambda rank: None) as workers:
        assert variables() == before
        assert workers.failed() == []
        assert workers.describe_exit(0) == ""


@pytest.mark.parametrize(
    ("processes", "target", "arguments", "message"),
    [
        (0, print, (), "processes=0 must be at least 1"),
        (2, lambda rank: None, (), r"processes=2: target=<function <lambda> at .* cannot be sent"),
        (2, print, (1, threading.Lock()), r"processes=2: arguments\[1\]=<unlocked .* cannot be sent"),
    ],
)
def test_arguments_that_cannot_be_pickled_are_refused_at_once(processes, target, arguments, message):
    with pytest.raises(ConfigurationError, match=message), worker_processes(processes, target, arguments):
        pass
    assert not children()


def test_functions_of_a_prompt_or_notebook_are_refused(monkeypatch):
    prompt = ModuleType("__main__")
    exec("def work(rank): pass", vars(prompt))
    monkeypatch.setitem(sys.modules, "__main__", prompt)
    with (
        pytest.raises(ConfigurationError, match=r"target=<function work .* \(work is defined in no file"),
        worker_processes(2, prompt.work),
    ):
        pass


def test_processes_of_a_launcher_start_no_others(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(ConfigurationError, match=r"processes=2 .* WORLD_SIZE=2 .* allowed .* processes=1"),
        worker_processes(2, print),
    ):
        pass


def test_a_script_with_an_accelerator_starts_no_others(monkeypatch):
    """Its state is that of one process, which the processes of a run could not join; the run would also end it."""
    state = SimpleNamespace(PartialState=SimpleNamespace(_shared_state={"num_processes": 1}))
    monkeypatch.setitem(sys.modules, "accelerate.state", state)
    monkeypatch.setattr(launcher, "_has_main_file", lambda: True)  # a process of xdist has none
    with pytest.raises(ConfigurationError, match=r"processes=2 cannot be .* an Accelerator.*; allowed are processes=1"):
        launcher.check_launch(2, print, ())
    assert launcher.unavailable_reason() == "this script has an Accelerator, which is of one process"
    launcher.check_launch(1, print, ())


def test_a_script_with_a_process_group_of_its_own_starts_no_others(monkeypatch):
    """The processes of a run could not join it, and the run would end it."""
    monkeypatch.setattr(launcher, "_has_main_file", lambda: True)  # a process of xdist has none
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        message = r"processes=2 cannot be .* a process group of torch\.distributed; allowed are processes=1"
        with pytest.raises(ConfigurationError, match=message):
            launcher.check_launch(2, print, ())
        assert launcher.unavailable_reason() == "this script has a process group of torch.distributed"
        launcher.check_launch(1, print, ())
    finally:
        dist.destroy_process_group()


def test_a_group_that_cannot_be_joined_does_not_count_as_an_accelerator_of_the_script(monkeypatch):
    def refuse(*_, **__):
        raise dist.DistNetworkError("EADDRINUSE")

    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "MASTER_PORT": 1, "MASTER_ADDR": "x"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(dist, "init_process_group", refuse)
    with pytest.raises(ConfigurationError, match="MASTER_PORT='1': the processes cannot connect there"):
        init_process_group(cpu=True)
    monkeypatch.setenv("WORLD_SIZE", "1")
    launcher.check_launch(2, print, ())


def test_a_worker_of_a_pool_starts_no_others(monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    with pytest.raises(
        ConfigurationError, match=r"^processes=2 in a daemonic process, .*; allowed there is processes=1"
    ):
        launcher.check_launch(2, print, ())
    assert launcher.unavailable_reason().startswith("this is a daemonic process, such as a worker of multiprocessing")
    launcher.check_launch(1, print, ())


# ---- scripts of their own


def script(last_line):
    head = textwrap.dedent(
        """
        import os, sys, threading
        from agilerl_like.errors import ConfigurationError
        from agilerl_like.distributed import launcher
        pause = threading.Event()

        def say(*words):  # in one write, which another process's cannot part: print's are two where nothing is buffered
            os.write(sys.stdout.fileno(), (" ".join(map(str, words)) + "\\n").encode())

        def work(rank):
            say(os.getpid())
            pause.wait()

        def main():
            launcher.GRACE = 1.0
            try:
                with launcher.worker_processes(2, work):
                    say("up")
                    pause.wait()
            except ConfigurationError as error:
                say("refused:", error)
        """
    )
    return head + last_line


RENDEZVOUS_TIMEOUT = """
import os, signal, threading
from agilerl_like.distributed import launcher

def die(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()

if __name__ == "__main__":
    with launcher.worker_processes(3, die) as workers:
        os.write(1, f"{os.getpid()}\\n".encode())  # before the guard, which may end this process at once
        with workers.guard_rendezvous():
            threading.Event().wait()  # as a process group waits for who never comes
"""


def test_a_rank_that_dies_during_rendezvous_ends_the_others(tmp_path):
    (tmp_path / "run.py").write_text(RENDEZVOUS_TIMEOUT)
    with spawn(tmp_path / "run.py") as parent:
        out, errors = parent.communicate(timeout=LONG)
    assert parent.returncode == ExitCode.TEMPFAIL
    assert re.fullmatch(
        r"\nagilerl-like: rank 1 \(pid \d+\) was killed by SIGKILL while joining the process group, so all ranks end\. "
        r"Nothing was trained\.\n",
        errors,
    )
    assert out.count("\n") == 1


GUARDED = 'if __name__ == "__main__": main()'


@contextmanager
def spawn(*command):
    """Start a script; however the test ends, nothing of it is left behind to wait for."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, *command], text=True, start_new_session=True, **pipes) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def until_up(process):
    """Return the other ranks, when all processes have started."""
    lines = [process.stdout.readline().strip() for _ in range(2)]
    assert "up" in lines
    return [psutil.Process(int(line)) for line in lines if line != "up"]


def test_processes_end_soon_after_a_killed_parent_even_if_stopped(tmp_path):
    (tmp_path / "run.py").write_text(script(GUARDED))
    with spawn(tmp_path / "run.py") as parent:
        others = until_up(parent)
        others[0].suspend()
        parent.kill()
        _, alive = psutil.wait_procs(others, launcher.GRACE + 10.0)
        assert not alive
        assert parent.stderr.read() == ""


def test_ctrl_c_is_handled_by_the_parent_only(tmp_path):
    (tmp_path / "run.py").write_text(script(GUARDED))
    with spawn(tmp_path / "run.py") as parent:
        others = until_up(parent)
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.wait(LONG) == -signal.SIGINT
        assert not any(map(psutil.Process.is_running, others))
        assert parent.stderr.read().count("Traceback") == 1


def test_a_script_without_a_main_guard_is_an_error(tmp_path):
    (tmp_path / "run.py").write_text(script("main()"))
    with spawn(tmp_path / "run.py") as parent:
        out, errors = parent.communicate(timeout=LONG)
    assert out.count("refused:") == 1
    assert "processes=2 imports this script again in each new process" in out
    assert "if __name__ == '__main__':" in out
    assert errors == ""
