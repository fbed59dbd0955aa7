"""The base of all algorithms: a member of a population, with a genome, a history, copies and checkpoints.

An algorithm consists of learners, one for each group of agents that share a policy; a single agent is one group.
Operations on weights are delegated to the learners.
"""

from __future__ import annotations

import inspect
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from copy import deepcopy
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from agilerl_like.algorithms.episode_guard import never_stop
from agilerl_like.algorithms.evaluation import (
    EpisodeCallback,
    Episodes,
    EvalEnv,
    GroupPolicy,
    eval_mode,
    evaluate,
    report_episodes,
)
from agilerl_like.algorithms.learner_base import WEIGHT_BYTES
from agilerl_like.algorithms.learner_group import LearnerGroup
from agilerl_like.algorithms.learner_host import ATTRIBUTES, LearnerHost, SettingFunctions
from agilerl_like.algorithms.serialization import (
    MAX_COUNT,
    check_space_sizes,
    read_agent,
    read_training_record,
    to_builtin,
)
from agilerl_like.algorithms.settings import (
    FIXED,
    check_is_config,
    check_ranges,
    check_values,
    setting_names,
    stored_settings,
    validated,
    with_types,
)
from agilerl_like.envs.array_backend import device_from, resolve_device
from agilerl_like.errors import CheckpointError, ConfigurationError, foreign_setting
from agilerl_like.export.exporter import check_export, export_policy
from agilerl_like.export.policy_module import PolicyModule
from agilerl_like.hpo import Explorer, Genome, History, HyperparameterConfig, Mutation, Offspring
from agilerl_like.hpo.explorer import checked_proposal
from agilerl_like.hpo.schedules import check_known
from agilerl_like.networks.custom import CustomSpec
from agilerl_like.registry import register, registered
from agilerl_like.resources import check_memory
from agilerl_like.seeding import Purpose, fresh_seed, integers
from agilerl_like.storage import safe_folder

AlgorithmT = TypeVar("AlgorithmT", bound="EvolvableAlgorithm")
STD = "action_std_init"
"""A setting that is fixed except for evolution, which changes the learned standard deviation by as much."""
planned_members: ContextVar[int] = ContextVar("planned_members", default=1)
"""Number of members of the population under construction, all of which have to fit in memory."""


class StepCounts(list[int]):
    """Counts of env steps, one for each test; adding a whole number adds it to the last."""

    def __iadd__(self, steps: Any) -> StepCounts:
        if isinstance(steps, Iterable):
            return super().__iadd__(steps)
        self[-1] += steps
        return self


