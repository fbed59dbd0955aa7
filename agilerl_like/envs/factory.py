"""Makes vector envs: by gymnasium's native vector env, EnvPool, in one process, or in worker processes.

A vector env made here stores its `VecEnvConfig` as `.env_config`, with the backend that was chosen, so that a wider one
or one for evaluation can be made from it. `describe_backend(env)` returns the backend and the reason for it.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, cast, get_args

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from agilerl_like.envs import envpool
from agilerl_like.envs.backend_timing import prefer_workers
from agilerl_like.envs.distinct_envs import (
    OF_SINGLE_ENVS,
    compare_new_rows,
    env_config_inside,
    equal_values,
    num_distinct_envs,
    set_num_distinct_envs,
)
from agilerl_like.envs.env_errors import BaseEnvConfig, env_errors, env_name_of_config
from agilerl_like.envs.env_ids import (
    TIME_LIMIT,
    EnvSource,
    configuration_errors,
    env_spec,
    has_native_vector_env,
    resolve_source,
    silence_banner,
    with_valid_time_limit,
)
from agilerl_like.envs.envpool import EnvPoolVectorEnv
from agilerl_like.envs.gymnasium_vector_fixes import (
    ClosableAsyncVectorEnv,
    async_worker,
    fix_infos,
    with_copied_final_obs,
)
from agilerl_like.envs.import_warnings import import_warnings_ignored
from agilerl_like.envs.multi_agent.packed_env import time_limit
from agilerl_like.envs.subproc.vec_env import STEP_TIMEOUT, SubprocVectorEnv, resolve_num_workers
from agilerl_like.envs.wrapper_specs import (
    BatchedObservationWrapper,
    Wrapper,
    apply_wrapper,
    check_wrapper,
    core_env,
    refuse_shared_envs,
    require_same_spaces,
    resolve_wrapper,
    supports_batch,
)
from agilerl_like.errors import ConfigurationError, check_mapping, tuple_of, unknown_name
from agilerl_like.registry import Registry, registered
from agilerl_like.resources import check_memory

Backend = Literal["auto", "vector", "sync", "async", "envpool", "workers", "torch", "gymnax"]
ENV_BACKENDS: Registry[Callable[[Any], VectorEnv]] = registered("env_backend")
"""Further backends: functions that return the vector env of a `VecEnvConfig`."""

Aggregate = Literal["mean", "min", "median"]
EPISODE_WRAPPERS = "agilerl_like.envs.episode_wrappers"
ATTRIBUTE = "env."
"""Prefix of attributes of the environment in `info_keys`."""

TENSOR_BACKENDS = {"torch": "agilerl_like.envs.tensor_envs", "gymnax": "agilerl_like.envs.jax_envs"}
"""Backends whose envs return tensors on a device -> the modules that make them, imported on use: they import torch."""

BYTES_PER_ENV = 32
"""Of one of the smallest envs: an observation of one float, a reward, two flags, and its state."""


@dataclass(frozen=True)
class VecEnvConfig(BaseEnvConfig):
    """The arguments of `make_vect_envs`, from which a vector env can be made again, wider or with another backend.

    `env` is gymnasium's id, an import path "package.module:factory", or a factory. With backend "vector" a factory is
    called with `num_envs` and returns a VectorEnv, otherwise it returns one single env. `autoreset` applies to "sync",
    "async" and "workers"; native vector envs and EnvPool have their own mode. `num_workers` (default: one per core,
    divided among the processes of a run) and `step_timeout` [s] apply to "workers".

    `training_wrappers` are put around `wrappers` if `training`. Evaluation leaves them out, so that fitness is the
    environment's own reward; both use the same backend.
    """

    env: EnvSource
    num_envs: int = 1
    backend: Backend | str = "auto"
    wrappers: tuple[Wrapper, ...] = ()
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    autoreset: AutoresetMode = AutoresetMode.SAME_STEP
    num_workers: int | None = None
    step_timeout: float = STEP_TIMEOUT
    training_wrappers: tuple[Wrapper, ...] = ()
    training: bool = True
    instances: tuple[Mapping[str, Any], ...] = ()
    """Environments that differ, by their arguments, and by their `id` if it is not `env`: row i is number i modulo
    their count, so all members meet all of them equally often. Evaluation plays each on the same seeds."""
    aggregate: Aggregate = "mean"
    """How the mean returns on the instances give the fitness."""
    info_keys: Mapping[str, str] = field(default_factory=dict)
    """Name -> key of the info of an episode's last step ("a.b": key b of info["a"]), whose means are reported."""
    seeds: int | tuple[int, ...] | None = None
    """Seeds of each member's training envs: one for each, or the first of a range; None: from the run's seed."""

    def __post_init__(self) -> None:
        if self.aggregate not in get_args(Aggregate):
            raise unknown_name("aggregate", self.aggregate, get_args(Aggregate))
        for instance in self.instances:
            if not isinstance(instance, Mapping):
                raise ConfigurationError(f"instances: {instance!r:.100}; allowed are mappings of arguments, and of id")
        object.__setattr__(self, "seeds", _plain_seeds(self.seeds))
        check_info_keys(self.info_keys)
        if not isinstance(self.env, str) and not callable(self.env):
            raise ConfigurationError(
                f"env_name={self.env!r}; allowed are an id, 'package.module:factory' or a callable"
            )
        if not _is_whole(self.num_envs) or self.num_envs < 1:
            raise ConfigurationError(f"num_envs={self.num_envs!r}; allowed are whole numbers from 1")
        object.__setattr__(self, "num_envs", int(self.num_envs))
        check_memory(f"num_envs={self.num_envs}", self.num_envs, BYTES_PER_ENV, "envs")
        if self.backend not in (*get_args(Backend), *ENV_BACKENDS):
            raise unknown_name("backend", self.backend, (*get_args(Backend), *ENV_BACKENDS))
        resolve_num_workers(self.num_workers, self.num_envs)
        if not isinstance(self.step_timeout, (int, float)) or not 0 < self.step_timeout < math.inf:
            raise ConfigurationError(f"step_timeout={self.step_timeout!r}; allowed are seconds above 0")
        for wrapper in self._all_wrappers:
            check_wrapper(wrapper)

    def make(self, num_envs: int | None = None, backend: Backend | str | None = None) -> VectorEnv:
        """Make the vector env.

        Raises:
            ConfigurationError: unknown id, wrapper or argument, a package that is not installed, or a backend that this
                env does not have.
            EnvStepError: the env's constructor raised another exception.
        """
        for wrapper in self._all_wrappers:
            resolve_wrapper(wrapper)  # a wrapper that cannot be imported is an error here, not in a worker
        wanted = replace(
            self,
            num_envs=self.num_envs if num_envs is None else num_envs,
            backend=self.backend if backend is None else backend,
        )
        wanted._check_instances()
        # these backends have ids of their own, which are not in gymnasium's registry
        if wanted.backend not in ("envpool", *TENSOR_BACKENDS, *ENV_BACKENDS):
            wanted = replace(wanted, env=resolve_source(self.env))
        if isinstance(wanted.env, str):
            single_envs = wanted.backend in ("auto", "sync", "async", "workers")
            wanted = replace(wanted, env_kwargs=with_valid_time_limit(wanted.env_kwargs, single_envs=single_envs))
        with env_errors(env_name_of_config(self), "construction"):
            backend, reason = wanted._choose() if wanted.backend == "auto" else (wanted.backend, "")
            chosen = replace(wanted, backend=backend)
            with import_warnings_ignored():
                env = cast(_ConfiguredVecEnv, chosen._build())
        if backend not in OF_SINGLE_ENVS:
            compare_new_rows(env)
        if not isinstance(chosen.env, str):
            chosen = replace(chosen, env=self.env)  # an import path remains one, so that a run can record it
        env.env_config, env.backend_choice = chosen, BackendChoice(wanted.backend, reason)
        return env

    def on_device(self, device: str) -> VecEnvConfig:
        """Return this config with the device of a backend that steps tensors, unless `env_kwargs` have one."""
        steps_tensors = self.backend in TENSOR_BACKENDS
        return replace(self, env_kwargs={"device": device, **self.env_kwargs}) if steps_tensors else self

    def single_env_config(self) -> VecEnvConfig:
        """Return the config of one env that is stepped in this process; of several instances it is the first."""
        instance = dict(*self.instances[:1])
        env = instance.pop("id", self.env)
        env_kwargs = {**self.env_kwargs, **instance}
        if self.backend in TENSOR_BACKENDS:
            env_kwargs.pop("device", None)
        return replace(self, env=env, num_envs=1, backend="sync", env_kwargs=env_kwargs, instances=(), seeds=None)

    def single_env_fns(self) -> tuple[Callable[[], gym.Env], ...]:
        """Return a function for each instance, or one, that makes a single env without training wrappers.

        Raises:
            ConfigurationError: as `make`; the functions raise it for wrong arguments.
            EnvStepError: the constructor of an instance raised another exception.
        """
        self._check_instances()
        config = replace(self, training=False)
        return tuple(config._env_fn(number) for number in range(self._num_instances))

    @property
    def sources(self) -> tuple[EnvSource, ...]:
        """The envs, of which there are several if instances have ids of their own."""
        return (self.env, *(instance["id"] for instance in self.instances if "id" in instance))

    @property
    def _num_instances(self) -> int:
        return max(1, len(self.instances))

    @property
    def _all_wrappers(self) -> tuple[Wrapper, ...]:
        return (*self.wrappers, *self.training_wrappers)

    @property
    def _active_training_wrappers(self) -> tuple[Wrapper, ...]:
        return self.training_wrappers if self.training else ()

    def _check_instances(self) -> None:
        """Make each instance once.

        Raises:
            ConfigurationError: their spaces are unequal, or the backend has no single envs.
            EnvStepError: as `make`.
        """
        if not self.instances:
            return
        single = ("auto", "sync", "async", "workers")
        if self.backend not in single:
            raise ConfigurationError(
                f"backend={self.backend!r} cannot run different envs; allowed with instances are {single}"
            )
        first: tuple[Any, Any] | None = None
        for number in range(len(self.instances)):
            with env_errors(env_name_of_config(self), f"construction of instance {number}"):
                env = self._env_fn(number, checked=True, picklable=False)()
                spaces = env.observation_space, env.action_space
                env.close()
            first = first or spaces
            if spaces != first:
                raise ConfigurationError(
                    f"instances: number {number} has {spaces[0]} and {spaces[1]}, number 0 has {first[0]} and "
                    f"{first[1]}; allowed are equal spaces"
                )

    def _choose(self) -> tuple[Backend, str]:
        """Return the fastest backend among those that run this env unchanged, and the reason."""
        if not self.instances and isinstance(self.env, str) and all(map(supports_batch, self._all_wrappers)):
            spec = env_spec(self.env)
            if has_native_vector_env(spec, self.env_kwargs):
                return "vector", "gymnasium has one for this env"
            if not self.env_kwargs and envpool.has_same_env(self.env, max_episode_steps=spec.max_episode_steps):
                return "envpool", "it is installed and has this env"
        workers = resolve_num_workers(self.num_workers, self.num_envs)
        env_fn = self._env_fn(0)
        pays, reason = prefer_workers(env_fn, num_envs=self.num_envs, num_workers=workers)
        return ("workers" if pays else "sync"), reason

    def _build(self) -> VectorEnv:
        if self.backend in OF_SINGLE_ENVS:
            # gymnasium's checker examines the first steps only, but costs time in all: one env of each instance has it
            count, picklable = self._num_instances, self.backend == "workers"
            env_fns = [self._env_fn(row, checked=row < count, picklable=picklable) for row in range(self.num_envs)]
            if self.backend != "workers":
                return _in_gymnasium(self.backend, env_fns, env_name_of_config(self), autoreset_mode=self.autoreset)
            return SubprocVectorEnv(
                env_fns, num_workers=self.num_workers, autoreset_mode=self.autoreset, timeout=self.step_timeout
            )
        if self.backend in TENSOR_BACKENDS:
            if self._all_wrappers:
                raise ConfigurationError(
                    f"wrappers: {self._all_wrappers[0]!r} wraps envs of numpy arrays; allowed with "
                    f"backend={self.backend!r}, whose envs are tensors, are none"
                )
            return importlib.import_module(TENSOR_BACKENDS[self.backend]).make_env(self)
        for wrapper in self._all_wrappers:
            if not supports_batch(wrapper):
                raise ConfigurationError(
                    f"wrappers: {wrapper!r} wraps single envs; allowed with backend='sync', 'workers' or 'async', and "
                    f"with backend={self.backend!r} those whose class has supports_batch = True"
                )
        if self.backend in ENV_BACKENDS:
            env = ENV_BACKENDS[self.backend](self)
        else:
            env = self._build_pool() if self.backend == "envpool" else self._build_native()
        for wrapper in self.wrappers:
            env = BatchedObservationWrapper(env, wrapper)
        for wrapper in self._active_training_wrappers:
            env = require_same_spaces(env, BatchedObservationWrapper(env, wrapper), wrapper)
        return env

    def _build_pool(self) -> VectorEnv:
        if not isinstance(self.env, str):
            raise ConfigurationError(f"env_name={self.env!r} is a factory; backend='envpool' needs an id")
        return EnvPoolVectorEnv(self.env, self.num_envs, **self.env_kwargs)

    def _build_native(self) -> VectorEnv:
        if isinstance(self.env, str):
            if env_spec(self.env).vector_entry_point is None:
                raise ConfigurationError(
                    f"env_name={self.env!r} has no native vector env; allowed are backend='sync', 'workers', 'async' "
                    "and 'auto'"
                )
            with configuration_errors(self.env, self.env_kwargs):
                return gym.make_vec(
                    self.env, num_envs=self.num_envs, vectorization_mode="vector_entry_point", **self.env_kwargs
                )
        with configuration_errors(self.env, self.env_kwargs):
            env = self.env(num_envs=self.num_envs, **self.env_kwargs)
        if not hasattr(env, "single_observation_space") or env.num_envs != self.num_envs:
            raise ConfigurationError(
                f"env_name={self.env!r} returned {env}; with backend='vector' it must return a VectorEnv of "
                f"num_envs={self.num_envs}"
            )
        return env

    def _env_fn(self, row: int, *, checked: bool = False, picklable: bool = True) -> Callable[[], gym.Env]:
        instance = dict(self.instances[row % len(self.instances)]) if self.instances else {}
        source = resolve_source(instance.pop("id", self.env))
        return partial(
            _make_single,
            _picklable(source) if picklable else source,
            {**self.env_kwargs, **instance},
            self.wrappers,
            self._active_training_wrappers,
            checked=checked,
        )


