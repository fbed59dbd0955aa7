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

from agilerl_like.algorithms.individual import Individual
from agilerl_like.algorithms.individuals import Individuals
from agilerl_like.distributed.process_group import Parcel, Route, Share, World, deal, routes
from agilerl_like.hpo import Genome, HyperparameterConfig, Mutation, Offspring
from agilerl_like.networks.custom import CustomSpec

T = TypeVar("T")


class Card(NamedTuple):
    """What evolution must know of a member; all processes know it of all."""

    uid: int
    fitness: float
    genome: Genome
    hp_config: HyperparameterConfig

    @classmethod
    def of(cls, agent: Individual) -> Card:
        """The card of a member as it is now."""
        return cls(agent.index, agent.fitness[-1] if agent.fitness else math.nan, agent.genome, agent.hp_config)


class Unsent(NamedTuple):
    """What members have that cannot be sent: functions, and the code of networks of the user's own."""

    hooks: tuple[Callable[[Any], None], ...]
    networks: CustomSpec | None

    @classmethod
    def of(cls, population: Individuals | None) -> Unsent:
        """What the members of a population have of it: all the same."""
        first = None if population is None else population[0]
        return cls((), None) if first is None else cls(first.mutation_hooks, first.networks_of_its_own)

    def complete(self, parcel: Parcel, device: torch.device) -> Individual:
        """The agent that a parcel was made of, with it."""
        kind = Individual.kind_named(parcel.document["algorithm"], "parcel")
        agent = kind.from_documents(
            parcel.document, parcel.tensors, device=device, where="parcel", networks=self.networks
        )
        for hook in self.hooks:
            agent.register_mutation_hook(hook)
        return agent


