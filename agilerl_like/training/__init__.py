"""The loop that trains and evolves a population."""

from agilerl_like.training.on_policy import Schedule, train_on_policy

__all__ = ["Schedule", "train_on_policy"]
