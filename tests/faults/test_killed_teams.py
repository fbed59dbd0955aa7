"""R1 and R10 of multi-agent runs: killed, interrupted or sharded, a run is bit-identical to one that was not."""

import random

from test_signals import CODES, is_clean
from tiny_runs import NIGHTLY, lineage, tier
from whole_runs import APART, resume_run, state, survivors, undisturbed

KILLS = tier(4, 120)
TWO = (*APART, "--run.processes", "2")
PLACES = {
    "begin": 12,
    "tick": 380,
    "epoch": 90,
    "minibatch": 300,
    "play-teams": 6,
    "report+": 6,
    "evolve": 5,
    "bear-team": 12,
    "births+": 6,
    "write": 100,
    "fsync+": 110,
    "replace": 12,
}
"""How often an undisturbed run comes to each place, or a little less."""


def a_plan(rng):
    """Two or three kills of one run, mostly early, because the processes after a resume are short."""
    places = [rng.choice([*PLACES]) for _ in range(rng.randint(2, 3))]
    return [f"{place}:{round(PLACES[place] ** rng.random())}:kill" for place in places]


def test_killed_and_resumed_runs_are_bit_identical(tmp_path):
    rng = random.Random(None if NIGHTLY else 1)
    kills = 0
    while kills < KILLS:
        more, others = survivors(tmp_path / str(kills), [a_plan(rng) for _ in range(2)], whom="teams")
        assert others == []
        assert more
        kills += more
    kinds = {change["kind"] for birth in lineage(tmp_path / "0" / "0" / "run") for change in birth["mutations"]}
    assert len(kinds - {"none"}) >= 3  # or the run was too still to prove anything


def test_runs_on_two_killed_processes_are_bit_identical_to_one_process(tmp_path):
    plans = [["tick:90:kill-all", "1/bear-team:1:kill"]]
    assert survivors(tmp_path, plans, *TWO, whom="teams") == (2, [])


def test_signals_end_a_run_cleanly_and_the_resumed_run_is_bit_identical(tmp_path):
    for fault in ("tick:40:interrupt", "play-teams:1:terminate", "write:5:interrupt"):
        ended = resume_run(tmp_path, whom="teams", faults=fault)
        assert is_clean(ended, tmp_path, CODES[fault.split(":")[2]]), (fault, ended)
    assert resume_run(tmp_path, whom="teams").code == 0
    assert state(tmp_path) == undisturbed(whom="teams")
