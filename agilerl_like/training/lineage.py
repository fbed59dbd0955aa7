"""Who descended from whom: every birth of a run as a record, and the line that led to one member."""

from __future__ import annotations

import math
from collections.abc import Iterable

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.hpo import Offspring
from agilerl_like.reporting.records import NO_PARENT, OffspringRecord
from agilerl_like.training.sharding import MemberInfo


class Lineage:
    """The births that led to the living; those of lines that died out are on the disk alone (`lineage.jsonl`)."""

    def __init__(self) -> None:
        self._births: dict[int, list[OffspringRecord]] = {}

    @property
    def births(self) -> list[OffspringRecord]:
        """Those that are remembered, in an order in which they can be added again."""
        return [birth for its in self._births.values() for birth in its]

    def add(self, births: Iterable[OffspringRecord], living: Iterable[int]) -> None:
        """Note births in the order in which they happened; `living` are the members that there are now."""
        for birth in births:
            if not birth.survives or _changed(birth):  # nothing is told of uneventful survivals
                self._births.setdefault(birth.uid, []).append(birth)
        remembered: set[int] = set()
        for member in living:
            while member in self._births and member not in remembered:
                remembered.add(member)
                member = self._births[member][0].parent_uid
        self._births = {uid: its for uid, its in self._births.items() if uid in remembered}

    def parent(self, uid: int) -> int:
        """Whose child a member is."""
        return self._births[uid][0].parent_uid if uid in self._births else NO_PARENT

    def ancestry(self, uid: int) -> tuple[OffspringRecord, ...]:
        """The births that led to a living member as it is now, oldest first, without uneventful survivals."""
        chain: list[OffspringRecord] = []
        horizon = math.inf
        while uid in self._births:
            own = [birth for birth in self._births[uid] if birth.generation <= horizon]
            chain = own + chain
            if not own or own[0].parent_uid == uid:
                break
            uid, horizon = own[0].parent_uid, own[0].generation
        return tuple(chain)


def initial_member(slot: int, agent: EvolvableAlgorithm) -> OffspringRecord:
    """The record of a member that nobody begot."""
    return OffspringRecord(
        generation=0,
        slot=slot,
        uid=agent.index,
        parent_uid=NO_PARENT,
        survives=False,
        mutations=(),
        hyperparameters=agent.hyperparameters,
        architecture=agent.architecture.describe(),
        parent_hyperparameters={},
        parent_architecture="",
        parent_fitness=math.nan,
    )


def offspring_record(birth: Offspring, parent: MemberInfo, reason: str = "") -> OffspringRecord:
    """The record of a birth that was carried out; `parent` is as it was before."""
    before = parent.genome
    return OffspringRecord(
        generation=birth.generation,
        slot=birth.slot,
        uid=birth.uid,
        parent_uid=birth.parent_uid,
        survives=birth.survives,
        mutations=tuple(change.to_json() for change in birth.mutations),
        hyperparameters={name: birth.genome.hyperparameters[name] for name in parent.hp_config},
        architecture=birth.genome.architecture.describe(),
        parent_hyperparameters={name: before.hyperparameters[name] for name in parent.hp_config},
        parent_architecture=before.architecture.describe(),
        parent_fitness=parent.fitness,
        reason=reason,
    )


def _changed(birth: OffspringRecord) -> bool:
    return any(change["kind"] != "none" for change in birth.mutations)
