"""Where teams act: envs of PettingZoo."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium

from agilerl_like.algorithms.individuals import Individuals
from agilerl_like.algorithms.ippo import Teams
from agilerl_like.envs.pettingzoo import MultiAgentVectorEnv, team_trial_env, widen_team
from agilerl_like.envs.team_transitions import TeamTransitionEnv
from agilerl_like.envs.vector import EnvRecipe
from agilerl_like.errors import ConfigurationError
from agilerl_like.training.collector import Clock
from agilerl_like.training.contest import Contest
from agilerl_like.training.env_setup import Stage, share_of
from agilerl_like.training.evaluator import Judge
from agilerl_like.training.team_collector import TeamCollector
from agilerl_like.training.training_config import Fitness


class TeamStage(Stage):
    """Envs of PettingZoo, for teams."""

    population: ClassVar[type[Individuals]] = Teams

    def __init__(self, env: MultiAgentVectorEnv) -> None:
        if not isinstance(env, MultiAgentVectorEnv):
            raise ConfigurationError(f"env={env!r} is not an env of teams; make_multi_agent_vect_envs makes one")
        self.env = env

    @classmethod
    def remade(cls, recipe: EnvRecipe) -> TeamStage:
        return cls(MultiAgentVectorEnv.made(recipe))

    @property
    def vector(self) -> gymnasium.vector.VectorEnv:
        return self.env.vector

    def for_training(self, members: int, parts: int, part: int = 0) -> MultiAgentVectorEnv:
        envs = share_of(self.env.num_envs, parts)
        return self.env if members == parts == 1 else widen_team(self.env, envs * members)

    def for_trials(self, num_envs: int) -> MultiAgentVectorEnv:
        return team_trial_env(self.env, num_envs)

    def stepped(self, env: MultiAgentVectorEnv) -> TeamTransitionEnv:
        return TeamTransitionEnv(env)

    def judge(self, fitness: Fitness, env: TeamTransitionEnv, max_steps: int | None) -> Judge:
        return (Contest if fitness == "rating" else Judge)(env, max_steps)

    def collector(self, population: Any, env: TeamTransitionEnv, clock: Clock) -> TeamCollector:
        return TeamCollector(population, env, clock)
