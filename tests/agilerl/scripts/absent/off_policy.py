"""Off-policy algorithms."""

from agilerl.algorithms import DQN

assert DQN