def make_vect_envs(
    env_name: EnvSource | Sequence[EnvSource] | None = None,
    num_envs: int = 1,
    *,
    make_env: Callable[..., Any] | None = None,
    backend: Backend | str = "auto",
    wrappers: Wrapper | Iterable[Wrapper] = (),
    training_wrappers: Wrapper | Iterable[Wrapper] = (),
    env_kwargs: Mapping[str, Any] | None = None,
    autoreset: AutoresetMode | str = AutoresetMode.SAME_STEP,
    num_workers: int | None = None,
    step_timeout: float = STEP_TIMEOUT,
    should_async_vector: bool | None = None,
    instances: Iterable[Mapping[str, Any]] = (),
    aggregate: Aggregate = "mean",
    info_keys: Mapping[str, str] | None = None,
    seeds: int | Sequence[int] | None = None,
    max_total_reward: float | None = None,
    **more_env_kwargs: Any,
) -> VectorEnv:
    """Make `num_envs` copies of an env that step together.

    `env_name` is an id of gymnasium ("CartPole-v1", "package:Env-v0"), an import path "package.module:factory", or a
    factory; `make_env` is another name for a factory. `wrappers` are put around each single env, the first one
    innermost: a name from `gymnasium.wrappers` or an import path, {"name": …, **kwargs}, or a callable; a single one
    needs no list. Wrappers that support batches (see `envs.wrapper_specs`) also wrap native vector envs and EnvPool.

    `training_wrappers` have the same form. They are put around `wrappers` for training only: evaluation never has
    them, so fitness and `target` use the environment's own reward. Use them for wrappers that change the reward, such
    as NormalizeReward and ClipReward; scores of training episodes then sum the changed rewards. A wrapper that changes
    a space belongs in `wrappers`.

    Backends: "vector" is gymnasium's native vector env (or a factory of `num_envs` that returns a VectorEnv), "envpool"
    is EnvPool, "torch" and "gymnax" step tensors, on `device="cuda"` for example (see `envs.tensor_envs` and
    `envs.jax_envs`), "sync" steps the envs in turn in this process, "workers" steps many envs in each of `num_workers`
    processes (default: one per core), "async" runs each env in its own process. Those processes import the script again
    where they are not forked (macOS, and Linux from Python 3.14), so that a script with "async" needs the guard
    `if __name__ == "__main__":` there. "auto" takes "vector", else "envpool" (if installed, with the same time limit),
    if it runs the env unchanged; else it times some steps of one env and takes "sync" or "workers", which return the
    same bits. `describe_backend(env)` returns the choice and the reason.
    `step_timeout` is the number of seconds that an env may take for a step or a reset before its worker is restarted.

    `instances` are environments that differ: their arguments, and their `id` if it is not `env_name`; a list of ids or
    factories as `env_name` is short for that. All members meet all of them equally often, and are evaluated on each
    with the same seeds; fitness is the `aggregate` of the mean returns: "mean", "min" or "median". `info_keys` names
    entries of the info of an episode's last step that are reported ({"cost": "cost"}; "env.NAME" is an attribute of
    the environment), and `fitness="info.cost"` selects by one. `seeds` are those of each member's training envs.
    `max_total_reward` terminates an episode whose return has reached it.
    `should_async_vector` is AgileRL's argument that chooses between "async" and "sync".

    `env_kwargs`, and all further keywords, are arguments of the environment: `gravity=5.0`, `max_episode_steps=100`.
    `autoreset` is gymnasium's mode in which "sync", "async" and "workers" start the next episode: "SameStep", in the
    step that ends one (the default), or "NextStep"; other backends have their own.

    Raises:
        ConfigurationError: as `VecEnvConfig.make`.
    """
    if isinstance(env_name, (list, tuple)):
        if not env_name or instances:
            raise ConfigurationError(f"env_name={env_name!r:.100}; allowed is a list of envs, without instances")
        instances, env_name = [{"id": source} for source in env_name], env_name[0]
    if (env_name is None) == (make_env is None):
        raise ConfigurationError(f"env_name={env_name!r} and make_env={make_env!r}; allowed is exactly one of them")
    if should_async_vector is not None:
        named: Backend = "async" if should_async_vector else "sync"
        if backend not in ("auto", named):
            raise ConfigurationError(f"should_async_vector={should_async_vector} contradicts backend={backend!r}")
        backend = named
    return VecEnvConfig(
        env=cast(EnvSource, make_env if env_name is None else env_name),
        num_envs=num_envs,
        backend=backend,
        wrappers=(*_as_tuple("wrappers", wrappers), *episode_wrappers(max_total_reward, info_keys or {})),
        training_wrappers=_as_tuple("training_wrappers", training_wrappers),
        env_kwargs=joined_kwargs(env_kwargs, more_env_kwargs),
        instances=tuple_of("instances", instances, "a list of mappings"),
        aggregate=aggregate,
        info_keys=plain_info_keys(info_keys or {}),
        seeds=cast(Any, seeds),
        autoreset=_autoreset(autoreset),
        num_workers=num_workers,
        step_timeout=step_timeout,
    ).make()


