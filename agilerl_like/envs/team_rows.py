"""The agents of one group as rows of one env: what a learner that knows nothing of teams steps.

A step is taken when every group has said what its agents do; the first to ask for the outcome waits for it, and the
others are handed their shares. Rows stand env by env, and in an env agent by agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from agilerl_like.envs.arrays import Array, Arrays, HostArrays
from agilerl_like.envs.team_transitions import TeamTransition, TeamTransitionEnv
from agilerl_like.envs.transitions import Transition
from agilerl_like.envs.trees import Tree, tree_map


class GroupRows:
    """One group's agents in every env, flattened to rows `[N A, …]` and back."""

    def __init__(self, env: TeamTransitionEnv, agent_ids: Sequence[str]) -> None:
        self.agent_ids = tuple(agent_ids)
        first = self.agent_ids[0]
        self.single_observation_space = env.single_observation_spaces[first]
        self.single_action_space = env.single_action_spaces[first]

    def rows(self, by_agent: Mapping[str, Tree]) -> Tree:
        """What each agent has `[N, …]`, as rows `[N A, …]`."""
        return tree_map(lambda *parts: np.stack(parts, 1).reshape(-1, *parts[0].shape[1:]), *self._each(by_agent))

    def by_agent(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Rows `[N A, …]` as what each agent has, `[N, …]`."""
        by_env = rows.reshape(-1, len(self.agent_ids), *rows.shape[1:])
        return {agent: by_env[:, place] for place, agent in enumerate(self.agent_ids)}

    def masks(self, masks: Mapping[str, np.ndarray | None]) -> np.ndarray | None:
        """The action masks as rows; where only some agents have one, the others may do everything."""
        given = [masks[agent] for agent in self.agent_ids]
        known = [mask for mask in given if mask is not None]
        if not known:
            return None
        everything = np.ones_like(known[0])
        return np.stack([everything if mask is None else mask for mask in given], 1).reshape(-1, everything.shape[-1])

    def transition(self, step: TeamTransition) -> Transition:
        """What a step did to the rows."""
        obs = self.rows(step.obs)
        return Transition(
            obs,
            *(self.rows(getattr(step, field)) for field in ("reward", "terminated", "truncated")),
            next_obs=obs if step.next_obs is step.obs else self.rows(step.next_obs),
            valid=self.rows(step.valid),
            action_mask=self.masks(step.action_mask),
        )

    def _each(self, by_agent: Mapping[str, Tree]) -> list[Tree]:
        return [by_agent[agent] for agent in self.agent_ids]


class Meeting:
    """Brings the groups of an env together, once a step and part."""

    def __init__(self, env: TeamTransitionEnv, groups: Mapping[str, Sequence[str]]) -> None:
        self.env = env
        self.groups = {group: GroupEnv(self, GroupRows(env, ids)) for group, ids in groups.items()}
        """Each group's own env."""
        self._said: dict[int, dict[str, np.ndarray]] = {}
        self._outcomes: dict[int, TeamTransition] = {}
        self._waiting: dict[int, int] = {}
        self._first: Tree = None

    def reset(self, seeds: Sequence[int] | None) -> Mapping[str, Tree]:
        """The first observations of all agents; the seeds are those of the group that asks first."""
        if seeds is not None:
            self._first = self.env.reset(seeds)
            self._said, self._outcomes, self._waiting = {}, {}, {}
        return self._first

    def send(self, part: int, actions: Mapping[str, np.ndarray]) -> None:
        """Hear what one group does; the step begins with the last one."""
        said = self._said.setdefault(part, {})
        said |= actions
        if len(said) == len(self.env.agent_ids):
            self.env.send(part, self._said.pop(part))

    def receive(self, part: int) -> TeamTransition:
        """What the step of one part did; every group asks once."""
        if part not in self._outcomes:
            self._outcomes[part], self._waiting[part] = self.env.receive(part), len(self.groups)
        self._waiting[part] -= 1
        return self._outcomes[part] if self._waiting[part] else self._outcomes.pop(part)


class GroupEnv:
    """One group's share of a meeting, with the methods of a `TransitionEnv`."""

    def __init__(self, meeting: Meeting, rows: GroupRows) -> None:
        self.meeting, self._group = meeting, rows
        self.agents = len(rows.agent_ids)
        self.num_envs = meeting.env.num_envs * self.agents
        self.single_observation_space: gym.Space = rows.single_observation_space
        self.single_action_space: gym.Space = rows.single_action_space
        self.arrays: Arrays = HostArrays()
        self.action_mask: Array | None = None
        self.env: Any = meeting.env.env

    def divide(self, blocks: int) -> None:
        """Have the envs cut into parts; all groups say the same."""
        self.meeting.env.divide(blocks)

    @property
    def columns(self) -> tuple[slice, ...]:
        """Which rows of each block belong to a part."""
        return tuple(slice(c.start * self.agents, c.stop * self.agents) for c in self.meeting.env.columns)

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Begin new episodes, if seeds are given; return what the group's agents see."""
        first = self.meeting.reset(seeds)
        self.action_mask = self._group.masks(self.meeting.env.action_mask)
        return self._group.rows(first)

    def send(self, part: int, actions: Any) -> None:
        """Say what the agents of one part's rows do."""
        self.meeting.send(part, self._group.by_agent(np.asarray(self.arrays.actions(actions))))

    def receive(self, part: int) -> Transition:
        """What came of it."""
        return self._group.transition(self.meeting.receive(part))

    def check(self) -> None:
        """Nothing is left to be checked."""
        return
