"""Learners of algorithms that learn from rollouts in epochs of minibatches, as PPO and PQN do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from agilerl_like.algorithms.learner import Learner
from agilerl_like.algorithms.learner_base import torch_generator
from agilerl_like.algorithms.learner_group import LearnerGroup
from agilerl_like.algorithms.settings import number_range
from agilerl_like.envs.spaces import mask_size
from agilerl_like.envs.vec_adapter import VecEnvAdapterProtocol
from agilerl_like.learning.rollout_buffer import RolloutBuffer
from agilerl_like.seeding import Purpose

RolloutLearnerT = TypeVar("RolloutLearnerT", bound="RolloutLearner")


class RolloutLearner(Learner):
    """The networks of one group of agents, trained on rollouts."""

    @property
    def longest_rollout(self) -> int:
        """Steps of each env in the longest rollout that evolution can set."""
        rows, steps = (
            0 if its is None else int(its.max)
            for its in (number_range(self.hp_config, name) for name in ("learn_step", "num_steps"))
        )
        return max(-(-rows // self.rows_per_step), steps, self.rollout_steps)

    def shuffle(self, epoch: int, samples: int) -> Tensor:
        """Return the order `[samples]` of an epoch's samples in the next update, on the host."""
        stream = torch_generator("cpu", self.seed, Purpose.MINIBATCHES, self.index, self.updates, epoch)
        return torch.randperm(samples, generator=stream)

    def _begin_rollout(self, hidden_state: Mapping[str, Tensor] | None, starts: Tensor) -> Tensor:
        """Clear the running returns of envs where `starts` `[E]` is 1, and return the hidden state `[E, M, K, H]`.

        Both are those before the rollout of a hand-written loop; the hidden state is zero where `starts` is 1.
        """
        if self.recurrent and hidden_state is None and not bool(starts.all()):
            warnings.warn(
                "this rollout begins in the midst of an episode (dones[0] is 0), and hidden_state is missing: pass to "
                "learn (or to add of a RolloutBuilder) what get_action was given at its first step, or "
                "get_initial_hidden_state(…) if that was nothing",
                stacklevel=6,
            )
        self.return_statistics = self.return_statistics.of_new_episodes(starts)
        state = self._one_step(hidden_state, len(starts)).state.detach()
        return state.expand(len(starts), *state.shape[-3:]) * (1 - starts).to(state.dtype).view(-1, 1, 1, 1)


class RolloutLearnerGroup(LearnerGroup[RolloutLearnerT]):
    """P learners of one group, which act and learn together from rollouts."""

    stores_next_masks: ClassVar[bool] = False
    """Whether rollouts have the action masks of the state that each step leads to."""

    def make_buffer(
        self, env: VecEnvAdapterProtocol, envs: int, describe_row: Callable[[int, int], str]
    ) -> RolloutBuffer:
        steps = [learner.longest_rollout for learner in self]
        return RolloutBuffer(
            max(2, *steps),  # an env group may be a step ahead
            len(self),
            envs,
            encoding=self[0].rollout_encoding,
            action_size=self[0].distribution.size,
            action_dtype=self[0].distribution.raw_dtype,
            mask_size=mask_size(env.single_action_space),
            device=self.device,
            arrays=env.array_backend,
            describe_row=describe_row,
            stores_next_masks=self.stores_next_masks,
        )

    def enlarge_buffer(self, buffer: RolloutBuffer) -> bool:
        """Enlarge the buffer if a setting that was changed during the run has made rollouts longer than it."""
        longest = max(learner.rollout_steps for learner in self)
        if longest <= buffer.length:
            return False
        buffer.enlarge(longest)
        return True


def shuffle_of(learners: Sequence[RolloutLearner]) -> Callable[[int, int], Tensor]:
    """Return the `Shuffle` that draws each row from that learner's random stream."""
    return lambda epoch, count: torch.stack([x.shuffle(epoch, count) for x in learners]).to(learners[0].device)