def episode_wrappers(max_total_reward: float | None, info_keys: Mapping[str, str]) -> tuple[Wrapper, ...]:
    """Return the wrappers for a limit of the return and for attributes among the `info_keys`.

    Raises:
        ConfigurationError: the limit is not finite, or `info_keys` are no names with keys.
    """
    check_info_keys(info_keys)
    wrappers: list[Wrapper] = []
    if max_total_reward is not None:
        is_number = isinstance(max_total_reward, int | float) and not isinstance(max_total_reward, bool)
        if not is_number or not 0 < max_total_reward < math.inf:
            raise ConfigurationError(f"max_total_reward={max_total_reward!r}; allowed are finite numbers above 0")
        wrappers.append({"name": f"{EPISODE_WRAPPERS}:MaxTotalReward", "limit": max_total_reward})
    names = [key.removeprefix(ATTRIBUTE) for key in info_keys.values() if key.startswith(ATTRIBUTE)]
    if names:
        wrappers.append({"name": f"{EPISODE_WRAPPERS}:AttributesInInfo", "names": names})
    return tuple(wrappers)


def plain_info_keys(info_keys: Mapping[str, str]) -> dict[str, str]:
    """Return the `info_keys` with the keys under which `episode_wrappers` put attributes of the environment."""
    return {name: key.removeprefix(ATTRIBUTE) for name, key in info_keys.items()}


