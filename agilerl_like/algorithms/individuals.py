"""BasePopulation in a row, who are chosen, replaced, tested and saved as one: what all populations have in common.

How they act and learn is for the kinds to say.
"""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from agilerl_like.algorithms.episode_guard import never
from agilerl_like.algorithms.evaluation import Episodes, EvalEnv, GroupPolicy, eval_mode, evaluate
from agilerl_like.algorithms.evolvable_algorithm import AlgorithmT, EvolvableAlgorithm
from agilerl_like.algorithms.ppo_config import COMMON
from agilerl_like.algorithms.serialization import read_floats, read_population
from agilerl_like.errors import CheckpointError, ConfigurationError, PopulationDivergedError
from agilerl_like.hpo import Explorer, Mutation, Offspring, RLParameter
from agilerl_like.hpo.evolution import pre_training_mutations
from agilerl_like.learning.team import SOLO, Team
from agilerl_like.networks.custom import CustomSpec
from agilerl_like.resources import check_memory
from agilerl_like.seeding import Purpose, generator
from agilerl_like.storage import safe_folder

PopulationT = TypeVar("PopulationT", bound="BasePopulation")
Stored: TypeAlias = tuple[dict[str, Any], Mapping[str, Tensor]]
"""The document and the tensors of one agent."""
BEST = "champion"
"""Name of the best agent's document in the folder of a population or a checkpoint."""

MEMBERS_SHOWN = 16
"""Members that `repr` shows."""


