"""Q-learning (Watkins 1989) of the tables of all members at once.

A member's transitions count in the order in which they are given. Those that share no entry, and of which none reads
a row that another one changes, are applied together; the others wait for a later round. Most steps take one round, and
the result equals, to the bit, that of one transition after another.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial

import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.learning.execution import Execution
from agilerl_like.learning.gradient_sync import GradientSync
from agilerl_like.learning.replay_buffer import Batch
from agilerl_like.learning.stacked_networks import StackedNetworks
from agilerl_like.networks.table import Table, TableNetwork

AT_ONCE = 128
"""Transitions of a member that are compared with each other, at most."""
METRICS = ("td_error", "q_value")
"""What an update reports: means over its transitions of the error's magnitude and of the value before."""


@dataclass(frozen=True)
class QLearningUpdate:
    """The update of Q members by B transitions each, in this order."""

    batch: Batch
    lr: Tensor
    """Learning rates, `[Q]`."""
    visit_decay: Tensor
    """Exponents `[Q]`: an entry that was updated n times before learns with lr / (n + 1) ** exponent."""
    epsilon: Tensor
    """Probabilities of random actions, to report, `[Q]`."""

    def of_members(self, members: Tensor) -> QLearningUpdate:
        """Return the update of some members, in this order."""
        batch = Batch._make(None if x is None else x[members] for x in self.batch)
        others = {its.name: getattr(self, its.name)[members] for its in fields(self) if its.name != "batch"}
        return replace(self, batch=batch, **others)

    def alone(self, member: int, state_shape: tuple[int, int, int]) -> QLearningUpdate:
        """Return the update of one member."""
        return self.of_members(torch.tensor([member], device=self.lr.device))

    def run(self, stacked: StackedNetworks, execution: Execution, gradient_sync: GradientSync) -> TensorDict:
        """Change the tables and their counts; return the metrics `[Q]`."""
        network: TableNetwork = stacked.parts[0].stack.module  # pyright: ignore[reportAssignmentType]  # all are tables
        pieces = [Batch._make(None if x is None else x[:, i : i + AT_ONCE] for x in self.batch) for i in self._starts]
        found = [q_learning_(network.table, piece, self.lr, self.visit_decay) for piece in pieces]
        errors, values = found[0] if len(found) == 1 else map(partial(torch.cat, dim=1), zip(*found, strict=True))
        weight = self.batch.weight
        count = weight.sum(1).clamp(min=1.0)
        means = {"td_error": (errors.abs() * weight).sum(1) / count, "q_value": (values * weight).sum(1) / count}
        finite = torch.isfinite(torch.stack([*means.values()])).all(0)
        return TensorDict({**means, "epsilon": self.epsilon, "healthy": finite.float()}, batch_size=[len(self.lr)])

    @property
    def _starts(self) -> range:
        return range(0, max(1, self.batch.returns.shape[1]), AT_ONCE)


def q_learning_(table: Table, batch: Batch, lr: Tensor, visit_decay: Tensor) -> tuple[Tensor, Tensor]:
    """Apply transitions `[Q, B]` to stacked tables `[Q, S, A]`, in order; return errors and values before, `[Q, B]`."""
    members, states, actions = table.weight.shape
    flat, visits = table.weight.data.view(-1), table.visits.view(-1)
    offset = states * torch.arange(members, device=flat.device).unsqueeze(1)
    here, after = table.states(batch.observations) + offset, table.states(batch.next_observations) + offset
    places = here * actions + batch.actions.squeeze(-1)
    rows = table.weight.data.view(-1, actions)
    lr, visit_decay = (
        lr.double().unsqueeze(1),
        visit_decay.double().unsqueeze(1),
    )  # whose power has no rounding of its own
    bootstraps = batch.discounts > 0
    pending = batch.weight > 0
    waits_for = _conflicts(here, after, places, bootstraps)
    errors, values = torch.zeros_like(batch.returns), torch.zeros_like(batch.returns)
    while True:
        ready = pending & ~(waits_for & pending.unsqueeze(1)).any(-1)
        following = rows[after]
        if batch.next_masks is not None:
            following = following.masked_fill(~batch.next_masks, -torch.inf)
        best = following.amax(-1)
        value, count = flat[places], visits[places] + 1
        goal = torch.where(bootstraps, batch.returns + batch.discounts * best, batch.returns)
        error = goal - value
        change = torch.where(ready, (lr * count**-visit_decay).to(error.dtype) * error, 0.0)
        flat.index_add_(0, places.view(-1), change.view(-1))
        visits.index_add_(0, places.view(-1), ready.to(visits.dtype).view(-1))
        errors, values = torch.where(ready, error, errors), torch.where(ready, value, values)
        pending = pending & ~ready
        if not bool(pending.any()):
            return errors, values


def _conflicts(here: Tensor, after: Tensor, places: Tensor, bootstraps: Tensor) -> Tensor:
    """Return `[Q, B, B]`: whether transition i has to wait for an earlier one j, if both are applied.

    They change the same entry, or one of them reads the row that the other changes.
    """
    size = here.shape[1]
    reads = (after.unsqueeze(2) == here.unsqueeze(1)) & bootstraps.unsqueeze(2)  # i reads what j changes
    same = places.unsqueeze(2) == places.unsqueeze(1)
    earlier = torch.ones(size, size, dtype=torch.bool, device=here.device).tril(-1)
    return (reads | reads.mT | same) & earlier
