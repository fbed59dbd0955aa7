"""Buffers; AgileRL's replay buffers have no counterpart."""

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.components.rollout_buffer import RolloutBuffer

__all__ = ["RolloutBuffer"]

__getattr__ = absent_from(__name__)
