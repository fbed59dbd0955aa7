"""`ValueNetwork`, where AgileRL has it."""

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.networks.base import ValueNetwork

__all__ = ["ValueNetwork"]

__getattr__ = absent_from(__name__)
