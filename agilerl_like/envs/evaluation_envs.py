"""Envs for evaluation: each copy starts from its own seed and is not stepped after its episode has ended.

Skipping those steps saves most of the time where members differ in strength.
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
    """Make a new env like this one that plays one episode per seed, without its training wrappers.

    Its results are those of `evaluation_env` in less time: envs that one process or worker steps in turn stop at the
    end of their episode. (EnvPool steps whole batches, and smaller batches cost as much as they would save.)

    Raises:
        ConfigurationError: as `evaluation_env`.
    """
    if is_native_cartpole(env):
        return with_per_env_seeds(env, num_envs, training=False)
    made = evaluation_env(env, num_envs)
    if isinstance(made, SyncVectorEnv):
        made.envs = [SingleEpisode(single) for single in made.envs]
    elif isinstance(made, SubprocVectorEnv):  # its processes are not started yet
        made.env_fns = tuple(partial(_make_single_episode, env_fn) for env_fn in made.env_fns)
    return made


def idles_without_seed(env: Any) -> bool:
    """Return whether rows of a vector env, or of a team's, take no step after a reset without a seed.

    That is so in envs of `make_eval_env` that one process or worker steps in turn.
    """
    vector = getattr(env, "vector", env)
    if isinstance(vector, SyncVectorEnv):
        return all(isinstance(single, SingleEpisode) for single in vector.envs)
    return isinstance(vector, SubprocVectorEnv) and all(
        isinstance(env_fn, partial) and env_fn.func is _make_single_episode for env_fn in vector.env_fns
    )


class SingleEpisode(gym.Wrapper):
    """Plays one episode per seed; otherwise each step returns the last observation again, whatever the action."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._last: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; a reset without a seed, such as a vector env's autoreset, starts none."""
        if seed is None:
            if self._last is None:  # no episode has ended
                self._last, _ = self.env.reset(seed=0)  # a seed, so that an error in it is the same in each run
            return self._last, {}
        self._last = None
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action, unless the episode has ended or none was started."""
        if self._last is not None:
            return self._last, 0.0, False, False, {}
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            self._last = observation
        return observation, reward, terminated, truncated, info


def _make_single_episode(env_fn: Callable[[], gym.Env]) -> gym.Env:
    return SingleEpisode(env_fn())
