"""Populations of reinforcement-learning agents that find their hyperparameters and architectures while they train.

Names are imported on first access, so that a worker process that only steps envs never imports torch.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

from agilerl_like._lazy import lazy_attributes

if TYPE_CHECKING:
    from agilerl_like.algorithms import (
        CMAES,
        DDPG,
        DQN,
        IPPO,
        PPO,
        PQN,
        SAC,
        TD3,
        BPTTSequenceType,
        MultiAgentPopulation,
        OpenAIES,
        Population,
        QLearning,
        RolloutBuilder,
        Teams,
        TransitionBuffer,
    )
    from agilerl_like.envs import make_multi_agent_vect_envs, make_vect_envs
    from agilerl_like.errors import CheckpointError, ConfigurationError, EnvStepError, PopulationDivergedError
    from agilerl_like.evaluation import evaluate, export_trajectories, play_games, rate_players, record_film
    from agilerl_like.hpo import (
        Bool,
        Choice,
        HyperparameterConfig,
        Mutations,
        NumberArray,
        RLParameter,
        TournamentSelection,
        TruncationSelection,
    )
    from agilerl_like.registry import register
    from agilerl_like.saved_runs import Run, from_hub, load_history, push_to_hub
    from agilerl_like.training import train_multi_agent_on_policy, train_off_policy, train_on_policy

if sys.platform == "win32":  # locks, signals and workers are those of POSIX
    raise ImportError("agilerl-like needs Linux or macOS; on Windows use WSL")

__version__ = version("agilerl-like")

__all__ = [
    "CMAES",
    "DDPG",
    "DQN",
    "IPPO",
    "PPO",
    "PQN",
    "SAC",
    "TD3",
    "BPTTSequenceType",
    "Bool",
    "CheckpointError",
    "Choice",
    "ConfigurationError",
    "EnvStepError",
    "HyperparameterConfig",
    "MultiAgentPopulation",
    "Mutations",
    "NumberArray",
    "OpenAIES",
    "Population",
    "PopulationDivergedError",
    "QLearning",
    "RLParameter",
    "RolloutBuilder",
    "Run",
    "Teams",
    "TournamentSelection",
    "TransitionBuffer",
    "TruncationSelection",
    "evaluate",
    "export_trajectories",
    "from_hub",
    "load_history",
    "make_multi_agent_vect_envs",
    "make_vect_envs",
    "play_games",
    "push_to_hub",
    "rate_players",
    "record_film",
    "register",
    "train_multi_agent_on_policy",
    "train_off_policy",
    "train_on_policy",
]

_MODULES = (
    "errors",
    "registry",
    "hpo",
    "envs",
    "algorithms",
    "training",
    "evaluation",
    "saved_runs",
)  # the quickest to import first

__getattr__, __dir__ = lazy_attributes(__name__, __all__, _MODULES)
