"""What AgileRL's algorithms have in common."""

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.algorithms.core.base import EvolvableAlgorithm

__all__ = ["EvolvableAlgorithm"]

__getattr__ = absent_from(__name__)
