"""One environment as a vector of one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.envs import make_multi_agent_vect_envs, make_vect_envs
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv, ParallelEnv, single_env_vector
from agilerl_like.errors import ConfigurationError

__getattr__ = absent_from(__name__)


class DummyVecEnv(SyncVectorEnv):
    """One environment of gymnasium as a vector of one, reset in the step that ends an episode."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__([lambda: env], autoreset_mode=AutoresetMode.SAME_STEP)


def PzDummyVecEnv(env: Any) -> MultiAgentVectorEnv:  # noqa: N802  # AgileRL's name
    """One parallel environment of PettingZoo as a vector of one."""
    return single_env_vector(env)


def vector_of_one(env: Any) -> Any:
    """Return a vector of one environment like a single `env`, which a training loop can make again for its members."""
    return make_vect_envs(make_env=_maker(env), num_envs=1) if isinstance(env, gymnasium.Env) else env


def team_vector_of_one(env: Any) -> Any:
    """`vector_of_one` of a parallel environment of PettingZoo."""
    return make_multi_agent_vect_envs(_maker(env), 1) if isinstance(env, ParallelEnv) else env


def _maker(env: Any) -> Callable[[], Any]:
    """Return a function that makes an environment as gymnasium.make has, or else copies it."""
    spec = getattr(env, "spec", None)
    if spec is not None and all(wrapper.kwargs is not None for wrapper in spec.additional_wrappers):
        return lambda: gymnasium.make(spec)
    return lambda: _copied(env)


def _copied(env: Any) -> Any:
    try:
        return copy.deepcopy(env)
    except Exception as error:  # of code that the environment consists of
        raise ConfigurationError(
            f"env={env} cannot be copied: {error}; allowed are environments of gymnasium.make with wrappers of "
            "gymnasium, and make_vect_envs(make_env=…)"
        ) from error
