"""A population of teams: for each group of agents a population of learners, which act and learn together.

What is computed together is what is alike: the speakers of all teams are one population, and so are the listeners. A
team's fitness is what its agents earn, added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from torch import Tensor

from agilerl_like.algorithms.evaluation import Episodes
from agilerl_like.algorithms.individuals import Individuals
from agilerl_like.algorithms.ippo import IPPO
from agilerl_like.algorithms.population import Population
from agilerl_like.algorithms.ppo import PPO
from agilerl_like.algorithms.team_evaluation import Brain, Policy, evaluate_teams
from agilerl_like.envs.team_transitions import TeamTransitionEnv
from agilerl_like.learning.team import Team


class Teams(Individuals[IPPO]):
    """P teams of the same agents, groups and run seed."""

    kind = IPPO

    def __init__(self, agents: Iterable[IPPO]) -> None:
        super().__init__(agents)
        self.by_group = {
            group: Population([team.learners[group] for team in self.agents]) for group in self.agents[0].groups
        }
        """The learners of each group, in the order of their teams."""

    def __repr__(self) -> str:
        return f"Teams({len(self)} x {self.agents[0].algo} of {', '.join(self.by_group)})"

    def join(self, team: Team) -> None:
        super().join(team)
        for learners in self.by_group.values():
            learners.join(team)

    def set_training_mode(self, training: bool) -> None:
        for team in self.agents:
            team.training = training
        for learners in self.by_group.values():
            learners.set_training_mode(training)

    def forget_noise(self) -> None:
        for learners in self.by_group.values():
            learners.forget_noise()

    def take_over(self, heirs: list[IPPO]) -> None:
        self.agents = heirs
        for group, learners in self.by_group.items():
            learners.take_over([team.learners[group] for team in heirs])

    def play(self, env: TeamTransitionEnv, seeds: Sequence[int], max_steps: int | None = None) -> Episodes:
        training = self.agents[0].training
        self.set_training_mode(False)
        try:
            brains = {
                group: Brain(self._policy(learners), cast(PPO, learners[0]), learners.nothing)
                for group, learners in self.by_group.items()
            }
            return evaluate_teams(brains, self.agents[0].groups, env, seeds, members=len(self), max_steps=max_steps)
        finally:
            self.set_training_mode(training)

    def _policy(self, learners: Population) -> Policy:
        shape = len(self), -1

        def policy(encoded: Tensor, mask: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
            its_mask = None if mask is None else mask.unflatten(0, shape)
            actions, after = learners.act(encoded.unflatten(0, shape), state.unflatten(0, shape), its_mask)
            return learners.to_env(actions), after.flatten(0, 1)

        return policy
