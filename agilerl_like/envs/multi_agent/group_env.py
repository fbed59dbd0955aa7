"""The agents of one group as rows of one env: what a learner that knows nothing of teams steps.

A step is taken when every group has said what its agents do; the first to ask for the outcome waits for it, and the
others are handed their shares. Rows stand env by env, and in an env agent by agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict

from agilerl_like.envs.array_backend import Array, ArrayBackend, NumpyBackend
from agilerl_like.envs.episode_stats import EpisodeTracker
from agilerl_like.envs.multi_agent.packed_env import OBSERVATION
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentTransition, MultiAgentVecEnvAdapter
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.envs.vec_adapter import Transition
from agilerl_like.errors import ConfigurationError

Rewards = Literal["individual", "sum", "mean"]
AGENT_ID = "agent_id"


class AgentGroup:
    """One group's agents in every env, flattened to rows `[N A, …]` and back.

    With `agent_id_one_hot` each row says whose it is, one-hot, behind what the agent observes; agents that are alone in their
    group need no name.
    """

    def __init__(
        self, agent_ids: Sequence[str], observation_space: gym.Space, action_space: gym.Space, *, agent_id_one_hot: bool
    ) -> None:
        self.agent_ids = tuple(agent_ids)
        self.single_action_space = action_space
        self.encoding = ObservationEncoder(observation_space)
        """What an agent observes, without its name."""
        self._one_hot = (
            np.eye(len(self.agent_ids), dtype=np.float32) if agent_id_one_hot and len(self.agent_ids) > 1 else None
        )
        self.single_observation_space = (
            observation_space if self._one_hot is None else _space_with_agent_id(observation_space, len(self._one_hot))
        )
        """What a row holds."""

    def to_rows(self, by_agent: Mapping[str, Tree]) -> Tree:
        """What each agent has `[N, …]`, as rows `[N A, …]`."""
        each = [by_agent[agent] for agent in self.agent_ids]
        return tree_map(lambda *parts: np.stack(parts, 1).reshape(-1, *parts[0].shape[1:]), *each)

    def observation_rows(self, by_agent: Mapping[str, Tree]) -> Tree:
        """What each agent observes `[N, …]`, as rows `[N A, …]`, each with its agent's name if that is wanted."""
        seen = self.to_rows(by_agent)
        if self._one_hot is None:
            return seen
        return self._with_agent_id(seen, np.tile(self._one_hot, (_num_rows(seen) // len(self._one_hot), 1)))

    def as_batch(self, agent: str, observation: Tree) -> Tree:
        """What an agent observes in each env `[N, …]`, or in one, which is then a batch of one.

        Raises:
            ConfigurationError: it has not the form of its space.
        """
        try:
            return self.encoding.as_batch(observation)[0]
        except ConfigurationError as error:
            raise ConfigurationError(f"agent {agent!r}: {error}") from error

    def rows_of_agent(self, agent: str, observations: Tree) -> Tree:
        """What one agent observes `[N, …]`, as its rows."""
        if self._one_hot is None:
            return observations
        name = self._one_hot[self.agent_ids.index(agent)]
        return self._with_agent_id(observations, np.tile(name, (_num_rows(observations), 1)))

    def _with_agent_id(self, seen: Tree, names: np.ndarray) -> Tree:
        if isinstance(self.single_observation_space, Box):
            return np.concatenate([seen, names], axis=1, dtype=np.float32)
        return {**(seen if isinstance(seen, Mapping) else {OBSERVATION: seen}), AGENT_ID: names}

    def split_by_agent(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Rows `[N A, …]` as what each agent has, `[N, …]`."""
        by_env = rows.reshape(-1, len(self.agent_ids), *rows.shape[1:])
        return {agent: by_env[:, place] for place, agent in enumerate(self.agent_ids)}

    def mask_rows(self, masks: Mapping[str, np.ndarray | None]) -> np.ndarray | None:
        """The action masks as rows; where only some agents have one, the others may do everything."""
        given = [masks[agent] for agent in self.agent_ids]
        known = [mask for mask in given if mask is not None]
        if not known:
            return None
        everything = np.ones_like(known[0])
        return np.stack([everything if mask is None else mask for mask in given], 1).reshape(-1, everything.shape[-1])

    def row_transition(self, step: MultiAgentTransition) -> Transition:
        """What a step did to the rows.

        Who sits out is truncated though no episode may have ended, and its last observation counts all the same: what
        becomes of it must not depend on whether one has ended elsewhere.
        """
        obs = self.observation_rows(step.obs)
        nobody_was_cut = step.next_obs is step.obs and not any(step.truncated[agent].any() for agent in self.agent_ids)
        return Transition(
            obs,
            *(self.to_rows(getattr(step, field)) for field in ("reward", "terminated", "truncated")),
            next_obs=obs if nobody_was_cut else self.observation_rows(step.next_obs),
            valid=self.to_rows(step.valid),
            action_mask=self.mask_rows(step.action_mask),
        )


def _space_with_agent_id(space: gym.Space, agents: int) -> gym.Space:
    """A space that also says whose observation it is."""
    if isinstance(space, Box) and len(space.shape) == 1:
        low, high = (np.append(side, np.full(agents, end)) for side, end in ((space.low, 0), (space.high, 1)))
        return Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
    parts = dict(space.spaces) if isinstance(space, Dict) else {OBSERVATION: space}
    if AGENT_ID in parts:
        raise ConfigurationError(f"agent_id_one_hot=True would hide {AGENT_ID!r} of {space}; allowed is False")
    return Dict({**parts, AGENT_ID: Box(0.0, 1.0, (agents,), np.float32)})


def _num_rows(tree: Tree) -> int:
    """How many rows there are."""
    while not isinstance(tree, np.ndarray):
        tree = next(iter(tree.values() if isinstance(tree, Mapping) else tree))
    return len(tree)


def check_agents(env: MultiAgentVecEnvAdapter, groups: Iterable[AgentGroup]) -> None:
    """Raise ConfigurationError unless the agents of an env are those of some groups, and see and do what these do."""
    ours = {agent: rows for rows in groups for agent in rows.agent_ids}
    if {*ours} != {*env.agent_ids}:
        raise ConfigurationError(f"env has agents {[*env.agent_ids]}; the team was made for {[*ours]}")
    for agent, rows in ours.items():
        theirs = env.single_observation_spaces[agent], env.single_action_spaces[agent]
        its_own = rows.encoding.space, rows.single_action_space
        if theirs != its_own:
            raise ConfigurationError(
                f"env: agent {agent!r} has {theirs[0]} and {theirs[1]}; the team was made for {its_own[0]} and "
                f"{its_own[1]}"
            )


class MultiAgentStepSync:
    """Brings the groups of an env together, once a step and part.

    `rewards` says what each agent that acted is given: what it earned itself, or what all of them earned together, or
    on average. What a team is said to have earned is the sum in any case.
    """

    def __init__(
        self, env: MultiAgentVecEnvAdapter, groups: Mapping[str, AgentGroup], rewards: Rewards = "individual"
    ) -> None:
        check_agents(env, groups.values())
        self.env, self._rewards = env, rewards
        self.groups = {group: GroupEnv(self, rows) for group, rows in groups.items()}
        """Each group's own env."""
        self.episodes: list[EpisodeTracker] = []
        """What teams earned, part by part."""
        self._actions: dict[int, dict[str, np.ndarray]] = {}
        self._transitions: dict[int, MultiAgentTransition] = {}
        self._unread: dict[int, int] = {}
        self._first_obs: Tree = None

    def reset(self, seeds: Sequence[int] | None) -> Mapping[str, Tree]:
        """The first observations of all agents; the seeds are those of the group that asks first."""
        if seeds is not None:
            self._first_obs = self.env.reset(seeds)
            self._actions, self._transitions, self._unread = {}, {}, {}
            widths = [columns.stop - columns.start for columns in self.env.columns]
            self.episodes = [
                EpisodeTracker(self.env.num_envs // sum(widths) * width, NumpyBackend()) for width in widths
            ]
        return self._first_obs

    def step_async(self, part: int, actions: Mapping[str, np.ndarray]) -> None:
        """Hear what one group does; the step begins with the last one."""
        said = self._actions.setdefault(part, {})
        said |= actions
        if len(said) == len(self.env.agent_ids):
            self.env.step_async(part, self._actions.pop(part))

    def step_wait(self, part: int) -> MultiAgentTransition:
        """What the step of one part did; every group asks once."""
        if part not in self._transitions:
            step = self.env.step_wait(part)
            together = np.sum([*step.reward.values()], axis=0)
            self.episodes[part].update(together, step.ended)
            self._transitions[part], self._unread[part] = self._with_shared_rewards(step, together), len(self.groups)
        self._unread[part] -= 1
        return self._transitions[part] if self._unread[part] else self._transitions.pop(part)

    def _with_shared_rewards(self, step: MultiAgentTransition, together: np.ndarray) -> MultiAgentTransition:
        if self._rewards == "individual":
            return step
        if self._rewards == "mean":
            together = together / np.maximum(1, np.sum([*step.valid.values()], axis=0, dtype=np.float32))
        shares = {  # where somebody's reward is no number each keeps its own, so that the guilty one is named
            agent: np.where(step.valid[agent], np.where(np.isfinite(together), together, own), np.float32(0))
            for agent, own in step.reward.items()
        }
        return step._replace(reward=shares)


class GroupEnv:
    """One group's share of a meeting, with the methods of a `VecEnvAdapter`."""

    def __init__(self, step_sync: MultiAgentStepSync, rows: AgentGroup) -> None:
        self.step_sync, self._group = step_sync, rows
        self.agents = len(rows.agent_ids)
        self.num_envs = step_sync.env.num_envs * self.agents
        self.single_observation_space: gym.Space = rows.single_observation_space
        self.single_action_space: gym.Space = rows.single_action_space
        self.array_backend: ArrayBackend = NumpyBackend()
        self.action_mask: Array | None = None
        self.env: Any = step_sync.env.env

    def set_num_members(self, num_members: int) -> None:
        """Have the envs cut into parts; all groups say the same."""
        self.step_sync.env.set_num_members(num_members)

    @property
    def columns(self) -> tuple[slice, ...]:
        """Which rows of each block belong to a part."""
        return tuple(slice(c.start * self.agents, c.stop * self.agents) for c in self.step_sync.env.columns)

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Begin new episodes, if seeds are given; return what the group's agents see."""
        first = self.step_sync.reset(seeds)
        self.action_mask = self._group.mask_rows(self.step_sync.env.action_mask)
        return self._group.observation_rows(first)

    def step_async(self, part: int, actions: Any) -> None:
        """Say what the agents of one part's rows do."""
        self.step_sync.step_async(
            part, self._group.split_by_agent(np.asarray(self.array_backend.to_env_actions(actions)))
        )

    def step_wait(self, part: int) -> Transition:
        """What came of it."""
        return self._group.row_transition(self.step_sync.step_wait(part))

    def check(self) -> None:
        """Nothing is left to be checked."""
        return

    def describe_row(self, row: int) -> str:
        """What a row of a team's block is called when something is wrong with it."""
        env, agent = divmod(row, self.agents)
        return f"env {env} of its own, agent {self._group.agent_ids[agent]!r}"