class BasePopulation(Sequence[AlgorithmT], Generic[AlgorithmT]):
    """P agents of one kind, spaces and run seed."""

    kind: type[EvolvableAlgorithm]
    """Whom it holds."""

    def __init__(self, agents: Iterable[AlgorithmT]) -> None:
        self.agents = list(agents)
        if not self.agents:
            raise ConfigurationError("a population of 0 agents cannot evolve; size must be at least 1")
        first = self.agents[0]
        for agent in self.agents:
            if not isinstance(agent, self.kind):
                raise ConfigurationError(
                    f"{type(agent).__name__} cannot be in {type(self).__name__}; allowed are {self.kind.__name__}"
                )
            if type(agent) is not type(first):
                raise ConfigurationError(
                    f"agents of a population are of one kind; found {type(first).__name__} and {type(agent).__name__}"
                )
            if (agent.observation_space, agent.action_space) != (first.observation_space, first.action_space):
                raise ConfigurationError("all agents of a population need the same observation_space and action_space")
        for name in ("seed", *COMMON):
            values = [getattr(agent, name, None) for agent in self.agents]
            if any(value != values[0] for value in values):
                raise ConfigurationError(f"{name}={values} must be the same for all agents of a population")
        if len({agent.index for agent in self.agents}) < len(self.agents):
            raise ConfigurationError(
                f"index={[agent.index for agent in self.agents]} must be different for every agent of a population"
            )
        self.fitness: list[float] = []
        """Last evaluation of each member, in their order; empty before the first."""
        self.best_of_run: AlgorithmT | None = None
        """A copy of the best agent that a run has found in any generation, confirmed on fresh episodes."""
        self.team: Team = SOLO
        """With whom its members learn: several processes may share the envs of one."""

    def __repr__(self) -> str:
        tested = [agent.fitness[-1] for agent in self.agents if agent.fitness and np.ndim(agent.fitness[-1]) == 0]
        best = f"best fitness {max(map(sortable_fitness, tested)):.4g}" if tested else "not tested yet"
        members = "".join(f"\n  {agent!r}," for agent in self.agents[:MEMBERS_SHOWN])
        more = f"\n  … {len(self) - MEMBERS_SHOWN} more" if len(self) > MEMBERS_SHOWN else ""
        return f"{type(self).__name__}({len(self)} x {self.agents[0].algo}, {best}:{members}{more}\n)"

    # -- a sequence

    @overload
    def __getitem__(self, place: int) -> AlgorithmT: ...
    @overload
    def __getitem__(self, place: slice) -> list[AlgorithmT]: ...
    def __getitem__(self, place: int | slice) -> AlgorithmT | list[AlgorithmT]:
        return self.agents[place]

    def __len__(self) -> int:
        return len(self.agents)

    def __iter__(self) -> Iterator[AlgorithmT]:
        return iter(self.agents)

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.agents[0].seed

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.agents[0].device

    @property
    def best(self) -> AlgorithmT:
        """The best agent that a run found in any generation, confirmed on fresh episodes; without a run, the fittest.

        It is a copy of the member as it was then: the member itself may have trained on, changed or been replaced.
        """
        return self.fittest if self.best_of_run is None else self.best_of_run

    @property
    def fittest(self) -> AlgorithmT:
        """The member with the highest last fitness; of equal ones, that of the lowest index."""
        return max(
            self.agents,
            key=lambda agent: (sortable_fitness(agent.fitness[-1]) if agent.fitness else -np.inf, -agent.index),
        )

    # -- what differs between kinds

    @abstractmethod
    def set_training_mode(self, training: bool) -> None:
        """Switch every member between exploring and acting as well as it can."""

    def join(self, team: Team) -> None:
        """Learn with others who have the same members."""
        self.team = team

    @abstractmethod
    def reset_noise(self) -> None:
        """Draw new noise for everybody from here on: what follows does not depend on how much was used before."""

    @property
    @abstractmethod
    def by_group(self) -> Mapping[str, Any]:
        """The population of each group of agents."""

    @property
    def training(self) -> bool:
        """Whether the members explore."""
        return self.agents[0].training

    @property
    @abstractmethod
    def group_policies(self) -> dict[str, GroupPolicy]:
        """The policy of each group of agents, which acts in equal blocks of rows, one for each member."""

    def run_episodes(
        self,
        env: EvalEnv,
        seeds: Sequence[int],
        max_steps: int | None = None,
        *,
        should_stop: Callable[[], bool] = never,
    ) -> Episodes:
        """Play one episode for each seed and each member, without exploration.

        The members' envs are equal blocks of the env's rows.
        """
        self.agents[0].check_env(env)
        with eval_mode(self):
            return evaluate(
                self.group_policies.values(),
                env,
                seeds,
                members=len(self),
                max_steps=max_steps,
                should_stop=should_stop,
            )

    @abstractmethod
    def set_members(self, heirs: list[AlgorithmT]) -> None:
        """Put heirs in their places; those who stay keep their noise, newcomers draw of their own."""

    # -- evolution

    def repair(self, hyperparameters: dict[str, int | float]) -> dict[str, int | float]:
        """Mend hyperparameters that depend on each other; all members have the same rules."""
        return self.agents[0].repair(hyperparameters)

    def evolve(
        self, births: Sequence[Offspring], parents: Mapping[int, AlgorithmT] | None = None
    ) -> tuple[Offspring, ...]:
        """Carry out births, one a member; return them with what was really done.

        `parents` are those whom the births name, by their slots: the members themselves, if this is the whole
        population. Every child is made before anybody is replaced, so a parent that dies in the same generation still
        has its children.
        """
        for agent in self.agents:
            agent.finish_blend()
        parents = dict(enumerate(self.agents)) if parents is None else parents
        heirs: list[AlgorithmT] = []
        done: list[Offspring] = []
        for birth in births:
            parent = parents[birth.parent_slot]
            if birth.survives and all(change.kind == "none" for change in birth.mutations):
                heirs.append(parent)
                done.append(birth)
                continue
            child, changes = parent.make_offspring(birth)
            heirs.append(child)
            done.append(_as_done(birth, child, changes))
        self.set_members(heirs)
        return tuple(done)

    def mutate(self: PopulationT, mutations: Explorer, *, pre_training: bool = False) -> PopulationT:
        """Mutate every member but the fittest (all of them with `pre_training`), in place; return the population.

        This is mutation by hand, drawn by `rand_seed`; before training without one, as the population's seed has it.
        """
        if pre_training and mutations.rand_seed is None:
            self.evolve(
                pre_training_mutations(
                    [agent.genome for agent in self.agents],
                    [agent.index for agent in self.agents],
                    [agent.hp_config for agent in self.agents],
                    explorer=mutations,
                    seed=self.seed,
                    repair=self.repair,
                )
            )
            return self
        spared = None if mutations.mutate_elite or pre_training else self.fittest
        for agent in self.agents:
            if agent is not spared:
                agent.mutate(mutations, mutations.manual_rng, pre_training=pre_training)
        return self

    def clone_selected(self: PopulationT, parents: Sequence[int] | np.ndarray) -> PopulationT:
        """A new population of clones of these parents; the first copy of each keeps its index."""
        spare = max(agent.index for agent in self.agents) + 1
        seen: set[int] = set()
        agents = []
        for parent in map(int, parents):
            index = None if parent not in seen else spare
            spare += parent in seen
            seen.add(parent)
            agents.append(self.agents[parent].clone(index=index))
        return type(self)(agents)

    def replace(self, place: int, parent: int, index: int) -> None:
        """Put a clone of one member into another's place, where its rows stand ready or not."""
        heirs = list(self.agents)
        heirs[place] = self.agents[parent].clone(index=index)
        self.set_members(heirs)

    # -- saving

    def to_documents(self) -> tuple[dict[str, Any], dict[str, Mapping[str, Tensor]]]:
        """Everything about the population: documents by name, and tensors by name."""
        best = None if self.best_of_run is None else self.best_of_run.to_documents()
        return population_documents([agent.to_documents() for agent in self.agents], self.fitness, best)

    def save_checkpoint(self, path: str | os.PathLike[str], **more: Any) -> Path:
        """Write all members to one folder; `more` are documents of the caller's, by name."""
        documents, tensors = self.to_documents()
        return safe_folder.write_folder(path, "population", {**documents, **more}, tensors)

    @classmethod
    def load(cls: type[PopulationT], path: str | os.PathLike[str], device: str | torch.device = "cpu") -> PopulationT:
        """Load a population that `save_checkpoint` wrote, or that of a checkpoint, or the last one of a run.

        Raises:
            CheckpointError: the folder is missing, damaged or foreign.
        """
        return cls.from_documents(*read_population(path), device=device, where=str(path))

    @classmethod
    def from_documents(
        cls: type[PopulationT],
        documents: Mapping[str, Any],
        tensors: Mapping[str, Mapping[str, Tensor]],
        *,
        device: str | torch.device,
        where: str,
        networks: CustomSpec | None = None,
    ) -> PopulationT:
        """Build the population that `to_documents` described.

        Raises:
            CheckpointError: it does not fit together.
        """
        names = sorted(name for name in documents if name.startswith("member-"))
        facts = documents.get("population")
        if not isinstance(facts, dict) or facts.get("size") != len(names):
            raise CheckpointError(f"path={where!r} does not hold as many members as it says: {json.dumps(facts)[:200]}")
        kind = cls.kind.class_by_name(facts.get("algorithm"), where)
        agents = [
            kind.from_documents(
                documents[name], tensors.get(name, {}), device=device, where=f"{where}/{name}", networks=networks
            )
            for name in names
        ]
        try:
            population = cls(agents)
            population.fitness = read_floats(facts, "fitness")
            if BEST in documents:
                population.best_of_run = kind.from_documents(
                    documents[BEST], tensors.get(BEST, {}), device=device, where=f"{where}/{BEST}", networks=networks
                )
        except (ConfigurationError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"path={where!r} does not fit together: {error!s:.500}") from error
        return population