class EvolvableAlgorithm(LearnerHost, ABC):
    """One member: attributes `fitness`, `scores` and `steps` are lists with an entry for each test, as in AgileRL.

    `steps` begins with 0 and counts the env steps of all runs that trained the member. `index` names its random
    streams, so its results do not depend on other members.
    """

    algo: ClassVar[str]
    """Name of the algorithm in configurations, checkpoints and reports; the class is registered under it.

    A subclass of an algorithm without a name of its own has that of its class, so that files are read by this class.
    """

    group_class: ClassVar[type[LearnerGroup[Any]]]
    """The class by which the learners of one group of agents, of all members, act, store and learn."""
    _seed_is_drawn: bool

    def __init_subclass__(cls, *, same_algorithm: bool = False) -> None:
        """Register the class, unless it is the algorithm of its base with another interface (`same_algorithm`)."""
        super().__init_subclass__()
        if same_algorithm:
            return
        if "algo" not in vars(cls) and hasattr(cls, "algo"):
            cls.algo = cls.__name__
        if "algo" in vars(cls):
            register("algorithm", cls.algo, cls)

    def _init_settings(
        self,
        observation_space: Any,
        action_space: Any,
        settings: Any,
        *,
        index: int,
        hp_config: HyperparameterConfig | None,
        num_envs: int,
        device: str | torch.device,
        seed: int | None,
    ) -> None:
        """Set everything but the learners, for the constructor, copies and `from_documents`."""
        if torch.get_default_dtype() != torch.float32:  # layers would have it, and observations float32
            raise ConfigurationError(
                f"torch.get_default_dtype()={torch.get_default_dtype()}; allowed is torch.float32, as after "
                "torch.set_default_dtype(torch.float32)"
            )
        self.observation_space, self.action_space = observation_space, action_space
        self.index = check_index(index)
        self.hp_config = with_types(self.config, hp_config)
        self.num_envs = to_builtin(num_envs)
        self.device = resolve_device(device)
        self.seed = fresh_seed() if seed is None else to_builtin(seed)
        self._seed_is_drawn = seed is None  # by the operating system
        if not isinstance(self.seed, int) or not 0 <= self.seed < MAX_COUNT:  # else it could not be loaded
            raise ConfigurationError(f"seed={seed!r:.100} must be a non-negative integer below 2**128")
        self.mut: str = "None"
        self.fitness: list[float] = []
        self.scores: list[float] = []
        self._steps = StepCounts([0])
        self.training = True
        self.progress = 0.0
        """Env steps of the run over its `max_steps` where the next update's rollout begins; schedules depend on it."""
        self._hooks: list[Callable[[Any], None]] = []
        for name in setting_names(self.config):
            setattr(self, ATTRIBUTES.get(name, name), getattr(settings, name))
        self._fixed = {name: value for name, value in self.settings().items() if name in (*FIXED, STD)}

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of `_init_settings` that are equal for a copy."""
        return {
            "settings": validated(self.config, {**self.settings(), **self._fixed}),
            "hp_config": self.hp_config,
            "num_envs": self.num_envs,
            "device": self.device,
        }

    @property
    def steps(self) -> StepCounts:
        """Env steps trained so far, an entry for each test.

        A whole number may be assigned and added (`agent.steps += n`), as in AgileRL since 2.8; it is added to the last
        entry.
        """
        return self._steps

    @steps.setter
    def steps(self, counts: Any) -> None:
        self._steps = StepCounts(counts if isinstance(counts, Iterable) and np.ndim(cast(Any, counts)) else [counts])

    def __repr__(self) -> str:
        tested = bool(self.fitness) and np.ndim(self.fitness[-1]) == 0
        fitness = f"{self.fitness[-1]:.4g}" if tested else "None"
        lr = f"lr={self.lr:.4g}, " if "lr" in setting_names(self.config) else ""
        return (
            f"{self.algo}(index={self.index}, fitness={fitness}, {lr}"
            f"networks={self.architecture.describe()!r}, {self.parameter_count:,} parameters)"
        )

    # -- what algorithms define

    def repair(
        self, hyperparameters: dict[str, int | float], hp_config: HyperparameterConfig | None = None
    ) -> dict[str, int | float]:
        """Return legal values for hyperparameters that depend on each other.

        `hp_config` are the ranges, None: those of this agent.
        """
        return hyperparameters

    def unused_ranges(self) -> str:
        """Return what remains of a range that `repair` cuts off; "" if all of it is used."""
        return ""

    def check_settings(self) -> None:
        self._check_each_setting()

    def _check_each_setting(self) -> None:
        """Raise ConfigurationError unless each setting is legal; store it as the constructor would, "5" as 5."""
        checked = validated(self.config, self.settings())
        for name, value in self.settings().items():
            stored = getattr(checked, name)
            if type(value) is not type(stored) or value != stored:
                setattr(self, ATTRIBUTES.get(name, name), stored)
        settings = self.settings()
        check_is_config(self.hp_config)
        for name, value in self._fixed.items():
            if settings[name] != value:
                raise ConfigurationError(
                    f"{name}={settings[name]!r} cannot be set after the networks were built with {value!r}; allowed is "
                    f"a new agent, {self.algo}(…, {name}={settings[name]!r})"
                )

    def check(self) -> None:
        """Raise ConfigurationError unless the current settings are legal together, and fit the networks."""
        self._check_each_setting()
        check_ranges(self.config, self.settings(), self.hp_config, self.algo)
        for learner in self.learners.values():
            self.group_class.check_critic_config(self.algo, learner.architecture.critic)

    @property
    @abstractmethod
    def architecture(self) -> Any:
        """The spec of the networks."""

    @abstractmethod
    def _read_architecture(self, config: Mapping[str, Any]) -> Any:
        """Read the `to_config` of an architecture that fits these spaces."""

    @abstractmethod
    def to_documents(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the agent's whole state, as JSON data and as tensors."""

    @classmethod
    @abstractmethod
    def _from_document(
        cls: type[AlgorithmT], document: Mapping[str, Any], device: str | torch.device, networks: CustomSpec | None
    ) -> AlgorithmT:
        """Return an agent with the saved settings, architecture and spaces, without networks."""

    @abstractmethod
    def _sections(self, document: Any, tensors: Any) -> dict[str, tuple[Any, Any]]:
        """Return each learner's document and tensors, by group."""

    @abstractmethod
    def _mutate_learner(self, change: Mutation) -> Mutation:
        """Apply a mutation of weights to the learner that it names; return what was done."""

    # -- learners

    @property
    def parameter_count(self) -> int:
        """Number of weights."""
        return sum(learner.parameter_count for learner in self.learners.values())

    @property
    def rollout_steps(self) -> int:
        """Steps of each env between updates."""
        return next(iter(self.learners.values())).rollout_steps

    @property
    def _custom_networks(self) -> CustomSpec | None:
        """The user's own networks, if any, whose code is not saved."""
        return next(iter(self.learners.values())).custom_networks

    @property
    def trained_learners(self) -> Mapping[str, Any]:
        """The learners of the groups that learn and mutate."""
        return self.learners

    def _finish_init(self, mut: str | None) -> None:
        """Finish a constructor: check settings, spaces and the memory needed, and draw the initial weights."""
        self.check()
        check_known(self.schedules, self.lr_schedule)
        self._check_spaces()
        self._check_memory()
        for learner in self.learners.values():
            learner.reinitialize()
        self.mut = mut or "None"

    def _check_spaces(self) -> None:
        """Raise ConfigurationError if a space is so large that a saved agent could not be loaded."""
        for learner in self.learners.values():
            check_space_sizes("observation_space", [learner.observation_space])
            check_space_sizes("action_space", [learner.action_space])

    def set_training_mode(self, training: bool) -> None:
        """Switch between exploration (True) and the most likely actions (False)."""
        self.training = training
        for learner in self.learners.values():
            learner.set_training_mode(training)

    def _check_memory(self) -> None:
        """Raise ConfigurationError unless the networks fit in memory, without allocating anything."""
        if self._custom_networks is not None:  # which are allocated already
            return
        weights = {group: learner.planned_weights() for group, learner in self.learners.items()}
        sizes = ", ".join(f"{group}: {count}" for group, count in weights.items())
        what = f"the networks of all groups have weights ({sizes})" if "" not in weights else ""
        what = what or f"{self.architecture.describe():.200} has weights={weights['']}"
        check_memory(f"net_config: {what} and", sum(weights.values()), WEIGHT_BYTES, "weights")
        members = planned_members.get()
        check_memory(f"size={members}", members, WEIGHT_BYTES * sum(weights.values()), "members")

    # -- evaluation

    @property
    def group_policies(self) -> dict[str, GroupPolicy]:
        """The policy of each group of agents."""
        return {
            group: GroupPolicy(its.best_actions, its.encoding, its.initial_hidden_state, its.group.layout)
            for group, its in self.learners.items()
        }

    def _check_env(self, env: Any) -> None:
        """Raise ConfigurationError unless an env adapter has this algorithm's agents or spaces."""
        return

    def run_episodes(
        self,
        env: EvalEnv,
        seeds: Sequence[int],
        max_steps: int | None = None,
        *,
        with_infos: bool = False,
        should_stop: Callable[[], bool] = never_stop,
    ) -> Episodes:
        """Run one episode for each seed, without exploration."""
        self._check_env(env)
        with eval_mode(self):
            return evaluate(
                self.group_policies.values(),
                env,
                seeds,
                members=1,
                max_steps=max_steps,
                with_infos=with_infos,
                should_stop=should_stop,
            )

    def _run_test(self, env: EvalEnv, loop: int, max_steps: int | None, callback: EpisodeCallback | None) -> Episodes:
        """Run `loop` episodes on the same seeds at every call, and report each to `callback`.

        Raises:
            ConfigurationError: `loop` or `max_steps` is below 1.
        """
        for name, value in (("loop", loop), ("max_steps", 1 if max_steps is None else max_steps)):
            if not isinstance(value, int | np.integer) or value < 1:
                raise ConfigurationError(f"{name}={value!r} must be at least 1")
        seeds = integers(loop, self.seed, Purpose.EVALUATION_ENVS)
        episodes = self.run_episodes(env, seeds, max_steps, with_infos=callback is not None)
        report_episodes(episodes, callback)
        return episodes

    # -- genome and mutation

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The current values of the hyperparameters that may evolve."""
        return {name: plain_setting(getattr(self, name)) for name in self.hp_config}

    @property
    def genome(self) -> Genome:
        """What offspring inherit besides weights: hyperparameters and architecture."""
        numbers = {k: v for k, v in self.settings().items() if isinstance(v, int | float) and not isinstance(v, bool)}
        return Genome({**numbers, **self.hyperparameters}, self.architecture)

    def register_mutation_hook(self, hook: Callable[[Any], None]) -> None:
        """Call `hook(agent)` after every mutation of this agent, and of its clones."""
        self._hooks.append(hook)

    def mutate(
        self: AlgorithmT, mutations: Explorer, rng: np.random.Generator, *, pre_training: bool = False
    ) -> AlgorithmT:
        """Draw a mutation and apply it to this agent; return the agent."""
        for learner in self.learners.values():
            learner.finish_blend()
        before = self.genome
        proposal = mutations.propose(
            before, History(), rng, hp_config=self.hp_config, repair=self.repair, pre_training=pre_training
        )
        self.apply_genome(
            *checked_proposal(mutations, proposal, before, self.hp_config, partial(check_values, self.config))
        )
        return self

    def _set_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Set hyperparameters; the learned standard deviation changes by as much as `action_std_init` does.

        Beyond its bounds `action_std_init` has no effect, so only its change between them counts.
        """
        before = self._fixed.get(STD, self.action_std_init), self.action_std_min, self.action_std_max
        for name, value in hyperparameters.items():
            setattr(self, name, value)
        if STD in self._fixed:
            self._fixed[STD] = self.action_std_init
        if (self.action_std_init, self.action_std_min, self.action_std_max) != before:
            old, new = (
                min(max(log_std, self.action_std_min), self.action_std_max)
                for log_std in (before[0], self.action_std_init)
            )
            for learner in self.trained_learners.values():
                learner.bound_std_(new - old)

    def apply_genome(self, genome: Genome, changes: tuple[Mutation, ...]) -> tuple[Mutation, ...]:
        """Set a genome's hyperparameters and apply mutations to weights and moments; return those that were applied."""
        done = self._take_genome(genome, changes)
        self._run_hooks()
        return done

    def _take_genome(self, genome: Genome, changes: tuple[Mutation, ...]) -> tuple[Mutation, ...]:
        """Do what `apply_genome` does before the hooks."""
        self._set_hyperparameters(genome.hyperparameters)
        done = tuple(self._mutate_learner(change) for change in changes)
        self.mut = ", ".join(change.label for change in done) or "None"
        return done

    def _run_hooks(self) -> None:
        for hook in self._hooks:
            hook(self)

    # -- copies

    def clone(self: AlgorithmT, index: int | None = None, wrap: bool = True) -> AlgorithmT:
        """Return an independent copy: weights, moments, normalizers, hyperparameters and history.

        Attributes that a script has set are copied by `copy.deepcopy`; hooks and functions of settings are shared.
        Another `index` gives it random streams of its own; the same one makes it act identically. `wrap` is ignored; it
        is AgileRL's.
        """
        copy = self._copy(self.index if index is None else check_index(index))
        copy._own_networks()
        return copy

    __copy__ = clone

    def make_offspring(self: AlgorithmT, offspring: Offspring) -> tuple[AlgorithmT, tuple[Mutation, ...]]:
        """Return the child that `offspring` describes, and the mutations that were applied to it."""
        child = self._copy(offspring.uid)
        done = child._take_genome(offspring.genome, offspring.mutations)
        if offspring.start is not None:
            for learner in child.trained_learners.values():
                learner.mix_initial_weights(offspring.start.parent, offspring.start.initial)
            if offspring.start.is_fresh:
                child.fitness, child.scores, child._steps = [], [], StepCounts([0])
        child._own_networks()
        child._run_hooks()  # which may change its weights, so these must not be the parent's any more
        return child, done

    def _copy(self: AlgorithmT, index: int) -> AlgorithmT:
        """Return a copy that shares networks with this agent until `_own_networks`; a mutation may replace them."""
        copy = type(self).__new__(type(self))
        copy._init_copy(self, index)
        copy._copy_record(self)
        copy._hooks, copy._seed_is_drawn = list(self._hooks), self._seed_is_drawn
        copy._copy_own_attributes(self)
        return copy

    def _copy_own_attributes(self, other: EvolvableAlgorithm) -> None:
        """Copy the attributes that a script has set on another agent; a file or another process has none of them.

        A function in place of a method is left out, because it may call that of the other agent; and what
        `copy.deepcopy` refuses, with a warning.
        """
        memo = {id(other): self}
        for name, value in other.__getstate__().items():
            if name in vars(self) or inspect.isroutine(getattr(type(self), name, None)):
                continue
            try:
                setattr(self, name, deepcopy(value, memo))
            except Exception as error:  # the classes of a script may raise anything
                warnings.warn(
                    f"clones do not have {name}={value!r:.100} of agent {other.index}, which cannot be copied: "
                    f"{error!s:.200}; an object whose __deepcopy__ returns itself is shared with them",
                    stacklevel=2,
                )

    @abstractmethod
    def _init_copy(self, other: Any, index: int, seed: int | None = None) -> None:
        """Set settings and learners to those of another agent, whose networks are shared."""

    def _copy_record(self, other: EvolvableAlgorithm) -> None:
        """Set the mode, the progress and the records of training to those of another agent."""
        self.mut, self.training = other.mut, other.training
        self.progress = other.progress
        self.fitness, self.scores = list(other.fitness), list(other.scores)
        self._steps = StepCounts(other._steps)

    def _own_networks(self) -> None:
        for learner in self.learners.values():
            learner.own_network()

    # -- files

    def _metadata(self) -> dict[str, Any]:
        """Return identity, settings, architecture and history as JSON data.

        Raises:
            ConfigurationError: an attribute was set to a value that `load` would refuse.
        """
        document = to_builtin(
            {
                "algorithm": self.algo,
                "index": self.index,
                "seed": self.seed,
                "settings": stored_settings(self.config, self.settings()),
                "hp_config": self.hp_config.to_json(),
                "architecture": self.architecture.to_config(),
                "mut": self.mut or "None",
                "fitness": self.fitness,
                "scores": self.scores,
                "steps": self._steps,
                "progress": self.progress,
                "num_envs": self.num_envs,
            }
        )
        try:
            self.check()
            read_training_record(document)
        except ValueError as error:
            raise ConfigurationError(f"agent {self.index} cannot be saved as it is: {error}") from error
        return document

    @property
    def policy(self) -> nn.Module:
        """A copy of the policy as one module: batches of raw observations in, the environment's actions out.

        Normaliser, bounds, squashing, masks and memory are inside (see `PolicyModule`), so exporting it by
        `torch.onnx.export` gives the actions of `predict`; `actor` alone reads encoded, normalised observations. A team
        has a module for each group, an `nn.ModuleDict`.
        """
        learners = self.learners.items()
        modules = {group: PolicyModule(its, masks=its.learned_with_masks) for group, its in learners}
        team = nn.ModuleDict()
        team._modules.update(modules)  # whose `update` refuses the names of its methods, such as "train"
        return modules.get("", team).requires_grad_(False)

    def export(self, path: str | os.PathLike[str], *, masks: bool | None = None) -> list[Path]:
        """Write the policy to a file that runs without this package; see `export_policy`.

        `path` ends in `.onnx` (needs the extra `export`), `.pt2` or `.py` (numpy alone). `masks` is whether the file
        takes action masks; None: if the agent learned with them. Return the paths: `[path]` of a single agent, and of a
        team one for each group, `policy-GROUP.onnx`.
        """
        path = Path(path)
        files = [
            (learner, path.with_stem(f"{path.stem}-{group}" if group else path.stem))
            for group, learner in self.learners.items()
        ]
        for learner, file in files:  # before the first is written
            check_export(learner, file, masks=masks)
        return [export_policy(learner, file, masks=masks) for learner, file in files]

    def save_checkpoint(self, path: str | os.PathLike[str]) -> Path:
        """Write the agent to a folder: JSON and safetensors, whole or not at all.

        A loaded agent is in training mode (see `set_training_mode`), and continues to the bit, but for one step of a
        hand-written loop: the noise of its first action is not correlated with the last one before
        (`action_noise_correlation`). Weights that are not finite are written,
        so that a loop with a diverged member continues, but `load` refuses them.

        Raises:
            CheckpointError: the folder cannot be written; an earlier checkpoint there is untouched.
            ConfigurationError: an attribute or a network was set by hand to what `load` would refuse.
        """
        document, tensors = self.to_documents()
        for learner in self.learners.values():
            learner.check_network()
        return safe_folder.write_folder(path, "agent", {"agent": document}, {"agent": tensors})

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Load the state of a saved agent into this one; spaces must be equal, and groups of a team.

        This agent keeps its `index`, `seed`, mode (exploration or evaluation), `progress` and hooks, and its functions
        where the file has their names. Members of a population that load one file therefore keep random streams of
        their own, and runs that start from one file with several seeds differ. `load` also restores index, seed and
        progress, and continues in training mode as the saved agent would.

        Raises:
            CheckpointError: the folder is missing, damaged or foreign, or its spaces differ.
        """
        document, tensors = read_agent(path)
        other = type(self).from_documents(
            document, tensors, device=self.device, where=str(path), networks=self._custom_networks
        )
        self._check_equal_spaces(other, str(path))
        unsaved, training, progress = UnsavedState.of(self), self.training, self.progress
        self._init_copy(other, self.index, seed=self.seed)
        self._copy_record(other)
        unsaved.set_in(self)
        self._seed_is_drawn = unsaved.seed_is_drawn
        self._own_networks()
        self.progress = progress
        self.set_training_mode(training)

    def _check_equal_spaces(self, other: EvolvableAlgorithm, where: str) -> None:
        """Raise CheckpointError unless an agent that was loaded from `where` has the spaces of this one."""
        if (other.observation_space, other.action_space) != (self.observation_space, self.action_space):
            raise CheckpointError(
                f"path={where!r} was saved with {other.observation_space} and {other.action_space}; "
                f"this agent has {self.observation_space} and {self.action_space}"
            )

    @classmethod
    def load(
        cls: type[AlgorithmT],
        path: str | os.PathLike[str],
        device: str | torch.device = "cpu",
        accelerator: Any = None,
    ) -> AlgorithmT:
        """Load an agent that `save_checkpoint` wrote, or the best one of a run or of a checkpoint of it.

        Raises:
            CheckpointError: the folder is missing, damaged or foreign.
        """
        document, tensors = read_agent(path)
        device = device_from(device, accelerator)
        return cls.from_documents(document, tensors, device=device, where=str(path))

    @classmethod
    def from_documents(
        cls: type[AlgorithmT],
        document: Any,
        tensors: Mapping[str, Tensor],
        *,
        device: str | torch.device,
        where: str,
        networks: CustomSpec | None = None,
    ) -> AlgorithmT:
        """Build the agent that `to_documents` described; `networks` are the user's own, if it was made of them.

        Raises:
            CheckpointError: the parts do not fit together.
        """
        try:
            found = document.get("algorithm") if isinstance(document, Mapping) else None
            if found != cls.algo:
                raise ValueError(f"it holds algorithm={found!r:.100}; expected is {cls.algo!r}")
            agent = cls._from_document(document, device, networks)
            sections = agent._sections(document, tensors)
            for group, (its_document, its_tensors) in sections.items():
                agent.learners[group].check_tensors(its_document, its_tensors)
            record = read_training_record(document)
            agent.mut, agent.fitness, agent.scores = record.mut, record.fitness, record.scores
            agent._steps, agent.progress = StepCounts(record.steps), record.progress
            for group, (its_document, its_tensors) in sections.items():
                agent.learners[group].load_state(its_document, its_tensors)
        except CheckpointError:
            raise
        except ValueError as error:
            raise CheckpointError(f"path={where!r}: {error!s:.500}") from error
        except Exception as error:  # an untrusted document may raise anything
            raise CheckpointError(f"path={where!r} does not fit together: {error!r:.500}") from error
        return agent

    # -- AgileRL's other names

    def clean_up(self) -> None:
        """Free the stored observations, which only mutations need."""
        for learner in self.learners.values():
            learner.recent_observations = torch.zeros(0, 0)

    def recompile(self) -> None:
        """Do nothing: compiled code is renewed when shapes change."""
        return


def plain_setting(value: Any) -> Any:
    """Return a setting as plain data: the value of an enumeration."""
    return value.value if isinstance(value, Enum) else value


def genome_to_json(genome: Genome) -> dict[str, Any]:
    """Return a genome as JSON data, for `genome_from_json` with any agent of the same algorithm and spaces."""
    architecture = cast(Any, genome.architecture).to_config()
    return {"hyperparameters": dict(genome.hyperparameters), "architecture": architecture}


def genome_from_json(agent: EvolvableAlgorithm, data: Mapping[str, Any]) -> Genome:
    """Read what `genome_to_json` wrote for an agent of the same algorithm and spaces."""
    return Genome(data["hyperparameters"], agent._read_architecture(data["architecture"]))


class UnsavedState(NamedTuple):
    """The state of an agent that is not saved; it is the same for all members of a population."""

    kind: type[EvolvableAlgorithm]
    """The class, which may be a subclass of the one that is registered under the name of the algorithm."""
    networks: CustomSpec | None
    """The code of the user's own networks."""
    functions: SettingFunctions
    """Settings that are functions."""
    hooks: tuple[Callable[[Any], None], ...]
    """Mutation hooks."""
    seed_is_drawn: bool
    """Whether the seed comes from the operating system and not from a setting."""

    @classmethod
    def of(cls, agent: EvolvableAlgorithm) -> UnsavedState:
        """Return the unsaved state of an agent."""
        functions, hooks = SettingFunctions.of(agent), tuple(agent._hooks)
        return cls(type(agent), agent._custom_networks, functions, hooks, agent._seed_is_drawn)

    @classmethod
    def shared(cls, agents: Sequence[EvolvableAlgorithm]) -> UnsavedState:
        """Return the unsaved state of agents that are loaded, or sent to other processes.

        Raises:
            ConfigurationError: they have different functions of one setting, or different hooks.
        """
        if found := differing_functions(agents):
            raise ConfigurationError(
                f"{found} is not the same function for all members; it is not saved, so a resumed run and other "
                "processes have one for all: allowed are equal functions, or processes=1 without resume"
            )
        return cls.of(agents[0])._replace(functions=SettingFunctions.of(*agents))

    def class_for(self, found: type[EvolvableAlgorithm]) -> type[EvolvableAlgorithm]:
        """Return the class of the agents if it is a subclass of the one `found` by name, else that one."""
        return self.kind if issubclass(self.kind, found) else found

    def set_in(self, agent: EvolvableAlgorithm) -> None:
        """Add functions and hooks to an agent that `from_documents` built with `networks`."""
        self.functions.set_in(agent)
        for hook in self.hooks:
            agent.register_mutation_hook(hook)


