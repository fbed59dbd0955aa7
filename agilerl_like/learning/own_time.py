"""A rollout in each agent's own time, in which the steps of an agent that waits for others take no time.

The successor of an agent's step is its next own step: the reward is the sum of its rewards until then, and the
bootstrapped value is that of the next own step. The step ends the episode if the agent ends while it waits. Rewards
after an agent's termination (with `death="continue"`, those of its team) are added to its last step, discounted by one
gamma for each env step, because the other agents' time continues. An agent that is truncated is not paid for what
follows: the bootstrapped value of its last observation is an estimate of that already.

A step of an agent that still waits when the rollout ends has no known outcome and is excluded from the update. Its
value is still the bootstrap value of the step before it. The same holds where an opponent takes over the row of an
agent that waits (`RolloutBuffer.end_rows`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from agilerl_like.learning.gae import discounted_suffix_sum_
from agilerl_like.learning.rollout_buffer import Rollout


class OwnTime(NamedTuple):
    """Rewards and flags of an agent's steps until its next own step, `[T, P, E]`; the flags are as in `Rollout`."""

    rewards: Tensor
    terminated: Tensor
    ended: Tensor
    valid: Tensor
    waited: Tensor | None = None
    """1 where an agent waited, within its episode; None if no agent ever waited."""
    waits: Tensor | None = None
    """1 where the agent waits in the next step."""

    def at_next_step(self, next_values: Tensor) -> Tensor:
        """Return the value of each step's successor in its agent's own time, `[T, P, E]`."""
        if self.waits is None:
            return next_values
        return discounted_suffix_sum_((1 - self.waits) * next_values, self.waits.clone())


def own_time(rollout: Rollout, gamma: Tensor, bootstrap: Tensor | None = None) -> OwnTime:
    """Return rewards and flags of a rollout in each agent's own time.

    `gamma` and `bootstrap` broadcast over `[T, P, E]`; where `bootstrap` is 0, truncation counts as termination.
    """
    rewards, terminated, ended, valid = (
        x.transpose(0, 1) for x in (rollout.rewards, rollout.terminated, rollout.ended, rollout.valid)
    )
    if bootstrap is not None:
        terminated = torch.where(bootstrap > 0, terminated, ended)
    if rollout.waiting is None:
        return OwnTime(rewards, terminated, ended, valid)
    waited, waits = rollout.waiting.permute(1, 2, 0, 3)
    inside = valid + waited  # 0 where the agent has ended, or has not begun
    inside_next = torch.cat([inside[1:], torch.ones_like(inside[:1])])
    is_over = torch.where(inside > 0, terminated, 1 - ended)  # outside, `ended` means that others act in its row now
    after_end = (1 - inside_next) * is_over
    rewards = discounted_suffix_sum_(rewards.clone(), waits + gamma * after_end)
    terminated, ended = (discounted_suffix_sum_(flags.clone(), waits.clone()) for flags in (terminated, ended))
    return OwnTime(rewards, terminated, ended, learned_steps(rollout), waited, waits)


def learned_steps(rollout: Rollout) -> Tensor:
    """Return 1 for the steps with an action whose outcome is known, `[T, P, E]`: the samples of an update."""
    valid = rollout.valid.transpose(0, 1)
    if rollout.waiting is None:
        return valid
    waits = rollout.waiting[:, 1].transpose(0, 1)
    still_waits = torch.zeros_like(waits)
    still_waits[-1] = waits[-1]
    return valid * (1 - discounted_suffix_sum_(still_waits, waits.clone()))
