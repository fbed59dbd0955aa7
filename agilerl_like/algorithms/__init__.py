"""What a user holds: agents and populations of them."""

from agilerl_like.algorithms.population import Population
from agilerl_like.algorithms.ppo import PPO
from agilerl_like.algorithms.settings import PPOSettings
from agilerl_like.learning.sequences import BPTTSequenceType

__all__ = ["PPO", "BPTTSequenceType", "PPOSettings", "Population"]
