"""A population: a sequence of agents that act, learn, are tested and evolve as one.

Its members are computed together by one cohort. `act` takes and gives `[P, E, …]` in the order of the members.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, overload

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from agilerl_like import storage
from agilerl_like.algorithms.agent import Agent, custom_networks, numbers_in, values_of
from agilerl_like.algorithms.evaluation import Episodes, evaluate
from agilerl_like.envs.transitions import TransitionEnv
from agilerl_like.errors import CheckpointError, ConfigurationError, NoHealthyMember
from agilerl_like.hpo import Birth, Mutation, Mutations
from agilerl_like.hpo.evolution import first_generation
from agilerl_like.learning.apart import Apart
from agilerl_like.learning.cohort import Cohort
from agilerl_like.learning.rollout import Rollout
from agilerl_like.learning.sequences import Cut
from agilerl_like.learning.team import SOLO, Team
from agilerl_like.learning.update import Report
from agilerl_like.networks.custom import CustomSpec
from agilerl_like.seeding import Purpose, generator

NOISE_TICKS = 128
"""Steps for which action noise is drawn at once."""


class Population(Sequence[Agent]):
    """P agents of one kind, spaces and run seed."""

    def __init__(self, agents: Iterable[Agent]) -> None:
        self.agents = list(agents)
        if not self.agents:
            raise ConfigurationError("a population of 0 agents cannot evolve; size must be at least 1")
        first = self.agents[0]
        for agent in self.agents:
            if type(agent) is not type(first):
                raise ConfigurationError(
                    f"agents of a population are of one kind; found {type(first).__name__} and {type(agent).__name__}"
                )
            if (agent.observation_space, agent.action_space) != (first.observation_space, first.action_space):
                raise ConfigurationError("all agents of a population need the same observation_space and action_space")
        if len({agent.index for agent in self.agents}) < len(self.agents):
            raise ConfigurationError(
                f"index={[agent.index for agent in self.agents]} must be different for every agent of a population"
            )
        self.fitness: list[float] = []
        """Last evaluation of each member, in their order; empty before the first."""
        self.team = SOLO
        """With whom its members learn: several processes may share the envs of one."""
        self._cohort: Cohort | Apart | None = None
        self._noise: tuple[Tensor, int] | None = None

    # -- a sequence

    @overload
    def __getitem__(self, place: int) -> Agent: ...
    @overload
    def __getitem__(self, place: slice) -> list[Agent]: ...
    def __getitem__(self, place: int | slice) -> Agent | list[Agent]:
        return self.agents[place]

    def __len__(self) -> int:
        return len(self.agents)

    def __iter__(self) -> Iterator[Agent]:
        return iter(self.agents)

    def __repr__(self) -> str:
        return f"Population({len(self)} x {self.agents[0].algo}, {len(self.cohort.stacks)} stacks)"

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.agents[0].seed

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.agents[0].device

    @property
    def best(self) -> Agent:
        """The member with the highest last fitness; of equal ones, that of the lowest index."""
        return max(
            self.agents, key=lambda agent: (_rank(agent.fitness[-1]) if agent.fitness else -np.inf, -agent.index)
        )

    # -- the cohort

    @property
    def cohort(self) -> Cohort | Apart:
        """What computes the members, together or apart; made again where one has changed its structure or network."""
        homes = [] if self._cohort is None else self._cohort.homes
        if len(homes) != len(self) or not all(map(Agent.lives_in, self.agents, homes)):
            self._cohort = self._settle()
        return cast(Cohort, self._cohort)

    def _settle(self) -> Cohort | Apart:
        return Apart([_home([agent], self.team) for agent in self]) if self._is_apart else _home(self, self.team)

    @property
    def _is_apart(self) -> bool:
        return self.agents[0].execution.per_member

    def set_training_mode(self, training: bool) -> None:
        """Switch every member between exploring and acting as well as it can."""
        self.cohort.train(training)
        for agent in self.agents:
            agent.set_training_mode(training)

    # -- acting

    def act(
        self, observations: Tensor, state: Tensor, mask: Tensor | None = None, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Raw actions `[P, E, A]` for encoded observations `[P, E, D]` and masks `[P, E, choices]`.

        `state` `[P, E, M, K, H]` is what is remembered of the episode so far; what is remembered then comes back with
        the actions. Without noise `[P, E, …]` they are the most likely ones.
        """
        return self.cohort.act(observations, state, noise, mask)

    @property
    def nothing(self) -> Tensor:
        """What is remembered when an episode begins: zeros `[M, K, H]`, with room for what any member remembers."""
        return torch.zeros(self.cohort.state_shape, dtype=self.agents[0].network.dtype, device=self.device)

    def next_noise(self, envs: int) -> Tensor:
        """The action noise `[P, E, …]` of the next step, from each member's own stream."""
        block, used = self._noise or (None, 0)
        if block is None or used == len(block) or block.shape[2] != envs:
            block, used = torch.stack([_noise_block(agent, envs) for agent in self.agents], 1), 0
        self._noise = block, used + 1
        return block[used]

    def forget_noise(self) -> None:
        """Draw new noise for everybody from here on: what follows does not depend on how much was used before."""
        self._noise = None

    def to_env(self, raw: Tensor) -> Tensor:
        """The env's actions `[P E, …]` for raw actions `[P, E, A]`, on the device."""
        in_env = self.agents[0].distribution.in_env
        if self._is_apart:  # even what is done number by number may be done otherwise at another place
            return torch.cat([in_env(its.clone()) for its in raw])
        return in_env(raw.reshape(-1, raw.shape[-1]))

    # -- learning

    def learn(self, places: Sequence[int], window: Callable[[list[int], int], Rollout]) -> dict[int, Report]:
        """Let some members learn; `window(places, steps)` gives their rollouts.

        Members with rollouts and minibatches of equal size learn together. Returns a report `[1]` for each place.
        """
        reports: dict[int, Report] = {}
        due: dict[tuple[int, int, Cut, bool], list[int]] = {}
        for place in places:
            agent = self.agents[place]
            alike = (agent.rollout_steps, agent.batch_size, agent.cut, agent.network.is_recurrent)
            due.setdefault(alike, []).append(place)
        for (steps, batch_size, cut, _), together in due.items():
            agents = [self.agents[place] for place in together]
            rollout = self.team.whole(window(together, steps))

            def shuffle(epoch: int, count: int, agents: list[Agent] = agents) -> Tensor:
                return torch.stack([agent.shuffle(epoch, count) for agent in agents]).to(self.device)

            report = self.cohort.learn(
                together, rollout, values_of(agents), batch_size=batch_size, cut=cut, shuffle=shuffle
            )
            numbers = torch.stack(report).cpu()  # one exchange with the host for all members
            for i, (place, agent) in enumerate(zip(together, agents, strict=True)):
                agent.learned(rollout.of_members(torch.tensor([i], device=self.device)))
                reports[place] = Report(*numbers[:, i : i + 1])
        return reports

    # -- testing

    def play(self, env: TransitionEnv, seeds: Sequence[int], max_steps: int | None = None) -> Episodes:
        """Play one episode for each seed and each member, without exploration.

        The members' envs are equal blocks of the env's rows.
        """

        def policy(encoded: Tensor, mask: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
            shape = len(self), -1
            its_mask = None if mask is None else mask.unflatten(0, shape)
            actions, after = self.act(encoded.unflatten(0, shape), state.unflatten(0, shape), its_mask)
            return self.to_env(actions), after.flatten(0, 1)

        training = self.agents[0].training
        self.set_training_mode(False)
        try:
            return evaluate(
                policy,
                env,
                seeds,
                members=len(self),
                encoding=self.agents[0].encoding,
                nothing=self.nothing,
                max_steps=max_steps,
            )
        finally:
            self.set_training_mode(training)

    def test(self, env: gymnasium.vector.VectorEnv, **kwargs: Any) -> list[float]:
        """Test every member as `Agent.test` does, and return the mean scores."""
        self.fitness = [agent.test(env, **kwargs) for agent in self.agents]
        return self.fitness

    # -- evolution

    def repair(self, hyperparameters: dict[str, int | float]) -> dict[str, int | float]:
        """Mend hyperparameters that depend on each other; all members have the same rules."""
        return self.agents[0].repair(hyperparameters)

    def evolve(self, births: Sequence[Birth], parents: Mapping[int, Agent] | None = None) -> tuple[Birth, ...]:
        """Carry out births, one a member; return them with what was really done.

        `parents` are those whom the births name, by their slots: the members themselves, if this is the whole
        population. Every child is made before anybody is replaced, so a parent that dies in the same generation still
        has its children.
        """
        for agent in self.agents:
            agent.settle()
        parents = dict(enumerate(self.agents)) if parents is None else parents
        heirs: list[Agent] = []
        done: list[Birth] = []
        for birth in births:
            parent = parents[birth.parent_slot]
            if birth.survives and all(change.kind == "none" for change in birth.mutations):
                heirs.append(parent)
                done.append(birth)
                continue
            child, changes = parent.bear(birth)
            heirs.append(child)
            done.append(_as_done(birth, child, changes))
        self.take_over(heirs)
        return tuple(done)

    def mutate(self, mutations: Mutations, *, pre_training: bool = False) -> Population:
        """Mutate every member but the best (all of them with `pre_training`), in place; return the population."""
        if pre_training:
            self.evolve(
                first_generation(
                    [agent.genome for agent in self.agents],
                    [agent.index for agent in self.agents],
                    [agent.hp_config for agent in self.agents],
                    mutations=mutations,
                    seed=self.seed,
                    repair=self.repair,
                )
            )
            return self
        spared = None if mutations.mutate_elite else self.best
        for agent in self.agents:
            if agent is not spared:
                agent.mutate(mutations, generator(self.seed, Purpose.BY_HAND, agent.index, agent.updates))
        return self

    def reselect(self, parents: Sequence[int] | np.ndarray) -> Population:
        """A new population of clones of these parents; the first copy of each keeps its index."""
        spare = max(agent.index for agent in self.agents) + 1
        seen: set[int] = set()
        agents = []
        for parent in map(int, parents):
            index = None if parent not in seen else spare
            spare += parent in seen
            seen.add(parent)
            agents.append(self.agents[parent].clone(index=index))
        return Population(agents)

    def replace(self, place: int, parent: int, index: int) -> None:
        """Put a clone of one member into another's place, where its rows stand ready or not."""
        heirs = list(self.agents)
        heirs[place] = self.agents[parent].clone(index=index)
        self.take_over(heirs)

    def take_over(self, heirs: list[Agent]) -> None:
        """Put heirs in their places; those who stay keep their noise, newcomers draw of their own."""
        before, self.agents = self.agents, heirs
        if self._noise is not None:
            block, _ = self._noise
            for place, (new, old) in enumerate(zip(heirs, before, strict=True)):
                if new is not old:
                    block[:, place] = _noise_block(new, block.shape[2])

    # -- saving

    def to_documents(self) -> tuple[dict[str, Any], dict[str, Mapping[str, Tensor]]]:
        """Everything about the population: documents by name, and tensors by name."""
        return documents_of([agent.to_documents() for agent in self.agents], self.fitness)

    def save_checkpoint(self, path: str | os.PathLike[str], **more: Any) -> Path:
        """Write all members to one folder; `more` are documents of the caller's, by name."""
        documents, tensors = self.to_documents()
        return storage.write_folder(path, "population", {**documents, **more}, tensors)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        device: str | torch.device = "cpu",
        *,
        actor_network: nn.Module | None = None,
        critic_network: nn.Module | None = None,
    ) -> Population:
        """Load a population that `save_checkpoint` wrote; networks of your own must be given again.

        Raises:
            CheckpointError: the folder is missing, damaged or foreign, or was written with networks of your own.
        """
        networks = custom_networks(actor_network, critic_network)
        return cls.from_documents(
            *storage.read_folder(path, "population"), device=device, where=str(path), networks=networks
        )

    @classmethod
    def from_documents(
        cls,
        documents: Mapping[str, Any],
        tensors: Mapping[str, Mapping[str, Tensor]],
        *,
        device: str | torch.device,
        where: str,
        networks: CustomSpec | None = None,
    ) -> Population:
        """Build the population that `to_documents` described.

        Raises:
            CheckpointError: it does not fit together.
        """
        names = sorted(name for name in documents if name.startswith("member-"))
        facts = documents.get("population")
        if not isinstance(facts, dict) or facts.get("size") != len(names):
            raise CheckpointError(f"path={where!r} does not hold as many members as it says: {json.dumps(facts)[:200]}")
        kind = Agent.kind_named(facts.get("algorithm"), where)
        agents = [
            kind.from_documents(
                documents[name], tensors.get(name, {}), device=device, where=f"{where}/{name}", networks=networks
            )
            for name in names
        ]
        try:
            population = cls(agents)
            population.fitness = numbers_in(facts, "fitness")
        except (ConfigurationError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"path={where!r} does not fit together: {error!s:.500}") from error
        return population


