"""R1: a run that is killed with SIGKILL, wherever it is, and resumed is the run that was not, to the last bit."""

import random

from tiny_runs import NIGHTLY, lineage, tier
from whole_runs import APART, survivors

KILLS = tier(22, 390)
TWO = (*APART, "--run.processes", "2")
CALLS = {
    "settings": 1,
    "begin": 6,
    "tick": 570,
    "epoch": 60,
    "minibatch": 200,
    "play": 6,
    "report": 6,
    "report+": 6,
    "select": 5,
    "evolve": 5,
    "bear": 14,
    "vary": 3,
    "births": 6,
    "births+": 6,
    "save": 6,
    "write": 100,
    "write+": 100,
    "fsync": 110,
    "fsync+": 110,
    "put": 12,
    "replace": 12,
    "replace+": 12,
    "forget": 6,
    "remove": 1,
    "deal": 5,
    "finish": 1,
    "plot": 1,
}
"""How often an undisturbed run comes to each place, or a little less."""
BYTES = 12_000
"""Of the largest file."""
SECONDS = 1.5
"""Of half a run."""


def a_fault(rng):
    """A place, and when; or the n-th byte that is written to a file; or any time."""
    kind = rng.choice([*CALLS, "byte", "byte", "time", "time"])
    if kind == "byte":
        return f"byte:{rng.randint(1, BYTES)}:kill"
    if kind == "time":
        return f"begin:1:kill:{rng.uniform(0, SECONDS):.2f}"
    return f"{kind}:{round(CALLS[kind] ** rng.random())}:kill"  # rather early: the later lives of a run are short


def a_plan(rng):
    """One to four faults for one run."""
    return [a_fault(rng) for _ in range(rng.randint(1, 4))]


def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(tmp_path):
    rng = random.Random(None if NIGHTLY else 5)
    kills = 0
    while kills < KILLS:  # some faults come too late, as the run has not so far to go any more
        more, others = survivors(tmp_path / str(kills), [a_plan(rng) for _ in range(4)])
        assert others == []
        assert more
        kills += more
    kinds = {change["kind"] for birth in lineage(tmp_path / "0" / "0" / "run") for change in birth["mutations"]}
    assert kinds >= {"architecture", "parameters", "activation", "rl_hp"}


def test_two_killed_and_resumed_processes_equal_one_uninterrupted(tmp_path):
    plans = [["tick:150:kill-all", "1/bear:1:kill"], ["write:25:kill"]]
    assert survivors(tmp_path, plans, *TWO) == (3, [])