def make_members(
    kind: type[AlgorithmT],
    size: int,
    observation_space: Any,
    action_space: Any,
    *,
    sample: bool,
    settings: dict[str, Any],
) -> list[AlgorithmT]:
    """Make `size` agents of one kind and run seed; `sample`: hyperparameters of all but the first are drawn.

    The first one keeps the values given, moved into their ranges, so that what was given is part of the search.
    """
    if not isinstance(size, int) or size < 1:
        raise ConfigurationError(f"size={size!r} must be an integer of at least 1")
    if "index" in settings:
        raise ConfigurationError("index is given by the population, from 0 on; leave it out")
    if sample:  # what is given need not lie in the ranges that it is drawn from
        ranges = settings.get("hp_config") or {}
        settings = settings | {name: _start_in(range_, settings.get(name)) for name, range_ in ranges.items()}
    make: Callable[..., AlgorithmT] = kind
    first = make(observation_space, action_space, index=0, **settings)
    check_memory(f"size={size}", size, first.footprint, "members")
    settings = settings | {"seed": first.seed}
    agents = [first, *(make(observation_space, action_space, index=i, **settings) for i in range(1, size))]
    if sample:
        for agent in agents[1:]:
            draw = agent.hp_config.sample(generator(agent.seed, Purpose.INITIAL_HYPERPARAMETERS, agent.index))
            agent.assign(agent.repair({**agent.genome.hyperparameters, **draw}))
    return agents


def _start_in(range_: RLParameter, value: Any) -> Any:
    """The nearest value of a range, any for None; what is no number is for the constructor to judge."""
    if value is None:
        return range_.min
    return range_.clip(value) if isinstance(value, int | float) else value


def population_documents(
    members: Sequence[Stored], fitness: Sequence[float], best: Stored | None = None
) -> tuple[dict[str, Any], dict[str, Mapping[str, Tensor]]]:
    """A population's documents and tensors by name, from what `to_documents` of each agent returned."""
    stored = {f"member-{place:03d}": member for place, member in enumerate(members)}
    stored |= {} if best is None else {BEST: best}
    facts = {"algorithm": members[0][0]["algorithm"], "size": len(members), "fitness": list(fitness)}
    documents = {"population": facts, **{name: document for name, (document, _) in stored.items()}}
    return documents, {name: tensors for name, (_, tensors) in stored.items()}


def replace_diverged(population: BasePopulation, sick: Sequence[int], uids: Sequence[int]) -> list[tuple[int, int]]:
    """Replace members whose numbers are not finite any more by clones of the best healthy one, of the given uids.

    Returns (place, parent's place) for each that was replaced.

    Raises:
        PopulationDivergedError: nobody is healthy.
    """
    if not sick:
        return []
    healthy = [place for place in range(len(population)) if place not in sick]
    if not healthy:
        raise PopulationDivergedError(
            "every member's loss or weights are not finite: lower lr, or look at the rewards and observations"
        )
    parent = max(
        healthy,
        key=lambda place: (
            sortable_fitness(population[place].fitness[-1]) if population[place].fitness else -np.inf,
            -place,
        ),
    )
    for place, uid in zip(sick, uids, strict=True):
        population.replace(place, parent, uid)
    return [(place, parent) for place in sick]


def _as_done(birth: Offspring, child: EvolvableAlgorithm, changes: tuple[Mutation, ...]) -> Offspring:
    return Offspring(
        birth.generation, birth.slot, birth.uid, birth.parent_uid, birth.parent_slot, child.genome, changes
    )


def sortable_fitness(fitness: float) -> float:
    """What members are ordered by: a fitness that is not finite is the lowest."""
    return fitness if np.isfinite(fitness) else -np.inf
