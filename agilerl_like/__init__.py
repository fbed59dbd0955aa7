"""Populations of PPO agents that find their hyperparameters and architectures while they train."""

from importlib.metadata import version

from agilerl_like.algorithms import PPO, Population
from agilerl_like.envs import make_vect_envs
from agilerl_like.errors import CheckpointError, ConfigurationError, EnvironmentFault, NoHealthyMember
from agilerl_like.hpo import HyperparameterConfig, Mutations, RLParameter, TournamentSelection, TruncationSelection
from agilerl_like.training import train_on_policy

__version__ = version("agilerl-like")

__all__ = [
    "PPO",
    "CheckpointError",
    "ConfigurationError",
    "EnvironmentFault",
    "HyperparameterConfig",
    "Mutations",
    "NoHealthyMember",
    "Population",
    "RLParameter",
    "TournamentSelection",
    "TruncationSelection",
    "make_vect_envs",
    "train_on_policy",
]