def check_info_keys(info_keys: Mapping[str, str]) -> None:
    """Raise ConfigurationError unless `info_keys` is a mapping of names to keys of the info, none of them hidden."""
    if not isinstance(info_keys, Mapping) or not all(
        isinstance(text, str) and text for pair in info_keys.items() for text in pair
    ):
        raise ConfigurationError(f"info_keys={info_keys!r}; allowed are names with keys of the info")
    attributes = [key for key in info_keys.values() if key.startswith(ATTRIBUTE)]
    for key in info_keys.values():
        attribute = ATTRIBUTE + key.partition(".")[0]
        if attribute in attributes and key not in attributes:
            raise ConfigurationError(
                f"info_keys={dict(info_keys)!r}: the attribute {attribute!r} would hide {key!r} of the info; "
                "allowed is one of the two"
            )


def check_instances(env_config: VecEnvConfig | None, envs: int) -> None:
    """Raise ConfigurationError unless a member's envs have all instances equally often, and a seed each."""
    if env_config is None:
        return
    count = len(env_config.instances)
    if count and envs % count:
        raise ConfigurationError(f"num_envs={envs}; allowed with {count} instances are multiples of {count}")
    seeds = env_config.seeds
    if isinstance(seeds, tuple) and len(seeds) != envs:
        raise ConfigurationError(f"seeds has {len(seeds)} entries; allowed is one for each of {envs} envs")


