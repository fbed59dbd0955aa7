"""Many copies of a world that step together: by gymnasium's native vector env, EnvPool, one process, or many.

A vector env that was made here carries its recipe, so that a population can make a wider one, and evaluation one of its
own. Which backend was chosen is written in `env.env_config.backend`, and `describe_backend(env)` says why.
"""

from __future__ import annotations

import importlib
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Literal, NamedTuple, cast, get_args

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from agilerl_like.envs import envpool
from agilerl_like.envs.backend_timing import prefer_workers
from agilerl_like.envs.distinct_envs import num_distinct_envs, set_num_distinct_envs
from agilerl_like.envs.env_errors import describe_exception, env_errors, env_name_of_config
from agilerl_like.envs.envpool import EnvPoolVectorEnv
from agilerl_like.envs.final_obs_fix import copy_final_obs_in, with_copied_final_obs
from agilerl_like.envs.import_paths import (
    EXTRAS,
    import_module_named,
    import_path,
    install_hint,
    missing_module_name,
    plain,
)
from agilerl_like.envs.subproc.vec_env import STEP_TIMEOUT, SubprocVectorEnv, resolve_num_workers
from agilerl_like.envs.wrapper_specs import (
    BatchedObservationWrapper,
    Wrapper,
    apply_wrapper,
    check_wrapper,
    refuse_shared_envs,
    require_same_spaces,
    resolve_wrapper,
    supports_batch,
    to_json,
)
from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.resources import check_memory

Backend = Literal["auto", "vector", "sync", "async", "envpool", "workers"]
EnvSource = str | Callable[..., Any]

BYTES_PER_ENV = 32
"""Bytes that one of the smallest envs takes: an observation of one number, a reward, two flags, and what it is like."""

TIME_LIMIT, NO_TIME_LIMIT = "max_episode_steps", -1
"""What `gymnasium.make` calls a time limit, and what it takes for none."""


