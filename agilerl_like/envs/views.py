"""The earlier import path of `observation_wrappers`, which configuration files name."""

from agilerl_like.envs.observation_wrappers import DrawnPole, KeepEntries

__all__ = ["DrawnPole", "KeepEntries"]
