"""Teams stepping through their envs: a collector for each group, which meet at every step.

Who is due is the same in all groups, for a learner's rollouts are as long in env steps as its team's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from agilerl_like.algorithms.ippo import MultiAgentPopulation
from agilerl_like.envs.multi_agent.group_env import MultiAgentStepSync
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.learning.update import Report
from agilerl_like.seeding import Purpose, integers
from agilerl_like.training.collector import Collector, PhaseTimer, collect, mean_returns


class MultiAgentCollector:
    """Steps P x E envs with a population of teams; `reset` comes first."""

    def __init__(self, teams: MultiAgentPopulation, env: MultiAgentVecEnvAdapter, timer: PhaseTimer) -> None:
        self.teams, self.env = teams, env
        self.step_sync = MultiAgentStepSync(env, teams[0].agent_groups, teams[0].rewards)
        self.groups = {
            group: Collector(learners, self.step_sync.groups[group], timer)
            for group, learners in teams.by_group.items()
        }
        self.envs = env.num_envs // len(teams)
        for team in teams:
            team.num_envs = self.envs * teams.team.parts
            team.check()

    def reset(self, slots: Sequence[int], *keys: int) -> None:
        """Begin new episodes everywhere; each team's envs have seeds named by the run's seed, its slot and `keys`."""
        teams = self.teams
        mine = teams.team.columns(teams[0].num_envs)
        seeds: list[int] | None = [
            seed
            for slot in slots
            for seed in integers(teams[0].num_envs, teams.seed, Purpose.TRAINING_ENVS, slot, *keys)[mine]
        ]
        for collector in self.groups.values():
            collector.slots = slots
            collector.begin(seeds)
            seeds = None

    @property
    def vector_steps_until_update(self) -> int:
        """Steps until somebody's rollout is full."""
        return min(collector.vector_steps_until_update for collector in self.groups.values())

    def collect(self, vector_steps: int, *, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Take so many steps in every env, or fewer if asked to stop; return how many were taken."""
        return collect(list(self.groups.values()), vector_steps, should_stop)

    def learn(self) -> Mapping[int, Report]:
        """Let every team learn whose rollouts are full; a report is the mean of its groups'."""
        found = [collector.learn() for collector in self.groups.values()]
        return {place: _joined([reports[place] for reports in found if place in reports]) for place in found[0]}

    def reset_member(self, place: int) -> None:
        """A newcomer lives here."""
        for collector in self.groups.values():
            collector.reset_member(place)

    def pop_scores(self) -> list[float]:
        """What a team's agents earned together, on average, in training episodes that ended since the last call."""
        return mean_returns(self.step_sync.episodes, len(self.teams), self.teams.team)


def _joined(reports: Iterable[Report]) -> Report:
    """The mean of what the groups of a team report; it is healthy if all are."""
    columns = zip(*reports, strict=True)
    numbers = {name: torch.stack(column) for name, column in zip(Report._fields, columns, strict=True)}
    healthy = numbers.pop("healthy").min(0).values
    return Report(**{name: column.mean(0) for name, column in numbers.items()}, healthy=healthy)
