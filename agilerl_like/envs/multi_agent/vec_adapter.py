"""What one step of many teams did, agent by agent: the multi-agent sibling of `Transition`.

Whatever dialect an env speaks, `VecEnvAdapter` has translated it already; here its rows of bytes are taken apart. The
subtlety is that agents' lives and episodes end apart: an agent's death ends nothing for the others, and its own rows
are not valid from then on until the episode ends and the next begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from agilerl_like.envs.action_masks import ActionMasks
from agilerl_like.envs.array_backend import NumpyBackend
from agilerl_like.envs.multi_agent.packed_env import MASK, read_step_result
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv, copied
from agilerl_like.envs.pytree import Tree
from agilerl_like.envs.vec_adapter import Transition, VecEnvAdapter, check_finite_array
from agilerl_like.errors import ConfigurationError, EnvStepError


class MultiAgentTransition(NamedTuple):
    """What one step of N envs did to each agent; all arrays belong to the receiver.

    By agent, `obs` [N, …] is what to act on next (of the new episode where one began), and `next_obs` [N, …] what the
    actions led to; they are the very same dict if no episode ended. `valid` [N] is False where the agent was not there
    to act: its reward is 0, and nothing ended. An agent that leaves without having terminated is truncated, and its
    last observation stays in its rows; if it comes back, `acting` says so. `action_mask` [N, choices] goes with `obs`;
    it is None if the agent's world never gave one, and all True where the agent is not there.

    A truncated agent's last observation is to be bootstrapped from (the one before it, if the world shows it none);
    where both flags are True, the termination counts. Where a worker process was lost with an episode, that is `over`
    though nobody's step is valid, and everybody who was there is truncated.
    """

    obs: dict[str, Tree]
    reward: dict[str, np.ndarray]  # [N] float32
    terminated: dict[str, np.ndarray]  # [N] bool
    truncated: dict[str, np.ndarray]  # [N] bool
    next_obs: dict[str, Tree]
    valid: dict[str, np.ndarray]  # [N] bool
    action_mask: dict[str, np.ndarray | None]
    acting: dict[str, np.ndarray]  # [N] bool: who is there to act on obs, so the next step's `valid`
    ended: np.ndarray  # [N] bool: the episode has ended, and the next has begun
    state: np.ndarray | None  # [N, …], goes with obs; None unless made with_state
    next_state: np.ndarray | None  # [N, …], goes with next_obs

    @property
    def lost(self) -> np.ndarray:
        """Envs whose episode was lost with its worker process, [N] bool."""
        return self.ended & ~np.any([*self.valid.values()], axis=0)

    def for_agent(self, agent: str) -> Transition:
        """What the step did to one agent, as if it were alone."""
        fields = (getattr(self, field) for field in Transition._fields)
        return Transition(*(field[agent] for field in fields))


class MultiAgentVecEnvAdapter:
    """Steps a `MultiAgentVectorEnv` and answers in MultiAgentTransitions; nobody else may step it meanwhile."""

    def __init__(self, env: MultiAgentVectorEnv) -> None:
        if not isinstance(env, MultiAgentVectorEnv):
            raise ConfigurationError(f"env={env!r} is not an env of teams; make_multi_agent_vect_envs makes one")
        self.env = env
        self.num_envs = env.num_envs
        self.agent_ids = env.agent_ids
        self.single_observation_spaces: dict[str, gym.Space] = env.single_observation_spaces
        self.single_action_spaces: dict[str, gym.Space] = env.single_action_spaces
        self.array_backend = NumpyBackend()
        """The kind of arrays in MultiAgentTransitions."""
        self.action_mask: dict[str, np.ndarray | None] = {}
        """What goes with the observations of the last `reset` or `step`; `acting` and `state` likewise."""
        self.acting: dict[str, np.ndarray] = {}
        self.state: np.ndarray | None = None
        self._adapter = VecEnvAdapter(env.vector)
        self._masks = {agent: ActionMasks(space) for agent, space in self.single_action_spaces.items()}
        self._acting = np.zeros((self.num_envs, len(self.agent_ids)), np.bool_)
        self._all_rows = np.arange(self.num_envs)
        self.set_num_members(1)

    def set_num_members(self, num_members: int) -> None:
        """Have the rows cut into parts that take as much of each of so many equal blocks; comes before `reset`."""
        self._adapter.set_num_members(num_members)
        by_block = np.arange(self.num_envs).reshape(num_members, -1)
        self._rows = [by_block[:, columns].ravel() for columns in self.columns]

    @property
    def columns(self) -> tuple[slice, ...]:
        """Which envs of each block belong to a part, as `set_num_members` has cut them; its rows are those block by block."""
        return self._adapter.columns

    def reset(self, seeds: int | Sequence[int] | None = None) -> dict[str, Tree]:
        """Begin a new episode in every env and return the first observations by agent [N, …].

        `seeds` is one for each env, or one for all (which is counted up from env to env).
        """
        seen = self.env.packed_observations.read(self._adapter.reset(seeds))
        self._acting = np.array(seen["acting"])
        self._set_current(*self._observation_extras(seen, self._all_rows))
        return copied(seen["obs"])

    def step(self, actions: Mapping[str, Any]) -> MultiAgentTransition:
        """Take every agent's actions [N, …]; those of agents that are not there are ignored."""
        step = self._adapter.step(self._pack(actions, self.num_envs))
        return self._translate(step, slice(None))

    def step_async(self, part: int, actions: Mapping[str, Any]) -> None:
        """Let the rows of one part begin to step; nothing else may be asked of them before `step_wait`."""
        self._adapter.step_async(part, self._pack(actions, len(self._rows[part])))

    def step_wait(self, part: int) -> MultiAgentTransition:
        """Return what the step of one part did, in the order of its rows."""
        return self._translate(self._adapter.step_wait(part), self._rows[part])

    def last_info(self, row: int, *, ended: bool) -> dict[str, Any]:
        """The info that one env gave in the last step, by agent; `ended` tells whether it ended the episode."""
        return self._adapter.last_info(row, ended=ended)

    def close(self) -> None:
        """Close the wrapped env."""
        self.env.close()

    def __repr__(self) -> str:
        return f"TeamTransitionEnv({self.env})"

    def _pack(self, actions: Mapping[str, Any], count: int) -> np.ndarray:
        return self.env.packed_actions.pack(
            {agent: self.array_backend.to_env_actions(given) for agent, given in actions.items()}, count
        )

    def _translate(self, step: Transition, rows: np.ndarray | slice) -> MultiAgentTransition:
        read = self.env.packed_observations.read
        seen = read(step.obs)
        last = seen if step.next_obs is step.obs else read(step.next_obs)
        came = read_step_result(last, self._acting[rows], ~step.valid)
        self._acting[rows] = seen["acting"]
        mask, acting, state = self._observation_extras(seen, self._all_rows[rows])
        if isinstance(rows, slice):
            self._set_current(mask, acting, state)
        obs = copied(seen["obs"])
        reward, terminated, truncated, valid = (dict(zip(self.agent_ids, part, strict=True)) for part in came)
        return MultiAgentTransition(
            obs=obs,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_obs=obs if last is seen else copied(last["obs"]),
            valid=valid,
            action_mask=mask,
            acting=acting,
            ended=step.ended,
            state=state,
            next_state=state if last is seen else _state_of(last),
        )

    def _observation_extras(
        self, seen: Tree, rows: np.ndarray
    ) -> tuple[dict[str, np.ndarray | None], dict[str, np.ndarray], np.ndarray | None]:
        """What goes with the observations of some envs: masks, who is to act, and the state."""
        flags = np.ascontiguousarray(seen["acting"].T)  # [A, N]
        acting = dict(zip(self.agent_ids, flags, strict=True))
        some_masked, masks = seen["masked"].any(0), {}
        for column, agent in enumerate(self.agent_ids):
            info = {}
            if some_masked[column]:
                info = {MASK: seen["mask"][agent], f"_{MASK}": seen["masked"][:, column]}
            try:
                masks[agent] = self._masks[agent].read(info, rows, ignored=~acting[agent])
            except EnvStepError as fault:
                raise EnvStepError(f"agent {agent!r}, {fault}") from fault
        return masks, acting, _state_of(seen)

    def _set_current(
        self, mask: dict[str, np.ndarray | None], acting: dict[str, np.ndarray], state: np.ndarray | None
    ) -> None:
        self.action_mask, self.acting, self.state = mask, acting, state


def check_finite_multi_agent(transition: MultiAgentTransition) -> None:
    """Raise EnvStepError, naming agent, env and place, if a world returned NaN or infinity."""
    check_finite_array("reward", transition.reward)
    check_finite_array("observation", transition.obs)
    if transition.next_obs is not transition.obs:
        check_finite_array("last observation", transition.next_obs)


def _state_of(seen: Tree) -> np.ndarray | None:
    return np.ascontiguousarray(seen["state"]) if "state" in seen else None
