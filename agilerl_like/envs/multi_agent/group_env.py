"""Agents that share a policy, as rows of one vector env: the adapter of a single-agent env for each group.

An env steps once all groups have sent their actions; the first group that waits for the result receives it for all.
Rows are ordered by env, then by agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Any, Literal, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict

from agilerl_like.envs.array_backend import Array, ArrayBackend, NumpyBackend
from agilerl_like.envs.env_errors import env_name_of
from agilerl_like.envs.episode_stats import EpisodeTracker
from agilerl_like.envs.multi_agent.packed_env import OBSERVATION, flat_mask, split_mask
from agilerl_like.envs.multi_agent.scripted import ScriptedRows
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentTransition, MultiAgentVecEnvAdapter
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.envs.random_actions import MASK
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.envs.vec_adapter import Transition, check_finite_array
from agilerl_like.errors import ConfigurationError, EnvStepError

Rewards = Literal["individual", "sum", "mean"]
Death = Literal["continue", "end"]
NUMPY = NumpyBackend()
AGENT_ID = "agent_id"  # key of the one-hot agent id in Dict observations


class AgentGroup:
    """The agents of one group: converts between arrays by agent `[N, …]` and rows `[N A, …]`.

    `agent_id_one_hot` appends a one-hot agent id to each observation, if the group has several agents.
    """

    def __init__(
        self, agent_ids: Sequence[str], observation_space: gym.Space, action_space: gym.Space, *, agent_id_one_hot: bool
    ) -> None:
        self.agent_ids = tuple(agent_ids)
        self.single_action_space = action_space
        self.encoding = ObservationEncoder(observation_space)
        """Of an observation without agent id."""
        self._one_hot = (
            np.eye(len(self.agent_ids), dtype=np.float32) if agent_id_one_hot and len(self.agent_ids) > 1 else None
        )
        self.single_observation_space = (
            observation_space if self._one_hot is None else _space_with_agent_id(observation_space, len(self._one_hot))
        )
        """Of a row."""

    def part(self, agent_ids: Sequence[str]) -> AgentGroup:
        """Return the layout of some of its agents, with the ids that they have in the whole group."""
        if tuple(agent_ids) == self.agent_ids:
            return self
        found = copy(self)
        found.agent_ids = tuple(agent_ids)
        if self._one_hot is not None:
            found._one_hot = self._one_hot[[self.agent_ids.index(agent) for agent in agent_ids]]
        return found

    def to_rows(self, by_agent: Mapping[str, Tree]) -> Tree:
        """Convert trees by agent `[N, …]` to rows `[N A, …]`."""
        each = [by_agent[agent] for agent in self.agent_ids]
        return tree_map(lambda *parts: np.stack(parts, 1).reshape(-1, *parts[0].shape[1:]), *each)

    def observation_rows(self, by_agent: Mapping[str, Tree]) -> Tree:
        """Convert observations by agent `[N, …]` to rows `[N A, …]`, with agent ids if enabled."""
        rows = self.to_rows(by_agent)
        if self._one_hot is None:
            return rows
        return self._with_agent_id(rows, np.tile(self._one_hot, (_num_rows(rows) // len(self._one_hot), 1)))

    def without_mask(self, observation: Any) -> tuple[Any, np.ndarray | None]:
        """Return an observation as policies read it, and the action mask that the environment gave with it, or None."""
        space = self.encoding.space
        is_observed = isinstance(space, Dict) and MASK in space.spaces
        if is_observed or not isinstance(observation, Mapping) or MASK not in observation:
            return observation, None
        rest, mask = split_mask(observation)
        return rest, flat_mask(mask)

    def as_batch(self, agent: str, observation: Tree) -> Tree:
        """Return an agent's observations `[N, …]`; a single observation becomes a batch of one.

        Raises:
            ConfigurationError: the observation does not fit its space.
        """
        try:
            batch, _ = self.encoding.as_batch(observation)
            if self._one_hot is not None and isinstance(self.single_observation_space, Box):
                batch = self.encoding.encode(batch)  # float32, as the agent ids that are appended
        except (ConfigurationError, EnvStepError) as error:
            raise ConfigurationError(f"agent {agent!r}: {error}") from error
        return batch

    def rows_of_agent(self, agent: str, observations: Tree) -> Tree:
        """Convert one agent's observations `[N, …]` to rows, with its id if enabled."""
        if self._one_hot is None:
            return observations
        agent_id = self._one_hot[self.agent_ids.index(agent)]
        return self._with_agent_id(observations, np.tile(agent_id, (_num_rows(observations), 1)))

    def _with_agent_id(self, rows: Tree, agent_ids: np.ndarray) -> Tree:
        if isinstance(self.single_observation_space, Box):
            return np.concatenate([rows, agent_ids], axis=1, dtype=np.float32)
        return {**(rows if isinstance(rows, Mapping) else {OBSERVATION: rows}), AGENT_ID: agent_ids}

    def split_by_agent(self, rows: Any) -> dict[str, np.ndarray]:
        """Split rows `[N A, …]` into arrays by agent `[N, …]`."""
        rows = NUMPY.to_env_actions(rows)
        by_env = rows.reshape(-1, len(self.agent_ids), *rows.shape[1:])
        return {agent: by_env[:, place] for place, agent in enumerate(self.agent_ids)}

    def mask_rows(self, masks: Mapping[str, np.ndarray | None]) -> np.ndarray | None:
        """Convert action masks to rows; agents without a mask may take every action. None if no agent has a mask."""
        given = [masks[agent] for agent in self.agent_ids]
        known = [mask for mask in given if mask is not None]
        if not known:
            return None
        all_allowed = np.ones_like(known[0])
        return np.stack([all_allowed if mask is None else mask for mask in given], 1).reshape(-1, all_allowed.shape[-1])

    def continuing(self, step: MultiAgentTransition) -> np.ndarray:
        """Return which rows `[N A]` are in the midst of their agent's episode after a step."""
        return self.to_rows(
            {
                agent: (step.valid[agent] | step.waited[agent]) & ~(step.terminated[agent] | step.truncated[agent])
                for agent in self.agent_ids
            }
        )

    def row_transition(self, step: MultiAgentTransition) -> Transition:
        """Convert a step to rows.

        One agent can be truncated while the env's episode continues. Its final observation is then kept in an array of
        its own, so that its bootstrap value does not depend on whether an episode ended in another env.
        """
        obs = self.observation_rows(step.obs)
        none_truncated = step.next_obs is step.obs and not any(step.truncated[agent].any() for agent in self.agent_ids)
        return Transition(
            obs,
            *(self.to_rows(getattr(step, field)) for field in ("reward", "terminated", "truncated")),
            next_obs=obs if none_truncated else self.observation_rows(step.next_obs),
            valid=self.to_rows(step.valid),
            action_mask=self.mask_rows(step.action_mask),
            waited=self.to_rows(step.waited),
            waits=self.to_rows(step.waits),
        )


