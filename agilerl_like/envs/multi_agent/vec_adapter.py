"""One step of many multi-agent envs, agent by agent: the multi-agent counterpart of `Transition`.

`VecEnvAdapter` has handled the env's autoreset mode already; here its rows of bytes are unpacked. Agents end
independently: an agent's termination ends nothing for the others, and its rows are invalid from then on until the env's
episode ends and the next one starts. Its rows are invalid while it waits, too: its episode continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from agilerl_like.envs.action_masks import ActionMasks
from agilerl_like.envs.array_backend import NumpyBackend
from agilerl_like.envs.multi_agent.packed_env import MASK, read_step_result
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv, copied, not_multi_agent
from agilerl_like.envs.pytree import Tree
from agilerl_like.envs.vec_adapter import Transition, VecEnvAdapter
from agilerl_like.errors import EnvStepError


class MultiAgentTransition(NamedTuple):
    """What one step of N envs did to each agent; the receiver owns all arrays.

    By agent, `obs` [N, …] is what to act on next (of the new episode where one started), and `next_obs` [N, …] is what
    the actions led to; both are the same dict if no episode ended. `valid` [N] is False where the agent did not act;
    `reward` is what the env paid it in any case. An agent that waits keeps its last observation; it may end before it
    acts again, and is truncated if the env's episode ends first. `action_mask` [N, choices] belongs to `obs`; it is
    None if the env has never given the agent a mask, and all True where the agent does not act.

    Bootstrap from a truncated agent's final observation (its previous one, if the env gives none); where both flags are
    True, the termination counts. If a worker process was lost, its envs have `ended`, no agent's step is valid, and all
    agents that were present are truncated.

    It is a record of its own because a team steps its envs once for all agents, which share `ended` and `state`; with
    a dict of one agent for `Transition` every step of a single agent would pay for that. What learners get is a
    `Transition` in both cases: `group_env` makes one of each group's rows.
    """

    obs: dict[str, Tree]
    reward: dict[str, np.ndarray]  # [N] float32
    terminated: dict[str, np.ndarray]  # [N] bool
    truncated: dict[str, np.ndarray]  # [N] bool
    next_obs: dict[str, Tree]
    valid: dict[str, np.ndarray]  # [N] bool
    action_mask: dict[str, np.ndarray | None]
    acting: dict[str, np.ndarray]  # [N] bool: is present to act on obs; the next step's `valid`
    waited: dict[str, np.ndarray]  # [N] bool: had acted in this episode and not ended, but took no action in this step
    waits: dict[str, np.ndarray]  # [N] bool: the next step's `waited`
    ended: np.ndarray  # [N] bool: the env's episode ended, and the next one started
    state: np.ndarray | None  # [N, …], belongs to obs; None unless made with_state
    next_state: np.ndarray | None  # [N, …], belongs to next_obs

    @property
    def rewards(self) -> tuple[np.ndarray, ...]:
        """The reward of each agent."""
        return tuple(self.reward.values())

    @property
    def acted(self) -> np.ndarray:
        """Envs in which any agent acted, [N] bool."""
        return np.any([*self.valid.values()], axis=0)

    @property
    def lost(self) -> np.ndarray:
        """Envs whose worker process was lost, [N] bool."""
        return self.ended & ~self.acted


class MultiAgentVecEnvAdapter:
    """Steps a `MultiAgentVectorEnv` and returns MultiAgentTransitions; it must be the only user of the env."""

    def __init__(self, env: MultiAgentVectorEnv) -> None:
        if not isinstance(env, MultiAgentVectorEnv):
            raise not_multi_agent("env", env)
        self.env = env
        self.num_envs = env.num_envs
        self.agent_ids = env.agent_ids
        self.single_observation_spaces: dict[str, gym.Space] = env.single_observation_spaces
        self.single_action_spaces: dict[str, gym.Space] = env.single_action_spaces
        self.array_backend = NumpyBackend()
        """Of the arrays in MultiAgentTransitions."""
        self.action_mask: dict[str, np.ndarray | None] = {}
        """Masks of the last `reset` or `step`; `acting` and `state` likewise."""
        self.acting: dict[str, np.ndarray] = {}
        self.state: np.ndarray | None = None
        self._adapter = VecEnvAdapter(env.vector)
        self._masks = {agent: ActionMasks(space) for agent, space in self.single_action_spaces.items()}
        self._acting = np.zeros((self.num_envs, len(self.agent_ids)), np.bool_)
        self._waiting = np.zeros_like(self._acting)
        self._all_rows = np.arange(self.num_envs)
        self.set_num_members(1)

    def set_num_members(self, num_members: int) -> None:
        """Divide the envs into env groups, each with as many envs of every member; call it before `reset`."""
        self._adapter.set_num_members(num_members)
        by_block = np.arange(self.num_envs).reshape(num_members, -1)
        self._rows = [by_block[:, columns].ravel() for columns in self.columns]

    @property
    def columns(self) -> tuple[slice, ...]:
        """The envs of each member's block that belong to each env group; rows of a group are ordered by member."""
        return self._adapter.columns

    @property
    def group_rows(self) -> Sequence[np.ndarray]:
        """The rows of each env group, in its order."""
        return self._rows

    def reset(self, seeds: int | Sequence[int | None] | None = None) -> dict[str, Tree]:
        """Start a new episode in every env and return the first observations by agent [N, …].

        `seeds` is one seed for each env, or one for all (env i is seeded with seeds + i). None in a list is allowed as
        in `VecEnvAdapter.reset`.
        """
        fields = self.env.packed_observations.read(self._adapter.reset(seeds))
        self._acting, self._waiting = np.array(fields["acting"]), np.array(fields["waiting"])
        self.action_mask, self.acting, self.state = self._observation_extras(fields, self._all_rows)
        return copied(fields["obs"])

    def step(self, actions: Mapping[str, Any]) -> MultiAgentTransition:
        """Take all agents' actions [N, …]; those of absent agents are ignored."""
        step = self._adapter.step(self._pack(actions, self.num_envs))
        transition = self._translate(step, self._all_rows)
        self.action_mask, self.acting, self.state = transition.action_mask, transition.acting, transition.state
        return transition

    def step_async(self, group: int, actions: Mapping[str, Any]) -> None:
        """Start the step of one env group's rows; call `step_wait` before anything else for this group."""
        self._adapter.step_async(group, self._pack(actions, len(self._rows[group])))

    def step_wait(self, group: int) -> MultiAgentTransition:
        """Return the step of one env group, in the order of its rows."""
        return self._translate(self._adapter.step_wait(group), self._rows[group])

    def last_info(self, row: int, *, ended: bool) -> dict[str, Any]:
        """Return one env's infos of the last step, by agent; `ended` is True if that step ended the episode."""
        return self._adapter.last_info(row, ended=ended)

    def close(self) -> None:
        """Close the wrapped env."""
        self.env.close()

    def __repr__(self) -> str:
        return f"MultiAgentVecEnvAdapter({self.env})"

    def _pack(self, actions: Mapping[str, Any], count: int) -> np.ndarray:
        return self.env.packed_actions.pack(
            {agent: self.array_backend.to_env_actions(given) for agent, given in actions.items()}, count
        )

    def _translate(self, step: Transition, rows: np.ndarray) -> MultiAgentTransition:
        read = self.env.packed_observations.read
        fields = read(step.obs)
        final = fields if step.next_obs is step.obs else read(step.next_obs)
        waited, waits = self._waiting[rows], np.array(fields["waiting"])
        result = read_step_result(final, self._acting[rows], waited, ~step.valid)
        waited &= step.valid[:, None]
        self._acting[rows], self._waiting[rows] = fields["acting"], waits
        mask, acting, state = self._observation_extras(fields, rows)
        obs = copied(fields["obs"])
        reward, terminated, truncated, valid = (dict(zip(self.agent_ids, values, strict=True)) for values in result)
        return MultiAgentTransition(
            obs=obs,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_obs=obs if final is fields else copied(final["obs"]),
            valid=valid,
            action_mask=mask,
            acting=acting,
            waited=dict(zip(self.agent_ids, np.ascontiguousarray(waited.T), strict=True)),
            waits=dict(zip(self.agent_ids, np.ascontiguousarray(waits.T), strict=True)),
            ended=step.ended,
            state=state,
            next_state=state if final is fields else _state_of(final),
        )

    def _observation_extras(
        self, fields: Tree, rows: np.ndarray
    ) -> tuple[dict[str, np.ndarray | None], dict[str, np.ndarray], np.ndarray | None]:
        """Return the action masks, acting flags and state that belong to the observations of some envs."""
        flags = np.ascontiguousarray(fields["acting"].T)  # [A, N]
        acting = dict(zip(self.agent_ids, flags, strict=True))
        any_masked, masks = fields["masked"].any(0), {}
        for column, agent in enumerate(self.agent_ids):
            info = {}
            if any_masked[column]:
                info = {MASK: fields["mask"][agent], f"_{MASK}": fields["masked"][:, column]}
            try:
                mask = self._masks[agent].read(info, rows, ended=~acting[agent])
            except EnvStepError as error:
                raise EnvStepError(f"agent {agent!r}, {error}") from error
            masks[agent] = None if mask is None else mask | ~acting[agent][:, None]
        return masks, acting, _state_of(fields)


def _state_of(fields: Tree) -> np.ndarray | None:
    return np.ascontiguousarray(fields["state"]) if "state" in fields else None