def differing_functions(agents: Sequence[EvolvableAlgorithm]) -> str:
    """Return the setting of which agents have different functions, or "register_mutation_hook"; "" if all agree.

    Members whose value of a setting is no function agree with any function of the others.
    """
    shared, first_hooks = SettingFunctions.of(*agents), agents[0]._hooks
    for agent in agents:
        its = SettingFunctions.of(agent)
        pairs: list[tuple[str, Any, Any]] = [
            *((f"schedules.{name}", one, shared.schedules[name]) for name, one in its.schedules.items()),
            ("lr_schedule", its.lr_schedule, shared.lr_schedule),
            ("reward_transform", its.reward_transform, shared.reward_transform),
        ]
        for name, one, other in pairs:
            if one is not None and not _are_equal_functions(one, other):
                return name
        hooks = agent._hooks
        if len(hooks) != len(first_hooks) or not all(map(_are_equal_functions, hooks, first_hooks)):
            return "register_mutation_hook"
    return ""


def _are_equal_functions(one: Any, other: Any) -> bool:
    """Return whether functions are equal, or of the same code with equal defaults and enclosed values."""
    if one is other or one == other:
        return True
    code = getattr(one, "__code__", None)
    if code is None or code != getattr(other, "__code__", None):
        return False
    values = [
        (its.__defaults__, its.__kwdefaults__, [cell.cell_contents for cell in its.__closure__ or ()])
        for its in (one, other)
    ]
    try:
        return bool(values[0] == values[1])
    except (RuntimeError, ValueError):  # arrays and tensors have no single truth value
        return False


