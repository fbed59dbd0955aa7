"""Gradient steps of all members on minibatches from a replay, and the targets that follow them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.learning.execution import Execution
from agilerl_like.learning.gradient_sync import GradientSync
from agilerl_like.learning.replay_buffer import Batch, MemoryKind, ReplayBuffer
from agilerl_like.learning.stacked_networks import StackedNetworks
from agilerl_like.networks.actor_critic import ActorCritic

GATHERED = 2**22
"""Numbers of observations that are gathered at once, at most, unless one gradient step needs more."""
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
    new_steps: int = 0
    """Vector steps that are not yet in the running statistics of observations; 0 without statistics."""

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
        if self.new_steps:
            stacked.over(_update_norm, *self.replay.newest_observations(self.members, self.new_steps))
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

    def batches(self) -> Iterator[Batch]:
        """Yield the minibatches of each gradient step; those of several steps are gathered at once.

        Gathering takes some twenty small kernels, whatever the number of samples.
        """
        members, steps, size, _ = self.draws.shape
        at_once = max(1, GATHERED // (members * size * self.replay.observations.shape[-1]))
        for start in range(0, steps, at_once):
            draws = self.draws[:, start : start + at_once]
            count = draws.shape[1]
            found = self.replay.sample(
                self.members, draws.flatten(1, 2), self.hyperparams["gamma"], self.n_step, self.kind
            )
            if count == 1:
                yield found
                continue
            columns = [
                [None] * count if x is None else x.unflatten(1, (count, -1)).transpose(0, 1).contiguous() for x in found
            ]
            yield from map(Batch._make, zip(*columns, strict=True))

    @torch.no_grad()
    def move_targets_(self, stacked: StackedNetworks, step: int) -> None:
        """Move the targets that are due by `tau` towards the networks."""
        due = [
            (before + step + 1) % every == 0 for before, every in zip(self.updates, self.target_interval, strict=True)
        ]
        if not any(due):
            return
        tau = self.hyperparams["tau"]
        share = tau if all(due) else tau * torch.tensor(due, device=tau.device)
        common = self._common(share)
        for own, (its, _) in zip(stacked.target_pairs, stacked.parts, strict=True):
            if common is not None:
                targets, weights = zip(*own, strict=True)
                torch._foreach_lerp_(targets, weights, common)  # pyright: ignore[reportPrivateImportUsage]
                continue
            for target, weight in own:
                target.lerp_(weight, share[its].view(-1, *[1] * (weight.dim() - 1)))

    @staticmethod
    def _common(share: Tensor) -> float | None:
        """Return the share of all members if it is one, as one kernel then moves all targets."""
        if share.device.type != "cpu":
            return None
        first, *others = set(share.tolist())
        return None if others else first


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return the mean `[Q]` of `values` `[Q, B]` over the rows of weight 1."""
    return (values * weight).sum(1) / weight.sum(1).clamp(min=1.0)


def _update_norm(network: ActorCritic, observations: Tensor, weight: Tensor) -> tuple[Tensor]:
    network.observation_norm.update_(observations, weight)
    return (weight,)
