"""Wrappers of agents and environments."""

from agilerl_like.agilerl.absent import absent_from

__getattr__ = absent_from(__name__)
