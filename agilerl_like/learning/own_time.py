"""A rollout in each agent's own time, in which the steps of an agent that waits for others take no time.

An agent's step leads to its next own step: it is paid what the env pays the agent until then, and bootstrapped from the
value of that next step. It ends if the agent ends while it waits. What is paid after an agent's end (with
`death="continue"`, the reward of its team) counts towards its last step, discounted by one gamma for each env step,
because the others' time continues.

A step whose outcome is not known when the rollout ends, because the agent still waits, is not learned from. Its value
still is what the step before it leads to.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from agilerl_like.learning.gae import discounted_suffix_sum_
from agilerl_like.learning.rollout_buffer import Rollout


class OwnTime(NamedTuple):
    """Outcomes of an agent's steps until its next own step, `[T, P, E]`; the flags are a `Rollout`'s."""

    rewards: Tensor
    terminated: Tensor
    ended: Tensor
    valid: Tensor
    waited: Tensor | None = None
    """1 where an agent took no action in the midst of its episode; None if none ever did."""
    waits: Tensor | None = None
    """1 where it takes none in the next step."""

    def at_next_step(self, next_values: Tensor) -> Tensor:
        """Return the value of the state that each step leads to in its agent's own time."""
        if self.waits is None:
            return next_values
        return discounted_suffix_sum_((1 - self.waits) * next_values, self.waits.clone())


def own_time(rollout: Rollout, gamma: Tensor) -> OwnTime:
    """Return the outcomes of a rollout's steps in each agent's own time; `gamma` broadcasts over `[T, P, E]`."""
    rewards, terminated, ended, valid = (
        x.transpose(0, 1) for x in (rollout.rewards, rollout.terminated, rollout.ended, rollout.valid)
    )
    if rollout.waiting is None:
        return OwnTime(rewards, terminated, ended, valid)
    waited, waits = rollout.waiting.permute(1, 2, 0, 3)
    acts_next = torch.cat([valid[1:], torch.ones_like(valid[:1])])
    after_end = (1 - waits) * (1 - acts_next)
    rewards = discounted_suffix_sum_(rewards.clone(), waits + gamma * after_end)
    terminated, ended = (discounted_suffix_sum_(flags.clone(), waits.clone()) for flags in (terminated, ended))
    still_waits = torch.zeros_like(waits)
    still_waits[-1] = waits[-1]
    is_open = discounted_suffix_sum_(still_waits, waits.clone())
    return OwnTime(rewards, terminated, ended, valid * (1 - is_open), waited, waits)
