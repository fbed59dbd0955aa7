"""Populations: sequences of agents of one algorithm that act, learn, are tested, evolve and are saved together."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar, cast, overload

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

from agilerl_like.algorithms.architectures import custom_spec
from agilerl_like.algorithms.episode_guard import never_stop
from agilerl_like.algorithms.evaluation import Episodes, EvalEnv, GroupPolicy, eval_mode, evaluate
from agilerl_like.algorithms.evolvable_algorithm import (
    AlgorithmT,
    EvolvableAlgorithm,
    class_by_name,
    planned_members,
)
from agilerl_like.algorithms.learner import Learner
from agilerl_like.algorithms.learner_group import LearnerGroup
from agilerl_like.algorithms.learner_host import ATTRIBUTES
from agilerl_like.algorithms.presets import reads_presets
from agilerl_like.algorithms.rl_algorithm import RLAlgorithm
from agilerl_like.algorithms.serialization import read_floats, read_population
from agilerl_like.algorithms.settings import COMMON, check_values, setting_names, start_in, with_types
from agilerl_like.errors import (
    CheckpointError,
    ConfigurationError,
    PopulationDivergedError,
    check_argument_names,
    foreign_setting,
    is_count,
)
from agilerl_like.hpo import Explorer, HyperparameterConfig, Offspring
from agilerl_like.hpo.evolution import pre_training_mutations
from agilerl_like.learning.gradient_sync import NO_SYNC, GradientSync
from agilerl_like.learning.per_member_learner import PerMemberLearner
from agilerl_like.learning.population_learner import PopulationLearner
from agilerl_like.networks.custom import CustomSpec
from agilerl_like.resources import check_memory
from agilerl_like.seeding import Purpose, integer
from agilerl_like.storage import safe_folder
from agilerl_like.storage.run_names import BEST_DOCUMENT

PopulationT = TypeVar("PopulationT", bound="BasePopulation")
Stored: TypeAlias = tuple[dict[str, Any], Mapping[str, Tensor]]
"""The document and the tensors of one agent."""
ALL_DIVERGED = "every member's loss or weights are not finite: lower lr, or look at the rewards and observations"
"""Message of the error where no member is left that can be cloned."""

MEMBERS_SHOWN = 16
"""Members that `repr` shows."""


class BasePopulation(Sequence[AlgorithmT], Generic[AlgorithmT]):
    """P agents of one algorithm, with equal spaces and run seed."""

    kind: type[EvolvableAlgorithm] = EvolvableAlgorithm
    """The class of its members."""

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
        self._share_drawn_seeds()
        self.check_settings()
        self.fitness: list[float] = []
        """Each member's last evaluation; empty before the first."""
        self.best_of_run: AlgorithmT | None = None
        """A copy of the best agent of any generation of a run, confirmed on new episodes."""
        self.outcome = ""
        """Why the run that returned the population ended, such as "budget spent" or "interrupted"; "" without a run."""
        self.gradient_sync: GradientSync = NO_SYNC
        """The processes that share the envs of each member."""
        self.by_group = {group: first.group_class(self, group) for group in first.learners}
        """The learners of each group of agents, in the order of the members."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, but none with the name of a setting, here or in another system, which the members have.

        Raises:
            AttributeError: it is a setting of the members; setting it here would have no effect.
        """
        for agent in vars(self).get("agents", ())[:1]:
            settings, foreign = setting_names(agent.config), foreign_setting(name)
            own = name if name in settings or foreign is None else foreign.name
            if own in settings:
                raise AttributeError(
                    f"{name} of a population has no effect, since each member has its own {own}; allowed is "
                    f"`for agent in pop: agent.{ATTRIBUTES.get(own, own)} = …`"
                )
        super().__setattr__(name, value)

    def check_settings(self) -> None:
        """Raise ConfigurationError unless settings of the common computation and devices are equal, and indices differ.

        An attribute of a member may have been set since the population was made.
        """
        for name in ("seed", *COMMON):
            values = [getattr(agent, ATTRIBUTES.get(name, name), None) for agent in self.agents]
            if any(value != values[0] for value in values):
                how = "; agent.seed = … sets it" if name == "seed" else ""
                raise ConfigurationError(f"{name}={values} must be the same for all agents of a population{how}")
        devices = [agent.device for agent in self.agents]
        if len({(device.type, device.index or 0) for device in devices}) > 1:
            raise ConfigurationError(f"device={[*map(str, devices)]} must be the same for all agents of a population")
        if len({agent.index for agent in self.agents}) < len(self.agents):
            raise ConfigurationError(
                f"index={[agent.index for agent in self.agents]} must be different for every agent of a population; "
                "agent.index = … sets it, and that of a copy of an agent, agent.clone(index=…)"
            )

    def _share_drawn_seeds(self) -> None:
        """Give agents that were made without a seed that of the others, or else the first one's."""
        drawn = [agent for agent in self.agents if agent._seed_is_drawn]
        given = [agent for agent in self.agents if not agent._seed_is_drawn]
        for agent in drawn:
            agent.seed = (given or drawn)[0].seed

    def __copy__(self: PopulationT) -> PopulationT:
        """Return an independent copy, as that of an agent is: a shallow one would share the groups of learners.

        Hooks and functions of settings are shared, as an agent's copy shares them: their owners may be large or locked.
        """
        agents = filter(None, (*self.agents, self.best_of_run))
        shared = [(*its._hooks, its.schedules, its.lr_schedule, its.reward_transform) for its in agents]
        return deepcopy(self, {id(one): one for ones in shared for one in ones})

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

    def _refuse_change(self, *_: Any) -> NoReturn:
        """Refuse what lists have, because learners, fitness and the best agent belong to the present members."""
        raise TypeError(
            "the members of a population cannot be replaced, removed or added; allowed is a list of agents in its "
            "place, such as [*pop, *others], each with another index (agent.index = …)"
        )

    __setitem__ = __delitem__ = __add__ = __radd__ = _refuse_change
    append = extend = insert = remove = _refuse_change

    def __iter__(self) -> Iterator[AlgorithmT]:
        return iter(self.agents)

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.agents[0].seed

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self.agents[0].device

    @property
    def best(self) -> AlgorithmT:
        """The best agent of any generation of a run, confirmed on new episodes; without a run, the fittest.

        It is a copy from the time of that evaluation: the member may have trained on, mutated or been replaced since.
        """
        return self.fittest if self.best_of_run is None else self.best_of_run

    @property
    def fittest(self) -> AlgorithmT:
        """The member with the highest last fitness; of equal ones, the one with the lowest index."""
        return max(
            self.agents,
            key=lambda agent: (sortable_fitness(agent.fitness[-1]) if agent.fitness else -np.inf, -agent.index),
        )

    # -- learners

    def set_training_mode(self, training: bool) -> None:
        """Switch every member between exploration and evaluation."""
        for learners in self.by_group.values():
            learners.cohort.train(training)
        for agent in self.agents:
            agent.set_training_mode(training)

    def reset_noise(self) -> None:
        """Discard the action noise drawn ahead, so that later noise does not depend on how much of it was used."""
        for learners in self.by_group.values():
            learners.reset_noise()

    def set_members(self, agents: list[AlgorithmT]) -> None:
        """Replace the members; the action noise drawn ahead for members that stay is kept, if their number does."""
        for agent in self.agents:
            if agent not in agents:
                agent.leave_run()
        if len(agents) != len(self.agents):
            self.agents, before = agents, self.by_group
            self.by_group = {group: agents[0].group_class(self, group) for group in agents[0].learners}
            for group, learners in self.by_group.items():
                learners.detailed = before[group].detailed
            return
        changed = [i for i, (new, old) in enumerate(zip(agents, self.agents, strict=True)) if new is not old]
        self.agents = agents
        for learners in self.by_group.values():
            learners.reset_noise(changed)

    def all_learners(self) -> Iterator[Learner]:
        """Yield the learners of all members."""
        return (learner for learners in self.by_group.values() for learner in learners)

    def finish_blends(self) -> None:
        """Remove the activations that finished mutations blended out."""
        for learner in self.all_learners():
            learner.finish_blend()

    def team_settings(self) -> dict[str, Any]:
        """Return the settings that only multi-agent algorithms have, by the constructor's names."""
        return {}

    # -- experience

    @property
    def keeps_experience(self) -> bool:
        """Whether the members' buffers are kept when the envs are reset."""
        return any(its.keeps_experience for its in self.by_group.values())

    def experience_state(self) -> list[dict[str, Tensor]]:
        """Return the part of each member's experience that checkpoints store, by place; empty if there is none."""
        by_group = [(group, its.experience_state()) for group, its in self.by_group.items()]
        states: list[dict[str, Tensor]] = [{} for _ in self.agents]
        for group, stored in by_group:
            for state, its in zip(states, stored, strict=bool(stored)):
                state.update({f"{group}/{name}" if group else name: tensor for name, tensor in its.items()})
        return states if any(states) else []

    def load_experience(self, stored: Sequence[Mapping[str, Tensor]]) -> None:
        """Begin the next buffers with what `experience_state` returned."""
        for group, its in self.by_group.items():
            if not group:
                its.load_experience(stored)  # files, which are read one after the other
                continue
            prefix = f"{group}/"
            its.load_experience(
                [
                    {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}
                    for state in stored
                ]
            )

    def discard_experience(self) -> None:
        """Begin the next buffers empty."""
        for its in self.by_group.values():
            its.discard_experience()

    # -- evaluation

    @property
    def training(self) -> bool:
        """Whether the members explore."""
        return self.agents[0].training

    @property
    def group_policies(self) -> dict[str, GroupPolicy]:
        """The policy of each group of agents, which acts in equal blocks of rows, one for each member."""
        return {
            group: GroupPolicy(its.best_actions, its[0].encoding, its.initial_hidden_state, its[0].group.layout)
            for group, its in self.by_group.items()
        }

    def _check_env(self, env: Any) -> None:
        """Raise ConfigurationError unless an env adapter has the members' agents or spaces."""
        self.agents[0]._check_env(env)

    def run_episodes(
        self,
        env: EvalEnv,
        seeds: Sequence[int],
        max_steps: int | None = None,
        *,
        with_infos: bool = False,
        should_stop: Callable[[], bool] = never_stop,
    ) -> Episodes:
        """Run one episode for each seed and each member, without exploration.

        The members' envs are equal blocks of the env's rows.
        """
        self._check_env(env)
        with eval_mode(self):
            return evaluate(
                self.group_policies.values(),
                env,
                seeds,
                members=len(self),
                max_steps=max_steps,
                with_infos=with_infos,
                should_stop=should_stop,
            )

    # -- evolution

    def repair(
        self, hyperparameters: dict[str, int | float], hp_config: HyperparameterConfig
    ) -> dict[str, int | float]:
        """Return legal values for hyperparameters that depend on each other, for a member with the given ranges."""
        return self.agents[0].repair(hyperparameters, hp_config)

    def check_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Raise ConfigurationError if one of some hyperparameters has a value that its setting does not allow."""
        check_values(self.agents[0].config, hyperparameters)

    def evolve(
        self, offspring: Sequence[Offspring], parents: Mapping[int, AlgorithmT] | None = None
    ) -> tuple[Offspring, ...]:
        """Replace each member by its offspring; return the offspring with the mutations that were applied.

        `parents` maps `parent_slot` to agents; None: the members themselves, if this is the whole population.
        All children are made before any member is replaced, so every parent is available to all of its children.
        """
        self.finish_blends()
        parents = dict(enumerate(self.agents)) if parents is None else parents
        agents: list[AlgorithmT] = []
        done: list[Offspring] = []
        for one in offspring:
            parent = parents[one.parent_slot]
            if one.survives and all(change.kind == "none" for change in one.mutations):
                agents.append(parent)
                done.append(one)
                continue
            child, changes = parent.make_offspring(one)
            agents.append(child)
            done.append(replace(one, genome=child.genome, mutations=changes))
        self.set_members(agents)
        return tuple(done)

    def mutate(self: PopulationT, mutations: Explorer, *, pre_training: bool = False) -> PopulationT:
        """Mutate every member but the fittest (all of them with `pre_training`), in place; return the population.

        Mutations are drawn by `rand_seed`; without one, those before training are drawn by the population's seed.
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
                    check=self.check_hyperparameters,
                )
            )
            return self
        spared = None if mutations.mutate_elite or pre_training else self.fittest
        for agent in self.agents:
            if agent is not spared:
                agent.mutate(mutations, mutations.manual_rng, pre_training=pre_training)
        return self

    def clone_selected(self: PopulationT, parents: Sequence[int] | np.ndarray) -> PopulationT:
        """Return a population of clones of these parents; the first clone of each keeps its index."""
        spare = max(agent.index for agent in self.agents) + 1
        seen: set[int] = set()
        agents = []
        for parent in map(int, parents):
            index = None if parent not in seen else spare
            spare += parent in seen
            seen.add(parent)
            agents.append(self.agents[parent].clone(index=index))
        return type(self)(agents)

    # -- files

    def to_documents(self) -> tuple[dict[str, Any], dict[str, Mapping[str, Tensor]]]:
        """Return the population's whole state: documents by name, and tensors by name."""
        best = None if self.best_of_run is None else self.best_of_run.to_documents()
        return population_documents([agent.to_documents() for agent in self.agents], self.fitness, best)

    def save_checkpoint(self, path: str | os.PathLike[str], **more: Any) -> Path:
        """Write all members to one folder; `more` are further documents by name.

        Raises:
            ConfigurationError: members cannot be loaded as a population, because a setting or a network was changed.
            CheckpointError: the folder cannot be written.
        """
        self.check_settings()
        documents, tensors = self.to_documents()
        for agent in self.agents:
            for learner in agent.learners.values():
                learner.check_network()
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
        class_for: Callable[[type[Any]], type[Any]] | None = None,
    ) -> PopulationT:
        """Build the population that `to_documents` described.

        `class_for` returns the members' class, given the one that is registered under the algorithm's name.

        Raises:
            CheckpointError: it does not fit together.
        """
        names = sorted((name for name in documents if name.startswith("member-")), key=lambda name: (len(name), name))
        facts = documents.get("population")
        if not isinstance(facts, dict) or facts.get("size") != len(names):
            raise CheckpointError(
                f"path={where!r} holds another number of members than its size: {json.dumps(facts)[:200]}"
            )
        kind = class_by_name(facts.get("algorithm"), where, cls.kind)
        kind = kind if class_for is None else class_for(kind)
        agents = [
            kind.from_documents(
                documents[name], tensors.get(name, {}), device=device, where=f"{where}/{name}", networks=networks
            )
            for name in names
        ]
        try:
            population = cls(agents)
            population.fitness = read_floats(facts, "fitness")
            if BEST_DOCUMENT in documents:
                population.best_of_run = kind.from_documents(
                    documents[BEST_DOCUMENT],
                    tensors.get(BEST_DOCUMENT, {}),
                    device=device,
                    where=f"{where}/{BEST_DOCUMENT}",
                    networks=networks,
                )
        except (ConfigurationError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"path={where!r} does not fit together: {error!s:.500}") from error
        return population


