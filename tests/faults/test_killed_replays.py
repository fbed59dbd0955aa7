"""Runs that learn from a replay: killed with SIGKILL and resumed, a run with `save_memory` is the uninterrupted one."""

import hashlib
import random

from tiny_runs import NIGHTLY, lineage, tier
from whole_runs import saved, survivors

KILLS = tier(1, 25)
PLACES = {
    "begin": 6,
    "store": 570,
    "sample": 300,
    "minibatch": 600,
    "target+": 600,
    "play": 6,
    "report+": 6,
    "births+": 6,
    "save": 6,
    "write": 100,
    "write+": 100,
    "fsync+": 110,
    "replace": 12,
    "forget": 6,
    "byte": 60_000,
}
"""How often an undisturbed run comes to each place, or a little less; `byte`: of the largest file, a memory."""


def a_plan(rng):
    """One or two kills of one run, mostly early, because the processes after a resume are short."""
    places = [rng.choice([*PLACES]) for _ in range(rng.randint(1, 2))]
    return [f"{place}:{round(PLACES[place] ** rng.random())}:kill" for place in places]


def last_memories(folder):
    """Return the digests of the memories in the newest checkpoint, by name."""
    files = sorted((folder / f"run/checkpoints/gen-{saved(folder)[-1]:06d}").glob("memory-*.safetensors"))
    return tuple((file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files)


def test_killed_and_resumed_runs_with_their_memories_are_bit_identical(tmp_path):
    rng = random.Random(None if NIGHTLY else 3)
    kills, memories = 0, set()
    while kills < KILLS:  # some faults come too late, because the run ends before
        folder = tmp_path / str(kills)
        more, others = survivors(folder, [a_plan(rng) for _ in range(tier(1, 4))], whom="replays")
        assert others == []
        kills += more
        memories |= {last_memories(run) for run in folder.iterdir()}
    (of_members,) = memories
    assert len(of_members) == 4
    kinds = {change["kind"] for birth in lineage(tmp_path / "0" / "0" / "run") for change in birth["mutations"]}
    assert len(kinds - {"none"}) >= 3