class Members:
    """All members of a run; `population` are those that this process has, in the slots of its `share`."""

    def __init__(self, world: World, shares: Sequence[Share], population: Individuals, unsent: Unsent) -> None:
        self.world, self.shares, self.population, self._unsent = world, tuple(shares), population, unsent
        self.size = 1 + max(slot for share in self.shares for slot in share.slots)
        population.join(world.team(self.shares))

    @classmethod
    def of(
        cls,
        world: World,
        kind: type[Individuals],
        population: Individuals | None,
        unsent: Unsent,
    ) -> Members:
        """Deal out the main process's population, as its agents are now.

        `unsent` is what each process must have by itself.

        Raises:
            ConfigurationError: the main process has no population.
        """
        if world.size == 1 and population is not None:
            return cls(world, deal([None] * len(population), 1), population, unsent)
        agents = [] if population is None else list(population)
        parcels = [Parcel(*agent.to_documents()) for agent in agents] if world.is_main else []
        kinds = world.agree([parcel.document["architecture"] for parcel in parcels])
        device = world.agree("" if population is None else population.device.type)
        shares = deal(kinds, world.size)
        at_first = [Share(tuple(range(len(kinds)))), *(Share(()) for _ in shares[1:])]
        arrived = world.move(routes(_needs(shares), at_first), parcels.__getitem__)
        own = [arrived[slot] if slot in arrived else parcels[slot] for slot in shares[world.rank].slots]
        its_device = world.device(torch.device(device))
        return cls(world, shares, kind([unsent.complete(parcel, its_device) for parcel in own]), unsent)

    @property
    def share(self) -> Share:
        """What this process has."""
        return self.shares[self.world.rank]

    @property
    def first(self) -> Individual:
        """One that is here; all have the same kind, spaces and run seed."""
        return self.population[0]

    def here(self) -> dict[int, Individual]:
        """The members that are here, by slot."""
        return dict(zip(self.share.slots, self.population, strict=True))

    # -- what all know

    def tell(self, own: Iterable[T], *, encode: Callable[[T], Any], decode: Callable[[Any], T]) -> list[T]:
        """What is to be said of the members, slot by slot; each process says it of its own."""
        told = self.world.share(dict(zip(self.share.slots, own, strict=True)), encode=encode, decode=decode)
        return [told[slot] for slot in range(self.size)]

    def cards(self) -> list[Card]:
        """What evolution must know, slot by slot."""
        return self.tell(map(Card.of, self.population), encode=self._card_to_json, decode=self._card_from_json)

    def _card_to_json(self, card: Card) -> Any:
        return [card.uid, card.fitness, self.first.genome_to_json(card.genome), card.hp_config.to_json()]

    def _card_from_json(self, data: Any) -> Card:
        uid, fitness, genome, hp_config = data
        return Card(uid, fitness, self.first.genome_from_json(genome), HyperparameterConfig.from_json(hp_config))

    # -- births

    def evolve(self, births: Sequence[Offspring]) -> list[Offspring]:
        """Carry out births, one a slot; return them with what was really done."""
        parents = self.here() | self.fetch((births[slot].parent_slot, rank) for slot, rank in _needs(self.shares))
        done = self.population.evolve([births[slot] for slot in self.share.slots], parents)

        def encode(birth: Offspring) -> Any:
            mutations = [change.to_json() for change in birth.mutations]
            return [birth.slot, mutations, self.first.genome_to_json(birth.genome)]

        def decode(data: Any) -> Offspring:
            slot, mutations, genome = data
            its_genome = self.first.genome_from_json(genome)
            return replace(births[slot], genome=its_genome, mutations=tuple(map(Mutation.from_json, mutations)))

        return self.tell(done, encode=encode, decode=decode)

    def fetch(self, wanted: Iterable[tuple[int, int]]) -> dict[int, Individual]:
        """Let members travel; `wanted` names (slot, rank) for all processes alike. Returns those that came here."""
        arrived = self.world.move(routes(wanted, self.shares), self.pack)
        return {slot: self.unpack(parcel) for slot, parcel in arrived.items()}

    def holder(self, slot: int) -> int:
        """The first process that has a member."""
        return next(rank for rank, share in enumerate(self.shares) if slot in share.slots)

    def spread(self, source: int, agents: Sequence[Individual | None]) -> list[Individual]:
        """What one process has, on every process; the others say nothing but how many these are."""
        ways = [Route(i, source, rank) for i in range(len(agents)) for rank in range(self.world.size) if rank != source]
        arrived = self.world.move(ways, lambda i: Parcel(*_known(agents[i]).to_documents()))
        return [self.unpack(arrived[i]) if i in arrived else _known(agent) for i, agent in enumerate(agents)]

    def deal_again(self) -> None:
        """Let alike members meet; to be done where nobody has an episode to lose."""
        kinds = self.tell([agent.architecture.to_config() for agent in self.population], encode=dict, decode=dict)
        after = deal(kinds, self.world.size)
        if after == self.shares:
            return
        fitness = self.tell(self.population.fitness, encode=float, decode=float)
        agents = self.here() | self.fetch(_needs(after))
        self.shares = after
        self.population.forget_noise()  # everybody draws anew after this, whether or not they have moved
        self.population.take_over([agents[slot] for slot in self.share.slots])
        self.population.fitness = [fitness[slot] for slot in self.share.slots]

    # -- all of them in one place

    def parcels(self) -> list[Parcel]:
        """Every member, on the main process; others get nothing."""
        arrived = self.world.move(routes(((slot, 0) for slot in range(self.size)), self.shares), self.pack)
        own = {slot: self.pack(slot) for slot in self.share.slots} if self.world.is_main else {}
        return [parcel for _, parcel in sorted((own | arrived).items())]

    def everybody(self) -> Individuals:
        """Every member, on every process."""
        if self.world.size == 1:
            return self.population
        everywhere = [(slot, rank) for slot in range(self.size) for rank in range(self.world.size)]
        agents = self.here() | self.fetch(everywhere)
        return type(self.population)([agents[slot] for slot in range(self.size)])

    def pack(self, slot: int) -> Parcel:
        """A member that is here, ready to travel."""
        return Parcel(*self.here()[slot].to_documents())

    def unpack(self, parcel: Parcel) -> Individual:
        """A member that has arrived."""
        return self._unsent.complete(parcel, self.first.device)


def _known(agent: Individual | None) -> Individual:
    if agent is None:
        raise RuntimeError("an agent is elsewhere")
    return agent


def _needs(shares: Sequence[Share]) -> list[tuple[int, int]]:
    return [(slot, rank) for rank, share in enumerate(shares) for slot in share.slots]
