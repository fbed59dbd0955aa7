"""A population sharded over processes: each trains its own members, and receives copies of others when needed.

A slot is a member's index in the whole population. A process has a population of the members of its slots, in their
order. Copies are sent of parents whose offspring are on another process, and of members to be saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch

from agilerl_like.algorithms.evolvable_algorithm import (
    EvolvableAlgorithm,
    UnsavedState,
    class_by_name,
    genome_from_json,
    genome_to_json,
)
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.distributed.process_group import (
    ProcessGroup,
    SerializedAgent,
    Shard,
    Transfer,
    plan_transfers,
    shard_members,
)
from agilerl_like.hpo import Genome, HyperparameterConfig, Mutation, Offspring

T = TypeVar("T")


class MemberInfo(NamedTuple):
    """The properties of a member that evolution reads, which every process has of all members."""

    uid: int
    fitness: float
    genome: Genome
    hp_config: HyperparameterConfig
    train_return: float = math.nan
    """Mean return of the training episodes that ended in the last generation."""

    @classmethod
    def of(cls, agent: EvolvableAlgorithm) -> MemberInfo:
        """Return the info of a member as it is now."""
        fitness = agent.fitness[-1] if agent.fitness else math.nan
        score = agent.scores[-1] if agent.scores else math.nan
        score = score if isinstance(score, float) else math.nan  # a team's own test may have scores by group
        return cls(agent.index, fitness, agent.genome, agent.hp_config, score)


class ShardedPopulation:
    """All members of a run; `population` are those of this process, in the slots of its `shard`."""

    def __init__(
        self,
        process_group: ProcessGroup,
        shards: Sequence[Shard],
        population: BasePopulation,
        unsaved: UnsavedState | None,
    ) -> None:
        self.process_group, self.shards = process_group, tuple(shards)
        self.population, self._unsaved = population, unsaved
        self.size = 1 + max(slot for shard in self.shards for slot in shard.slots)
        population.gradient_sync = process_group.gradient_sync(self.shards)

    @classmethod
    def of(
        cls,
        process_group: ProcessGroup,
        kind: type[BasePopulation],
        population: BasePopulation | None,
        unsaved: UnsavedState | None,
    ) -> ShardedPopulation:
        """Shard the main process's population.

        Raises:
            ConfigurationError: the main process has no population.
        """
        if process_group.size == 1 and population is not None:
            return cls(process_group, shard_members([None] * len(population), 1), population, unsaved)
        agents = [] if population is None else list(population)
        serialized = [SerializedAgent(*agent.to_documents()) for agent in agents] if process_group.is_main else []
        kinds = process_group.broadcast([one.document["architecture"] for one in serialized])
        device = process_group.broadcast("" if population is None else population.device.type)
        shards = shard_members(kinds, process_group.size)
        unsharded = [Shard(tuple(range(len(kinds)))), *(Shard(()) for _ in shards[1:])]
        received = process_group.send_recv(plan_transfers(_needed_by_rank(shards), unsharded), serialized.__getitem__)
        own = [received[slot] if slot in received else serialized[slot] for slot in shards[process_group.rank].slots]
        local_device = process_group.device(torch.device(device))
        local = kind([deserialize(one, local_device, unsaved) for one in own])
        return cls(process_group, shards, local, unsaved)

    @property
    def shard(self) -> Shard:
        """The shard of this process."""
        return self.shards[self.process_group.rank]

    @property
    def first(self) -> EvolvableAlgorithm:
        """A member of this process; all members have the same class, spaces and run seed."""
        return self.population[0]

    def local_members(self) -> dict[int, EvolvableAlgorithm]:
        """Return the members of this process, by slot."""
        return dict(zip(self.shard.slots, self.population, strict=True))

    # -- information of all members

    def all_gather_by_slot(
        self, own: Iterable[T], *, encode: Callable[[T], Any], decode: Callable[[Any], T]
    ) -> list[T]:
        """Return a value for each slot; `own` are those of this process's members, in their order."""
        gathered = self.process_group.all_gather_dict(
            dict(zip(self.shard.slots, own, strict=True)), encode=encode, decode=decode
        )
        return [gathered[slot] for slot in range(self.size)]

    def member_infos(self) -> list[MemberInfo]:
        """Return the info of all members, by slot."""
        return self.all_gather_by_slot(
            map(MemberInfo.of, self.population), encode=self._info_to_json, decode=self._info_from_json
        )

    def start_counting_updates(self) -> int:
        """Count each member's updates from 0 on; return those of all its groups before, at most; collective.

        Their sum grows in every run, also where the groups are trained in turns.
        """
        for learner in self.population.all_learners():
            learner.updates_before += learner.updates_of_run
        own = max(sum(its.updates_before for its in agent.learners.values()) for agent in self.population)
        return max(self.process_group.all_gather(own))

    def most_updates(self) -> int:
        """Return the updates that a member has made at most in this run; collective.

        Those of a clone include its parent's. Rollouts before `learning_starts` do not count.
        """
        return max(self.process_group.all_gather(max(its.updates_of_run for its in self.population.all_learners())))

    def _info_to_json(self, info: MemberInfo) -> Any:
        return [info.uid, info.fitness, genome_to_json(info.genome), info.hp_config.to_json(), info.train_return]

    def _info_from_json(self, data: Any) -> MemberInfo:
        uid, fitness, genome, hp_config, train_return = data
        ranges = HyperparameterConfig.from_json(hp_config)
        return MemberInfo(uid, fitness, genome_from_json(self.first, genome), ranges, train_return)

    # -- evolution

    def evolve(self, planned: Sequence[Offspring]) -> list[Offspring]:
        """Carry out evolution, one offspring per slot; return the offspring with the mutations that were applied."""
        needed = [(planned[slot].parent_slot, rank) for slot, rank in _needed_by_rank(self.shards)]
        parents = self.local_members() | self.fetch(needed)
        done = self.population.evolve([planned[slot] for slot in self.shard.slots], parents)

        def encode(offspring: Offspring) -> Any:
            mutations = [mutation.to_json() for mutation in offspring.mutations]
            return [offspring.slot, mutations, genome_to_json(offspring.genome)]

        def decode(data: Any) -> Offspring:
            slot, mutations, genome = data
            mutations = tuple(map(Mutation.from_json, mutations))
            return replace(planned[slot], genome=genome_from_json(self.first, genome), mutations=mutations)

        return self.all_gather_by_slot(done, encode=encode, decode=decode)

    def fetch(self, wanted: Iterable[tuple[int, int]]) -> dict[int, EvolvableAlgorithm]:
        """Transfer members to ranks; `wanted` are (slot, rank), the same on all processes. Return those received."""
        received = self.process_group.send_recv(plan_transfers(wanted, self.shards), self.serialize)
        return {slot: self.deserialize(serialized) for slot, serialized in received.items()}

    def owner_rank(self, slot: int) -> int:
        """Return the first rank that has a member."""
        return next(rank for rank, shard in enumerate(self.shards) if slot in shard.slots)

    def broadcast_agents(self, source: int, agents: Sequence[EvolvableAlgorithm | None]) -> list[EvolvableAlgorithm]:
        """Return agents of rank `source` on every process; the other processes pass as many Nones."""
        others = [rank for rank in range(self.process_group.size) if rank != source]
        transfers = [Transfer(i, source, rank) for i in range(len(agents)) for rank in others]
        received = self.process_group.send_recv(
            transfers, lambda i: SerializedAgent(*_require_agent(agents[i]).to_documents())
        )
        return [
            self.deserialize(received[i]) if i in received else _require_agent(agents[i]) for i in range(len(agents))
        ]

    def put(self, slot: int, agent: EvolvableAlgorithm) -> None:
        """Replace a member by an agent, which every process has."""
        agents = self.local_members()
        if slot in agents:
            self.population.set_members([*(agents | {slot: agent}).values()])

    def rebalance(self) -> None:
        """Shard again, so that members of equal architecture share a process; the envs must be reset afterwards."""
        kinds = self.all_gather_by_slot(
            [agent.architecture.to_config() for agent in self.population], encode=dict, decode=dict
        )
        after = shard_members(kinds, self.process_group.size)
        if after == self.shards:
            return
        fitness = self.all_gather_by_slot(self.population.fitness, encode=float, decode=float)
        agents = self.local_members() | self.fetch(_needed_by_rank(after))
        self.shards = after
        self.population.reset_noise()  # for all members, so that noise does not depend on which of them have moved
        self.population.set_members([agents[slot] for slot in self.shard.slots])
        self.population.fitness = [fitness[slot] for slot in self.shard.slots]

    def keep(self, slots: Sequence[int]) -> None:
        """Remove all other members; those of `slots` get the slots from 0 on, in their order.

        The members are sharded again, and the envs must be made again for the members that each process now has.
        """
        kinds = self.all_gather_by_slot(
            [agent.architecture.to_config() for agent in self.population], encode=dict, decode=dict
        )
        fitness = self.all_gather_by_slot(self.population.fitness, encode=float, decode=float)
        after = shard_members([kinds[slot] for slot in slots], self.process_group.size)
        needed = [(slots[place], rank) for place, rank in _needed_by_rank(after)]
        agents = self.local_members() | self.fetch(needed)
        self.shards, self.size = after, len(slots)
        self.population.set_members([agents[slots[place]] for place in self.shard.slots])
        self.population.fitness = [fitness[slots[place]] for place in self.shard.slots]

    # -- the whole population

    def gather_to_main(self) -> list[SerializedAgent]:
        """Return all members on the main process, nothing on others."""
        transfers = plan_transfers(((slot, 0) for slot in range(self.size)), self.shards)
        received = self.process_group.send_recv(transfers, self.serialize)
        own = {slot: self.serialize(slot) for slot in self.shard.slots} if self.process_group.is_main else {}
        return [serialized for _, serialized in sorted((own | received).items())]

    def gather_all(self) -> BasePopulation:
        """Return all members, on every process."""
        if self.process_group.size == 1:
            return self.population
        everywhere = [(slot, rank) for slot in range(self.size) for rank in range(self.process_group.size)]
        agents = self.local_members() | self.fetch(everywhere)
        return type(self.population)([agents[slot] for slot in range(self.size)])

    def serialize(self, slot: int) -> SerializedAgent:
        """Serialize a member of this process."""
        return SerializedAgent(*self.local_members()[slot].to_documents())

    def deserialize(self, serialized: SerializedAgent) -> EvolvableAlgorithm:
        """Build a received member."""
        return deserialize(serialized, self.first.device, self._unsaved)


def deserialize(serialized: SerializedAgent, device: torch.device, unsaved: UnsavedState | None) -> EvolvableAlgorithm:
    """Build an agent from its serialized form, with the state that is not part of it."""
    kind = class_by_name(serialized.document["algorithm"], "agent")
    networks = None if unsaved is None else unsaved.networks
    kind = kind if unsaved is None else unsaved.class_for(kind)
    agent = kind.from_documents(
        serialized.document, serialized.tensors, device=device, where="agent", networks=networks
    )
    if unsaved is not None:
        unsaved.set_in(agent)
    return agent


def _require_agent(agent: EvolvableAlgorithm | None) -> EvolvableAlgorithm:
    if agent is None:
        raise RuntimeError("the agent is on another process")
    return agent


def _needed_by_rank(shards: Sequence[Shard]) -> list[tuple[int, int]]:
    return [(slot, rank) for rank, shard in enumerate(shards) for slot in shard.slots]
