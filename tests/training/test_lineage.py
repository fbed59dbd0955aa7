"""A run keeps the ancestry of its current members only."""

import math

import pytest
from gymnasium.spaces import Box, Discrete
from small_runs import SMALL

from agilerl_like import PPO
from agilerl_like.hpo import Offspring, WeightMix
from agilerl_like.reporting.records import NO_PARENT, OffspringRecord
from agilerl_like.training.lineage import Lineage, offspring_record, steps_before
from agilerl_like.training.sharding import MemberInfo


def birth(uid, parent_uid, generation, *, survives=False, kind="none", parent_generation=None):
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
        parent_generation=parent_generation,
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


def test_the_record_of_a_clone_with_shrunk_weights_has_a_mark():
    agent = PPO(Box(-1, 1, (2,)), Discrete(2), seed=1, index=2, net_config=SMALL)
    for start, keys in ((WeightMix(0.2, 0.1), {"shrunk"}), (None, set())):
        record = offspring_record(Offspring(1, 0, 3, 2, 0, agent.genome, (), start), MemberInfo.of(agent))
        assert record.shrunk == bool(keys)
        assert record.to_json().keys() & {"shrunk"} == keys
        assert OffspringRecord.from_json(record.to_json()).shrunk == record.shrunk


@pytest.mark.parametrize("donor", [0, 1, None])
def test_the_record_of_a_member_with_the_hyperparameters_of_another_names_it(donor):
    agent = PPO(Box(-1, 1, (2,)), Discrete(2), seed=1, index=2, net_config=SMALL)
    record = offspring_record(Offspring(1, 0, 3, 2, 0, agent.genome, donor_uid=donor), MemberInfo.of(agent))
    data = record.to_json()
    assert data.get("donor_uid") == donor
    assert ("donor_uid" in data) == (donor is not None)  # files of earlier versions lack it
    assert OffspringRecord.from_json(data).donor_uid == donor


def test_lineage_stays_small_in_a_long_run():
    """Always two children of the first member: after a thousand generations one line of births is left."""
    chronicle = Lineage()
    chronicle.add((birth(0, NO_PARENT, 0), birth(1, NO_PARENT, 0)), members=[0, 1])
    for generation in range(1, 1001):
        chronicle.add(
            (birth(0, 0, generation, survives=True), birth(generation + 1, 0, generation)), [0, generation + 1]
        )
    assert sum(len(births) for births in chronicle._births.values()) == 2


def test_a_clone_of_the_best_agent_has_the_records_up_to_its_generation_though_its_line_has_died_out():
    chronicle = Lineage()
    initial, change = birth(0, NO_PARENT, 0), birth(0, 0, 2, survives=True, kind="rl_hp")
    chronicle.add((initial, birth(1, NO_PARENT, 0)), members=[0, 1])
    chronicle.add((change,), members=[0, 1])
    best = chronicle.ancestry(0)  # as it was evaluated in generation 4
    chronicle.add((birth(0, 0, 5, survives=True, kind="rl_hp"),), members=[0, 1])
    chronicle.add((birth(2, 1, 6),), members=[2, 1])
    assert chronicle.parent(0) == NO_PARENT
    assert 0 not in chronicle._births
    clone = birth(3, 0, 8, parent_generation=4)
    chronicle.restore(best)
    chronicle.add((clone,), members=[2, 3])
    assert chronicle.ancestry(3) == (initial, change, clone)
    assert chronicle.ancestry(3) == lineage_of(chronicle.births, [2, 3]).ancestry(3)  # as a checkpoint holds it


def test_changes_of_the_best_agent_after_its_evaluation_are_not_those_of_its_clone():
    chronicle = Lineage()
    initial, clone = birth(0, NO_PARENT, 0), birth(1, 0, 8, parent_generation=4)
    chronicle.add((initial,), members=[0])
    for generation in (2, 4, 6):
        chronicle.add((birth(0, 0, generation, survives=True, kind="rl_hp"),), members=[0])
    chronicle.restore(chronicle.ancestry(0)[:2])  # already known
    chronicle.add((clone,), members=[0, 1])
    assert [(one.uid, one.generation) for one in chronicle.ancestry(1)] == [(0, 0), (0, 2), (1, 8)]
    assert len(chronicle.births) == 5


def test_the_steps_since_the_generation_of_the_best_agent_are_not_its_clones():
    ancestry = (
        birth(0, NO_PARENT, 0),
        birth(0, 0, 2, survives=True),
        birth(1, 0, 8, parent_generation=4),
        birth(2, 1, 9),
    )
    steps_after = {generation: 100 * generation for generation in range(10)}
    assert steps_before(ancestry, steps_after) == [0, 200, 400, 500]
    assert steps_before(ancestry[:2], steps_after) == [0, 200]


def lineage_of(births, members):
    lineage = Lineage()
    lineage.add(births, members)
    return lineage
