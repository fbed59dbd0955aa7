"""Language models."""

from agilerl.algorithms.grpo import GRPO

assert GRPO
