"""A replay of a hand-written loop, with the ends of episodes as in `train_off_policy`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from agilerl_like.algorithms.episode_ends import EpisodeEnds, NextMasks, as_numpy
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.errors import ConfigurationError, is_count
from agilerl_like.resources import check_memory
from agilerl_like.seeding import Purpose, generator


class TransitionBuffer:
    """The last `capacity` transitions of a hand-written loop; `agent.learn(buffer.sample())` does a gradient step.

    How the envs reset is read from `env.metadata["autoreset_mode"]`, or given as `autoreset`. In "NextStep" the step
    after the end of an episode ignores its action, and is not stored; in "SameStep" the last observation of a truncated
    episode, with its action mask, is taken from `infos`; in "Disabled" the loop resets the envs. `done` is 1 where an
    episode terminated, and 0 at a time limit. Action masks of the next observations are taken from `infos`, too.

    Samples follow from the agent's seed. `capacity=None` is the agent's `memory_size`, and for a table, which has no
    such setting, one step of all envs.

    `is_new` of a sample is True in one row of each transition that no sample had before: the agent's running statistics
    of observations count these alone, so each observation once. A buffer is thus of one agent.
    """

    def __init__(
        self,
        agent: Any,
        env: gymnasium.vector.VectorEnv | None = None,
        *,
        capacity: int | None = None,
        autoreset: str | AutoresetMode | None = None,
    ) -> None:
        if not hasattr(agent, "learner"):
            raise ConfigurationError(f"agent={agent!r:.100}; allowed is an agent of one policy, such as DQN")
        if capacity is not None and not is_count(capacity):
            raise ConfigurationError(f"capacity={capacity!r} must be a positive integer")
        self._agent, self._capacity = agent, None if capacity is None else int(capacity)
        self._ends = EpisodeEnds(env, autoreset)
        self._masks = NextMasks(agent.action_space, self._ends.mode)
        self._generator = generator(agent.seed, Purpose.MANUAL, Purpose.MINIBATCHES, agent.index)
        self._rows: dict[str, Tree] = {}
        self._is_new = np.zeros(0, np.bool_)  # which transitions no sample had
        self._next_masks: np.ndarray | None = None
        self.capacity = self._stored = self._newest = 0
        """The largest number of transitions; 0 before the first step."""

    def __len__(self) -> int:
        return min(self._stored, self.capacity)

    def add(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        next_obs: Any,
        infos: Mapping[str, Any] | None = None,
    ) -> int:
        """Add one step of E envs, and return how many transitions it had; arrays are `[E, …]`, as of `env.step`.

        Raises:
            ConfigurationError: the last observation of a truncated episode is missing, or no memory is left.
            EnvStepError: an action mask allows nothing.
        """
        action, infos = as_numpy(action), infos or {}
        envs = len(action)
        ends = self._ends.read(terminated, truncated, next_obs, infos, envs=envs)
        if ends.last is not None:
            next_obs = tree_map(lambda part: np.array(as_numpy(part)), next_obs)
            next_obs = tree_map(lambda part, last: _with_rows(part, ends.cut, last), next_obs, ends.last)
        step = {
            "obs": obs,
            "action": action,
            "reward": np.asarray(as_numpy(reward), np.float32),
            "next_obs": next_obs,
            "done": ends.terminated,
        }
        kept = np.flatnonzero(ends.acting)
        step = {name: tree_map(lambda part: as_numpy(part)[kept], part) for name, part in step.items()}
        if not self._rows:
            self._allocate(step, envs)
        self._newest = len(kept)
        places = (self._stored + np.arange(len(kept))) % self.capacity
        for name, part in step.items():
            self._rows[name] = tree_map(lambda ring, new: _with_rows(ring, places, new), self._rows[name], part)
        mask = self._masks.read(infos, ends.ended)
        if mask is not None:
            if self._next_masks is None:
                self._next_masks = np.ones((self.capacity, mask.shape[1]), np.bool_)
            self._next_masks[places] = mask[kept]
        self._is_new[places] = True
        self._stored += len(kept)
        return len(kept)

    def sample(self, batch_size: int | None = None) -> dict[str, Any]:
        """Return transitions that are drawn uniformly with replacement; None: as many as the agent's `batch_size`.

        Raises:
            ConfigurationError: nothing is stored, or `batch_size` is not a positive integer.
        """
        size = self._agent.batch_size if batch_size is None else batch_size
        if not isinstance(size, int | np.integer) or size < 1:
            raise ConfigurationError(f"batch_size={size!r} must be a positive integer")
        if not len(self):
            raise ConfigurationError("the buffer is empty: call add(…) after every env.step before sample")
        places = self._generator.integers(len(self), size=size)
        first = np.unique(places, return_index=True)[1]
        is_new = np.zeros(size, np.bool_)
        is_new[first] = self._is_new[places[first]]
        self._is_new[places] = False
        return {**self._at(places), "is_new": is_new}

    def newest(self) -> dict[str, Any]:
        """Return the transitions of the last step, in the order of the envs: from these a table learns.

        Raises:
            ConfigurationError: the last step had no transition, because all envs were reset in it.
        """
        if not self._newest:
            raise ConfigurationError("the last step has no transition; allowed is a step for which add(…) is not 0")
        return self._at((self._stored - self._newest + np.arange(self._newest)) % self.capacity)

    def _at(self, places: np.ndarray) -> dict[str, Any]:
        found = {name: tree_map(lambda part: part[places], part) for name, part in self._rows.items()}
        return found if self._next_masks is None else {**found, "next_action_mask": self._next_masks[places]}

    def _allocate(self, step: Mapping[str, Tree], envs: int) -> None:
        wanted = self._capacity or getattr(self._agent, "memory_size", envs)
        self.capacity = max(wanted, envs)
        parts: list[np.ndarray] = []
        tree_map(parts.append, tuple(step.values()))
        each = sum(part[:1].nbytes for part in parts)
        check_memory(f"capacity={self.capacity}", self.capacity, each, "transitions")
        self._is_new = np.zeros(self.capacity, np.bool_)
        self._rows = {
            name: tree_map(lambda part: np.zeros((self.capacity, *part.shape[1:]), part.dtype), part)
            for name, part in step.items()
        }


def _with_rows(array: np.ndarray, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return an array with other values in some rows: itself, or a copy of a dtype that holds both without rounding."""
    if not np.can_cast(values.dtype, array.dtype, "same_kind"):
        array = array.astype(np.result_type(array.dtype, values.dtype))
    array[rows] = values
    return array