def make_population(
    kind: type[Agent],
    size: int,
    observation_space: gymnasium.Space,
    action_space: gymnasium.Space,
    *,
    sample: bool,
    settings: dict[str, Any],
) -> Population:
    """Make `size` agents of one kind and run seed; with `sample` their hyperparameters are draws from their ranges."""
    if not isinstance(size, int) or size < 1:
        raise ConfigurationError(f"size={size!r} must be an integer of at least 1")
    if "index" in settings:
        raise ConfigurationError("index is given by the population, from 0 on; leave it out")
    if sample:  # what is given need not lie in the ranges that it is drawn from
        ranges = settings.get("hp_config") or {}
        settings = settings | {name: r.clip(settings.get(name, r.min)) for name, r in ranges.items()}
    make: Callable[..., Agent] = kind
    first = make(observation_space, action_space, index=0, **settings)
    settings = settings | {"seed": first.seed}
    agents = [first, *(make(observation_space, action_space, index=i, **settings) for i in range(1, size))]
    if sample:
        for agent in agents:
            draw = agent.hp_config.sample(generator(agent.seed, Purpose.INITIAL_HYPERPARAMETERS, agent.index))
            for name, value in agent.repair({**agent.genome.hyperparameters, **draw}).items():
                setattr(agent, name, value)
    return Population(agents)


