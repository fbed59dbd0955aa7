"""Helpers of AgileRL's scripts."""

from agilerl_like.agilerl.absent import absent_from

__getattr__ = absent_from(__name__)
