"""One environment as a vector of one."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv, single_env_vector

__getattr__ = absent_from(__name__)


class DummyVecEnv(SyncVectorEnv):
    """One environment of gymnasium as a vector of one, reset in the step that ends an episode."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__([lambda: env], autoreset_mode=AutoresetMode.SAME_STEP)


def PzDummyVecEnv(env: Any) -> MultiAgentVectorEnv:  # noqa: N802  # AgileRL's name
    """One parallel environment of PettingZoo as a vector of one."""
    return single_env_vector(env)
