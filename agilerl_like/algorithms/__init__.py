"""What a user holds: agents and populations of them."""

from agilerl_like.algorithms.population import Population
from agilerl_like.algorithms.ppo import PPO
from agilerl_like.algorithms.settings import PPOSettings

__all__ = ["PPO", "PPOSettings", "Population"]
