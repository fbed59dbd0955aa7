"""Where teams act: envs of PettingZoo."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium

from agilerl_like.algorithms.individuals import BasePopulation
from agilerl_like.algorithms.ippo import MultiAgentPopulation
from agilerl_like.envs.factory import VecEnvConfig
from agilerl_like.envs.multi_agent.pettingzoo import (
    MultiAgentVectorEnv,
    make_multi_agent_eval_env,
    multi_agent_with_num_envs,
)
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.errors import ConfigurationError
from agilerl_like.training.collector import Clock
from agilerl_like.training.elo_evaluator import EloEvaluator
from agilerl_like.training.env_setup import Stage, share_of
from agilerl_like.training.evaluator import Judge
from agilerl_like.training.multi_agent_collector import MultiAgentCollector
from agilerl_like.training.training_config import Fitness


class MultiAgentEnvSetup(Stage):
    """Envs of PettingZoo, for teams."""

    population: ClassVar[type[BasePopulation]] = MultiAgentPopulation

    def __init__(self, env: MultiAgentVectorEnv) -> None:
        if not isinstance(env, MultiAgentVectorEnv):
            raise ConfigurationError(f"env={env!r} is not an env of teams; make_multi_agent_vect_envs makes one")
        self.env = env

    @classmethod
    def remade(cls, recipe: VecEnvConfig) -> MultiAgentEnvSetup:
        return cls(MultiAgentVectorEnv.from_config(recipe))

    @property
    def vector(self) -> gymnasium.vector.VectorEnv:
        return self.env.vector

    def for_training(self, members: int, parts: int, part: int = 0) -> MultiAgentVectorEnv:
        envs = share_of(self.env.num_envs, parts)
        return self.env if members == parts == 1 else multi_agent_with_num_envs(self.env, envs * members)

    def for_trials(self, num_envs: int) -> MultiAgentVectorEnv:
        return make_multi_agent_eval_env(self.env, num_envs)

    def stepped(self, env: MultiAgentVectorEnv) -> MultiAgentVecEnvAdapter:
        return MultiAgentVecEnvAdapter(env)

    def judge(self, fitness: Fitness, env: MultiAgentVecEnvAdapter, max_steps: int | None) -> Judge:
        return (EloEvaluator if fitness == "rating" else Judge)(env, max_steps)

    def collector(self, population: Any, env: MultiAgentVecEnvAdapter, clock: Clock) -> MultiAgentCollector:
        return MultiAgentCollector(population, env, clock)
