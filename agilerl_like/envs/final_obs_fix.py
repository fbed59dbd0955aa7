"""Last observations that stay what they were, though an env writes its next episode into the same array.

An env that resets in the same step has begun anew before anybody can read where its episode ended. gymnasium's vector
envs keep a reference alone, so of an env with one buffer they tell the first observation of the next episode for the
last one of this. Copies are made at ends only, so steps take no longer.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class CopyFinalObsSyncVectorEnv(SyncVectorEnv):
    """A SyncVectorEnv that copies last observations before their envs begin anew."""

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        # gymnasium hears of a last observation here, between an episode's end and the reset
        if not env_info:
            return vector_infos  # as it would, sooner
        if "final_obs" in env_info:
            env_info = {**env_info, "final_obs": deepcopy(env_info["final_obs"])}
        return super()._add_info(vector_infos, env_info, env_num)


def copy_final_obs_in(env: object) -> None:
    """Have a SyncVectorEnv copy last observations from now on; a subclass of somebody's is left as it is."""
    if type(env) is SyncVectorEnv and env.autoreset_mode is AutoresetMode.SAME_STEP:
        env.__class__ = (
            CopyFinalObsSyncVectorEnv  # for its envs may be known to the user, who need not find them wrapped
        )


class CopyFinalObs(gym.Wrapper):
    """Hands out copies of what an episode ended with; for an env in a process of gymnasium's."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            observation, info = deepcopy((observation, info))
        return observation, reward, terminated, truncated, info


def with_copied_final_obs(make: Callable[[], gym.Env]) -> Callable[[], gym.Env]:
    """A function that makes the same env, in `CopyFinalObs`."""
    if isinstance(make, partial) and make.func is _make_with_copied_final_obs:
        return make
    return partial(_make_with_copied_final_obs, make)


def _make_with_copied_final_obs(make: Callable[[], gym.Env]) -> gym.Env:
    return CopyFinalObs(make())
