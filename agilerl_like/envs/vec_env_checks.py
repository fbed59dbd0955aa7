"""What a vector env must be and must return, checked where it is not one of ours: once wholly, then by shapes alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from torch import Tensor

from agilerl_like.errors import ConfigurationError, EnvStepError

METHODS, ATTRIBUTES = ("reset", "step"), ("num_envs", "single_observation_space", "single_action_space")


def check_vector_env(env: Any) -> None:
    """Raise ConfigurationError, naming what is missing, unless an object has what is needed of a vector env."""
    if not hasattr(env, "num_envs") and not hasattr(env, "single_observation_space"):
        hint = "make_vect_envs(lambda: env_of_yours(), num_envs)" if isinstance(env, gym.Env) else "make_vect_envs(id)"
        raise ConfigurationError(f"env={env!r:.200} is not a gymnasium.vector.VectorEnv; {hint} makes one")
    missing = [name for name in ATTRIBUTES if not hasattr(env, name)]
    missing += [f"{name}()" for name in METHODS if not callable(getattr(env, name, None))]
    if missing:
        raise ConfigurationError(
            f"env={env!r:.200} has no {', '.join(missing)}; derive it from gymnasium.vector.VectorEnv"
        )
    count = env.num_envs
    if not isinstance(count, (int, np.integer)) or count < 1:
        raise ConfigurationError(f"num_envs={count!r} of env={env!r:.200}; allowed are whole numbers from 1")
    for name in ATTRIBUTES[1:]:
        if not isinstance(getattr(env, name), gym.Space):
            raise ConfigurationError(
                f"{name}={getattr(env, name)!r:.200} of env={env!r:.200}; allowed is one of gymnasium.spaces"
            )


def check_reset(result: Any, space: gym.Space, rows: int) -> None:
    """Raise EnvStepError unless the reset of a vector env returned what it must; tensors are not looked into."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise EnvStepError(f"reset returned {_short(result)}; allowed is (observations, info)")
    if not _has_tensors(result[0]):
        _check_observations(result[0], space, rows, "observations")
    _check_info("reset", result[1])


def check_step(result: Any, space: gym.Space, rows: int) -> None:
    """Raise EnvStepError unless a step of a vector env returned what it must; tensors are not looked into."""
    if not isinstance(result, tuple) or len(result) != 5:
        raise EnvStepError(
            f"step returned {_short(result)}; allowed is (observations, rewards, terminated, truncated, info)"
        )
    observations, rewards, terminated, truncated, info = result
    if _has_tensors(observations):
        return  # on an accelerator, which nothing here waits for
    _check_observations(observations, space, rows, "observations")
    _check_rows("rewards", rewards, rows, "biuf")
    _check_rows("terminated", terminated, rows, "biu")
    _check_rows("truncated", truncated, rows, "biu")
    _check_info("step", info)


def _has_tensors(tree: Any) -> bool:
    if isinstance(tree, Mapping):
        return any(map(_has_tensors, tree.values()))
    return any(map(_has_tensors, tree)) if isinstance(tree, tuple) else isinstance(tree, Tensor)


def _check_observations(given: Any, space: gym.Space, rows: int, name: str) -> None:
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(given, Mapping) or any(key not in given for key in space.spaces):
            keys = sorted(map(str, given)) if isinstance(given, Mapping) else _short(given)
            raise EnvStepError(f"{name} are {keys}; allowed is a dict with the keys {sorted(space.spaces)}")
        for key, part in space.spaces.items():
            _check_observations(given[key], part, rows, f"{name}[{key!r}]")
    elif isinstance(space, gym.spaces.Tuple):
        if not isinstance(given, tuple) or len(given) != len(space.spaces):
            raise EnvStepError(f"{name} are {_short(given)}; allowed is a tuple of {len(space.spaces)} arrays")
        for place, part in enumerate(space.spaces):
            _check_observations(given[place], part, rows, f"{name}[{place}]")
    else:
        array, shape, dtype = _array(name, given), (rows, *(space.shape or ())), np.dtype(space.dtype)
        if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise EnvStepError(
                f"{name} have shape {array.shape} and dtype {array.dtype}; allowed for {rows} envs are {shape} and "
                f"{dtype}"
            )


def _check_rows(name: str, given: Any, rows: int, kinds: str) -> None:
    array = _array(name, given)
    if array.shape != (rows,) or array.dtype.kind not in kinds:
        raise EnvStepError(
            f"{name} have shape {array.shape} and dtype {array.dtype}; allowed is ({rows},) of "
            f"{'numbers' if 'f' in kinds else 'booleans'}, one for each env"
        )


def _check_info(method: str, info: Any) -> None:
    if not isinstance(info, dict):
        raise EnvStepError(f"the info of {method} is {_short(info)}; allowed is one dict for all envs")


def _array(name: str, given: Any) -> np.ndarray:
    try:
        return np.asarray(given)
    except ValueError:
        raise EnvStepError(f"{name} are {_short(given)}, rows of unequal shape; allowed is an array") from None


def _short(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else " ".join(f"{value!r:.80}".split())
