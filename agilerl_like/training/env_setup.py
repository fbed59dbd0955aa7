"""How the envs of a run are made, stepped and evaluated; the training loop needs neither gymnasium nor PettingZoo."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, cast

import gymnasium
from gymnasium.spaces import Box, Dict, Tuple
from gymnasium.vector import SyncVectorEnv

from agilerl_like.algorithms.population import BasePopulation, Population
from agilerl_like.envs.cartpole import is_native_cartpole, with_per_env_seeds
from agilerl_like.envs.distinct_envs import num_distinct_envs, num_instances, round_up_to_sets
from agilerl_like.envs.env_checker import BRIEF_REPLAYED, BRIEF_STEPS, RUNNING_STATISTICS, Finding, check_envs
from agilerl_like.envs.evaluation_envs import make_eval_env
from agilerl_like.envs.factory import (
    VecEnvConfig,
    can_be_made_again,
    check_instances,
    env_config_or_none,
    single_env_fns_of,
)
from agilerl_like.envs.gymnasium_vector_fixes import lacks_copied_final_obs
from agilerl_like.envs.subproc.vec_env import SubprocVectorEnv, resolve_num_workers
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.envs.vec_env_checks import check_vector_env
from agilerl_like.envs.wrapper_specs import changes_reward, core_env, wrapper_class
from agilerl_like.errors import ConfigurationError
from agilerl_like.training.collector import Collector, PhaseTimer
from agilerl_like.training.evaluator import Evaluator, Opponent
from agilerl_like.training.sharding import ShardedPopulation
from agilerl_like.training.training_arguments import INFO


class EnvSetup(ABC):
    """Makes envs like `env`, and the adapters, collectors and evaluators of populations that act in them."""

    population: ClassVar[type[BasePopulation]]
    """The class of populations that act in these envs."""
    train_function: ClassVar[str] = "train_on_policy"
    """Name of the function that trains in these envs."""
    env: Any

    @classmethod
    @abstractmethod
    def from_config(cls, env_config: VecEnvConfig) -> EnvSetup:
        """Make an env from a config, and return its setup."""

    @property
    @abstractmethod
    def vec_env(self) -> gymnasium.vector.VectorEnv:
        """The env as a gymnasium vector env."""

    @property
    @abstractmethod
    def spaces(self) -> tuple[Any, Any]:
        """The algorithm's arguments for observation and action spaces."""

    @property
    def agent_arguments(self) -> dict[str, Any]:
        """Further arguments of the algorithm that depend on the env."""
        return {}

    @abstractmethod
    def make_training_env(self, members: int, parts: int, part: int = 0) -> Any:
        """Return a vector env with part number `part` of each member's copies of `env`; it may be `env` itself."""

    def num_eval_episodes(self, count: int) -> int:
        """Return the episodes of each member's evaluation: `count` on each instance, in whole sets of distinct envs."""
        return round_up_to_sets(count, num_distinct_envs(self.env)) * num_instances(self.env)

    def check(self, *, until_end: bool) -> tuple[Finding, ...]:
        """Return the findings of a brief `check_envs` of fresh envs, if they can be made; `until_end` as there."""
        makes, found = single_env_fns_of(self.vec_env), ()
        if makes:
            found = check_envs(makes, steps=BRIEF_STEPS, replayed=BRIEF_REPLAYED, until_end=until_end).findings
        of_wrappers = _wrapper_findings(env_config_or_none(self.vec_env))
        return tuple(dict.fromkeys((*found, *of_wrappers)))

    @abstractmethod
    def make_eval_env(self, num_envs: int) -> Any:
        """Return a new vector env of single episodes."""

    def check_eval_env(self, eval_setup: EnvSetup) -> None:
        """Raise ConfigurationError unless members that train in these envs can be evaluated in those of `eval_setup`.

        The bounds of observations may differ.
        """
        wanted, found = self.spaces, eval_setup.spaces
        if (_without_bounds(found[0]), found[1]) != (_without_bounds(wanted[0]), wanted[1]):
            raise ConfigurationError(f"eval_env has {found[0]} and {found[1]}; allowed are {wanted[0]} and {wanted[1]}")

    @abstractmethod
    def adapt(self, env: Any) -> Any:
        """Return the adapter through which a population steps an env."""

    def check_opponents(self, opponents: str, population: BasePopulation, fitness: str) -> None:
        """Raise ConfigurationError unless members can train against opponents of a kind."""
        if opponents != "self":
            raise ConfigurationError(f"opponents={opponents!r} is for teams; allowed is 'self'")

    def sample_opponents(
        self, kind: str, members: ShardedPopulation, pool: Sequence[Opponent], generation: int, initial_size: int
    ) -> Any:
        """Return an opponent for each member of this process in a generation, or functions; collective."""
        raise NotImplementedError

    @abstractmethod
    def make_evaluator(self, fitness: str, env: Any, max_steps: int | None) -> Evaluator:
        """Return the evaluator of a kind of fitness.

        Raises:
            ConfigurationError: these envs do not support it.
        """

    @abstractmethod
    def make_collector(self, population: Any, env: Any, timer: PhaseTimer) -> Any:
        """Return a collector of rollouts in an adapted env."""


