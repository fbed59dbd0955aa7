"""A rollout of a hand-written loop, with time limits bootstrapped as in `train_on_policy`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from agilerl_like.algorithms.agilerl_experiences import Experiences, RawActions, as_rollout, copied_state
from agilerl_like.algorithms.episode_ends import EpisodeEnds, NextMasks, as_numpy
from agilerl_like.envs.pytree import tree_map
from agilerl_like.errors import ConfigurationError
from agilerl_like.learning.advantages import Precomputed
from agilerl_like.learning.rollout_buffer import FinalObservations, Rollout

Encode = Callable[[Any], Tensor]
LastObservations = tuple[np.ndarray, Any]
"""Rows `[K]` whose episode a time limit cut in a step, and their last observations `[K, …]`, not read if K is 0."""


class _Step(NamedTuple):
    """One step of E envs."""

    obs: Any
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    acting: np.ndarray
    log_prob: np.ndarray | None
    value: np.ndarray | None
    mask: np.ndarray | None
    final: LastObservations
    next_mask: np.ndarray | None


class RolloutBuilder:
    """Collects the steps of a hand-written loop; `agent.learn(builder)` does an update from them and empties it.

    If an error undoes the update, the steps stay until the next one is added, so that `learn` can repeat it, for
    example with a smaller `lr`.

    AgileRL's tuple has one done flag, which does not distinguish time limits from terminations. `add` takes both flags,
    and the value of the last observation of a truncated episode is bootstrapped.

    How the envs reset is read from `env.metadata["autoreset_mode"]`, or given as `autoreset`. In "NextStep" the step
    after the end of an episode ignores its action, and is excluded from the update; in "SameStep" `infos` have the last
    observation; in "Disabled" the loop resets the envs.
    """

    def __init__(
        self, agent: Any, env: gymnasium.vector.VectorEnv | None = None, *, autoreset: str | AutoresetMode | None = None
    ) -> None:
        if not hasattr(agent, "learner"):
            raise ConfigurationError(f"agent={agent!r:.100}; allowed is an agent of one policy, such as PPO")
        self._ends = EpisodeEnds(env, autoreset)
        reads_masks = getattr(agent.group_class, "stores_next_masks", False)
        self._next_masks = NextMasks(agent.action_space, self._ends.mode) if reads_masks else None
        self._starts_next: np.ndarray | None = None
        self._agent = agent
        self.empty()

    def clear(self) -> None:
        """Discard all steps, which were not learned from; the next one continues the running episodes."""
        self._discard()
        self._agent.learner.forget_random_steps()

    def _discard(self) -> None:
        """Remove all steps, and let the discounted returns of `normalize_reward`, which lack them, begin at 0."""
        if self._steps:
            learner = self._agent.learner
            learner.return_statistics = learner.return_statistics.of_new_episodes()
        self.empty()

    def empty(self) -> None:
        """Remove all steps, which were learned from; the next one continues the running episodes."""
        self._steps: list[_Step] = []
        self._next_obs: Any = None
        self._starts: np.ndarray | None = self._starts_next
        """Flags of the envs whose episode begins with the first step; None: of all."""
        self._hidden_state: Mapping[str, Tensor] | None = None
        self._clears_at_next_step = False

    def clear_at_next_step(self) -> None:
        """Discard all steps when the next one is added, because the update from them was undone."""
        self._clears_at_next_step = True

    def __len__(self) -> int:
        return len(self._steps)

    def add(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        next_obs: Any,
        infos: Mapping[str, Any] | None = None,
        *,
        log_prob: Any = None,
        value: Any = None,
        action_mask: Any = None,
        acting: Any = None,
        hidden_state: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Add one step of E envs; arrays are `[E, …]`, `obs` and `next_obs` as the env returned them.

        `action` is that of `get_action`, not clipped. `infos` of `env.step` is needed with "SameStep", where it has
        the last observations of ended episodes, and by PQN, if there are action masks: it has those of `next_obs`.
        `log_prob` and `value` are those of `get_action`; None: they are computed before the update, as in
        `train_on_policy`. `acting` is False where no action was taken, although the episode may end there; None: it
        follows from `autoreset`. `hidden_state` is the state that `get_action` of a recurrent agent was given.

        Raises:
            ConfigurationError: the last observation of a truncated episode is missing, or its action mask (PQN).
        """
        if self._clears_at_next_step:
            self._discard()
        action = as_numpy(action)
        ends = self._ends.read(terminated, truncated, next_obs, infos or {}, envs=len(action), acting=acting)
        shape = ends.ended.shape
        next_mask = None if self._next_masks is None else self._next_masks.read(infos or {}, ends.ended)
        if self._next_masks is not None and action_mask is not None and next_mask is None:
            raise ConfigurationError(
                f"infos={infos!r:.100} has no action_mask, but the action had one; allowed are the infos of env.step, "
                "which have the action masks of next_obs"
            )
        if not self._steps:
            self._hidden_state = copied_state(hidden_state)
        self._steps.append(
            _Step(
                tree_map(lambda part: np.array(as_numpy(part)), obs),
                np.array(action),
                np.array(as_numpy(reward), np.float32).reshape(shape),
                ends.terminated,
                ends.truncated,
                ends.acting,
                None if log_prob is None else np.array(as_numpy(log_prob), np.float32).reshape(shape),
                None if value is None else np.array(as_numpy(value), np.float32).reshape(shape),
                None if action_mask is None else np.array(as_numpy(action_mask), np.bool_),
                (ends.cut, ends.last),
                next_mask,
            )
        )
        self._next_obs, self._starts_next = tree_map(lambda part: np.array(as_numpy(part)), next_obs), ends.starts_next

    def rollout(
        self, encode: Encode, raw_actions: RawActions, state_before: Callable[[Any, Tensor], Tensor], mask_size: int
    ) -> tuple[Rollout, Precomputed | None]:
        """Return the steps as a rollout, and the loop's log-probabilities and values, if all steps have them.

        `raw_actions` is that of the learner; `state_before(hidden_state, starts)` returns the hidden state before the
        first step; `mask_size` is that of the action space.

        Raises:
            ConfigurationError: there are no steps, an array does not fit, or an action is not of the action space.
        """
        if not self._steps:
            raise ConfigurationError("the rollout is empty: call add(…) after every env.step before learn")
        steps, envs = self._steps, len(self._steps[0].action)
        ended = [step.terminated | step.truncated for step in steps]
        first = np.ones(envs, np.bool_) if self._starts is None else self._starts
        known = all(step.log_prob is not None and step.value is not None for step in steps)
        placeholder = np.zeros(envs, np.float32)
        masked = any(step.mask is not None for step in steps)
        if masked and any(step.mask is None for step in steps):
            raise ConfigurationError("action_mask is missing in some steps; allowed are masks in all steps or in none")
        experiences: Experiences = (
            [step.obs for step in steps],
            [step.action for step in steps],
            [step.log_prob if known else placeholder for step in steps],
            [step.reward for step in steps],
            [first, *ended[:-1]],
            [step.value if known else placeholder for step in steps],
            self._next_obs,
            ended[-1],
        )
        rollout, precomputed = as_rollout(
            experiences,
            encode,
            raw_actions,
            hidden_state_before=lambda starts: state_before(self._hidden_state, starts),
            action_masks=[step.mask for step in steps] if masked else None,
            mask_size=mask_size,
            acting=None if all(step.acting.all() for step in steps) else [step.acting for step in steps],
        )
        rollout = with_limits(rollout, [step.final for step in steps], encode)
        following = [step.next_mask for step in steps]
        if any(mask is not None for mask in following):  # an env may give its first mask in a later step
            legal = np.ones((envs, mask_size), np.bool_)
            each = np.stack([legal if mask is None else mask for mask in following])[None]
            rollout = rollout.replace(next_masks=torch.from_numpy(each).to(rollout.rewards.device))
        return rollout, precomputed if known else None


def with_limits(rollout: Rollout, final: Sequence[LastObservations], encode: Encode) -> Rollout:
    """Return a rollout whose truncated steps, of which `final` has the last observations, are not terminations."""
    places = [(time, rows, last) for time, (rows, last) in enumerate(final) if len(rows)]
    if not places:
        return rollout
    time = torch.cat([torch.full((len(rows),), t) for t, rows, _ in places]).to(rollout.ended.device)
    env = torch.from_numpy(np.concatenate([rows for _, rows, _ in places])).to(rollout.ended.device)
    terminated = rollout.terminated.clone()
    terminated[0, time, env] = 0.0
    observations = torch.cat([encode(last) for *_, last in places])
    final_observations = FinalObservations.of(time, torch.zeros_like(time), env, observations, members=1)
    return rollout.replace(terminated=terminated, final_observations=final_observations)