@dataclass(frozen=True)
class VecEnvConfig:
    """How a vector env was made, so that it can be made again, wider or with another backend.

    `env` is gymnasium's id, an import path "package.module:factory", or a factory. With backend "vector" a factory is
    called with `num_envs` and returns a VectorEnv, otherwise it returns one single env. `autoreset` holds for "sync",
    "async" and "workers"; native vector envs and EnvPool have their own. `num_workers` (if left out, one for each core,
    divided among the processes of a run) and `step_timeout` [s] hold for "workers".

    `training_wrappers` go around the outside of `wrappers` and are left out where `training` is False, so that members
    are judged by the environment's own reward; the backend is chosen alike in both cases.
    """

    env: EnvSource
    num_envs: int = 1
    backend: Backend = "auto"
    wrappers: tuple[Wrapper, ...] = ()
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    autoreset: AutoresetMode = AutoresetMode.SAME_STEP
    num_workers: int | None = None
    step_timeout: float = STEP_TIMEOUT
    training_wrappers: tuple[Wrapper, ...] = ()
    training: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.env, str) and not callable(self.env):
            raise ConfigurationError(
                f"env_name={self.env!r}; allowed are an id, 'package.module:factory' or a callable"
            )
        if isinstance(self.num_envs, bool) or not isinstance(self.num_envs, (int, np.integer)) or self.num_envs < 1:
            raise ConfigurationError(f"num_envs={self.num_envs!r}; allowed are whole numbers from 1")
        check_memory(f"num_envs={self.num_envs}", int(self.num_envs), BYTES_PER_ENV, "envs")
        if self.backend not in get_args(Backend):
            raise unknown_name("backend", self.backend, get_args(Backend))
        resolve_num_workers(self.num_workers, self.num_envs)
        if not isinstance(self.step_timeout, (int, float)) or not 0 < self.step_timeout < math.inf:
            raise ConfigurationError(f"step_timeout={self.step_timeout!r}; allowed are seconds above 0")
        for wrapper in (*self.wrappers, *self.training_wrappers):
            check_wrapper(wrapper)

    def make(self, num_envs: int | None = None, backend: Backend | None = None) -> VectorEnv:
        """Make the vector env; it carries this recipe, with the backend that was chosen, as `.env_config`.

        Raises:
            ConfigurationError: unknown id, wrapper or argument, a package that is not installed, or a backend that this
                env does not have.
            EnvStepError: the env's constructor raised another exception.
        """
        for wrapper in (*self.wrappers, *self.training_wrappers):
            resolve_wrapper(wrapper)  # what cannot be imported is an error here, not in a worker
        wanted = replace(
            self,
            num_envs=self.num_envs if num_envs is None else num_envs,
            backend=self.backend if backend is None else backend,
        )
        if wanted.backend != "envpool":  # which has ids that gymnasium does not know
            wanted = replace(wanted, env=_resolve_source(self.env))
        if isinstance(wanted.env, str):
            wanted = replace(wanted, env_kwargs=_with_time_limit(wanted.env_kwargs, wanted.backend))
        with env_errors(env_name_of_config(self), "construction"):
            backend, reason = wanted._choose() if wanted.backend == "auto" else (wanted.backend, "")
            chosen = replace(wanted, backend=backend)
            env = cast(_ConfiguredVecEnv, chosen._build())
        if not isinstance(chosen.env, str):
            chosen = replace(chosen, env=self.env)  # an import path stays one, so that to_json can write it
        env.env_config, env.backend_choice = chosen, BackendChoice(wanted.backend, reason)
        return env

    def single_env_fn(self) -> Callable[[], gym.Env]:
        """Return a function that makes one single env of this kind, without training wrappers.

        Raises:
            ConfigurationError: as `make`; the function raises it for wrong arguments.
        """
        resolve_wrapper = replace(self, env=_resolve_source(self.env), training=False)
        return resolve_wrapper._single(resolve_wrapper._picklable_source(), 1)

    def to_json(self) -> dict[str, Any]:
        """Describe the recipe in plain data; factories become import paths."""
        return {
            "env": self.env if isinstance(self.env, str) else import_path("env_name", self.env),
            "num_envs": int(self.num_envs),
            "backend": self.backend,
            "wrappers": [to_json(wrapper) for wrapper in self.wrappers],
            "env_kwargs": plain("env_kwargs", dict(self.env_kwargs)),
            "autoreset": self.autoreset.value,
            "num_workers": self.num_workers,
            "step_timeout": self.step_timeout,
            "training_wrappers": [to_json(wrapper) for wrapper in self.training_wrappers],
            "training": self.training,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> VecEnvConfig:
        """Read what `to_json` wrote."""
        return cls(
            env=data["env"],
            num_envs=data["num_envs"],
            backend=data["backend"],
            wrappers=tuple(data["wrappers"]),
            env_kwargs=data["env_kwargs"],
            autoreset=_autoreset(data["autoreset"]),
            num_workers=data.get("num_workers"),
            step_timeout=data.get("step_timeout", STEP_TIMEOUT),
            training_wrappers=tuple(data.get("training_wrappers", ())),
            training=data.get("training", True),
        )

    def _choose(self) -> tuple[Backend, str]:
        """Pick what runs this env fastest among what runs it unchanged, and say why."""
        if isinstance(self.env, str) and all(map(supports_batch, (*self.wrappers, *self.training_wrappers))):
            spec = _spec(self.env)
            if _has_native(spec, self.env_kwargs):
                return "vector", "gymnasium has one for this env"
            if not self.env_kwargs and envpool.has_same_env(self.env, max_episode_steps=spec.max_episode_steps):
                return "envpool", "it is installed and has this env"
        workers = resolve_num_workers(self.num_workers, self.num_envs)
        pays, reason = prefer_workers(
            self._single(self._picklable_source(), 1), num_envs=self.num_envs, num_workers=workers
        )
        return ("workers" if pays else "sync"), reason

    def _build(self) -> VectorEnv:
        if self.backend in ("sync", "async"):
            return self._build_from_singles()
        if self.backend == "workers":
            singles = [self._single(self._picklable_source(), row) for row in range(self.num_envs)]
            return SubprocVectorEnv(
                singles, num_workers=self.num_workers, autoreset_mode=self.autoreset, timeout=self.step_timeout
            )
        for wrapper in (*self.wrappers, *self.training_wrappers):
            if not supports_batch(wrapper):
                raise ConfigurationError(
                    f"wrappers: {wrapper!r} wraps single envs; allowed with backend='sync', 'workers' or 'async', and "
                    f"with backend={self.backend!r} those whose class has supports_batch = True"
                )
        env = self._build_pool() if self.backend == "envpool" else self._build_native()
        for wrapper in self.wrappers:
            env = BatchedObservationWrapper(env, wrapper)
        for wrapper in self._active_training_wrappers:
            env = require_same_spaces(env, BatchedObservationWrapper(env, wrapper), wrapper)
        return env

    @property
    def _active_training_wrappers(self) -> tuple[Wrapper, ...]:
        """The training wrappers that this env has."""
        return self.training_wrappers if self.training else ()

    def _build_pool(self) -> VectorEnv:
        if not isinstance(self.env, str):
            raise ConfigurationError(f"env_name={self.env!r} is a factory; backend='envpool' needs an id")
        return EnvPoolVectorEnv(self.env, self.num_envs, **self.env_kwargs)

    def _build_from_singles(self) -> VectorEnv:
        singles = [self._single(self.env, row) for row in range(self.num_envs)]
        if self.backend == "async":
            return AsyncVectorEnv([with_copied_final_obs(single) for single in singles], autoreset_mode=self.autoreset)
        env = copy_final_obs_in(SyncVectorEnv(singles, autoreset_mode=self.autoreset))
        refuse_shared_envs(env.envs, f"env_name={self.env!r}")
        return env

    def _single(self, env: EnvSource | EnvSpec, row: int) -> Callable[[], gym.Env]:
        # the checker looks at the first steps only, but its call costs every step: one env of all is watched
        worn = self._active_training_wrappers
        return partial(_make_single, env, dict(self.env_kwargs), self.wrappers, worn, watched=row == 0)

    def _picklable_source(self) -> EnvSource | EnvSpec:
        """Return the env so that it can be made where nobody has registered its id."""
        return _spec(self.env) if isinstance(self.env, str) else self.env

    def _build_native(self) -> VectorEnv:
        if isinstance(self.env, str):
            if _spec(self.env).vector_entry_point is None:
                raise ConfigurationError(
                    f"env_name={self.env!r} has no native vector env; allowed are backend='sync', 'workers', 'async' "
                    "and 'auto'"
                )
            with _explain_errors(self.env, self.env_kwargs):
                return gym.make_vec(
                    self.env, num_envs=self.num_envs, vectorization_mode="vector_entry_point", **self.env_kwargs
                )
        with _explain_errors(self.env, self.env_kwargs):
            env = self.env(num_envs=self.num_envs, **self.env_kwargs)
        if not hasattr(env, "single_observation_space") or env.num_envs != self.num_envs:
            raise ConfigurationError(
                f"env_name={self.env!r} returned {env}; with backend='vector' it must return a VectorEnv of "
                f"num_envs={self.num_envs}"
            )
        return env


def make_vect_envs(
    env_name: EnvSource | None = None,
    num_envs: int = 1,
    *,
    make_env: Callable[..., Any] | None = None,
    backend: Backend = "auto",
    wrappers: Wrapper | Iterable[Wrapper] = (),
    training_wrappers: Wrapper | Iterable[Wrapper] = (),
    env_kwargs: Mapping[str, Any] | None = None,
    autoreset: AutoresetMode | str = AutoresetMode.SAME_STEP,
    num_workers: int | None = None,
    step_timeout: float = STEP_TIMEOUT,
    should_async_vector: bool | None = None,
    **more_env_kwargs: Any,
) -> VectorEnv:
    """Make `num_envs` copies of an env that step together.

    `env_name` is an id of gymnasium ("CartPole-v1", "package:Env-v0"), an import path "package.module:factory", or a
    factory; `make_env` is another name for a factory. `wrappers` go around each single env, the first inside: a name
    from `gymnasium.wrappers` or an import path, {"name": …, **kwargs}, or a callable; one may stand alone. Those that
    read rows (see `envs.wrapping`) go around native vector envs and EnvPool, too.

    `training_wrappers` are given alike and go around those, in training alone: evaluation never has them, so fitness
    and `target` count the environment's own reward. They are the place for wrappers that change the reward, such as
    NormalizeReward and ClipReward; the scores of training episodes are then sums of the changed rewards. A wrapper that
    changes a space belongs in `wrappers`.

    Backends: "vector" is gymnasium's native vector env (or a factory of `num_envs` that returns a VectorEnv), "envpool"
    is EnvPool, "sync" steps one env after the other in this process, "workers" does the same in `num_workers` processes
    (one for each core, if left out) that each have many envs, "async" runs each env in a process of its own. "auto"
    takes vector, else EnvPool (if installed, with the same time limit), if they run the env unchanged; else it times
    some steps of one env and takes sync or workers, whose results are the same bits. `describe_backend(env)` says which and
    why. `step_timeout` is how many seconds a worker may take for a step before it counts as dead.
    `should_async_vector` is AgileRL's way to choose between "async" and "sync".

    Raises:
        ConfigurationError: as `VecEnvConfig.make`.
    """
    if (env_name is None) == (make_env is None):
        raise ConfigurationError(f"env_name={env_name!r} and make_env={make_env!r}; allowed is exactly one of them")
    if should_async_vector is not None:
        named: Backend = "async" if should_async_vector else "sync"
        if backend not in ("auto", named):
            raise ConfigurationError(f"should_async_vector={should_async_vector} contradicts backend={backend!r}")
        backend = named
    env_config = VecEnvConfig(
        env=cast(EnvSource, make_env if env_name is None else env_name),
        num_envs=num_envs,
        backend=backend,
        wrappers=_as_tuple(wrappers),
        training_wrappers=_as_tuple(training_wrappers),
        env_kwargs={**(env_kwargs or {}), **more_env_kwargs},
        autoreset=_autoreset(autoreset),
        num_workers=num_workers,
        step_timeout=step_timeout,
    )
    return env_config.make()


def describe_backend(env: VectorEnv) -> str:
    """Say what steps this env and why, as in "sync, because …"."""
    env_config, backend_choice = getattr(env, "env_config", None), getattr(env, "backend_choice", None)
    if not isinstance(env_config, VecEnvConfig) or not isinstance(backend_choice, BackendChoice):
        return type(env).__name__
    return f"{env_config.backend}, because {backend_choice.reason}" if backend_choice.reason else env_config.backend


def env_config_of(env: VectorEnv) -> VecEnvConfig:
    """How an env was made, so that another process can make it.

    Raises:
        ConfigurationError: nothing tells.
    """
    env_config = _find_env_config(env)
    if env_config is None:
        raise ConfigurationError(
            f"env={env} cannot be made by other processes, because nothing tells how it was made; allowed are envs of "
            "make_vect_envs(…) and gymnasium.make_vec(…)"
        )
    return env_config


def with_num_envs(
    env: VectorEnv, num_envs: int, *, backend: Backend | None = None, training: bool = True, first: int = 0
) -> VectorEnv:
    """Make a fresh env like this one with another number of copies, without its training wrappers unless `training`.

    What made it is known for envs from `make_vect_envs` and `gymnasium.make_vec`, and for `SyncVectorEnv`,
    `AsyncVectorEnv` and `SubprocVectorEnv` built by hand, whose functions are used in turn from number `first` on. Where
    "auto" had to choose between sync and workers, it chooses again for the new number.

    Raises:
        ConfigurationError: nothing tells how the env was made.
    """
    env_config = _find_env_config(env)
    if env_config is not None:
        chosen = getattr(env, "backend_choice", None)
        if backend is None and env_config.backend in ("sync", "workers") and isinstance(chosen, BackendChoice):
            backend = chosen.requested
        return replace(env_config, training=env_config.training and training).make(num_envs, backend)
    if type(env) in _BUILT_FROM_ENV_FNS:  # a subclass may be made otherwise
        wide = _with_num_envs_from_fns(env, num_envs, backend, first)
        set_num_distinct_envs(wide, num_distinct_envs(env))
        return wide
    raise ConfigurationError(
        f"env={env} with num_envs={env.num_envs} cannot be made again with num_envs={num_envs}, because nothing tells "
        "how it was made; allowed are envs of make_vect_envs(id or factory, …, wrappers=[…]); for a VectorEnv of your "
        "own: make_vect_envs(lambda num_envs: MyVectorEnv(num_envs), backend='vector')"
    )


def single_env_fn_of(env: VectorEnv) -> Callable[[], gym.Env] | None:
    """Return a function that makes one env like those of a vector env; None if that cannot or must not be done here.

    Native vector envs and EnvPool have no single envs, and envs for which workers were asked may be there because they
    end their process.
    """
    env_config = _find_env_config(env)
    if env_config is not None:
        backend_choice = getattr(env, "backend_choice", None)
        requested = backend_choice.requested if isinstance(backend_choice, BackendChoice) else env_config.backend
        return (
            env_config.single_env_fn()
            if env_config.backend in ("sync", "workers") and requested in ("auto", "sync")
            else None
        )
    if not isinstance(env, SyncVectorEnv) or type(env) not in _BUILT_FROM_ENV_FNS:
        return None
    made = env.env_fns[0]()
    if made.unwrapped is env.envs[0].unwrapped:
        return None
    made.close()
    return env.env_fns[0]


def evaluation_env(env: VectorEnv, num_envs: int) -> VectorEnv:
    """Make a fresh env like this one, without its training wrappers, in which every copy can be seeded on its own.

    That excludes native vector envs, whose copies share one generator, wherever the same env exists as a single one:
    then the single ones step in turn. EnvPool seeds each env, and stays EnvPool (`with_num_envs(…, backend="sync")` makes
    gymnasium's original).

    Raises:
        ConfigurationError: as `with_num_envs`.
    """
    env_config = _find_env_config(env)
    backend: Backend | None = "sync" if env_config is not None and _shares_generator(env_config) else None
    return with_num_envs(env, num_envs, backend=backend, training=False)


def _as_tuple(wrappers: Wrapper | Iterable[Wrapper]) -> tuple[Wrapper, ...]:
    return (cast(Wrapper, wrappers),) if _is_single_wrapper(wrappers) else tuple(cast(Iterable[Wrapper], wrappers))


def _is_single_wrapper(wrappers: Wrapper | Iterable[Wrapper]) -> bool:
    """Whether this is one wrapper; a name and arguments without one are a pair, not two."""
    if isinstance(wrappers, tuple) and len(wrappers) == 2:
        name, kwargs = wrappers
        return isinstance(name, str) and isinstance(kwargs, Mapping) and "name" not in kwargs
    return isinstance(wrappers, (str, Mapping)) or callable(wrappers)


def _autoreset(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError as fault:
        raise unknown_name("autoreset", mode, [one.value for one in AutoresetMode]) from fault


class BackendChoice(NamedTuple):
    """What was asked for, and why "auto" became what it became."""

    requested: Backend
    reason: str


class _ConfiguredVecEnv(VectorEnv):
    """What a vector env looks like to the type checker once it carries its recipe."""

    env_config: VecEnvConfig
    backend_choice: BackendChoice


def _make_single(
    env: EnvSource | EnvSpec,
    kwargs: Mapping[str, Any],
    wrappers: Sequence[Wrapper],
    training_wrappers: Sequence[Wrapper],
    *,
    watched: bool,
) -> gym.Env:
    with _explain_errors(env, kwargs), warnings.catch_warnings():
        # Box2D is built with SWIG, and crashes the interpreter if this warning of its import is made an error
        warnings.filterwarnings("ignore", "builtin type .* has no __module__", DeprecationWarning)
        if isinstance(env, (str, EnvSpec)):
            _silence_banner(env)
            made = gym.make(env, **{"disable_env_checker": None if watched else True, **kwargs})
        else:
            made = env(**kwargs)
    if not isinstance(made, gym.Env) or hasattr(made, "single_observation_space"):
        raise ConfigurationError(
            f"env_name={env!r} returned {made!r}; allowed is a gymnasium.Env (for a VectorEnv say backend='vector')"
        )
    for wrapper in wrappers:
        made = apply_wrapper(made, wrapper)
    for wrapper in training_wrappers:
        made = require_same_spaces(made, apply_wrapper(made, wrapper), wrapper)
    return made


def _silence_banner(env: str | EnvSpec) -> None:
    """Keep ALE from printing its banner for every env that is made, in the middle of a run's log."""
    entry = (_spec(env) if isinstance(env, str) else env).entry_point
    if isinstance(entry, str) and entry.startswith("ale_py"):
        ale = importlib.import_module("ale_py")
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)


@contextmanager
def _explain_errors(env: EnvSource | EnvSpec, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Turn the errors of making an env into one that says what to change."""
    if isinstance(env, EnvSpec):
        env = env.id
    try:
        yield
    except (gym.error.DependencyNotInstalled, ImportError) as fault:
        raise ConfigurationError(f"env_name={env!r} needs a package: {_how_to_install(env, fault)}") from fault
    except gym.error.Error as fault:
        raise ConfigurationError(f"env_name={env!r} cannot be made: {fault}") from fault
    except ConfigurationError:
        raise
    except (TypeError, ValueError, AssertionError) as fault:
        if not kwargs:
            raise
        raise ConfigurationError(
            f"env_kwargs={dict(kwargs)} do not suit env_name={env!r}: {describe_exception(fault)}"
        ) from fault


def _how_to_install(env: EnvSource, fault: BaseException) -> str:
    spec = gym.registry.get(env.rpartition(":")[2]) if isinstance(env, str) else None
    entry = None if spec is None else spec.entry_point
    if isinstance(entry, str) and entry.startswith("gymnasium.envs.box2d"):
        return install_hint("Box2D", fault)
    return install_hint(missing_module_name(fault), fault)


def _spec(env_id: str) -> EnvSpec:
    """Find what gymnasium knows about an id."""
    name = env_id.rpartition(":")[2]
    try:
        return gym.registry[name]
    except KeyError as fault:
        namespace = name.replace("-", "/").partition("/")[0]  # "ALE/Pong-v5", "MiniGrid-Empty-5x5-v0"
        if namespace in EXTRAS and not _is_registered(namespace):
            raise ConfigurationError(f"env_name={env_id!r} needs a package: {install_hint(namespace)}") from None
        error = unknown_name("env_name", env_id, gym.registry)
        raise ConfigurationError(f"{error}; an id of another package is written 'package:Env-v0'") from fault


def _resolve_source(env: EnvSource) -> EnvSource:
    """Return a registered id (with its version) or a factory."""
    if not isinstance(env, str):
        return env
    env = _with_registrar(env)
    module_name, _, name = env.rpartition(":")
    module = import_module_named("env_name", env, module_name) if module_name else None
    if module is not None and name not in gym.registry and hasattr(module, name):
        return getattr(module, name)
    if "/" in name:
        _load_plugin(name.partition("/")[0])
    if name not in gym.registry:
        versions = [spec for spec in gym.registry.values() if name == spec.id.rpartition("-v")[0]]
        if versions:
            newest = max(versions, key=lambda spec: spec.version or 0).id
            return f"{module_name}:{newest}" if module_name else newest
        if module is not None and "-" not in name:
            raise unknown_name(f"env_name={env!r}: name in {module_name}", name, _public(module))
    _spec(env)
    return env


def _with_registrar(env_id: str) -> str:
    """The id with the module in front whose import registers it, for namespaces of which we know that one."""
    registrar = _REGISTRARS.get(env_id.partition("/")[0], "")
    return f"{registrar}:{env_id}" if registrar and find_spec(registrar) is not None else env_id


_REGISTRARS = {"ALE": "ale_py"}


def _public(module: ModuleType) -> list[str]:
    """What a module has that can be called, by name."""
    return [name for name, thing in vars(module).items() if name[0] != "_" and callable(thing)]


def _load_plugin(namespace: str) -> None:
    """Let an installed package register its envs in the way of gymnasium before 1.0, which asked all of them itself."""
    plugins = () if _is_registered(namespace) else entry_points(group="gymnasium.envs", name=namespace)
    for plugin in plugins:
        try:
            plugin.load()()
        except ImportError as fault:
            raise ConfigurationError(
                f"envs of {namespace!r} cannot be registered by {plugin.value}: {fault}"
            ) from fault


def _is_registered(namespace: str) -> bool:
    return any(name.startswith((f"{namespace}/", f"{namespace}-")) for name in gym.registry)


def _with_time_limit(kwargs: Mapping[str, Any], backend: Backend) -> Mapping[str, Any]:
    """Check the time limit of an id's env; native vector envs would take anything for one, and break while they run."""
    limit = kwargs.get(TIME_LIMIT)
    if limit is None:  # the env's own, as for gymnasium.make
        return {key: value for key, value in kwargs.items() if key != TIME_LIMIT}
    whole = isinstance(limit, (int, np.integer)) and not isinstance(limit, bool)
    if whole and (limit >= 1 or (limit == NO_TIME_LIMIT and backend not in ("vector", "envpool"))):
        return {**kwargs, TIME_LIMIT: int(limit)}
    raise ConfigurationError(
        f"env_kwargs: {TIME_LIMIT}={limit!r}; allowed are whole numbers from 1, and {NO_TIME_LIMIT} for no limit with "
        "backend='sync', 'workers', 'async' and 'auto'"
    )


def _has_native(spec: EnvSpec, kwargs: Mapping[str, Any]) -> bool:
    """Say whether gymnasium has a vector env in numpy for this id that takes these arguments."""
    entry = spec.vector_entry_point
    if entry is None or spec.additional_wrappers or kwargs.get(TIME_LIMIT) == NO_TIME_LIMIT:
        return False
    if isinstance(entry, str):
        module_name, _, name = entry.partition(":")
        if module_name.startswith(("gymnasium.envs.phys2d", "gymnasium.envs.tabular")):
            return False  # written in jax: another array type, and compiled at the first step
        try:
            entry = getattr(importlib.import_module(module_name), name)
        except ImportError:
            return False
    try:
        inspect.signature(cast(Callable[..., Any], entry)).bind(num_envs=1, **kwargs)
    except TypeError:
        return False
    return True


def _find_env_config(env: VectorEnv) -> VecEnvConfig | None:
    """Find out how an env was made."""
    if isinstance(env_config := vars(env).get("env_config"), VecEnvConfig):
        return env_config
    if isinstance(env, VectorWrapper):
        return None  # its inner env may have a recipe, but that would leave the wrapper out
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
    SubprocVectorEnv: "workers",
}


def _with_num_envs_from_fns(env: Any, num_envs: int, backend: Backend | None, first: int) -> VectorEnv:
    functions = [env.env_fns[row % env.num_envs] for row in range(first, first + num_envs)]
    if backend not in _BUILT_FROM_ENV_FNS.values():
        backend = _BUILT_FROM_ENV_FNS[type(env)]
    if backend == "workers":
        known = (
            {"num_workers": env.requested_workers, "timeout": env.timeout} if isinstance(env, SubprocVectorEnv) else {}
        )
        return SubprocVectorEnv(functions, **known)
    mode: Any = getattr(env, "observation_mode", "same")
    if not isinstance(mode, str):
        mode = (batch_space(env.single_observation_space, num_envs), env.single_observation_space)
    if backend == "async":
        functions = [with_copied_final_obs(function) for function in functions]
        return AsyncVectorEnv(functions, observation_mode=mode, autoreset_mode=AutoresetMode.SAME_STEP)
    wide = SyncVectorEnv(functions, observation_mode=mode, autoreset_mode=AutoresetMode.SAME_STEP)
    copy_final_obs_in(wide)
    refuse_shared_envs(wide.envs, f"a function of env={env}")
    return wide


def _shares_generator(env_config: VecEnvConfig) -> bool:
    """Say whether this is a native vector env of something that exists as a single env too."""
    if env_config.backend != "vector" or not isinstance(env_config.env, str):
        return False
    spec = gym.registry.get(env_config.env.rpartition(":")[2])  # there is none for an import path of a factory
    return spec is not None and spec.entry_point is not None