def documents_of(
    members: Sequence[tuple[dict[str, Any], Mapping[str, Tensor]]], fitness: Sequence[float]
) -> tuple[dict[str, Any], dict[str, Mapping[str, Tensor]]]:
    """A population's documents and tensors by name, from what its members' `to_documents` gave."""
    names = [f"member-{place:03d}" for place in range(len(members))]
    facts = {"algorithm": members[0][0]["algorithm"], "size": len(members), "fitness": list(fitness)}
    documents = {"population": facts, **dict(zip(names, (document for document, _ in members), strict=True))}
    return documents, dict(zip(names, (tensors for _, tensors in members), strict=True))


def mend(population: Population, sick: Sequence[int], uids: Sequence[int]) -> list[tuple[int, int]]:
    """Replace members whose numbers are not finite any more by clones of the best healthy one, of the given uids.

    Returns (place, parent's place) for each that was replaced.

    Raises:
        NoHealthyMember: nobody is healthy.
    """
    if not sick:
        return []
    healthy = [place for place in range(len(population)) if place not in sick]
    if not healthy:
        raise NoHealthyMember(
            "every member's loss or weights are not finite: lower lr, or look at the rewards and observations"
        )
    parent = max(
        healthy,
        key=lambda place: (_rank(population[place].fitness[-1]) if population[place].fitness else -np.inf, -place),
    )
    for place, uid in zip(sick, uids, strict=True):
        population.replace(place, parent, uid)
    return [(place, parent) for place in sick]


def _home(agents: Sequence[Agent], team: Team) -> Cohort:
    """Let agents live in a cohort of their own."""
    first = agents[0]
    cohort = Cohort(
        [agent.network for agent in agents],
        [agent.optimizer for agent in agents],
        build=first.build,
        execution=first.execution,
        batch_size=sum(agent.batch_size for agent in agents) / len(agents),
        team=team,
    )
    cohort.train(first.training)
    for row, agent in enumerate(agents):
        agent.join(cohort, row)
    return cohort


def _noise_block(agent: Agent, envs: int) -> Tensor:
    return agent.noise((NOISE_TICKS, envs))  # [ticks, E, …]


def _as_done(birth: Birth, child: Agent, changes: tuple[Mutation, ...]) -> Birth:
    return Birth(birth.generation, birth.slot, birth.uid, birth.parent_uid, birth.parent_slot, child.genome, changes)


def _rank(fitness: float) -> float:
    return fitness if np.isfinite(fitness) else -np.inf
