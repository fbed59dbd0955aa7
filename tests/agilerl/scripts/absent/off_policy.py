"""Off-policy algorithms of several agents."""

from agilerl.algorithms import MATD3

assert MATD3
