"""The vector environment of teams, by AgileRL's name."""

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv as PettingZooVecEnv

__all__ = ["PettingZooVecEnv"]

__getattr__ = absent_from(__name__)