class CriticRows(Protocol):
    """What a group's critic observes (see `central_critic.py`)."""

    space: gym.Space

    def rows(self, policy_rows: Tree, by_agent: Mapping[str, Tree], state: np.ndarray | None) -> Tree: ...
    def extended(self, rows: Transition, step: MultiAgentTransition) -> Transition: ...


def _space_with_agent_id(space: gym.Space, agents: int) -> gym.Space:
    """Return an observation space with a one-hot agent id."""
    if isinstance(space, Box) and len(space.shape) == 1:
        low, high = (np.append(side, np.full(agents, end)) for side, end in ((space.low, 0), (space.high, 1)))
        return Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
    parts = dict(space.spaces) if isinstance(space, Dict) else {OBSERVATION: space}
    if AGENT_ID in parts:
        raise ConfigurationError(f"agent_id_one_hot=True would hide {AGENT_ID!r} of {space}; allowed is False")
    return Dict({**parts, AGENT_ID: Box(0.0, 1.0, (agents,), np.float32)})


def _num_rows(tree: Tree) -> int:
    """Return the length of a tree's arrays."""
    while not isinstance(tree, np.ndarray):
        tree = next(iter(tree.values() if isinstance(tree, Mapping) else tree))
    return len(tree)


def check_agents(env: MultiAgentVecEnvAdapter, groups: Iterable[AgentGroup]) -> None:
    """Raise ConfigurationError unless an env has the agents of `groups`, with their spaces."""
    expected = {agent: group for group in groups for agent in group.agent_ids}
    if {*expected} != {*env.agent_ids}:
        raise ConfigurationError(f"env has agents {[*env.agent_ids]}; the team was made for {[*expected]}")
    for agent, group in expected.items():
        found = env.single_observation_spaces[agent], env.single_action_spaces[agent]
        wanted = group.encoding.space, group.single_action_space
        if found != wanted:
            raise ConfigurationError(
                f"env: agent {agent!r} has {found[0]} and {found[1]}; the team was made for {wanted[0]} and {wanted[1]}"
            )


