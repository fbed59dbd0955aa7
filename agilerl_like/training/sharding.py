"""The members of a run, wherever they live: this process has some of them, and knows a few numbers of the others.

A slot is a member's place in the whole population; a process has a `Population` of its own slots' members, in the same
order. Whoever needs a member that lives elsewhere (as a parent, or to write it to the disk) is sent a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm, class_by_name
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
from agilerl_like.networks.custom import CustomSpec

T = TypeVar("T")


class MemberInfo(NamedTuple):
    """What evolution must know of a member; all processes know it of all."""

    uid: int
    fitness: float
    genome: Genome
    hp_config: HyperparameterConfig

    @classmethod
    def of(cls, agent: EvolvableAlgorithm) -> MemberInfo:
        """The card of a member as it is now."""
        return cls(agent.index, agent.fitness[-1] if agent.fitness else math.nan, agent.genome, agent.hp_config)


class LocalState(NamedTuple):
    """What members have that cannot be sent: functions, and the code of networks of the user's own."""

    hooks: tuple[Callable[[Any], None], ...]
    networks: CustomSpec | None

    @classmethod
    def of(cls, population: BasePopulation | None) -> LocalState:
        """What the members of a population have of it: all the same."""
        first = None if population is None else population[0]
        return cls((), None) if first is None else cls(first.mutation_hooks, first.custom_networks)

    def deserialize(self, serialized: SerializedAgent, device: torch.device) -> EvolvableAlgorithm:
        """The agent that a parcel was made of, with it."""
        kind = class_by_name(serialized.document["algorithm"], "parcel")
        agent = kind.from_documents(
            serialized.document, serialized.tensors, device=device, where="parcel", networks=self.networks
        )
        for hook in self.hooks:
            agent.register_mutation_hook(hook)
        return agent


