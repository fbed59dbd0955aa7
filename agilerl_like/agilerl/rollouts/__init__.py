"""Rollouts of loops by hand."""

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.rollouts.on_policy import collect_rollouts, collect_rollouts_recurrent

__all__ = ["collect_rollouts", "collect_rollouts_recurrent"]

__getattr__ = absent_from(__name__)
