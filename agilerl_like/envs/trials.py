"""Envs for counted episodes: each copy begins from a seed of its own, and is not stepped beyond its episode's end.

A step that nobody counts costs as much as any other; with members of unequal strength those were most of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.utils import seeding
from gymnasium.vector import SyncVectorEnv, VectorEnv

from agilerl_like.envs.vector import EnvRecipe, evaluation_env
from agilerl_like.envs.workers import WorkerVectorEnv


def trial_env(env: VectorEnv, num_envs: int) -> VectorEnv:
    """Make a fresh env like this one for counted episodes, each of which begins from a seed of its own.

    Its results are those of `evaluation_env`, sooner: envs of which one process or worker steps many stand still when
    their episode has ended. (EnvPool answers in whole batches; smaller ones cost as much as they saved.)

    Raises:
        ConfigurationError: as `evaluation_env`.
    """
    recipe = getattr(env, "recipe", None)
    if isinstance(recipe, EnvRecipe) and type(env) is CartPoleVectorEnv:
        kwargs = {"max_episode_steps": env.max_episode_steps, **recipe.env_kwargs}
        return replace(recipe, env=SeededCartPole, env_kwargs=kwargs).make(num_envs)
    trial = evaluation_env(env, num_envs)
    if isinstance(trial, SyncVectorEnv):
        trial.envs = [OneEpisode(single) for single in trial.envs]
    elif isinstance(trial, WorkerVectorEnv):  # whose processes are not started yet
        trial.env_fns = tuple(partial(_one_episode, function) for function in trial.env_fns)
    return trial


class OneEpisode(gym.Wrapper):
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


def _one_episode(make: Callable[[], gym.Env]) -> gym.Env:
    return OneEpisode(make())


class SeededCartPole(CartPoleVectorEnv):
    """gymnasium's CartPole in numpy, whose rows can begin as single ones do with seeds of their own.

    The steps of both are the same computation, so an episode is the same too; only what follows its end is not.
    """

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new episodes; with one seed for each row, or one for all, or none."""
        if seed is None or isinstance(seed, int):
            return super().reset(seed=seed, options=options)
        _, info = super().reset(seed=int(seed[0]), options=options)
        starts = [seeding.np_random(int(one))[0].uniform(self.low, self.high, size=4) for one in seed]
        self.state = np.stack(starts, axis=1)
        return self.state.T.astype(np.float32), info