def training_seeds(env_config: VecEnvConfig | None, envs: int) -> list[int] | None:
    """Return the configured seeds of a member's training envs; None if they come from the run's seed."""
    if env_config is None or env_config.seeds is None:
        return None
    check_instances(env_config, envs)
    seeds = env_config.seeds
    return list(seeds) if isinstance(seeds, tuple) else [seeds + row for row in range(envs)]


def env_config_or_none(env: Any) -> VecEnvConfig | None:
    """Return the configuration of an env, also of a team's, or of that inside its wrappers; None if it has none."""
    found = env_config_inside(env)
    return found if isinstance(found, VecEnvConfig) else None


def have_equal_episodes(env: Any, other: Any) -> bool:
    """Return whether two envs are one, or were made from the same env, wrappers, arguments and instances."""
    one, two = env_config_or_none(env), env_config_or_none(other)
    if one is None or two is None:
        return env is other
    names = "env", "wrappers", "env_kwargs", "instances"
    return all(equal_values(getattr(one, name), getattr(two, name)) for name in names)


def describe_backend(env: VectorEnv) -> str:
    """Return the backend of an env and the reason for it, as in "sync, because …"."""
    env_config, choice = getattr(env, "env_config", None), getattr(env, "backend_choice", None)
    if not isinstance(env_config, VecEnvConfig) or not isinstance(choice, BackendChoice):
        return type(env).__name__
    return f"{env_config.backend}, because {choice.reason}" if choice.reason else env_config.backend


