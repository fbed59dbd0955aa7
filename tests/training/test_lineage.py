"""A run keeps the ancestry of its current members only."""

import math

from agilerl_like.reporting.records import NO_PARENT, OffspringRecord
from agilerl_like.training.lineage import Lineage


def birth(uid, parent_uid, generation, *, survives=False, kind="none"):
    return OffspringRecord(
        generation=generation,
        slot=0,
        uid=uid,
        parent_uid=parent_uid,
        survives=survives,
        mutations=({"kind": kind},),
        hyperparameters={},
        architecture="",
        parent_hyperparameters={},
        parent_architecture="",
        parent_fitness=math.nan,
    )


def test_ancestry_and_removal_of_extinct_lines():
    chronicle = Lineage()
    chronicle.add((birth(0, NO_PARENT, 0), birth(1, NO_PARENT, 0)), members=[0, 1])
    chronicle.add((birth(0, 0, 1, survives=True), birth(2, 0, 1)), members=[0, 2])  # 1 died childless
    chronicle.add((birth(3, 2, 2), birth(2, 2, 2, survives=True, kind="rl_hp")), members=[3, 2])
    chronicle.add((birth(3, 3, 3, survives=True, kind="rl_hp"), birth(4, 3, 4)), members=[2, 3, 4])
    # the change of 2 at the end of generation 2 comes after 3 was cloned from it, that of 3 in generation 3 before 4
    assert [(one.uid, one.generation) for one in chronicle.ancestry(4)] == [(0, 0), (2, 1), (3, 2), (3, 3), (4, 4)]
    assert [(one.uid, one.generation) for one in chronicle.ancestry(2)] == [(0, 0), (2, 1), (2, 2)]
    assert chronicle.parent(4) == 3
    assert chronicle.parent(1) == NO_PARENT
    assert set(chronicle._births) == {0, 2, 3, 4}


def test_lineage_stays_small_in_a_long_run():
    """Always two children of the first member: after a thousand generations one line of births is left."""
    chronicle = Lineage()
    chronicle.add((birth(0, NO_PARENT, 0), birth(1, NO_PARENT, 0)), members=[0, 1])
    for generation in range(1, 1001):
        chronicle.add(
            (birth(0, 0, generation, survives=True), birth(generation + 1, 0, generation)), [0, generation + 1]
        )
    assert sum(len(births) for births in chronicle._births.values()) == 2