class ShardedPopulation:
    """All members of a run; `population` are those that this process has, in the slots of its `shard`."""

    def __init__(
        self, process_group: ProcessGroup, shards: Sequence[Shard], population: BasePopulation, local_state: LocalState
    ) -> None:
        self.process_group, self.shards, self.population, self._local_state = (
            process_group,
            tuple(shards),
            population,
            local_state,
        )
        self.size = 1 + max(slot for shard in self.shards for slot in shard.slots)
        population.join(process_group.gradient_sync(self.shards))

    @classmethod
    def of(
        cls,
        process_group: ProcessGroup,
        kind: type[BasePopulation],
        population: BasePopulation | None,
        local_state: LocalState,
    ) -> ShardedPopulation:
        """Deal out the main process's population, as its agents are now.

        `local_state` is what each process must have by itself.

        Raises:
            ConfigurationError: the main process has no population.
        """
        if process_group.size == 1 and population is not None:
            return cls(process_group, shard_members([None] * len(population), 1), population, local_state)
        agents = [] if population is None else list(population)
        serialized_agents = (
            [SerializedAgent(*agent.to_documents()) for agent in agents] if process_group.is_main else []
        )
        kinds = process_group.broadcast([serialized.document["architecture"] for serialized in serialized_agents])
        device = process_group.broadcast("" if population is None else population.device.type)
        shards = shard_members(kinds, process_group.size)
        at_first = [Shard(tuple(range(len(kinds)))), *(Shard(()) for _ in shards[1:])]
        arrived = process_group.send_recv(
            plan_transfers(_needed_by_rank(shards), at_first), serialized_agents.__getitem__
        )
        own = [
            arrived[slot] if slot in arrived else serialized_agents[slot] for slot in shards[process_group.rank].slots
        ]
        its_device = process_group.device(torch.device(device))
        return cls(
            process_group,
            shards,
            kind([local_state.deserialize(serialized, its_device) for serialized in own]),
            local_state,
        )

    @property
    def shard(self) -> Shard:
        """What this process has."""
        return self.shards[self.process_group.rank]

    @property
    def first(self) -> EvolvableAlgorithm:
        """One that is here; all have the same kind, spaces and run seed."""
        return self.population[0]

    def local_members(self) -> dict[int, EvolvableAlgorithm]:
        """The members that are here, by slot."""
        return dict(zip(self.shard.slots, self.population, strict=True))

    # -- what all know

    def all_gather_by_slot(
        self, own: Iterable[T], *, encode: Callable[[T], Any], decode: Callable[[Any], T]
    ) -> list[T]:
        """What is to be said of the members, slot by slot; each process says it of its own."""
        gathered = self.process_group.all_gather_dict(
            dict(zip(self.shard.slots, own, strict=True)), encode=encode, decode=decode
        )
        return [gathered[slot] for slot in range(self.size)]

    def member_infos(self) -> list[MemberInfo]:
        """What evolution must know, slot by slot."""
        return self.all_gather_by_slot(
            map(MemberInfo.of, self.population), encode=self._info_to_json, decode=self._info_from_json
        )

    def _info_to_json(self, info: MemberInfo) -> Any:
        return [info.uid, info.fitness, self.first.genome_to_json(info.genome), info.hp_config.to_json()]

    def _info_from_json(self, data: Any) -> MemberInfo:
        uid, fitness, genome, hp_config = data
        return MemberInfo(uid, fitness, self.first.genome_from_json(genome), HyperparameterConfig.from_json(hp_config))

    # -- births

    def evolve(self, births: Sequence[Offspring]) -> list[Offspring]:
        """Carry out births, one a slot; return them with what was really done."""
        parents = self.local_members() | self.fetch(
            (births[slot].parent_slot, rank) for slot, rank in _needed_by_rank(self.shards)
        )
        done = self.population.evolve([births[slot] for slot in self.shard.slots], parents)

        def encode(birth: Offspring) -> Any:
            mutations = [change.to_json() for change in birth.mutations]
            return [birth.slot, mutations, self.first.genome_to_json(birth.genome)]

        def decode(data: Any) -> Offspring:
            slot, mutations, genome = data
            its_genome = self.first.genome_from_json(genome)
            return replace(births[slot], genome=its_genome, mutations=tuple(map(Mutation.from_json, mutations)))

        return self.all_gather_by_slot(done, encode=encode, decode=decode)

    def fetch(self, wanted: Iterable[tuple[int, int]]) -> dict[int, EvolvableAlgorithm]:
        """Let members travel; `wanted` names (slot, rank) for all processes alike. Returns those that came here."""
        arrived = self.process_group.send_recv(plan_transfers(wanted, self.shards), self.serialize)
        return {slot: self.deserialize(serialized) for slot, serialized in arrived.items()}

    def owner_rank(self, slot: int) -> int:
        """The first process that has a member."""
        return next(rank for rank, shard in enumerate(self.shards) if slot in shard.slots)

    def broadcast_agents(self, source: int, agents: Sequence[EvolvableAlgorithm | None]) -> list[EvolvableAlgorithm]:
        """What one process has, on every process; the others say nothing but how many these are."""
        transfers = [
            Transfer(i, source, rank)
            for i in range(len(agents))
            for rank in range(self.process_group.size)
            if rank != source
        ]
        arrived = self.process_group.send_recv(
            transfers, lambda i: SerializedAgent(*_require_agent(agents[i]).to_documents())
        )
        return [
            self.deserialize(arrived[i]) if i in arrived else _require_agent(agent) for i, agent in enumerate(agents)
        ]

    def rebalance(self) -> None:
        """Let alike members meet; to be done where nobody has an episode to lose."""
        kinds = self.all_gather_by_slot(
            [agent.architecture.to_config() for agent in self.population], encode=dict, decode=dict
        )
        after = shard_members(kinds, self.process_group.size)
        if after == self.shards:
            return
        fitness = self.all_gather_by_slot(self.population.fitness, encode=float, decode=float)
        agents = self.local_members() | self.fetch(_needed_by_rank(after))
        self.shards = after
        self.population.reset_noise()  # everybody draws anew after this, whether or not they have moved
        self.population.set_members([agents[slot] for slot in self.shard.slots])
        self.population.fitness = [fitness[slot] for slot in self.shard.slots]

    # -- all of them in one place

    def gather_to_main(self) -> list[SerializedAgent]:
        """Every member, on the main process; others get nothing."""
        arrived = self.process_group.send_recv(
            plan_transfers(((slot, 0) for slot in range(self.size)), self.shards), self.serialize
        )
        own = {slot: self.serialize(slot) for slot in self.shard.slots} if self.process_group.is_main else {}
        return [serialized for _, serialized in sorted((own | arrived).items())]

    def gather_all(self) -> BasePopulation:
        """Every member, on every process."""
        if self.process_group.size == 1:
            return self.population
        everywhere = [(slot, rank) for slot in range(self.size) for rank in range(self.process_group.size)]
        agents = self.local_members() | self.fetch(everywhere)
        return type(self.population)([agents[slot] for slot in range(self.size)])

    def serialize(self, slot: int) -> SerializedAgent:
        """A member that is here, ready to travel."""
        return SerializedAgent(*self.local_members()[slot].to_documents())

    def deserialize(self, serialized: SerializedAgent) -> EvolvableAlgorithm:
        """A member that has arrived."""
        return self._local_state.deserialize(serialized, self.first.device)


def _require_agent(agent: EvolvableAlgorithm | None) -> EvolvableAlgorithm:
    if agent is None:
        raise RuntimeError("an agent is elsewhere")
    return agent


def _needed_by_rank(shards: Sequence[Shard]) -> list[tuple[int, int]]:
    return [(slot, rank) for rank, shard in enumerate(shards) for slot in shard.slots]