def class_by_name(algo: Any, where: str, base: type[AlgorithmT] = EvolvableAlgorithm) -> type[AlgorithmT]:
    """Return the subclass of `base` that is registered under the name in a checkpoint.

    Raises:
        CheckpointError: there is none of that name.
    """
    known = {name: kind for name, kind in registered("algorithm").items() if issubclass(kind, base)}
    if not isinstance(algo, str) or algo not in known:
        raise CheckpointError(f"path={where!r} holds algorithm={algo!r:.100}; known are {', '.join(known)}")
    return known[algo]


def load_agent(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> EvolvableAlgorithm:
    """Load an agent, or the best one of a run or of a checkpoint, of the class that its document names.

    Raises:
        CheckpointError: the folder is missing, damaged or foreign.
    """
    document, _ = read_agent(path)
    algorithm = document.get("algorithm") if isinstance(document, dict) else None
    return class_by_name(algorithm, str(path)).load(path, device=device)


def refuse_settings(settings: Mapping[str, Any], algorithm: str) -> None:
    """Raise ConfigurationError if an agent's `load` was given settings: the file has them."""
    if not settings:
        return
    name, value = next(iter(settings.items()))
    foreign = foreign_setting(name)
    how = f"agent.{name if foreign is None else foreign.name} = {value!r:.100}"
    if name == "env":
        how = "train_on_policy(env, pop=agent, …)"
    raise ConfigurationError(
        f"{name}={value!r:.100} is no argument of {algorithm}.load, because the file has the settings; allowed is "
        f"agent = {algorithm}.load(path), and then {how}"
    )


def check_index(index: Any) -> int:
    """Return an index as an int; ConfigurationError unless it is a non-negative integer that a file can hold."""
    if not isinstance(index, int | np.integer) or isinstance(index, bool) or not 0 <= index < 2**63:
        raise ConfigurationError(f"index={index!r:.100} must be a non-negative integer below 2**63")
    return int(index)
