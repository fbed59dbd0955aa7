"""Gradient steps of all members on minibatches from a replay, and the targets that follow them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.learning.execution import Execution
from agilerl_like.learning.gradient_sync import GradientSync
from agilerl_like.learning.replay_buffer import Batch, MemoryKind, ReplayBuffer
from agilerl_like.learning.stacked_networks import StackedNetworks
from agilerl_like.networks.target_networks import OffPolicyNetwork

FADE_STEPS = 500
"""Gradient steps over which a mutation fades in."""

UpdateT = TypeVar("UpdateT", bound="OffPolicyUpdate")


@dataclass(frozen=True)
class OffPolicyUpdate(ABC):
    """Some gradient steps of Q members."""

    replay: ReplayBuffer
    members: Tensor
    """Places of the members in the replay, `[Q]`."""
    draws: Tensor
    """Uniform numbers that choose the samples, `[Q, steps, B, TRIES]`."""
    hyperparams: Mapping[str, Tensor]
    """One value for each member, `[Q]`."""
    updates: Sequence[int]
    """Gradient steps that each member has taken before."""
    target_interval: Sequence[int]
    """Gradient steps between two updates of each member's target."""
    n_step: int = 1
    kind: MemoryKind = "own"

    def of_members(self: UpdateT, members: Tensor) -> UpdateT:
        """Return the update of some members, in this order."""
        rows = members.tolist()
        return replace(
            self,
            members=self.members[members],
            draws=self.draws[members],
            hyperparams={name: values[members] for name, values in self.hyperparams.items()},
            updates=[self.updates[row] for row in rows],
            target_interval=[self.target_interval[row] for row in rows],
        )

    def alone(self: UpdateT, member: int, state_shape: tuple[int, int, int]) -> UpdateT:
        """Return the update of one member."""
        return self.of_members(torch.tensor([member], device=self.members.device))

    def run(self, stacked: StackedNetworks, execution: Execution, gradient_sync: GradientSync) -> TensorDict:
        """Take the gradient steps; return the metrics `[Q]` of the last one."""
        steps = self.draws.shape[1]
        found = self.take_steps(stacked, execution, steps)
        for _, stack in stacked.parts:
            if stack.module.spec.is_fading:
                stack.module.advance_fades_(min(1.0, steps / FADE_STEPS))
        metrics = {name: values.detach() for name, values in found.items()}
        finite = torch.isfinite(torch.stack([*metrics.values()])).all(0) & stacked.is_finite
        return TensorDict({**metrics, "healthy": finite.float()}, batch_size=[len(self.members)])

    @abstractmethod
    def take_steps(self, stacked: StackedNetworks, execution: Execution, steps: int) -> Mapping[str, Tensor]:
        """Change weights, moments and targets; return the metrics `[Q]` of the last step."""

    def batch(self, step: int) -> Batch:
        """Return the minibatches of a gradient step."""
        return self.replay.sample(self.members, self.draws[:, step], self.hyperparams["gamma"], self.n_step, self.kind)

    @torch.no_grad()
    def move_targets_(self, pairs: Sequence[Sequence[tuple[Tensor, Tensor]]], rows: Sequence[slice], step: int) -> None:
        """Move the targets that are due by `tau` towards the networks; `pairs` are those of each stack."""
        due = [
            (before + step + 1) % every == 0 for before, every in zip(self.updates, self.target_interval, strict=True)
        ]
        if not any(due):
            return
        tau = self.hyperparams["tau"]
        share = tau if all(due) else tau * torch.tensor(due, device=tau.device)
        for own, its in zip(pairs, rows, strict=True):
            for target, weight in own:
                target.lerp_(weight, share[its].view(-1, *[1] * (weight.dim() - 1)))


def target_pairs(stacked: StackedNetworks) -> tuple[list[list[tuple[Tensor, Tensor]]], list[slice]]:
    """Return each stack's pairs of target and weight, and its rows."""
    modules: list[OffPolicyNetwork] = [stack.module for _, stack in stacked.parts]  # pyright: ignore[reportAssignmentType]
    return [module.target_pairs() for module in modules], [rows for rows, _ in stacked.parts]


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return the mean `[Q]` of `values` `[Q, B]` over the rows of weight 1."""
    return (values * weight).sum(1) / weight.sum(1).clamp(min=1.0)
