"""The training loops with AgileRL's signatures."""

from agilerl_like.agilerl.absent import absent_from

__getattr__ = absent_from(__name__)