class MultiAgentStepSync:
    """Synchronises the groups of an env, once for each step of an env group.

    `rewards` is what an agent learns from: its own reward, the sum of all agents' rewards in a step, or that sum
    divided by the number of agents that acted in it. With `death="continue"`
    that sum or mean is credited to agents that have ended, too, until the env's episode ends; with "end" such an agent
    gets what the env pays itself. What is paid before its first step of an episode is added to that step. Reported
    episode returns are sums of the rewards in any case.
    """

    def __init__(
        self,
        env: MultiAgentVecEnvAdapter,
        groups: Mapping[str, AgentGroup],
        rewards: Rewards = "individual",
        death: Death = "end",
        critics: Mapping[str, CriticRows] = MappingProxyType({}),
    ) -> None:
        check_agents(env, groups.values())
        self.env, self._rewards, self._death = env, rewards, death
        self.groups = {group: GroupEnv(self, rows, critics.get(group)) for group, rows in groups.items()}
        """Each group's env."""
        self.episodes: list[EpisodeTracker] = []
        """Returns summed over agents, by env group; without those that functions control."""
        self._actions: dict[int, dict[str, np.ndarray]] = {}
        self._transitions: dict[int, MultiAgentTransition] = {}
        self._accounts: list[_EarlyRewards] = []
        self._unread: dict[int, int] = {}
        self._first_obs: Tree = None
        self.scripts: ScriptedRows | None = None
        """Functions that control some agents of some envs."""
        self._latest: dict[int, MultiAgentTransition] = {}  # by env group; empty before its first step

    def reset(self, seeds: Sequence[int] | None) -> Mapping[str, Tree]:
        """Return all agents' first observations; only the first group passes seeds, which resets the envs."""
        if seeds is not None:
            self._first_obs = self.env.reset(seeds)
            self._check_state(self.env.state, range(self.env.num_envs))
            self._actions, self._transitions, self._unread, self._latest = {}, {}, {}, {}
            widths = [columns.stop - columns.start for columns in self.env.columns]
            rows = [self.env.num_envs // sum(widths) * width for width in widths]
            self.episodes = [EpisodeTracker(count, NUMPY) for count in rows]
            self._accounts = [_EarlyRewards(self.env.agent_ids, count) for count in rows]
        return self._first_obs

    def step_async(self, group: int, actions: Mapping[str, np.ndarray]) -> None:
        """Take the actions of some agents in one env group; the last agents' actions start the step."""
        pending = self._actions.setdefault(group, {})
        pending |= actions
        if len(pending) == len(self.env.agent_ids):
            self.env.step_async(group, self._with_scripts(group, self._actions.pop(group)))

    def _with_scripts(self, group: int, actions: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return the actions of one env group, with those of functions in the rows that they control."""
        if self.scripts is None:
            return actions
        latest, rows = self._latest.get(group), self.env.group_rows[group]
        if latest is not None:
            return self.scripts.replace(actions, rows, latest.obs, latest.action_mask, latest.acting)
        obs, mask, acting = tree_map(
            lambda leaf: None if leaf is None else leaf[rows], (self._first_obs, self.env.action_mask, self.env.acting)
        )
        return self.scripts.replace(actions, rows, obs, mask, acting)

    def step_wait(self, group: int) -> MultiAgentTransition:
        """Return the step of one env group; called once by each group of agents."""
        if group not in self._transitions:
            step = self._latest[group] = self.env.step_wait(group)
            self._check_state(step.state, self.env.group_rows[group])
            if step.next_state is not step.state:
                self._check_state(step.next_state, self.env.group_rows[group])
            team_reward = np.sum([*step.reward.values()], axis=0)
            self.episodes[group].update(self._own_reward(group, step, team_reward), step.ended, step.acted)
            account = self._accounts[group]
            self._transitions[group] = account.moved(self._with_shared_rewards(step, team_reward, account))
            self._unread[group] = len(self.groups)
        self._unread[group] -= 1
        return self._transitions[group] if self._unread[group] else self._transitions.pop(group)

    def _check_state(self, state: np.ndarray | None, rows: Sequence[int] | np.ndarray) -> None:
        """Raise EnvStepError if a state of the envs `rows` is not finite; rollouts have it in agents' observations."""
        if state is not None:
            vector = self.env.env.vector
            check_finite_array("state()", state, lambda row: f"{env_name_of(vector)}, env {rows[row]}")

    def _own_reward(self, group: int, step: MultiAgentTransition, team_reward: np.ndarray) -> np.ndarray:
        """Return the reward `[n]` of the agents that no function controls."""
        if self.scripts is None:
            return team_reward
        scripts, rows = self.scripts, self.env.group_rows[group]
        return np.sum([scripts.others(agent, its, rows) for agent, its in step.reward.items()], axis=0)

    def _with_shared_rewards(
        self, step: MultiAgentTransition, team_reward: np.ndarray, account: _EarlyRewards
    ) -> MultiAgentTransition:
        if self._rewards == "individual":
            return step
        if self._rewards == "mean":
            team_reward = team_reward / np.maximum(1, np.sum([*step.valid.values()], axis=0, dtype=np.float32))
        finite = np.isfinite(team_reward)  # else agents keep their own rewards, so that the error names the right agent
        shared = {}
        for agent, own in step.reward.items():
            shares = step.valid[agent] | step.waited[agent]
            if self._death == "continue":
                shares = shares | account.started[agent]
            shared[agent] = np.where(finite & shares, team_reward, own)
        return step._replace(reward=shared)


class _EarlyRewards:
    """Moves what agents are paid before their first step of an episode to that step, in N envs."""

    def __init__(self, agent_ids: Sequence[str], num_envs: int) -> None:
        self.started = {agent: np.zeros(num_envs, np.bool_) for agent in agent_ids}
        """Whether each agent has acted in its env's episode."""
        self._owed = {agent: np.zeros(num_envs, np.float32) for agent in agent_ids}

    def moved(self, step: MultiAgentTransition) -> MultiAgentTransition:
        """Return the step with these rewards moved."""
        rewards = dict(step.reward)
        for agent, valid in step.valid.items():
            started, owed = self.started[agent], self._owed[agent]
            if not valid.all():
                early = ~(valid | started)
                owed += np.where(early, rewards[agent], np.float32(0))
                rewards[agent] = np.where(early, np.float32(0), rewards[agent])
            if owed.any():
                rewards[agent] = rewards[agent] + np.where(valid, owed, np.float32(0))
                owed[valid | step.ended] = 0.0
            started |= valid
            started[step.ended] = False
        return step._replace(reward=rewards)


class GroupEnv:
    """One group's agents as a vector env with the methods of `VecEnvAdapter`: `N A` rows for N envs of A agents."""

    def __init__(
        self, step_sync: MultiAgentStepSync, agent_group: AgentGroup, critic: CriticRows | None = None
    ) -> None:
        self.step_sync, self._agent_group, self._critic = step_sync, agent_group, critic
        self.agents = len(agent_group.agent_ids)
        self.num_envs = step_sync.env.num_envs * self.agents
        self.single_observation_space: gym.Space = (
            agent_group.single_observation_space if critic is None else critic.space
        )
        self.single_action_space: gym.Space = agent_group.single_action_space
        self.array_backend: ArrayBackend = NUMPY
        self.action_mask: Array | None = None
        self.env: Any = step_sync.env.env

    def set_num_members(self, num_members: int) -> None:
        """Divide the envs into env groups for so many members; all groups of agents pass the same number."""
        self.step_sync.env.set_num_members(num_members)

    @property
    def columns(self) -> tuple[slice, ...]:
        """The rows of each member's block that belong to each env group."""
        return tuple(slice(c.start * self.agents, c.stop * self.agents) for c in self.step_sync.env.columns)

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Start new episodes, if seeds are given; return the first observations of the group's agents."""
        first_obs = self.step_sync.reset(seeds)
        self.action_mask = self._agent_group.mask_rows(self.step_sync.env.action_mask)
        rows = self._agent_group.observation_rows(first_obs)
        return rows if self._critic is None else self._critic.rows(rows, first_obs, self.step_sync.env.state)

    def step_async(self, group: int, actions: Any) -> None:
        """Send the actions of one env group's rows."""
        self.step_sync.step_async(group, self._agent_group.split_by_agent(actions))

    def step_wait(self, group: int) -> Transition:
        """Return the step of one env group."""
        step = self.step_sync.step_wait(group)
        rows = self._agent_group.row_transition(step)
        return rows if self._critic is None else self._critic.extended(rows, step)

    def check(self) -> None:
        """Do nothing: numpy arrays were checked in the step."""
        return

    def describe_row(self, row: int) -> str:
        """Name a row of a member's block, for error messages."""
        env, agent = divmod(row, self.agents)
        return f"env {env} of its own, agent {self._agent_group.agent_ids[agent]!r}"
