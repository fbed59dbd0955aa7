"""The rollout of a loop by hand: what `collect_rollouts` or a user's own loop adds, and a bare `learn()` learns from.

`learn()` computes advantages by itself, as everywhere in this package; `compute_returns_and_advantages` is for scripts
that look at them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.algorithms.agilerl_experiences import Experiences, copied_state
from agilerl_like.algorithms.rollout_builder import LastObservations
from agilerl_like.envs.pytree import tree_map
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.errors import ConfigurationError
from agilerl_like.learning.gae import gae
from agilerl_like.learning.sequences import BPTTSequenceType
from agilerl_like.seeding import Purpose, fresh_seed, generator

__getattr__ = absent_from(__name__)


class Row(NamedTuple):
    """One step of all envs `[E, …]`."""

    obs: Any
    action: np.ndarray
    reward: np.ndarray
    done: np.ndarray
    value: np.ndarray
    log_prob: np.ndarray
    episode_start: np.ndarray
    action_mask: np.ndarray | None
    acting: np.ndarray
    last_observations: LastObservations


class Content(NamedTuple):
    """The arguments of an update."""

    experiences: Experiences
    action_masks: list[np.ndarray] | None
    acting: list[np.ndarray]
    hidden_state: Mapping[str, Tensor] | None
    """What the recurrent network was given at the first step."""
    last_observations: list[LastObservations]


class RolloutBuffer:
    """Steps of `num_envs` envs in their order; `capacity` is how many steps of each env are expected.

    `hidden_state_architecture`, `wrap_at_capacity`, `max_seq_len` and `bptt_sequence_type` are accepted, as AgileRL has
    them, and have no effect: how sequences are cut is the agent's setting.
    """

    def __init__(
        self,
        capacity: int,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        num_envs: int = 1,
        device: str = "cpu",
        gae_lambda: float = 0.95,
        gamma: float = 0.99,
        recurrent: bool = False,
        hidden_state_architecture: Mapping[str, tuple[int, ...]] | None = None,
        use_gae: bool = True,
        wrap_at_capacity: bool = False,
        max_seq_len: int | None = None,
        bptt_sequence_type: BPTTSequenceType = BPTTSequenceType.CHUNKED,
    ) -> None:
        self.capacity, self.num_envs, self.device = capacity, num_envs, device
        self.observation_space, self.action_space = observation_space, action_space
        self._encoder = ObservationEncoder(observation_space)
        self.gamma, self.gae_lambda = gamma, gae_lambda if use_gae else 1.0
        self.recurrent = recurrent
        self.source: VecEnvAdapter | None = None
        """The env that `collect_rollouts` filled it from."""
        self.hidden_state: dict[str, Tensor] | None = None
        """The hidden state behind the last step that `collect_rollouts` took."""
        self.rng = generator(fresh_seed(), Purpose.MANUAL, Purpose.MINIBATCHES)
        """Draws the rows of `get(batch_size)`; of an agent's buffer it follows from the agent's seed."""
        self._ended = np.ones(num_envs, np.float32)  # by the last step, also of the rollout before
        self.empty()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy of the agent has: the steps, and not the env that they are from."""
        return {**vars(self), "source": None}

    def reset(self) -> None:
        """Discard all steps, which were not learned from; the next one continues the running episodes."""
        follows_discarded = self.follows_discarded or bool(self._rows)
        self.empty()
        self.follows_discarded = follows_discarded

    def empty(self) -> None:
        """Remove all steps, which were learned from; the next one continues the running episodes."""
        self._rows: list[Row] = []
        self._first_state: Mapping[str, Tensor] | None = None
        self._next_obs: Any = None
        self.returns = self.advantages = np.zeros((0, self.num_envs), np.float32)
        self.follows_discarded = False
        """Whether steps before these were discarded, so that the discounted returns of `normalize_reward` begin at 0.
        """
        self._clears_at_next_step = False

    def clear_at_next_step(self) -> None:
        """Discard all steps when the next one is added, because the update from them was undone."""
        self._clears_at_next_step = True

    @property
    def pos(self) -> int:
        """Steps of each env that are in it."""
        return len(self._rows)

    @property
    def full(self) -> bool:
        """Whether there are as many steps as expected."""
        return self.pos >= self.capacity

    def size(self) -> int:
        """Transitions that are in it, of all envs."""
        return self.pos * self.num_envs

    def add(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        done: Any,
        value: Any,
        log_prob: Any,
        next_obs: Any = None,
        hidden_state: Mapping[str, Tensor] | None = None,
        next_hidden_state: Mapping[str, Tensor] | None = None,
        episode_start: Any = None,
        action_mask: Any = None,
        *,
        acting: Any = None,
        truncated: Any = False,
    ) -> None:
        """Add one step of all envs.

        `done`: this step ended an episode; `episode_start`: it began one; left out, it follows from the
        step before. `next_obs` is what the step led to, and is needed of the last step alone. `acting` is False where
        the env ignored the action. `truncated` is True where a time limit ended the episode, and `next_obs` has its
        last observation: `learn` bootstraps its value, unless the agent has `bootstrap_truncated=False`. Where it is
        False, an end is a termination.

        Raises:
            ConfigurationError: `truncated` is True, and `next_obs` is missing.
        """
        if self._clears_at_next_step:
            self.reset()
        flags = np.ones(self.num_envs, np.bool_) if acting is None else np.asarray(acting, np.bool_)
        starts = self._ended if episode_start is None else self._numbers(episode_start)
        numbers = (self._numbers(reward), self._numbers(done), self._numbers(value), self._numbers(log_prob))
        mask = None if action_mask is None else np.array(action_mask)
        seen, taken = self._copied(obs), np.array(_host(action))
        if self.num_envs == 1:  # whose axis observation and action may lack
            taken = taken[None] if taken.ndim == len(self.action_space.shape or ()) else taken
        reached = None if next_obs is None else self._copied(next_obs)
        cut = np.flatnonzero(self._numbers(truncated))
        if len(cut) and reached is None:
            raise ConfigurationError("truncated is True and next_obs=None; allowed are the last observations")
        last = tree_map(lambda part: part[cut], reached) if len(cut) else None
        self._rows.append(Row(seen, taken, *numbers, starts, mask, flags, (cut, last)))
        if len(self._rows) == 1:
            self._first_state = copied_state(hidden_state)
        self._next_obs, self._ended = reached, numbers[1]

    def _copied(self, obs: Any) -> Any:
        """Return a copy of observations `[E, …]`, which a loop may overwrite, also where one env lacks its axis."""
        copied = tree_map(lambda part: np.array(_host(part)), obs)
        return self._encoder.as_batch(copied)[0] if self.num_envs == 1 else copied

    def _numbers(self, values: Any) -> np.ndarray:
        return np.array(np.broadcast_to(np.asarray(_host(values), np.float32).reshape(-1), self.num_envs))

    def content(self) -> Content:
        """Everything in it, as an agent's update takes it.

        Raises:
            ConfigurationError: nothing is in it, or what the last step led to is missing.
        """
        self._check_filled("learn")
        if self._next_obs is None:
            raise ConfigurationError("the last step in the rollout buffer was added without next_obs; pass it to add")
        rows = self._rows
        starts = [row.episode_start for row in rows]
        columns = ([getattr(row, name) for row in rows] for name in ("obs", "action", "log_prob", "reward"))
        values = [row.value for row in rows]
        some_masked = any(row.action_mask is not None for row in rows)
        masks = [self._mask_of(row) for row in rows] if some_masked else None
        experiences: Any = (*columns, starts, values, self._next_obs, rows[-1].done)
        last_observations = [row.last_observations for row in rows]
        return Content(experiences, masks, [row.acting for row in rows], self._first_state, last_observations)

    def _check_filled(self, use: str) -> None:
        if not self._rows:
            raise ConfigurationError(f"the rollout buffer is empty: call collect_rollouts(agent, env) before {use}()")

    def _mask_of(self, row: Row) -> np.ndarray:
        if row.action_mask is not None:
            return row.action_mask
        return np.ones_like(next(other.action_mask for other in self._rows if other.action_mask is not None))

    def compute_returns_and_advantages(self, last_value: Any, last_done: Any) -> None:
        """Fill `returns` and `advantages` `[T, E]` by GAE; every end counts as a termination.

        `learn` does not read them: its own have the value of the last observation at a time limit, too.
        `last_value` is that of what the last step led to. The step knows by itself whether it ended an episode, so
        `last_done` may only add to that.

        Raises:
            ConfigurationError: nothing is in it.
        """
        self._check_filled("compute_returns_and_advantages")
        values = torch.tensor(np.stack([row.value for row in self._rows]))
        ended = torch.tensor(np.stack([row.done for row in self._rows]))
        ended[-1] = torch.maximum(ended[-1], torch.tensor(self._numbers(last_done)))
        advantages = gae(
            torch.tensor(np.stack([row.reward for row in self._rows])),
            values,
            torch.cat([values[1:], torch.tensor(self._numbers(last_value)).unsqueeze(0)]),
            terminated=ended,
            ended=ended.clone(),
            valid=torch.tensor(np.stack([row.acting for row in self._rows])).to(ended),
            gamma=torch.tensor(self.gamma),
            gae_lambda=torch.tensor(self.gae_lambda),
        )
        self.advantages, self.returns = advantages.numpy(), (advantages + values).numpy()

    def get(self, batch_size: int | None = None) -> dict[str, Any]:
        """Its arrays `[T E, …]` by AgileRL's names, or `batch_size` rows of them, drawn without replacement.

        `returns` and `advantages` are among them if they were computed after the last step was added.

        Raises:
            ConfigurationError: nothing is in it, or fewer rows than `batch_size`.
        """
        self._check_filled("get")
        table = {
            "observations": tree_map(lambda *parts: np.concatenate(parts), *(row.obs for row in self._rows)),
            "actions": np.concatenate([row.action for row in self._rows]),
            **{
                f"{name}s": np.concatenate([getattr(row, name) for row in self._rows])
                for name in ("reward", "done", "value", "log_prob")
            },
        }
        if len(self.returns) == self.pos:
            table |= {"returns": self.returns.reshape(-1), "advantages": self.advantages.reshape(-1)}
        if batch_size is None:
            return table
        if not 0 < batch_size <= self.size():
            raise ConfigurationError(
                f"batch_size={batch_size!r}; allowed are 1 to {self.size()}, the rows in the buffer"
            )
        rows = self.rng.choice(self.size(), batch_size, replace=False)
        return tree_map(lambda part: part[rows], table)

    def get_tensor_batch(self, batch_size: int | None = None, device: str | None = None) -> dict[str, Any]:
        """As `get`, in tensors."""
        return tree_map(lambda part: torch.as_tensor(part).to(device or self.device), self.get(batch_size))


def _host(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values
