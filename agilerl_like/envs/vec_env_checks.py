"""Checks of a user's own vector env: its attributes, and everything that its first reset and step return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from torch import Tensor

from agilerl_like.envs.env_errors import space_mismatch
from agilerl_like.errors import ConfigurationError, EnvStepError, short_repr

METHODS, ATTRIBUTES = ("reset", "step"), ("num_envs", "single_observation_space", "single_action_space")


def check_vector_env(env: Any) -> None:
    """Raise ConfigurationError, naming what is missing, unless an object has a VectorEnv's methods and attributes."""
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
    """Raise EnvStepError unless a vector env's reset returned valid observations and infos; tensors are not read."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise EnvStepError(f"reset returned {_describe(result)}; allowed is (observations, info)")
    observations, info = result
    if not _has_tensors(observations):
        _check_observations(observations, space, rows)
    _check_info("reset", info)


def check_step(result: Any, space: gym.Space, rows: int) -> None:
    """Raise EnvStepError unless a vector env's step returned five valid values; tensors are not read."""
    if not isinstance(result, tuple) or len(result) != 5:
        raise EnvStepError(
            f"step returned {_describe(result)}; allowed is (observations, rewards, terminated, truncated, info)"
        )
    observations, rewards, terminated, truncated, info = result
    if _has_tensors(observations):
        return  # reading them would wait for the accelerator
    _check_observations(observations, space, rows)
    _check_rows("rewards", rewards, rows, "biuf")
    _check_rows("terminated", terminated, rows, "biu")
    _check_rows("truncated", truncated, rows, "biu")
    _check_info("step", info)


def _has_tensors(tree: Any) -> bool:
    if isinstance(tree, Mapping):
        return any(map(_has_tensors, tree.values()))
    return any(map(_has_tensors, tree)) if isinstance(tree, tuple) else isinstance(tree, Tensor)


def _check_observations(given: Any, space: gym.Space, rows: int) -> None:
    if text := space_mismatch(space, given, rows, "the observation batch"):
        raise EnvStepError(text)


def _check_rows(name: str, given: Any, rows: int, kinds: str) -> None:
    try:
        array = np.asarray(given)
    except ValueError:
        raise EnvStepError(f"{name} are {_describe(given)}, rows of unequal shape; allowed is an array") from None
    if array.shape != (rows,) or array.dtype.kind not in kinds:
        raise EnvStepError(
            f"{name} have shape {array.shape} and dtype {array.dtype}; allowed is ({rows},) of "
            f"{'numbers' if 'f' in kinds else 'booleans'}, one for each env"
        )


def _check_info(method: str, info: Any) -> None:
    if not isinstance(info, dict):
        raise EnvStepError(f"the info of {method} is {_describe(info)}; allowed is one dict for all envs")


def _describe(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else short_repr(value)
