"""How multi-agent envs are made, stepped and evaluated in training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

import gymnasium

from agilerl_like.algorithms.ippo import IPPO, MultiAgentPopulation
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.envs.distinct_envs import num_instances
from agilerl_like.envs.episode_stats import EpisodeTracker
from agilerl_like.envs.factory import VecEnvConfig, check_instances
from agilerl_like.envs.multi_agent.group_env import MultiAgentStepSync
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv, not_multi_agent
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.envs.vec_adapter import VecEnvAdapterProtocol
from agilerl_like.errors import ConfigurationError
from agilerl_like.training.collector import Collector, PhaseTimer
from agilerl_like.training.elo_evaluator import EloEvaluator
from agilerl_like.training.env_setup import EnvSetup, check_whole_sets, divide_envs, has_too_many_workers
from agilerl_like.training.evaluator import Evaluator, Opponent
from agilerl_like.training.opponents import (
    ScriptedOpponentEvaluator,
    Scripts,
    check_opponent,
    check_scripts,
    opponent_rows,
    sample_opponents,
    scripted_rows,
)
from agilerl_like.training.sharding import ShardedPopulation
from agilerl_like.training.sides import player_sides
from agilerl_like.training.training_arguments import OF_SCRIPTS


class MultiAgentCollector(Collector):
    """Steps P x E envs with a population of teams, whose groups of agents step the same envs in lockstep."""

    def __init__(self, population: Any, env: Any, timer: PhaseTimer) -> None:
        super().__init__(population, env, timer)
        for name, group in self.groups.items():
            group.learns = name not in population[0].frozen_groups

    def _group_envs(self) -> Mapping[str, VecEnvAdapterProtocol]:
        first = self.population[0]
        self.step_sync = MultiAgentStepSync(
            self.env, first.agent_groups, first.rewards, first.death, first.central_critics
        )
        return self.step_sync.groups

    def set_opponents(self, opponents: MultiAgentPopulation | Scripts, generation: int, *, everywhere: bool) -> None:
        first = self.population[0]
        columns = self.population.gradient_sync.env_slice(first.num_envs)
        instances = num_instances(self.env.env)
        if isinstance(opponents, MultiAgentPopulation):
            rows = opponent_rows(
                first, first.num_envs, generation, everywhere=everywhere, instances=instances, columns=columns
            )
            by_group: Mapping[str, Any] = opponents.by_group
        else:
            slots = next(iter(self.groups.values())).slots
            scripts, rows = scripted_rows(opponents, first, slots, generation, columns, instances=instances)
            self.step_sync.scripts = scripts
            by_group = dict.fromkeys(self.groups)
        for name, group in self.groups.items():
            group.set_opponents(by_group[name], rows[name])

    @property
    def _episodes(self) -> Iterable[EpisodeTracker]:
        return self.step_sync.episodes


class MultiAgentEnvSetup(EnvSetup):
    """PettingZoo envs, for populations of teams."""

    population: ClassVar[type[BasePopulation]] = MultiAgentPopulation
    train_function: ClassVar[str] = "train_multi_agent_on_policy"

    def __init__(self, env: MultiAgentVectorEnv, opponent: IPPO | Scripts | None = None, name: str = "env") -> None:
        """`name` is the argument that `env` was given as, for errors."""
        if not isinstance(env, MultiAgentVectorEnv):
            raise not_multi_agent(name, env)
        self.env, self.opponent = env, opponent

    @classmethod
    def from_config(cls, env_config: VecEnvConfig) -> MultiAgentEnvSetup:
        return cls(MultiAgentVectorEnv.from_config(env_config))

    @property
    def vec_env(self) -> gymnasium.vector.VectorEnv:
        return self.env.vector

    @property
    def spaces(self) -> tuple[Any, Any]:
        return self.env.single_observation_spaces, self.env.single_action_spaces

    @property
    def agent_arguments(self) -> dict[str, Any]:
        return {"state_space": self.env.state_space} if self.env.with_state else {}

    def make_training_env(self, members: int, parts: int, part: int = 0) -> MultiAgentVectorEnv:
        envs = divide_envs(self.env.num_envs, parts)
        check_instances(self.env.env_config, self.env.num_envs)
        check_whole_sets(self.env, envs)
        is_given = members == parts == 1 and not has_too_many_workers(self.env.vector)
        return self.env if is_given else self.env.with_num_envs(envs * members, first=envs * part)

    def make_eval_env(self, num_envs: int) -> MultiAgentVectorEnv:
        return self.env.eval_env(num_envs)

    def check_eval_env(self, eval_setup: EnvSetup) -> None:
        wanted, found = (
            {agent: (its, one[1][agent]) for agent, its in one[0].items()} for one in (self.spaces, eval_setup.spaces)
        )
        if {*found} != {*wanted}:
            raise ConfigurationError(f"eval_env has agents {[*found]}; allowed are {[*wanted]}")
        for agent, (observation_space, action_space) in found.items():
            if (observation_space, action_space) != wanted[agent]:
                raise ConfigurationError(
                    f"eval_env: agent {agent!r} has {observation_space} and {action_space}; allowed are "
                    f"{wanted[agent][0]} and {wanted[agent][1]}"
                )

    def adapt(self, env: MultiAgentVectorEnv) -> MultiAgentVecEnvAdapter:
        return MultiAgentVecEnvAdapter(env)

    def check_opponents(self, opponents: str, population: BasePopulation, fitness: str) -> None:
        first = cast(IPPO, population[0])
        if (opponents in OF_SCRIPTS) is (self.opponent is None):
            raise ConfigurationError(
                f"opponents={opponents!r}; allowed are 'self', 'past', 'population', or a team or functions themselves"
            )
        if opponents == "self":
            return
        if len(player_sides(first.groups)) < 2 and not isinstance(self.opponent, Mapping):
            raise ConfigurationError(
                f"opponents={opponents!r} needs two agents or more that play each other; the team has "
                f"{dict(first.groups)}: allowed is 'self'"
            )
        if opponents == "scripted":
            check_scripts(cast(Scripts, self.opponent), first, fitness)
        elif self.opponent is not None:
            check_opponent(cast(IPPO, self.opponent), first)

    def sample_opponents(
        self, kind: str, members: ShardedPopulation, pool: Sequence[Opponent], generation: int, initial_size: int
    ) -> Any:
        if kind == "scripted":
            return self.opponent
        return sample_opponents(kind, members, pool, generation, initial_size, cast(IPPO, self.opponent))

    def make_evaluator(self, fitness: str, env: MultiAgentVecEnvAdapter, max_steps: int | None) -> Evaluator:
        if fitness == "rating":
            return EloEvaluator(env, max_steps)
        if self.opponent is not None and not isinstance(self.opponent, IPPO):
            return ScriptedOpponentEvaluator(env, max_steps, self.opponent, fitness)
        return Evaluator(env, max_steps, fitness)

    def make_collector(self, population: Any, env: MultiAgentVecEnvAdapter, timer: PhaseTimer) -> Collector:
        return MultiAgentCollector(population, env, timer)
