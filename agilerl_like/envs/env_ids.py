"""Environment ids: lookup in gymnasium's registry, in plugins of packages and by import path."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from agilerl_like.envs.env_errors import describe_exception
from agilerl_like.envs.import_paths import (
    EXTRAS,
    import_module_named,
    install_hint,
    is_module_here,
    missing_module_name,
    public_callables,
)
from agilerl_like.errors import ConfigurationError, unknown_name

EnvSource = str | Callable[..., Any]
"""An id of gymnasium, an import path "package.module:factory", or a factory."""

TIME_LIMIT, NO_TIME_LIMIT = "max_episode_steps", -1
"""`gymnasium.make`'s argument for a time limit, and its value for none."""

_REGISTRARS = {"ALE": "ale_py"}
"""Namespaces of ids -> the module whose import registers them."""


def env_spec(env_id: str) -> EnvSpec:
    """Return gymnasium's EnvSpec of an id.

    Raises:
        ConfigurationError: the id is unknown.
    """
    name = env_id.rpartition(":")[2]
    try:
        return gym.registry[name]
    except KeyError as fault:
        namespace = name.replace("-", "/").partition("/")[0]  # "ALE/Pong-v5", "MiniGrid-Empty-5x5-v0"
        if namespace in EXTRAS and not _is_registered(namespace):
            raise ConfigurationError(f"env_name={env_id!r} needs a package: {install_hint(namespace)}") from None
        if env_id.isidentifier() and is_module_here(env_id):
            raise ConfigurationError(
                f"env_name={env_id!r} is a module in the current folder; allowed is '{env_id}:NAME', with the name of "
                "an environment in it, or of a function that makes one"
            ) from None
        error = unknown_name("env_name", env_id, gym.registry)
        raise ConfigurationError(f"{error}; an id of another package is written 'package:Env-v0'") from fault


def resolve_source(env: EnvSource) -> EnvSource:
    """Return a registered id with its version, or a factory.

    Raises:
        ConfigurationError: an unknown id, or an import path of which the module or the name does not exist.
    """
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
            raise unknown_name(f"env_name={env!r}: name in {module_name}", name, public_callables(module))
    env_spec(env)
    return env


def registered_specs(sources: Iterable[EnvSource]) -> tuple[EnvSpec, ...]:
    """Return the specs of ids for another process, which may lack those that a script registers under its main guard.

    An id with a module in front is registered by that module in each process.
    """
    names = {source for source in sources if isinstance(source, str)}
    return tuple(its for its in gym.registry.values() if names & {its.id, its.id.rpartition("-v")[0]})


def register_missing(specs: Iterable[EnvSpec]) -> None:
    """Register the ids of specs that this process cannot find."""
    for spec in specs:
        try:
            resolve_source(spec.id)
        except ConfigurationError:
            gym.registry[spec.id] = spec


def _with_registrar(env_id: str) -> str:
    """Return the id with the module in front that registers it, if that is known and installed."""
    registrar = _REGISTRARS.get(env_id.partition("/")[0], "")
    return f"{registrar}:{env_id}" if registrar and find_spec(registrar) is not None else env_id


def _load_plugin(namespace: str) -> None:
    """Call the plugin of an installed package that registers a namespace; gymnasium before 1.0 called all of them."""
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


def with_valid_time_limit(kwargs: Mapping[str, Any], *, single_envs: bool) -> Mapping[str, Any]:
    """Return the arguments of an id's env with a checked time limit, without one if it is None (the env's own).

    gymnasium checks it for single envs only; a native vector env with a wrong one fails while it runs.

    Raises:
        ConfigurationError: the time limit is no whole number from 1, or "no limit" without single envs.
    """
    limit = kwargs.get(TIME_LIMIT)
    if limit is None:
        return {key: value for key, value in kwargs.items() if key != TIME_LIMIT}
    whole = isinstance(limit, (int, np.integer)) and not isinstance(limit, bool)
    if whole and (limit >= 1 or (limit == NO_TIME_LIMIT and single_envs)):
        return {**kwargs, TIME_LIMIT: int(limit)}
    raise ConfigurationError(
        f"env_kwargs: {TIME_LIMIT}={limit!r}; allowed are whole numbers from 1, and {NO_TIME_LIMIT} for no limit with "
        "backend='sync', 'workers', 'async' and 'auto'"
    )


def has_native_vector_env(spec: EnvSpec, kwargs: Mapping[str, Any]) -> bool:
    """Return whether gymnasium has a numpy vector env for this id that takes these arguments."""
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


def silence_banner(spec: EnvSpec) -> None:
    """Stop ALE from printing its banner for every env that is made."""
    if isinstance(spec.entry_point, str) and spec.entry_point.startswith("ale_py"):
        ale = importlib.import_module("ale_py")
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)


@contextmanager
def configuration_errors(env: EnvSource | EnvSpec, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Convert exceptions of making an env into a ConfigurationError that names what to change."""
    if isinstance(env, EnvSpec):
        env = env.id
    try:
        yield
    except (gym.error.DependencyNotInstalled, ImportError) as fault:
        raise ConfigurationError(f"env_name={env!r} needs a package: {_install_hint(env, fault)}") from fault
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


def _install_hint(env: EnvSource, fault: BaseException) -> str:
    spec = gym.registry.get(env.rpartition(":")[2]) if isinstance(env, str) else None
    entry = "" if spec is None else str(spec.entry_point)
    # gymnasium's error names no module
    of_gymnasium = next((name for name in ("box2d", "mujoco") if entry.startswith(f"gymnasium.envs.{name}")), "")
    return install_hint(of_gymnasium or missing_module_name(fault), fault)
