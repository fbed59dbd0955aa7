"""R10: Ctrl-C and SIGTERM end a run within seconds, with the command to resume it; the result is the same."""

import os
import signal

import pytest
from slowness import slowness
from tiny_runs import NIGHTLY
from whole_runs import APART, LAUNCHER, Command, advice, at_once, resume_run, saved, state, train, training, undisturbed

TWO = (*APART, "--run.processes", "2")
CODES = {"interrupt": 128 + signal.SIGINT, "terminate": 128 + signal.SIGTERM}
SOON = 30.0 * slowness()
"""Seconds in which a run has to end: what it takes is one or two, and ten are promised to who waits at a machine, but
these tests share theirs, with four runs at a time on two cores (it has been five times as slow as when idle)."""
AT_ONCE = 15.0 * slowness()
"""Seconds for one that need not finish its step: mostly those that Python takes to end, less than one."""

LIVES = [
    ["tick:40:interrupt", "play:1:terminate", "write:5:interrupt", "begin:1:terminate:0.4"],
    ["minibatch:20:terminate", "bear:1:interrupt", "replace:2:terminate", "begin+:1:interrupt:0.2"],
]
"""Signals that befall a run, one life after the other: while it steps, learns, tests, evolves and saves."""
MORE = [
    ["forget:1:interrupt", "births:2:terminate", "save:1:interrupt", "epoch:7:terminate"],
    ["select:1:terminate", "deal:1:interrupt", "fsync:9:terminate", "report:1:interrupt"],
    ["begin:1:interrupt:0.1", "begin:1:terminate:0.2", "begin:1:interrupt:0.3", "begin:1:terminate:0.4"],
]


def is_clean(ended, folder, code):
    """Whether a run ended in time, with its code and the command to resume, and left no process behind."""
    return ended.code == code and ended.seconds_after <= SOON and advice(folder) in ended.said and not ended.left


def test_a_run_stopped_by_signals_resumes_to_the_same_result(tmp_path):
    def equals(lives):
        folder = tmp_path / lives[0].replace(":", "-")
        for fault in lives:
            ended = resume_run(folder, faults=fault)
            assert is_clean(ended, folder, CODES[fault.split(":")[2]]), (fault, ended)
        assert resume_run(folder).code == 0
        return state(folder) == undisturbed()

    undisturbed()
    assert all(at_once(equals, LIVES + MORE if NIGHTLY else LIVES))


def test_a_signal_to_one_of_two_processes_ends_both(tmp_path):
    for fault in ("tick:40:terminate", "1/tick:40:terminate"):
        ended = resume_run(tmp_path, *TWO, faults=fault)
        assert is_clean(ended, tmp_path, CODES["terminate"]), (fault, ended)
    assert resume_run(tmp_path, *TWO).code == 0
    assert state(tmp_path) == undisturbed(*APART)


def test_a_signal_ends_processes_that_have_replicas_of_one_member(tmp_path):
    """Replicas stop at the same step: else one would wait in the all-reduce of an update for one that has stopped."""
    options = ("--population.size", "1", "--selection.tournament_size", "1", "--run.processes", "2")
    ended = train(tmp_path, *options, "--training.checkpoint", "384", faults="1/tick:150:terminate")
    assert is_clean(ended, tmp_path, CODES["terminate"]), ended
    assert saved(tmp_path) == [1]


@pytest.mark.parametrize(("action", "options"), [("interrupt", ()), ("terminate", TWO)], ids=["one process", "two"])
def test_a_second_signal_ends_a_run_at_once(tmp_path, action, options):
    ended = train(tmp_path, *options, faults=f"tick:150:{action};play:2:{action}")
    assert ended.code == CODES[action], ended
    assert ended.seconds_after <= AT_ONCE, ended
    assert not ended.left
    assert saved(tmp_path) == [1]  # which took a whole generation


def test_sigterm_to_all_processes_of_a_group_saves_a_run_in_async_envs(tmp_path):
    """Supervisors send it so; the run evaluates its members once more, for which it needs the envs' processes."""
    endless = ("--training.max_steps", "1_000_000", "--run.processes", "1", "--run.threads", "1")
    with Command(training(tmp_path, "--environment.backend", "async", *endless)) as command:
        command.wait_for("gen    1")
        os.killpg(command.process.pid, signal.SIGTERM)
        ended = command.ended()
    assert ended.code == CODES["terminate"], ended
    assert advice(tmp_path) in ended.said, ended.said
    assert not ended.left
    assert (tmp_path / "run" / "population").is_dir()


@pytest.mark.parametrize("to_all", [False, True], ids=["SIGTERM to the launcher", "Ctrl-C"])
def test_a_signal_to_accelerate_launch_ends_its_run(tmp_path, to_all):
    with Command(training(tmp_path, *APART), launcher=LAUNCHER) as command:
        command.wait_for("gen    1")
        if to_all:
            os.killpg(command.process.pid, signal.SIGINT)  # as a terminal does it
        else:
            command.process.terminate()
        ended = command.ended()
    assert ended.code != 0
    assert advice(tmp_path) in ended.said, ended.said
    assert not ended.left
    assert resume_run(tmp_path, *APART).code == 0
    assert state(tmp_path) == undisturbed(*APART)
