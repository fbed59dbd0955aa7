"""Wrappers, by the names that configurations give them: around each single env, or around all envs at once.

An observation wrapper of single envs whose class says `supports_batch = True` promises that its `observation` also takes
those of many envs, with an axis in front, and does not write over what it returned before. It may then go around
gymnasium's native vector envs and EnvPool, which have no single envs to wrap; "auto" takes them only if all wrappers
are of this kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from agilerl_like.envs.import_paths import check_module_name, import_module_named, import_path, plain
from agilerl_like.errors import ConfigurationError, unknown_name

Wrapper = str | tuple[str, Mapping[str, Any]] | Mapping[str, Any] | Callable[[gym.Env], gym.Env]


def check_wrapper(wrapper: Wrapper) -> None:
    """Raise ConfigurationError unless a wrapper has a legal form; an import path is not imported for that."""
    if not callable(wrapper):
        name = _name_and_kwargs(wrapper, "wrappers")[0]
        if ":" in name:
            check_module_name("wrappers", name, name.rpartition(":")[0])
        else:
            _class_of(name, "wrappers")


def resolve_wrapper(wrapper: Wrapper, field: str = "wrappers") -> Callable[[Any], Any]:
    """Return what a name, a pair, a mapping or a callable puts around an env.

    Raises:
        ConfigurationError: it is none of them, or names something that does not exist.
    """
    if callable(wrapper):
        return wrapper
    name, kwargs = _name_and_kwargs(wrapper, field)
    return partial(_class_of(name, field), **kwargs) if kwargs else _class_of(name, field)


def _name_and_kwargs(wrapper: Any, field: str) -> tuple[str, Mapping[str, Any]]:
    """A wrapper's name and its arguments."""
    if isinstance(wrapper, str):
        return wrapper, {}
    if isinstance(wrapper, Mapping):
        if not isinstance(wrapper.get("name"), str):
            raise ConfigurationError(f"{field}: {dict(wrapper)!r} has no name; allowed is {{'name': …, **kwargs}}")
        return wrapper["name"], {key: value for key, value in wrapper.items() if key != "name"}
    if isinstance(wrapper, tuple) and len(wrapper) == 2 and isinstance(wrapper[0], str):
        return wrapper[0], wrapper[1]
    raise ConfigurationError(
        f"{field}: {wrapper!r}; allowed are a name, (name, kwargs), {{'name': …, **kwargs}} and a callable"
    )


def to_json(wrapper: Wrapper) -> Any:
    """A wrapper as plain data; a callable becomes its import path."""
    if isinstance(wrapper, str):
        return wrapper
    if isinstance(wrapper, Mapping):
        return plain("wrappers", dict(wrapper))
    if isinstance(wrapper, tuple):
        return plain("wrappers", {"name": wrapper[0], **wrapper[1]})
    return import_path("wrappers", wrapper)


def supports_batch(wrapper: Wrapper) -> bool:
    """Whether a wrapper may go around a vector env, too."""
    kind = resolve_wrapper(wrapper)
    kind = kind.func if isinstance(kind, partial) else kind
    return True in (getattr(kind, name, False) for name in ("supports_batch", "reads_rows"))  # the latter: former name


def changes_reward(wrapper: Wrapper) -> bool:
    """Whether a wrapper is known to change the reward: gymnasium's NormalizeReward, and any RewardWrapper."""
    kind = resolve_wrapper(wrapper)
    kind = kind.func if isinstance(kind, partial) else kind
    return isinstance(kind, type) and issubclass(kind, (gym.RewardWrapper, gym.wrappers.NormalizeReward))


def apply_wrapper(env: Any, wrapper: Wrapper, field: str = "wrappers") -> Any:
    """Put a wrapper around a single env; a ConfigurationError says if they do not suit each other."""
    try:
        return resolve_wrapper(wrapper, field)(env)
    except ConfigurationError:
        raise
    except (TypeError, ValueError, AssertionError, gym.error.Error) as fault:
        raise ConfigurationError(f"{field}: {wrapper!r} cannot go around {env}: {fault}") from fault


def require_same_spaces(bare: Any, wrapped: Any, wrapper: Wrapper) -> Any:
    """Return a single or vector env that is wrapped for training; its spaces must be those of the bare one.

    Raises:
        ConfigurationError: the wrapper changed a space, so what is learned could not act in evaluation.
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
    """A vector env whose observations go through a wrapper of single envs that reads rows."""

    def __init__(self, env: VectorEnv, wrapper: Wrapper) -> None:
        super().__init__(env)
        if env.metadata.get("autoreset_mode") is AutoresetMode.SAME_STEP:
            raise ConfigurationError(
                f"wrappers: {wrapper!r} cannot go around {env}, which resets in the same step; allowed are NEXT_STEP "
                "and DISABLED"
            )
        self._view = cast(gym.ObservationWrapper, apply_wrapper(_SpacesOnlyEnv(env), wrapper))
        self.single_observation_space = self._view.observation_space
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes, with whatever seeds the wrapped env takes."""
        observations, info = self.env.reset(seed=seed, options=options)
        return self._view.observation(observations), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take one action in each env."""
        observations, reward, terminated, truncated, info = self.env.step(actions)
        return self._view.observation(observations), reward, terminated, truncated, info


def innermost_env(env: VectorEnv) -> VectorEnv:
    """The vector env that really steps, behind those through which it is seen."""
    while isinstance(env, BatchedObservationWrapper):
        env = env.env
    return env


def with_innermost_env(env: VectorEnv, core: VectorEnv) -> VectorEnv:
    """Let another env step behind those through which an env is seen."""
    inner = env
    if not isinstance(inner, BatchedObservationWrapper):
        return core
    while isinstance(inner.env, BatchedObservationWrapper):
        inner = inner.env
    inner.env = core
    return env


def refuse_shared_envs(envs: Iterable[gym.Env], maker: str) -> None:
    """Raise ConfigurationError, saying who made them, if one and the same env stands in two rows, in wrappers or not.

    Its episodes would run into each other, and nobody would say so.
    """
    cores = [getattr(env, "unwrapped", env) for env in envs]
    if len({id(core) for core in cores}) < len(cores):
        raise ConfigurationError(f"{maker} returned one and the same env twice; it must make new ones")


class _SpacesOnlyEnv(gym.Env):
    """What a view is built around: one env of a vector env, of which nothing but its spaces is needed."""

    def __init__(self, env: VectorEnv) -> None:
        self._called = str(env)
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space

    def __str__(self) -> str:
        return self._called


def _class_of(name: str, field: str) -> Callable[..., gym.Env]:
    module_name, _, attribute = name.rpartition(":")
    if module_name:
        module = import_module_named(field, name, module_name)
        if not hasattr(module, attribute):
            raise unknown_name(f"{field} (in {module_name})", attribute, [one for one in dir(module) if one[0] != "_"])
        return getattr(module, attribute)
    if name not in gym.wrappers.__all__ or name == "vector":
        raise unknown_name(field, name, [one for one in gym.wrappers.__all__ if one != "vector"])
    return getattr(gym.wrappers, name)
