"""Wrappers as configurations name them, around each single env or around a whole vector env.

An observation wrapper of single envs whose class has `supports_batch = True` promises that its `observation` method
also takes a batch of observations, with one axis in front, and does not overwrite what it returned before. Such a
wrapper can also wrap gymnasium's native vector envs and EnvPool, which have no single envs; the backend "auto" chooses
those only if all wrappers are of this kind.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from agilerl_like.envs.import_paths import check_module_name, import_module_named, import_path, plain, public_callables
from agilerl_like.errors import ConfigurationError, unknown_name

Wrapper = str | tuple[str, Mapping[str, Any]] | Mapping[str, Any] | Callable[[gym.Env], gym.Env]
FIELD = "wrappers"


def check_wrapper(wrapper: Wrapper) -> None:
    """Raise ConfigurationError unless a wrapper has a legal form; nothing is imported."""
    if not callable(wrapper):
        name = _name_and_kwargs(wrapper, FIELD)[0]
        if ":" in name:
            check_module_name(FIELD, name, name.rpartition(":")[0])
        else:
            _class_of(name, FIELD)


def resolve_wrapper(wrapper: Wrapper, field: str = FIELD) -> Callable[[Any], Any]:
    """Return the function that wraps an env, from a name, a pair, a mapping or a callable.

    Raises:
        ConfigurationError: it is none of them, or names something that does not exist.
    """
    if callable(wrapper):
        return wrapper
    name, kwargs = _name_and_kwargs(wrapper, field)
    kind = _class_of(name, field)
    _check_functions(name, kind, kwargs, field)
    return partial(kind, **kwargs) if kwargs else kind


def _check_functions(name: str, kind: Callable[..., Any], kwargs: Mapping[str, Any], field: str) -> None:
    """Raise ConfigurationError if an argument that is declared as a function is text, as in a YAML file."""
    texts = {key: value for key, value in kwargs.items() if isinstance(value, str)}
    parameters = inspect.signature(kind).parameters if texts and callable(kind) else {}
    for key in texts.keys() & parameters.keys():
        declared = str(parameters[key].annotation)
        if "Callable" in declared and "str" not in declared:
            raise ConfigurationError(
                f"{field}: {name} has {key}={texts[key]!r}, which is text; allowed is a function, and in a file "
                "'module:function' in place of the wrapper, where the function takes an env and returns it wrapped"
            )


def _name_and_kwargs(wrapper: Any, field: str) -> tuple[str, Mapping[str, Any]]:
    if isinstance(wrapper, str):
        return wrapper, {}
    if isinstance(wrapper, Mapping):
        if not isinstance(wrapper.get("name"), str):
            raise ConfigurationError(f"{field}: {dict(wrapper)!r} has no name; allowed is {{'name': …, **kwargs}}")
        return wrapper["name"], {key: value for key, value in wrapper.items() if key != "name"}
    if isinstance(wrapper, tuple) and len(wrapper) == 2:
        name, kwargs = wrapper
        if isinstance(name, str) and isinstance(kwargs, Mapping):
            return name, kwargs
    raise ConfigurationError(
        f"{field}: {wrapper!r}; allowed are a name, (name, kwargs), {{'name': …, **kwargs}} and a callable"
    )


def to_json(wrapper: Wrapper) -> Any:
    """Return a wrapper as plain data; a callable becomes its import path."""
    if isinstance(wrapper, str):
        return wrapper
    if isinstance(wrapper, Mapping):
        return plain(FIELD, dict(wrapper))
    if isinstance(wrapper, tuple):
        return plain(FIELD, {"name": wrapper[0], **wrapper[1]})
    return import_path(FIELD, wrapper)


def supports_batch(wrapper: Wrapper) -> bool:
    """Return whether a wrapper can also wrap a vector env."""
    kind = wrapper_class(wrapper)
    return True in (getattr(kind, name, False) for name in ("supports_batch", "reads_rows"))  # the latter: former name


def changes_reward(wrapper: Wrapper) -> bool:
    """Return whether a wrapper is known to change the reward: any RewardWrapper."""
    kind = wrapper_class(wrapper)
    return isinstance(kind, type) and issubclass(kind, gym.RewardWrapper)


def wrapper_class(wrapper: Wrapper) -> Any:
    """Return a wrapper's class or function, without its arguments."""
    kind = resolve_wrapper(wrapper)
    return kind.func if isinstance(kind, partial) else kind