class Population(BasePopulation[RLAlgorithm[Any]]):
    """P single agents. `act` and `learn` take tensors `[P, E, …]` in the order of the members."""

    kind = RLAlgorithm

    @property
    def learners(self) -> LearnerGroup[Any]:
        """The members' learners, which act and learn together."""
        return next(iter(self.by_group.values()))

    @property
    def cohort(self) -> PopulationLearner | PerMemberLearner:
        """The cohort that computes the members; it is rebuilt after a member has got another network."""
        return self.learners.cohort

    @property
    def initial_hidden_state(self) -> Tensor:
        """The hidden state at the start of an episode: zeros `[M, K, H]`, large enough for every member."""
        return self.learners.initial_hidden_state

    def act(
        self, observations: Tensor, state: Tensor, mask: Tensor | None = None, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return raw actions and the next hidden state; see `LearnerGroup.act`."""
        return self.learners.act(observations, state, mask, noise)

    def learn(self, places: Sequence[int], experience: Any) -> dict[int, TensorDict]:
        """Update some members; see `LearnerGroup.learn`, and `PPOLearnerGroup.learn` for PPO."""
        return self.learners.learn(places, experience)

    def test(self, env: gymnasium.vector.VectorEnv, **kwargs: Any) -> list[float]:
        """Test every member as `PPO.test` does, and return the mean scores."""
        self.fitness = [agent.test(env, **kwargs) for agent in self.agents]
        return self.fitness

    @classmethod
    def load(  # pyright: ignore[reportIncompatibleMethodOverride]  # more keywords
        cls,
        path: str | os.PathLike[str],
        device: str | torch.device = "cpu",
        *,
        actor_network: nn.Module | None = None,
        critic_network: nn.Module | None = None,
    ) -> Population:
        """Load a population that `save_checkpoint` wrote, or that of a checkpoint, or the last one of a run.

        A user's own networks must be given again.

        Raises:
            CheckpointError: the folder is missing, damaged or foreign, or was written with networks of your own.
        """
        networks = custom_spec(actor_network, critic_network)
        return cls.from_documents(*read_population(path), device=device, where=str(path), networks=networks)


class PopulationConstructor:
    """Adds the constructor `population` to an algorithm of one policy."""

    @classmethod
    @check_argument_names
    @reads_presets
    def population(
        cls,
        size: int,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        *,
        sample_hyperparameters: bool = False,
        **kwargs: Any,
    ) -> Population:
        """Make a population of `size` agents of one run seed, each with weights and random streams of its own.

        With `sample_hyperparameters` every member but the first starts from a draw of `hp_config`'s ranges; the first
        keeps the values given, moved into their ranges. All other arguments are the constructor's.

        Raises:
            ConfigurationError: `size` is below 1, or as the constructor.
        """
        kind: Any = cls
        return Population(
            make_members(kind, size, observation_space, action_space, sample=sample_hyperparameters, settings=kwargs)
        )


def make_members(
    kind: type[AlgorithmT],
    size: int,
    observation_space: Any,
    action_space: Any,
    *,
    sample: bool,
    settings: dict[str, Any],
) -> list[AlgorithmT]:
    """Make `size` agents of one algorithm and run seed; with `sample` hyperparameters are drawn for all but the first.

    The first one keeps the values given, moved into their ranges, so that they are part of the search.

    Raises:
        ConfigurationError: `size` is below 1, `index` is given, there is nothing to draw, or as the constructor.
    """
    if not is_count(size):
        raise ConfigurationError(f"size={size!r} must be an integer of at least 1")
    size = int(size)  # products with a small type of numpy would overflow
    if "index" in settings:
        raise ConfigurationError("index is given by the population, from 0 on; leave it out")
    if sample and not settings.get("hp_config"):
        raise ConfigurationError(
            "sample_hyperparameters=True has no effect without hp_config; allowed is hp_config=HyperparameterConfig(…) "
            "with the ranges to draw from"
        )
    if sample:
        settings = in_ranges(settings, kind.config)
    make = cast("Callable[..., AlgorithmT]", kind)
    token = planned_members.set(size)
    try:
        first = make(observation_space, action_space, index=0, **settings)
    finally:
        planned_members.reset(token)
    check_members_fit("size", size, first)
    settings = settings | {"seed": first.seed}
    agents = [first, *(make(observation_space, action_space, index=i, **settings) for i in range(1, size))]
    if sample:
        for agent, draw in zip(agents[1:], founder_draws(first.hp_config, size - 1, first.seed), strict=True):
            genome, given = agent.genome, agent.mut
            agent.apply_genome(genome.replace(hyperparameters=agent.repair({**genome.hyperparameters, **draw})), ())
            agent.mut = given or agent.mut
    return agents


def check_members_fit(field: str, size: int, agent: EvolvableAlgorithm) -> None:
    """Raise ConfigurationError, which names `field`, unless `size` members like an agent fit in memory."""
    check_memory(f"{field}={size}", size, sum(learner.footprint for learner in agent.learners.values()), "members")


def founder_draws(hp_config: HyperparameterConfig, count: int, seed: int) -> list[dict[str, Any]]:
    """Return the hyperparameters of `count` initial members: a scrambled Sobol sequence over the ranges.

    It covers the ranges more evenly than independent draws.
    """
    if not hp_config or not count:
        return [{} for _ in range(count)]
    engine = SobolEngine(hp_config.size, scramble=True, seed=integer(seed, Purpose.INITIAL_HYPERPARAMETERS))
    return [hp_config.sampled_at(shares) for shares in engine.draw(count, dtype=torch.float64).tolist()]


def in_ranges(settings: Mapping[str, Any], config: type[Any]) -> dict[str, Any]:
    """Return an agent's arguments with each value moved into its range of `hp_config`: the initial draws include it.

    Settings that are not given have the defaults of `config`; a range of something else is left to the constructor.

    Raises:
        ConfigurationError: `hp_config` is no mapping, or has something else than ranges and choices.
    """
    ranges = with_types(config, settings.get("hp_config"))
    given = {name: settings.get(name, getattr(config, name, None)) for name in ranges}
    known = [name for name in ranges if name in settings or name in config.__dataclass_fields__]
    return {**settings, **{name: start_in(ranges[name], name, given[name]) for name in known}}


def population_documents(
    members: Sequence[Stored], fitness: Sequence[float], best: Stored | None = None
) -> tuple[dict[str, Any], dict[str, Mapping[str, Tensor]]]:
    """Return a population's documents and tensors by name, given those of each agent."""
    stored = {f"member-{place:03d}": member for place, member in enumerate(members)}
    stored |= {} if best is None else {BEST_DOCUMENT: best}
    facts = {"algorithm": members[0][0]["algorithm"], "size": len(members), "fitness": list(fitness)}
    documents = {"population": facts, **{name: document for name, (document, _) in stored.items()}}
    return documents, {name: tensors for name, (_, tensors) in stored.items()}


def replace_diverged(population: BasePopulation, diverged: Sequence[int], uids: Sequence[int]) -> list[tuple[int, int]]:
    """Replace members that have diverged by clones of the best finite one, with the given uids.

    Returns the place of each new member, and of its parent.

    Raises:
        PopulationDivergedError: all of them have diverged.
    """
    if not diverged:
        return []
    healthy = [place for place in range(len(population)) if place not in diverged]
    if not healthy:
        raise PopulationDivergedError(ALL_DIVERGED)
    parent = max(
        healthy,
        key=lambda place: (
            sortable_fitness(population[place].fitness[-1]) if population[place].fitness else -np.inf,
            -place,
        ),
    )
    agents = list(population)
    for place, uid in zip(diverged, uids, strict=True):
        agents[place] = population[parent].clone(index=uid)
        agents[place].mut = "None"  # that of the parent is not of this birth
    population.set_members(agents)
    return [(place, parent) for place in diverged]


def sortable_fitness(fitness: float) -> float:
    """Return a fitness that can be compared: minus infinity if it is not finite."""
    return fitness if np.isfinite(fitness) else -np.inf
