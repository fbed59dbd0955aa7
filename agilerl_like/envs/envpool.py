"""EnvPool's C++ environments as a gymnasium VectorEnv (the extra `envpool`; only this file imports it).

EnvPool fixes its seeds when a pool is built and ignores `reset(seed=…)`. A seeded reset therefore builds a new pool
with one seed for each env; an unseeded one resets the existing pool. Paper: Weng et al. 2022, "EnvPool: A Highly
Parallel Reinforcement Learning Environment Execution Engine".
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.resources import available_cores
from agilerl_like.seeding import seed_per_env


def is_installed() -> bool:
    """Return whether EnvPool can be imported, without importing it."""
    return importlib.util.find_spec("envpool") is not None


def has_same_env(env_id: str, *, max_episode_steps: int | None) -> bool:
    """Return whether EnvPool is installed and has gymnasium's env of this id, with equal time limit and spaces."""
    if not is_installed():
        return False
    envpool = _envpool()
    if env_id not in envpool.list_all_envs():
        return False
    spec = _spec(envpool, env_id)
    original = _original_spaces(env_id)
    return spec.config.max_episode_steps == max_episode_steps and (
        original is None or all(map(_is_compatible, original, _pool_spaces(spec)))
    )


def is_pool(env: object) -> bool:
    """Return whether this is a pool made by the user with `envpool.make_gymnasium`."""
    return any(base.__module__.partition(".")[0] == "envpool" for base in type(env).__mro__)


class EnvPoolVectorEnv(VectorEnv[Any, Any, np.ndarray]):
    """`num_envs` copies of one of EnvPool's envs; its autoreset mode is NEXT_STEP.

    A step that terminates exactly at the time limit is reported by EnvPool as truncated only.
    """

    def __init__(self, env_id: str, num_envs: int = 1, **pool_kwargs: Any) -> None:
        if not is_installed():
            raise ConfigurationError("backend='envpool' needs a package: pip install 'agilerl-like[envpool]'")
        envpool = _envpool()
        if env_id not in envpool.list_all_envs():
            raise unknown_name("env_name (of EnvPool)", env_id, envpool.list_all_envs())
        self._env_id = env_id
        self._pool_kwargs = pool_kwargs
        self._pool: Any = None
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        spaces = _pool_spaces(_spec(envpool, env_id, num_envs=num_envs, **pool_kwargs))
        original = _original_spaces(env_id)
        if original is not None and all(map(_is_compatible, original, spaces)):
            spaces = original  # the same values with more accurate bounds
        self.single_observation_space, self.single_action_space = spaces
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes; with seeds (one per env, or the first of consecutive ones) in a new pool."""
        if seed is not None or self._pool is None:
            if seed is None:
                seed = int(self.np_random.integers(2**31))
            self.close_extras()
            seeds = seed_per_env(seed, self.num_envs)
            self._pool = self._build([one % 2**31 for one in seeds])  # EnvPool's seeds are int32
        return self._pool.reset(options=options)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take one action in each env."""
        if self._pool is None:
            raise gym.error.ResetNeeded("reset() comes before step()")
        return self._pool.step(validate_actions(actions, self.single_action_space, self.num_envs))

    def close_extras(self, **_: Any) -> None:
        """Close the pool and its threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _build(self, seeds: list[int]) -> Any:
        with warnings.catch_warnings(action="ignore"):
            kwargs = {"num_threads": min(available_cores(), self.num_envs), **self._pool_kwargs}
            pool = _envpool().make_gymnasium(self._env_id, num_envs=self.num_envs, seed=seeds, **kwargs)
            _ = pool.observation_space  # built at first use, with a warning
        return pool


def validate_actions(actions: Any, space: gym.Space, rows: int) -> np.ndarray:
    """Return actions as an array, one for each env; EnvPool itself checks nothing.

    Raises:
        ConfigurationError: another number of actions, or one outside the space.
    """
    given, shape = np.asarray(actions), (rows, *(space.shape or ()))
    if given.shape != shape or not np.can_cast(given.dtype, np.dtype(space.dtype), "same_kind"):
        raise ConfigurationError(
            f"actions have shape {given.shape} and dtype {given.dtype}; allowed for {rows} envs are {shape} and "
            f"{space.dtype}"
        )
    if isinstance(space, Discrete) and ((given < space.start) | (given >= space.start + space.n)).any():
        raise ConfigurationError(f"actions={given.tolist()}; allowed are those of {space}")
    return given


def _envpool() -> ModuleType:
    with warnings.catch_warnings(action="ignore"):
        return importlib.import_module("envpool")


def _spec(envpool: ModuleType, env_id: str, **kwargs: Any) -> Any:
    try:
        return envpool.make_spec(env_id, **kwargs)
    except (TypeError, AssertionError, ValueError) as fault:
        raise ConfigurationError(f"env_kwargs={kwargs} do not suit EnvPool's {env_id}: {fault}") from fault


def _pool_spaces(spec: Any) -> tuple[gym.Space, gym.Space]:
    """Return the observation and action space of one env."""
    with warnings.catch_warnings(
        action="ignore"
    ):  # EnvPool makes Boxes from float64 bounds, and gymnasium warns of them
        return _with_infinite_bounds(spec.gymnasium_observation_space), spec.gymnasium_action_space


def _with_infinite_bounds(space: gym.Space) -> gym.Space:
    """Correct bounds that EnvPool left out: C++'s numeric_limits<float>::min() is the smallest *positive* float."""
    if not isinstance(space, Box) or space.dtype.kind != "f":
        return space
    limits = np.finfo(space.dtype)
    low = np.where(space.low == limits.tiny, -np.inf, space.low).astype(space.dtype)
    high = np.where(space.high == limits.max, np.inf, space.high).astype(space.dtype)
    return Box(low, high, dtype=space.dtype.type)


def _original_spaces(env_id: str) -> tuple[gym.Space, gym.Space] | None:
    """Return the spaces of gymnasium's env of this id, or None where it cannot be made."""
    try:
        with warnings.catch_warnings(action="ignore"):
            env = gym.make(env_id, disable_env_checker=True)
    except (gym.error.Error, ImportError):
        return None
    env.close()
    return env.observation_space, env.action_space


def _is_compatible(one: gym.Space, other: gym.Space) -> bool:
    if isinstance(one, Discrete) and isinstance(other, Discrete):
        return one.n == other.n and one.start == other.start
    return type(one) is type(other) and one.shape == other.shape and one.dtype == other.dtype
