"""Algorithms, and populations of agents.

PPO is imported at once, because a checkpoint may name it; IPPO on first use, because it needs PettingZoo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agilerl_like._lazy import lazy_attributes
from agilerl_like.algorithms.cma_es import CMAES
from agilerl_like.algorithms.dqn import DQN
from agilerl_like.algorithms.open_ai_es import OpenAIES
from agilerl_like.algorithms.population import Population
from agilerl_like.algorithms.ppo import PPO
from agilerl_like.algorithms.ppo_config import PPOConfig
from agilerl_like.algorithms.pqn import PQN
from agilerl_like.algorithms.q_learning import QLearning
from agilerl_like.algorithms.rollout_builder import RolloutBuilder
from agilerl_like.algorithms.sac import SAC
from agilerl_like.algorithms.td3 import DDPG, TD3
from agilerl_like.algorithms.transition_buffer import TransitionBuffer
from agilerl_like.learning.sequences import BPTTSequenceType

if TYPE_CHECKING:
    from agilerl_like.algorithms.ippo import IPPO, MultiAgentPopulation, Teams

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
    "MultiAgentPopulation",
    "OpenAIES",
    "PPOConfig",
    "Population",
    "QLearning",
    "RolloutBuilder",
    "Teams",
    "TransitionBuffer",
]

__getattr__, __dir__ = lazy_attributes(__name__, __all__, ("ippo",))