def env_config_of(env: VectorEnv, use: str = "be made by other processes", allowed: str = "") -> VecEnvConfig:
    """Return the configuration of an env, from which another process can make it.

    An error states the `use` for which it is needed, and the envs that are `allowed` there.

    Raises:
        ConfigurationError: it is unknown how the env was made.
    """
    env_config = _find_env_config(env)
    if env_config is None:
        raise ConfigurationError(
            f"env={env} cannot {use}, because it is unknown how it was made; allowed are "
            + (allowed or "envs of make_vect_envs(…) and native vector envs of gymnasium.make_vec(…)")
        )
    return env_config


def with_num_envs(
    env: VectorEnv, num_envs: int, *, backend: Backend | str | None = None, training: bool = True, first: int = 0
) -> VectorEnv:
    """Make a new env like this one with another number of copies, without its training wrappers unless `training`.

    It is known how to make envs of `make_vect_envs` and `gymnasium.make_vec`, and a user's `SyncVectorEnv`,
    `AsyncVectorEnv` and `SubprocVectorEnv`, whose functions are repeated in order, starting with number `first`, in its
    autoreset mode. If "auto" chose between "sync" and "workers", it chooses again for the new number.

    Raises:
        ConfigurationError: it is unknown how the env was made.
    """
    env_config = _find_env_config(env)
    if env_config is not None:
        choice = getattr(env, "backend_choice", None)
        if backend is None and env_config.backend in ("sync", "workers") and isinstance(choice, BackendChoice):
            backend = choice.requested
        made = replace(env_config, training=env_config.training and training).make(num_envs, backend)
        set_num_distinct_envs(made, num_distinct_envs(env))
        return made
    if type(env) in _BUILT_FROM_ENV_FNS:  # a subclass may have another constructor
        given = cast(Any, env).env_fns
        env_fns = [given[row % env.num_envs] for row in range(first, first + num_envs)]
        wide = _with_env_fns(env, env_fns, backend)
        set_num_distinct_envs(wide, num_distinct_envs(env))
        return wide
    raise ConfigurationError(
        f"env={env} with num_envs={env.num_envs} cannot be made again with num_envs={num_envs}, because it is unknown "
        "how it was made; allowed are envs of make_vect_envs(id or factory, …, wrappers=[…]); for a VectorEnv of your "
        "own: make_vect_envs(lambda num_envs: MyVectorEnv(num_envs), backend='vector')"
    )


