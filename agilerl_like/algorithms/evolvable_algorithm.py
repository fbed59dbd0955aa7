"""What every individual of a population is: an identity, a genome, a past, and ways to be copied and saved.

Its `index` is its identity: nothing about the others changes what it does. How its weights are held, mutated and stored
is for the kinds to say.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from agilerl_like.algorithms.episode_guard import never
from agilerl_like.algorithms.evaluation import Episodes, EvalEnv, GroupPolicy, eval_mode, evaluate
from agilerl_like.algorithms.serialization import read_agent, read_history, to_builtin
from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.hpo import Explorer, Genome, History, HyperparameterConfig, Mutation, Offspring
from agilerl_like.hpo.schedules import Schedule, settings_to_json
from agilerl_like.networks.custom import CustomSpec
from agilerl_like.registry import register, registered
from agilerl_like.seeding import fresh_seed
from agilerl_like.storage import safe_folder

ANOTHER = 2**32
"""More noise than anybody draws."""

AlgorithmT = TypeVar("AlgorithmT", bound="EvolvableAlgorithm")


class StepCounts(list[int]):
    """Counts of env steps, one for each test; adding a whole number adds it to the last."""

    def __iadd__(self, steps: Any) -> StepCounts:
        if isinstance(steps, Iterable):
            return super().__iadd__(steps)
        self[-1] += steps
        return self


class EvolvableAlgorithm(ABC):
    """One member: attributes `fitness`, `scores` and `steps` are lists with an entry for each test, as in AgileRL.

    `steps` begins with 0 and counts the env steps of all runs that trained it.
    """

    algo: ClassVar[str]
    """Name of the algorithm in configurations, checkpoints and reports; the class is registered under it."""

    architecture: Any
    schedules: Mapping[str, Schedule]
    num_envs: int
    learn_step: int
    seed_is_drawn: bool

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        index: int,
        hp_config: HyperparameterConfig | None,
        device: str | torch.device,
        seed: int | None,
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.index = check_index(index)
        self.hp_config = hp_config or HyperparameterConfig()
        self.device = resolve_device(device)
        self.seed = fresh_seed() if seed is None else to_builtin(seed)
        self.seed_is_drawn = seed is None
        """Whether the seed comes from the operating system and not from a setting."""
        if not isinstance(self.seed, int) or self.seed < 0:
            raise ConfigurationError(f"seed={seed!r} must be a non-negative integer")
        self.mut: str = "None"
        self.fitness: list[float] = []
        self.scores: list[float] = []
        self._steps = StepCounts([0])
        self.updates = 0
        self.draws = 0
        self.variations = 0
        self.training = True
        self.progress = 0.0
        """Env steps of the run over its `max_steps` where the next update's rollout begins; schedules depend on it."""
        self._hooks: list[Callable[[Any], None]] = []

    @property
    def steps(self) -> StepCounts:
        """Env steps trained so far, an entry for each test.

        A whole number may be assigned and added (`agent.steps += n`), as AgileRL counts since 2.8: the last entry is
        meant.
        """
        return self._steps

    @steps.setter
    def steps(self, counts: Any) -> None:
        self._steps = StepCounts(counts if isinstance(counts, Iterable) and np.ndim(cast(Any, counts)) else [counts])

    def __repr__(self) -> str:
        tested = bool(self.fitness) and np.ndim(self.fitness[-1]) == 0
        fitness = f"{self.fitness[-1]:.4g}" if tested else "None"
        return (
            f"{self.algo}(index={self.index}, fitness={fitness}, lr={self.settings()['lr']:.4g}, "
            f"networks={self.architecture.describe()!r}, {self.parameter_count:,} parameters)"
        )

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "algo" in vars(cls):
            register("algorithm", cls.algo, cls)

    @classmethod
    def class_by_name(cls: type[AlgorithmT], algo: Any, where: str) -> type[AlgorithmT]:
        """Return the kind of agent that a checkpoint names.

        Raises:
            CheckpointError: there is none of that name.
        """
        known = {name: kind for name, kind in registered("algorithm").items() if issubclass(kind, cls)}
        if not isinstance(algo, str) or algo not in known:
            raise CheckpointError(f"path={where!r} holds algorithm={algo!r:.100}; known are {', '.join(known)}")
        return known[algo]

    # -- what differs between kinds

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings as they are now, by the constructor's names."""

    def team_settings(self) -> dict[str, Any]:
        """Further settings of a team, by the constructor's names; none of an agent by itself."""
        return {}

    @abstractmethod
    def repair(self, hyperparameters: dict[str, int | float]) -> dict[str, int | float]:
        """Mend hyperparameters that depend on each other."""

    @abstractmethod
    def check(self) -> None:
        """Raise ConfigurationError unless the settings as they are now are legal together."""

    @property
    @abstractmethod
    def parameter_count(self) -> int:
        """How many weights there are."""

    @property
    @abstractmethod
    def footprint(self) -> int:
        """Bytes that it needs at least to learn: weights, their gradients and moments, and what it learns from."""

    @property
    @abstractmethod
    def is_finite(self) -> bool:
        """Whether all of its weights and statistics are."""

    @property
    @abstractmethod
    def custom_networks(self) -> CustomSpec | None:
        """The networks that the user gave, if any: their code is in no file."""

    @abstractmethod
    def reinitialize(self) -> None:
        """Get initial weights of its own stream, and moments of nothing: what it had learned is lost."""

    @abstractmethod
    def set_training_mode(self, training: bool) -> None:
        """Switch between exploring (True) and acting as well as it can (False)."""

    @abstractmethod
    def genome_to_json(self, genome: Genome) -> dict[str, Any]:
        """Return a genome as plain data, for `genome_from_json` of any agent of the same kind and spaces."""

    @abstractmethod
    def genome_from_json(self, data: Mapping[str, Any]) -> Genome:
        """Read what `genome_to_json` wrote."""

    def advance_rng(self) -> None:
        """Draw other noise from here on than would have come."""
        self.draws += ANOTHER

    @abstractmethod
    def finish_blend(self) -> None:
        """Let go of what a finished mutation faded from."""

    @property
    @abstractmethod
    def group_policies(self) -> dict[str, GroupPolicy]:
        """The policy of each group of agents."""

    def check_env(self, env: Any) -> None:
        """Raise ConfigurationError unless an env adapter has this algorithm's agents."""
        return

    def run_episodes(
        self,
        env: EvalEnv,
        seeds: Sequence[int],
        max_steps: int | None = None,
        *,
        with_infos: bool = False,
        should_stop: Callable[[], bool] = never,
    ) -> Episodes:
        """Play one episode for each seed, without exploration."""
        self.check_env(env)
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

    @abstractmethod
    def to_documents(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Everything about this agent, as JSON data and as tensors."""

    def facts(self) -> dict[str, Any]:
        """The document of every kind: identity, settings, architecture and history, in plain data.

        Raises:
            ConfigurationError: an attribute was set to a value that `load` would refuse.
        """
        document = to_builtin(
            {
                "algorithm": self.algo,
                "index": self.index,
                "seed": self.seed,
                "settings": settings_to_json(self.settings()),
                "hp_config": self.hp_config.to_json(),
                "architecture": self.architecture.to_config(),
                "mut": self.mut or "None",
                "fitness": self.fitness,
                "scores": self.scores,
                "steps": self._steps,
                "updates": self.updates,
                "draws": self.draws,
                "variations": self.variations,
                "num_envs": getattr(self, "num_envs", 1),
            }
        )
        try:
            self.check()
            read_history(document)
        except ValueError as error:
            raise ConfigurationError(f"agent {self.index} cannot be saved as it is: {error}") from error
        return document

    def load_metadata(self, document: Mapping[str, Any]) -> None:
        """Take over the history in a document; ValueError if an entry is of another type."""
        vars(self).update({name: value for name, value in read_history(document)._asdict().items() if name != "steps"})
        self._steps = StepCounts(read_history(document).steps)

    # -- genome and mutation

    @property
    def hyperparameters(self) -> dict[str, int | float]:
        """The numbers that evolution may change, as they are now."""
        return {name: getattr(self, name) for name in self.hp_config}

    @property
    def genome(self) -> Genome:
        """All that a child inherits besides weights."""
        numbers = {k: v for k, v in self.settings().items() if isinstance(v, int | float) and not isinstance(v, bool)}
        return Genome(numbers, self.architecture)

    def register_mutation_hook(self, hook: Callable[[Any], None]) -> None:
        """Call `hook(agent)` after every mutation of this agent, and of its clones."""
        self._hooks.append(hook)

    @property
    def mutation_hooks(self) -> tuple[Callable[[Any], None], ...]:
        """What is called after every mutation."""
        return tuple(self._hooks)

    def mutate(
        self: AlgorithmT, mutations: Explorer, rng: np.random.Generator, *, pre_training: bool = False
    ) -> AlgorithmT:
        """Draw a mutation and carry it out on this agent itself; return it."""
        self.finish_blend()
        genome, changes = mutations.propose(
            self.genome, History(), rng, hp_config=self.hp_config, repair=self.repair, pre_training=pre_training
        )
        self.apply_genome(genome, changes)
        return self

    def assign(self, hyperparameters: Mapping[str, int | float]) -> None:
        """Set hyperparameters, and change the weights that depend on them."""
        for name, value in hyperparameters.items():
            setattr(self, name, value)

    def apply_genome(self, genome: Genome, changes: tuple[Mutation, ...]) -> tuple[Mutation, ...]:
        """Set a genome's numbers and carry out its mutations on weights and moments; return what was really done."""
        self.assign(genome.hyperparameters)
        done = tuple(self._carry_out(change) for change in changes)
        self.mut = ", ".join(change.label for change in done) or "None"
        for hook in self._hooks:
            hook(self)
        return done

    @abstractmethod
    def _carry_out(self, change: Mutation) -> Mutation:
        """Carry out a mutation on weights and moments; return what was really done."""

    # -- copies

    def clone(self: AlgorithmT, index: int | None = None, wrap: bool = True) -> AlgorithmT:
        """Return an independent copy: weights, moments, normalisers, hyperparameters and history.

        With another `index` its random streams are its own; without one it is a twin that would act alike. `wrap` is
        accepted for AgileRL's sake.
        """
        copy = self._heir(self.index if index is None else check_index(index))
        copy._move_out()
        return copy

    def make_offspring(self: AlgorithmT, birth: Offspring) -> tuple[AlgorithmT, tuple[Mutation, ...]]:
        """Return a child, and the mutations that were really carried out on it."""
        child = self._heir(birth.uid)
        done = child.apply_genome(birth.genome, birth.mutations)
        child._move_out()
        return child, done

    def _heir(self: AlgorithmT, index: int) -> AlgorithmT:
        """A copy that still uses this agent's own network: a mutation may be about to give it another one."""
        copy = self._blank(index)
        copy._inherit(self)
        return copy

    @abstractmethod
    def _move_out(self) -> None:
        """Get weights of its own, if it uses its parent's."""

    @abstractmethod
    def _blank(self: AlgorithmT, index: int) -> AlgorithmT:
        """An agent of the same settings and architecture, without a network."""

    def _inherit(self, other: Any) -> None:
        """Take over what the other one is and has lived through; the weights it may borrow for now."""
        self.mut, self.updates, self.draws, self.variations = other.mut, other.updates, other.draws, other.variations
        self.fitness, self.scores = list(other.fitness), list(other.scores)
        self._steps = StepCounts(other._steps)
        self._hooks = list(other._hooks)
        self.training, self.progress = other.training, other.progress

    # -- saving

    def save_checkpoint(self, path: str | os.PathLike[str]) -> Path:
        """Write the agent to a folder: JSON and safetensors, whole or not at all.

        Raises:
            CheckpointError: the folder cannot be written; what was saved there before is untouched.
        """
        document, tensors = self.to_documents()
        return safe_folder.write_folder(path, "agent", {"agent": document}, {"agent": tensors})

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Become the agent that was saved at a path, but for `index`, `seed` and hooks; the spaces must be the same.

        So members of a population that load one file draw noise of their own and stay members of it, and who begins
        from one file under several seeds gets several runs. To go on exactly as the saved agent would have gone on
        takes its index and its seed: `load` gives them.

        Raises:
            CheckpointError: the folder is missing, damaged or foreign, or its spaces are others.
        """
        document, tensors = read_agent(path)
        other = type(self).from_documents(
            document,
            tensors,
            device=self.device,
            where=str(path),
            networks=self.custom_networks,
        )
        if (other.observation_space, other.action_space) != (self.observation_space, self.action_space):
            raise CheckpointError(
                f"path={str(path)!r} was saved with {other.observation_space} and {other.action_space}; "
                f"this agent has {self.observation_space} and {self.action_space}"
            )
        self._take_after(other)

    def _take_after(self, other: Any) -> None:
        """Become what another one is, and stay who this is."""
        vars(self).update(vars(other), index=self.index, seed=self.seed, _hooks=self._hooks)

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
        its_device = device if accelerator is None else accelerator.device
        return cls.from_documents(document, tensors, device=its_device, where=str(path))

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
        """Build the agent that `to_documents` described; `networks` are the user's own, if it has such."""
        try:
            agent = cls.without_weights(document, device, networks)
            agent._compare(document, tensors)
            agent._fill(document, tensors)
        except CheckpointError:
            raise
        except ValueError as error:
            raise CheckpointError(f"path={where!r}: {error!s:.500}") from error
        except Exception as error:  # nobody can list what a document of a stranger may stumble over
            raise CheckpointError(f"path={where!r} does not fit together: {error!r:.500}") from error
        return agent

    @classmethod
    def without_weights(
        cls: type[AlgorithmT], document: Any, device: str | torch.device, networks: CustomSpec | None = None
    ) -> AlgorithmT:
        """The agent that a document describes, without networks; ValueError if it is of another algorithm."""
        found = document.get("algorithm") if isinstance(document, Mapping) else None
        if found != cls.algo:
            raise ValueError(f"it holds algorithm={found!r:.100}; wanted is {cls.algo!r}")
        return cls._from_document(document, device, networks)

    @classmethod
    @abstractmethod
    def _from_document(
        cls: type[AlgorithmT], document: Mapping[str, Any], device: str | torch.device, networks: CustomSpec | None
    ) -> AlgorithmT:
        """An agent of the saved settings, architecture and spaces, without a network."""

    @abstractmethod
    def _compare(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Raise ValueError unless tensors are those of what is described; of what is stored none are read."""

    @abstractmethod
    def _fill(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take over a past, weights and moments."""

    # -- AgileRL's other names

    def recompile(self) -> None:
        """Do nothing: there is nothing compiled to renew."""
        return


def check_index(index: Any) -> int:
    """An index, if it can be one."""
    if not isinstance(index, int | np.integer) or isinstance(index, bool) or index < 0:
        raise ConfigurationError(f"index={index!r} must be a non-negative integer")
    return int(index)


def resolve_device(device: Any) -> torch.device:
    """A device of that name, if there is one here."""
    try:
        found = torch.device(device)
        torch.empty(1, device=found)
    except Exception as error:  # torch raises what it likes: RuntimeError, AssertionError, NotImplementedError, …
        others = [name for name, kind in (("cuda", torch.cuda), ("mps", torch.backends.mps)) if kind.is_available()]
        allowed = ", ".join(map(repr, ["cpu", *others]))
        raise ConfigurationError(
            f"device={str(device)!r} cannot be used: {str(error).splitlines()[0]:.100}; allowed here: {allowed}"
        ) from error
    return found
