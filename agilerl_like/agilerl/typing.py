"""`BPTTSequenceType`, where AgileRL has it."""

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.learning.sequences import BPTTSequenceType

__all__ = ["BPTTSequenceType"]

__getattr__ = absent_from(__name__)