def apply_wrapper(env: Any, wrapper: Wrapper, field: str = FIELD) -> Any:
    """Wrap a single env.

    Raises:
        ConfigurationError: the wrapper does not suit the env, or returns something else than an env.
    """
    try:
        made = resolve_wrapper(wrapper, field)(env)
    except ConfigurationError:
        raise
    except (TypeError, ValueError, AssertionError, gym.error.Error) as fault:
        raise ConfigurationError(f"{field}: {wrapper!r} cannot go around {env}: {fault}") from fault
    if not all(callable(getattr(made, name, None)) for name in ("reset", "step")):
        raise ConfigurationError(f"{field}: {wrapper!r} returned {made!r:.100}; allowed is the wrapped env")
    return made


def require_same_spaces(bare: Any, wrapped: Any, wrapper: Wrapper) -> Any:
    """Return `wrapped`, a single or vector env with a training wrapper, after comparing its spaces with `bare`'s.

    Raises:
        ConfigurationError: the wrapper changed a space, so the learned policy could not act in evaluation.
    """
    prefix = "single_" if hasattr(bare, "single_observation_space") else ""
    for name in ("observation_space", "action_space"):
        before, after = getattr(bare, prefix + name), getattr(wrapped, prefix + name)
        if before != after:
            raise ConfigurationError(
                f"training_wrappers: {wrapper!r} changes the {name} from {before} to {after}; evaluation goes without "
                "training_wrappers, so allowed are wrappers that keep both spaces, and any in wrappers"
            )
    return wrapped


class BatchedObservationWrapper(VectorWrapper):
    """A vector env with an observation wrapper of single envs that supports batches."""

    def __init__(self, env: VectorEnv, wrapper: Wrapper) -> None:
        super().__init__(env)
        if env.metadata.get("autoreset_mode") in (AutoresetMode.SAME_STEP, AutoresetMode.SAME_STEP.value):
            raise ConfigurationError(
                f"wrappers: {wrapper!r} cannot go around {env}, which resets in the same step; allowed are NEXT_STEP "
                "and DISABLED"
            )
        self._wrapper = cast(gym.ObservationWrapper, apply_wrapper(_SpacesOnlyEnv(env), wrapper))
        self.single_observation_space = self._wrapper.observation_space
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start new episodes; `seed` is passed to the wrapped env unchanged."""
        observations, info = self.env.reset(seed=seed, options=options)
        return self._wrapper.observation(observations), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take one action in each env."""
        observations, reward, terminated, truncated, info = self.env.step(actions)
        return self._wrapper.observation(observations), reward, terminated, truncated, info


class _SpacesOnlyEnv(gym.Env):
    """The env that a batched wrapper is constructed with: one env of a vector env, with its spaces only."""

    def __init__(self, env: VectorEnv) -> None:
        self._name = str(env)
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space

    def __str__(self) -> str:
        return self._name


def innermost_env(env: VectorEnv) -> VectorEnv:
    """Return the vector env inside of all `BatchedObservationWrapper`s."""
    while isinstance(env, BatchedObservationWrapper):
        env = env.env
    return env


def with_innermost_env(env: VectorEnv, core: VectorEnv) -> VectorEnv:
    """Replace the vector env inside of all `BatchedObservationWrapper`s, and return the outermost one."""
    if not isinstance(env, BatchedObservationWrapper):
        return core
    env.env = with_innermost_env(env.env, core)
    return env


def core_env(env: Any) -> Any:
    """Return the single env inside of all wrappers; of a packed multi-agent env, the one inside of the packing."""
    core = getattr(env, "unwrapped", env)
    return getattr(core, "packed_core", core)


def refuse_shared_envs(envs: Iterable[gym.Env], source: Any) -> None:
    """Raise ConfigurationError if two rows step the same env: their episodes would mix unnoticed.

    `source` is a vector env, or the name of the environment, whose functions made the rows.
    """
    cores = [*map(core_env, envs)]
    if len({id(core) for core in cores}) < len(cores):
        raise ConfigurationError(
            f"a function of env={source} returned one and the same env twice; it must make new ones"
        )


def _class_of(name: str, field: str) -> Callable[..., gym.Env]:
    module_name, _, attribute = name.rpartition(":")
    if module_name:
        module = import_module_named(field, name, module_name)
        if not hasattr(module, attribute):
            raise unknown_name(f"{field} (in {module_name})", attribute, public_callables(module))
        return getattr(module, attribute)
    if name not in gym.wrappers.__all__ or name == "vector":
        raise unknown_name(field, name, [one for one in gym.wrappers.__all__ if one != "vector"])
    return getattr(gym.wrappers, name)
