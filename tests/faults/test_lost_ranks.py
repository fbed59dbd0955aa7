"""R11: when a process of a run dies or is stopped, the others end within 30 seconds with one message."""

import re

from slowness import slowness
from tiny_runs import NIGHTLY
from whole_runs import APART, LAUNCHER, advice, at_once, resume_run, saved, state, train, undisturbed

from agilerl_like import Run
from agilerl_like.errors import ExitCode

TWO = (*APART, "--run.processes", "2")
NOTHING_SAVED = "No generation is saved yet."
SOON = 30.0 * slowness()
"""Seconds in which the others have to end."""
KILLED = "was killed by SIGKILL|exited without a message (SIGKILL, out of memory, or a crash)"
STOPPED = "was stopped by a signal (SIGSTOP)"

FAULTS = [
    (False, "1/play:3:stop", STOPPED),
    (False, "minibatch:60:stop", STOPPED),
    (True, "tick:150:kill", KILLED),
    (False, "1/epoch:25:kill", KILLED),
]
"""Whether `accelerate launch` starts the processes, the fault of one of them, and its description."""
MORE = [
    (True, "1/evolve:2:stop", STOPPED),
    (False, "write:25:kill", KILLED),
    (False, "save:2:stop", STOPPED),
    (False, "1/deal:2:kill", KILLED),
    (True, "save:2:stop", STOPPED),
    (True, "1/bear:2:kill", KILLED),
]


def test_a_lost_rank_ends_the_run_with_one_message_and_it_resumes(tmp_path):
    def equals(case):
        is_launched, fault, fate = case
        folder = tmp_path / re.sub(r"\W", "-", f"{'launched ' * is_launched}{fault}")
        launcher = LAUNCHER if is_launched else ()
        options = APART if is_launched else TWO
        ended = train(folder, *options, faults=fault, launcher=launcher)
        assert ended.seconds_after <= SOON, (case, ended)
        assert not ended.left, (case, ended)
        assert ended.code == how_it_ends(case), (case, ended)
        rank = "1" if fault.startswith("1/") else "0"
        fates = "|".join(map(re.escape, fate.split("|")))
        messages = re.findall(
            rf"agilerl-like: rank {rank} \(pid \d+ on \S+\) (?:{fates}), so all ranks end", ended.said
        )
        assert len(messages) == 1, (case, ended.said)
        kept = saved(folder)
        where = f"The last saved generation is {kept[-1]}; resume with: {advice(folder)}" if kept else NOTHING_SAVED
        assert f"{where}\n" in ended.said
        if kept and rank != "0":  # which alone writes
            assert Run.open(folder / "run").records.outcome == "broken off", case
        again = resume_run(folder, *options, launcher=launcher)
        assert again.code == 0, (case, again.said)
        return state(folder) == undisturbed(*APART)

    undisturbed(*APART)
    assert all(at_once(equals, FAULTS + MORE if NIGHTLY else FAULTS, workers=4))  # most of the time they wait


def test_a_rank_that_dies_at_startup_ends_the_run(tmp_path):
    ended = train(tmp_path, *TWO, faults="1/join:1:kill")
    assert ended.code == ExitCode.TEMPFAIL
    assert not ended.left
    message = (
        r"agilerl-like: rank 1 \(pid \d+\) was killed by SIGKILL while joining the process group, so all ranks end"
    )
    assert len(re.findall(message, ended.said)) == 1


def how_it_ends(case):
    """The exit code: the launcher has its own, and so has SIGKILL."""
    is_launched, fault, _ = case
    if is_launched:
        return 1
    return -9 if fault.endswith("kill") and "/" not in fault else ExitCode.TEMPFAIL
