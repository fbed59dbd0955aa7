"""`StochasticActor`, where AgileRL has it."""

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.networks.base import StochasticActor

__all__ = ["StochasticActor"]

__getattr__ = absent_from(__name__)