def can_be_made_again(env: VectorEnv) -> bool:
    """Return whether it is known how an env was made, so that `with_num_envs` makes others like it."""
    return _find_env_config(env) is not None or type(env) in _BUILT_FROM_ENV_FNS


def single_env_fns_of(env: VectorEnv) -> tuple[Callable[[], gym.Env], ...]:
    """Return functions that make single envs like those of a vector env, one for each instance.

    There are none if this process cannot or must not make them: native vector envs and EnvPool have no single envs, and
    a user may have requested workers because the env can crash its process.
    """
    env_config = _find_env_config(env)
    if env_config is not None:
        choice = getattr(env, "backend_choice", None)
        requested = choice.requested if isinstance(choice, BackendChoice) else env_config.backend
        may_run_here = env_config.backend in ("sync", "workers") and requested in ("auto", "sync")
        return env_config.single_env_fns() if may_run_here else ()
    if type(env) is not SyncVectorEnv:
        return ()
    made = env.env_fns[0]()
    if core_env(made) is core_env(env.envs[0]):
        return ()
    made.close()
    return (env.env_fns[0],)


def evaluation_env(env: VectorEnv, num_envs: int) -> VectorEnv:
    """Make a new env like this one, without its training wrappers, in which every copy can be seeded separately.

    A native vector env, whose copies share one generator, is replaced by single envs that step in turn if the id also
    has a single env. EnvPool seeds each env and is kept (`with_num_envs(…, backend="sync")` makes gymnasium's
    original).

    Raises:
        ConfigurationError: as `with_num_envs`.
    """
    env_config = _find_env_config(env)
    shared = env_config is not None and _shares_generator(env_config)
    return with_num_envs(env, num_envs, backend="sync" if shared else None, training=False)


