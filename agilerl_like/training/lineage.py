"""The ancestry of the current members: offspring as records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.hpo import Offspring
from agilerl_like.reporting.records import NO_PARENT, OffspringRecord
from agilerl_like.training.sharding import MemberInfo


class Lineage:
    """The offspring records that led to the current members; `lineage.jsonl` has those of all members."""

    def __init__(self) -> None:
        self._births: dict[int, list[OffspringRecord]] = {}

    @property
    def births(self) -> list[OffspringRecord]:
        """All records, in an order in which `add` accepts them."""
        return [birth for its in self._births.values() for birth in its]

    def add(self, births: Iterable[OffspringRecord], members: Iterable[int]) -> None:
        """Add records in their order, and remove those that do not lead to the current members' uids."""
        for birth in births:
            if not birth.survives or _changed(birth):  # unchanged survivors are left out
                self._births.setdefault(birth.uid, []).append(birth)
        kept: set[int] = set()
        for member in members:
            while member in self._births and member not in kept:
                kept.add(member)
                member = self._births[member][0].parent_uid
        self._births = {uid: its for uid, its in self._births.items() if uid in kept}

    def restore(self, ancestry: Iterable[OffspringRecord]) -> None:
        """Add the records of an agent of which a clone is about to become a member; its line may have died out."""
        known = {*self._births}
        for birth in ancestry:
            if birth.uid not in known:
                self._births.setdefault(birth.uid, []).append(birth)

    def parent(self, uid: int) -> int:
        """Return the uid of a member's parent."""
        return self._births[uid][0].parent_uid if uid in self._births else NO_PARENT

    def operators(self, uid: int, generation: int) -> str:
        """Return the mutations of a member at the end of a generation, by kind and operator; "" without any."""
        changes = [
            change
            for birth in self._births.get(uid, ())
            if birth.generation == generation
            for change in birth.mutations
        ]
        return ", ".join(
            ".".join(filter(None, (change["kind"], change.get("operator", ""))))
            for change in changes
            if change["kind"] != "none"
        )

    def ancestry(self, uid: int) -> tuple[OffspringRecord, ...]:
        """Return the records that led to a current member, oldest first, without unchanged survivors.

        A clone has the state of its parent before the mutations at the end of the same generation, or of the earlier
        one that a clone of the best agent is from.
        """
        chain: list[OffspringRecord] = []
        horizon = math.inf
        while uid in self._births:
            own = [birth for birth in self._births[uid] if not birth.survives or birth.generation < horizon]
            chain = own + chain
            if not own or own[0].parent_uid == uid:
                break
            uid, horizon = own[0].parent_uid, own[0].trained_from
        return tuple(chain)


def steps_before(ancestry: Sequence[OffspringRecord], steps_after: Mapping[int, int]) -> list[int]:
    """Return how many env steps the ancestors of an agent trained before each of its records.

    `steps_after` has a member's env steps at the end of each generation. A clone of the best agent has none of the
    steps that were taken since that agent's generation.
    """
    found = [0]
    for before, birth in pairwise(ancestry):
        found.append(found[-1] + steps_after[birth.trained_from] - steps_after[before.generation])
    return found


def initial_member(slot: int, agent: EvolvableAlgorithm) -> OffspringRecord:
    """Return the record of an initial member."""
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


def offspring_record(
    birth: Offspring, parent: MemberInfo, reason: str = "", parent_generation: int | None = None
) -> OffspringRecord:
    """Return the record of offspring; `parent` is its state before evolution, and unused for a fresh member."""
    before, has_parent = parent.genome, birth.parent_uid != NO_PARENT
    return OffspringRecord(
        generation=birth.generation,
        slot=birth.slot,
        uid=birth.uid,
        parent_uid=birth.parent_uid,
        survives=birth.survives,
        mutations=tuple(change.to_json() for change in birth.mutations),
        hyperparameters={name: birth.genome.hyperparameters[name] for name in parent.hp_config},
        architecture=birth.genome.architecture.describe(),
        parent_hyperparameters={name: before.hyperparameters[name] for name in parent.hp_config if has_parent},
        parent_architecture=before.architecture.describe() if has_parent else "",
        parent_fitness=parent.fitness if has_parent else math.nan,
        reason=reason,
        parent_generation=parent_generation,
        shrunk=birth.start is not None and not birth.start.is_fresh,
        donor_uid=birth.donor_uid,
    )


def _changed(birth: OffspringRecord) -> bool:
    return any(change["kind"] != "none" for change in birth.mutations)
