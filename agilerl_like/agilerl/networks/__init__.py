"""Actors and critics by AgileRL's names, as descriptions that PPO builds."""

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.networks.base import EvolvableNetwork, StochasticActor, ValueNetwork

__all__ = ["EvolvableNetwork", "StochasticActor", "ValueNetwork"]

__getattr__ = absent_from(__name__)
