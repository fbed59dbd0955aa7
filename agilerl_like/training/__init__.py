"""The loop that trains and evolves a population."""

from agilerl_like.training.on_policy import train_on_policy
from agilerl_like.training.schedule import Schedule

__all__ = ["Schedule", "train_on_policy"]
