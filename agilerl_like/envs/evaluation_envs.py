"""Envs for counted episodes: each copy begins from a seed of its own, and is not stepped beyond its episode's end.

A step that nobody counts costs as much as any other; with members of unequal strength those were most of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv, VectorEnv

from agilerl_like.envs.cartpole import is_native_cartpole, with_per_env_seeds
from agilerl_like.envs.factory import evaluation_env
from agilerl_like.envs.subproc.vec_env import SubprocVectorEnv


def make_eval_env(env: VectorEnv, num_envs: int) -> VectorEnv:
    """Make a fresh env like this one for counted episodes, each of which begins from a seed of its own.

    It is without training wrappers: fitness is the environment's own reward. Its results are those of
    `evaluation_env`, sooner: envs of which one process or worker steps many stand still when their episode has ended.
    (EnvPool answers in whole batches; smaller ones cost as much as they saved.)

    Raises:
        ConfigurationError: as `evaluation_env`.
    """
    if is_native_cartpole(env):
        return with_per_env_seeds(env, num_envs, training=False)
    trial = evaluation_env(env, num_envs)
    if isinstance(trial, SyncVectorEnv):
        trial.envs = [SingleEpisode(single) for single in trial.envs]
    elif isinstance(trial, SubprocVectorEnv):  # whose processes are not started yet
        trial.env_fns = tuple(partial(_make_single_episode, function) for function in trial.env_fns)
    return trial


class SingleEpisode(gym.Wrapper):
    """Plays one episode for each seed; then it stands still, where it ended, whatever action is taken."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._last: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; without a seed, as vector envs do it after an end, go on standing still."""
        if seed is None and self._last is not None:
            return self._last, {}
        self._last = None
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action, unless the episode has ended."""
        if self._last is not None:
            return self._last, 0.0, False, False, {}
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            self._last = observation
        return observation, reward, terminated, truncated, info


def _make_single_episode(make: Callable[[], gym.Env]) -> gym.Env:
    return SingleEpisode(make())
