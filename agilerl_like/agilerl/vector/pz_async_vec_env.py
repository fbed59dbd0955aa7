"""PettingZoo's parallel environments in worker processes, by AgileRL's name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.envs import make_multi_agent_vect_envs
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv

__getattr__ = absent_from(__name__)


def AsyncPettingZooVecEnv(  # noqa: N802  # AgileRL's name
    env_fns: Sequence[Callable[[], Any]], copy: bool = True, context: str | None = None
) -> MultiAgentVectorEnv:
    """As many environments as there are functions, all made by the first; `copy` and `context` have nothing to do."""
    return make_multi_agent_vect_envs(env_fns[0], len(env_fns), backend="workers")
