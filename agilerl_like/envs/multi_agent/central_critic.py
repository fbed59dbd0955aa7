"""What the critic of a group of agents observes beside, or instead of, each agent's own observation.

With `env.state()` or the observations of all agents it is the central critic of MAPPO (Yu et al. 2022); the policies
stay independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict

from agilerl_like.envs.critic_observation import POLICY, observation_names
from agilerl_like.envs.multi_agent.group_env import AgentGroup
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentTransition
from agilerl_like.envs.pytree import Tree
from agilerl_like.envs.spaces import Leaf
from agilerl_like.envs.vec_adapter import Transition
from agilerl_like.errors import ConfigurationError, unknown_name

STATE, JOINT = "state", "joint"
CRITIC = "critic"
"""The key of the critic's part in the observations of a group's learner."""


class CentralCritic:
    """The observations of one group's critic, as rows `[N A, …]` for N envs of A agents in the group.

    `names` are "policy" (the agent's own observation), "state" (`env.state()`) and "joint": the encoded observations of
    all agents, the agent's own first, then those of its group, then those of the other groups; of an absent agent it is
    the last one.

    Raises:
        ConfigurationError: a name is unknown, the state's space is missing, or an agent observes images ("joint").
    """

    def __init__(
        self,
        group: AgentGroup,
        groups: Sequence[AgentGroup],
        names: Sequence[str],
        state_space: gym.Space | None,
    ) -> None:
        self._group, self._names = group, tuple(names)
        self._others = [other for other in groups if other is not group]
        for name in names:
            if name not in (POLICY, STATE, JOINT):
                raise unknown_name("critic_observation", name, (POLICY, STATE, JOINT))
        if STATE in names and state_space is None:
            raise ConfigurationError(
                f"critic_observation={STATE!r} needs the space of env.state(): state_space=env.state_space of "
                "make_multi_agent_vect_envs(…, with_state=True); the env must have one"
            )
        spaces = {name: self._space_of(name, state_space) for name in names}
        critic_space = next(iter(spaces.values())) if len(spaces) == 1 else Dict([*spaces.items()])
        self.space = Dict([(POLICY, group.single_observation_space), (CRITIC, critic_space)])
        """Of the group's learner: what its policy observes, and what its critic observes."""

    def rows(self, policy_rows: Tree, by_agent: Mapping[str, Tree], state: np.ndarray | None) -> Tree:
        """Return the observations of a group's learner, from those by agent and the state `[N, …]`.

        Raises:
            ConfigurationError: the env was made without its state.
        """
        parts = {name: self._rows_of(name, policy_rows, by_agent, state) for name in self._names}
        return {POLICY: policy_rows, CRITIC: next(iter(parts.values())) if len(parts) == 1 else parts}

    def extended(self, rows: Transition, step: MultiAgentTransition) -> Transition:
        """Return a step's rows with what the critic observes."""
        obs = self.rows(rows.obs, step.obs, step.state)
        is_same = rows.next_obs is rows.obs
        return rows._replace(
            obs=obs, next_obs=obs if is_same else self.rows(rows.next_obs, step.next_obs, step.next_state)
        )

    def _space_of(self, name: str, state_space: gym.Space | None) -> gym.Space:
        if name == POLICY:
            return self._group.single_observation_space
        if name == STATE and state_space is not None:
            return state_space
        low, high = ([_ends(group, side) for group in (self._group, *self._others)] for side in ("low", "high"))
        return Box(np.concatenate(low), np.concatenate(high), dtype=np.float32)

    def _rows_of(self, name: str, policy_rows: Tree, by_agent: Mapping[str, Tree], state: np.ndarray | None) -> Tree:
        if name == POLICY:
            return policy_rows
        agents = len(self._group.agent_ids)
        if name == STATE:
            if state is None:
                raise ConfigurationError(
                    f"critic_observation={STATE!r}, but the env returns no state; make it with_state=True"
                )
            return np.repeat(state, agents, axis=0)
        own = self._encoded(self._group, by_agent)  # [N, A, D]
        others = [self._encoded(other, by_agent).reshape(len(own), 1, -1) for other in self._others]
        of_group = [np.roll(own, -place, axis=1).reshape(len(own), 1, -1) for place in range(agents)]
        joint = [np.concatenate([first, *others], -1) for first in of_group]  # of each agent [N, 1, D]
        return np.concatenate(joint, 1).reshape(len(own) * agents, -1)

    @staticmethod
    def _encoded(group: AgentGroup, by_agent: Mapping[str, Tree]) -> np.ndarray:
        return np.stack([group.encoding.encode(by_agent[agent]) for agent in group.agent_ids], 1)


def make_central_critics(
    groups: Mapping[str, AgentGroup], critic_observation: str | Sequence[str], state_space: gym.Space | None
) -> dict[str, CentralCritic]:
    """Return the central critic of each group; none if critics observe what the policies observe.

    Raises:
        ConfigurationError: as `CentralCritic`.
    """
    names = observation_names(critic_observation)
    if names == (POLICY,):
        return {}
    return {name: CentralCritic(group, [*groups.values()], names, state_space) for name, group in groups.items()}


def _ends(group: AgentGroup, side: str) -> np.ndarray:
    """Return the lower or upper bounds of the encoded observations of a group's agents."""
    if group.encoding.dtype is torch.uint8:
        raise ConfigurationError(
            f"critic_observation={JOINT!r} joins vectors, but agents {', '.join(group.agent_ids)} observe images; "
            f"allowed is {STATE!r}"
        )
    ends = np.concatenate([_ends_of(leaf, side) for leaf in group.encoding.leaves])
    return np.tile(ends, len(group.agent_ids)).astype(np.float32)


def _ends_of(leaf: Leaf, side: str) -> np.ndarray:
    if isinstance(leaf.space, Box):
        return np.asarray(getattr(leaf.space, side), np.float64).reshape(-1)
    return np.full(leaf.size, 0.0 if side == "low" else 1.0)