def joined_kwargs(env_kwargs: Mapping[str, Any] | None, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an env in a mapping and in `more`; ConfigurationError if the first is no mapping."""
    check_mapping("env_kwargs", {} if env_kwargs is None else env_kwargs)
    return {**(env_kwargs or {}), **more}


def _as_tuple(field: str, wrappers: Wrapper | Iterable[Wrapper]) -> tuple[Wrapper, ...]:
    one = _is_single_wrapper(wrappers)
    return (cast(Wrapper, wrappers),) if one else tuple_of(field, wrappers, "a wrapper, or a list of them")


def _is_single_wrapper(wrappers: Wrapper | Iterable[Wrapper]) -> bool:
    if isinstance(wrappers, tuple) and len(wrappers) == 2:  # a name with arguments, and not two wrappers
        name, kwargs = wrappers
        return isinstance(name, str) and isinstance(kwargs, Mapping) and "name" not in kwargs
    return isinstance(wrappers, (str, Mapping)) or callable(wrappers)


def _autoreset(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError as fault:
        raise unknown_name("autoreset", mode, [one.value for one in AutoresetMode]) from fault


def _plain_seeds(seeds: Any) -> int | tuple[int, ...] | None:
    """Return seeds as plain numbers, which a run can record."""
    if seeds is None:
        return None
    each = tuple(seeds) if np.iterable(seeds) else (seeds,)
    if not each or not all(_is_whole(seed) and seed >= 0 for seed in each):
        raise ConfigurationError(f"seeds={seeds!r}; allowed are whole numbers from 0")
    return tuple(map(int, each)) if np.iterable(seeds) else int(seeds)


def _is_whole(number: object) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool)


class BackendChoice(NamedTuple):
    """The requested backend, and why "auto" chose the one in use."""

    requested: str
    reason: str


class _ConfiguredVecEnv(VectorEnv):
    """The type of a vector env that carries its configuration."""

    env_config: VecEnvConfig
    backend_choice: BackendChoice


def _make_single(
    env: EnvSource | EnvSpec,
    kwargs: Mapping[str, Any],
    wrappers: Sequence[Wrapper],
    training_wrappers: Sequence[Wrapper],
    *,
    checked: bool,
) -> gym.Env:
    with configuration_errors(env, kwargs), import_warnings_ignored():
        if isinstance(env, (str, EnvSpec)):
            silence_banner(env_spec(env) if isinstance(env, str) else env)
            made = gym.make(env, **{"disable_env_checker": None if checked else True, **kwargs})
        else:
            made = env(**kwargs)
    if not isinstance(made, gym.Env) or hasattr(made, "single_observation_space"):
        is_multi_agent = hasattr(made, "possible_agents")
        others = (
            "multi-agent environments have algorithm.name IPPO, and make_multi_agent_vect_envs in Python"
            if is_multi_agent
            else "for a VectorEnv use backend='vector'"
        )
        raise ConfigurationError(f"env_name={env!r} returned {made!r}; allowed is a gymnasium.Env ({others})")
    for wrapper in wrappers:
        made = apply_wrapper(made, wrapper)
    for wrapper in training_wrappers:
        made = require_same_spaces(made, apply_wrapper(made, wrapper), wrapper)
    return made


def _picklable(source: EnvSource) -> EnvSource | EnvSpec:
    """Return a source from which a process that has not registered the id can make the env."""
    return env_spec(source) if isinstance(source, str) else source


def _in_gymnasium(backend: str, env_fns: Sequence[Callable[[], gym.Env]], source: Any, **options: Any) -> VectorEnv:
    """Make gymnasium's SyncVectorEnv or AsyncVectorEnv, which copies final observations."""
    if backend == "async":
        env_fns = [with_copied_final_obs(env_fn) for env_fn in env_fns]
        with contextlib.closing(env_fns[0]()) as single:  # before the workers have theirs: it may want the same port
            limit = time_limit(single)
        env = ClosableAsyncVectorEnv(env_fns, worker=async_worker, **options)
        env.max_episode_steps = limit
    else:
        env = SyncVectorEnv(env_fns, **options)
        refuse_shared_envs(env.envs, source)
    fix_infos(env)
    return env


def _find_env_config(env: VectorEnv) -> VecEnvConfig | None:
    """Return how an env was made, or None if that is unknown."""
    if isinstance(env_config := vars(env).get("env_config"), VecEnvConfig):
        return env_config
    if isinstance(env, VectorWrapper):
        return None  # its inner env may have a configuration, but that lacks the wrapper
    spec = getattr(env, "spec", None)
    if isinstance(spec, EnvSpec) and spec.kwargs.get("vectorization_mode") == "vector_entry_point":
        own = ("vectorization_mode", "num_envs", "vector_kwargs", "wrappers")
        kwargs = {key: value for key, value in spec.kwargs.items() if key not in own}
        if kwargs.get(TIME_LIMIT) == spec.max_episode_steps:
            kwargs.pop(TIME_LIMIT, None)
        return VecEnvConfig(spec.id, env.num_envs, "vector", env_kwargs=kwargs)
    return None


_BUILT_FROM_ENV_FNS: Mapping[type[VectorEnv], Backend] = {
    SyncVectorEnv: "sync",
    AsyncVectorEnv: "async",
    ClosableAsyncVectorEnv: "async",
    SubprocVectorEnv: "workers",
}


def _with_env_fns(env: Any, env_fns: Sequence[Callable[[], gym.Env]], backend: Backend | str | None) -> VectorEnv:
    if backend is None or backend not in _BUILT_FROM_ENV_FNS.values():
        backend = _BUILT_FROM_ENV_FNS[type(env)]
    if backend == "workers":
        is_same = isinstance(env, SubprocVectorEnv)
        known = {"num_workers": env.requested_workers, "timeout": env.timeout} if is_same else {}
        return SubprocVectorEnv(env_fns, autoreset_mode=env.autoreset_mode, **known)
    mode: Any = getattr(env, "observation_mode", "same")
    if not isinstance(mode, str):
        mode = (batch_space(env.single_observation_space, len(env_fns)), env.single_observation_space)
    return _in_gymnasium(backend, env_fns, env, observation_mode=mode, autoreset_mode=env.autoreset_mode)


def _shares_generator(env_config: VecEnvConfig) -> bool:
    """Return whether this is a native vector env of an id that also has a single env."""
    if env_config.backend != "vector" or not isinstance(env_config.env, str):
        return False
    spec = gym.registry.get(env_config.env.rpartition(":")[2])  # None for an import path of a factory
    return spec is not None and spec.entry_point is not None