class SingleAgentEnvSetup(EnvSetup):
    """Gymnasium envs, for single agents."""

    population: ClassVar[type[BasePopulation]] = Population

    def __init__(self, env: gymnasium.vector.VectorEnv, name: str = "env") -> None:
        """`name` is the argument that `env` was given as, for errors."""
        if hasattr(env, "possible_agents"):
            raise ConfigurationError(f"{name}={env!r:.200} is multi-agent; train_multi_agent_on_policy trains in it")
        if not hasattr(env, "num_envs") and not hasattr(env, "single_observation_space"):
            raise ConfigurationError(
                f"{name}={env!r:.200} is not a vector env; make_vect_envs({_id_of(env)}, num_envs=…) makes one, and so "
                "does gymnasium.vector.SyncVectorEnv([make_env] * num_envs) of an env of your own"
            )
        check_vector_env(env)
        self.env = env

    @property
    def vec_env(self) -> gymnasium.vector.VectorEnv:
        return self.env

    @property
    def spaces(self) -> tuple[Any, Any]:
        return self.env.single_observation_space, self.env.single_action_space

    @classmethod
    def from_config(cls, env_config: VecEnvConfig) -> SingleAgentEnvSetup:
        return cls(env_config.make())

    def make_training_env(self, members: int, parts: int, part: int = 0) -> gymnasium.vector.VectorEnv:
        envs = divide_envs(self.env.num_envs, parts)
        is_shared = not can_be_made_again(self.env) and self.env.num_envs % members == 0  # by the members
        check_instances(env_config_or_none(self.env), self.env.num_envs // members if is_shared else self.env.num_envs)
        check_whole_sets(self.env, envs)
        is_remade = is_native_cartpole(self.env) or lacks_copied_final_obs(self.env) or has_too_many_workers(self.env)
        if members == parts == 1 and not is_remade:
            return self.env
        try:
            return with_per_env_seeds(self.env, envs * members, first=envs * part)
        except ConfigurationError:
            if parts > 1 or self.env.num_envs % members:
                raise
            warn_of_unequal_shares("env", self.env, members)
            return self.env

    def make_eval_env(self, num_envs: int) -> gymnasium.vector.VectorEnv:
        return make_eval_env(self.env, num_envs)

    def adapt(self, env: gymnasium.vector.VectorEnv) -> VecEnvAdapter:
        return VecEnvAdapter(env)

    def make_evaluator(self, fitness: str, env: VecEnvAdapter, max_steps: int | None) -> Evaluator:
        if fitness != "return" and not fitness.startswith(INFO):
            raise ConfigurationError(f"fitness={fitness!r} is for teams; allowed is 'return'")
        return Evaluator(env, max_steps, fitness)

    def make_collector(self, population: Any, env: VecEnvAdapter, timer: PhaseTimer) -> Collector:
        return Collector(population, env, timer)


def _wrapper_findings(env_config: VecEnvConfig | None) -> Iterator[Finding]:
    """Yield warnings of wrappers with running statistics, or by which fitness is not the environment's own reward."""
    for wrapper in () if env_config is None else env_config.wrappers:
        if (kind := wrapper_class(wrapper)) in RUNNING_STATISTICS:
            yield RUNNING_STATISTICS[kind]
        elif changes_reward(wrapper):
            yield Finding(
                "warning",
                f"wrappers: {wrapper!r} changes the reward that fitness is computed from",
                "in training_wrappers it changes the reward of training only",
            )


def _without_bounds(space: Any) -> Any:
    """Return what is compared of a space: of a Box its shape and dtype, of a Dict or Tuple that of its parts."""
    if isinstance(space, Dict):
        return {name: _without_bounds(part) for name, part in space.items()}
    if isinstance(space, Tuple):
        return tuple(map(_without_bounds, space))
    return (Box, space.shape, space.dtype) if isinstance(space, Box) else space


def check_separate(training_env: Any, eval_env: Any) -> None:
    """Raise ConfigurationError if a new vector env for evaluations steps an env in which members train."""
    vectors = [getattr(getattr(env, "vector", env), "unwrapped", None) for env in (training_env, eval_env)]
    if all(isinstance(vector, SyncVectorEnv) for vector in vectors):
        cores = [core_env(single) for vector in vectors for single in cast(SyncVectorEnv, vector).envs]
        if len({id(core) for core in cores}) < len(cores):
            raise ConfigurationError(
                f"a function of env={training_env} returned the env in which members train for evaluations, too; it "
                "must make new ones; allowed is also eval_env=env, by which each evaluation resets the training"
            )


def has_too_many_workers(env: gymnasium.vector.VectorEnv) -> bool:
    """Return whether a new env like this one would have fewer workers, because this is one of several processes now."""
    core = getattr(env, "unwrapped", env)
    if not isinstance(core, SubprocVectorEnv) or not can_be_made_again(env):
        return False
    return core.num_workers > resolve_num_workers(core.requested_workers, core.num_envs)


def check_whole_sets(env: Any, envs: int) -> None:
    """Raise ConfigurationError unless a member's envs on this process have equally many of each instance."""
    count = num_instances(env)
    if envs % count:
        raise ConfigurationError(
            f"{envs} envs of each member on a process; allowed with {count} instances are multiples of {count}"
        )


def warn_of_unequal_shares(name: str, env: Any, members: int) -> None:
    """Warn if members that share an env have rows of it that differ; `name` is the argument that it was given as.

    It is no error, because attributes may differ that are not part of the task: a seed, a port, the video of one row.
    """
    distinct, envs = num_distinct_envs(env), env.num_envs // members
    if envs % distinct:
        warnings.warn(
            f"{name}={env} has {distinct} environments with different attributes, and each of {members} members "
            f"has {envs} of its rows: if these are different tasks, the fitness of members cannot be compared; let the "
            "rows repeat them for each member, or use make_vect_envs(lambda num_envs: …, backend='vector'), which "
            "makes an env for each use",
            stacklevel=2,
        )


def _id_of(env: Any) -> str:
    """Return the repr of the id of an env."""
    spec = getattr(env, "spec", None)
    return repr(env) if isinstance(env, str) else "id" if spec is None else repr(spec.id)


def divide_envs(envs: int, parts: int) -> int:
    """Return how many of a member's envs each of `parts` processes steps; ConfigurationError unless `parts` divides."""
    own, rest = divmod(envs, parts)
    if rest:
        raise ConfigurationError(
            f"num_envs={envs} cannot be divided among {parts} processes; allowed are multiples of {parts}"
        )
    return own
