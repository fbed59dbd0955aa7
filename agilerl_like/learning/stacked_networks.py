"""Stacks behind each other in one storage: what must be done stack by stack, and what all members share.

Networks of unequal shape cannot be multiplied in one product; but their parameters can lie in rows of one tensor, so
that clipping, Adam, and the check for numbers that are not finite are done once for everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from agilerl_like.learning.optimizer import Adam
from agilerl_like.modules.layers import RunningNorm
from agilerl_like.modules.param_stack import ParamStack, layout, views
from agilerl_like.networks.actor_critic import ActorCritic


class StackRows(NamedTuple):
    """Neighbouring rows of an ensemble that are one stack."""

    rows: slice
    stack: ParamStack[ActorCritic]


class StackedNetworks:
    """Stacks behind each other: their rows `[P, N]` are one storage, and so are Adam's moments.

    The actors' parameters lie before column `critic_at`, the critics' from there on.
    """

    def __init__(self, flat: Tensor, optimizer: Adam, parts: Sequence[StackRows], critic_at: int) -> None:
        self.flat, self.optimizer, self.parts, self.critic_at = flat, optimizer, tuple(parts), critic_at

    @classmethod
    def of(cls, stacked: Sequence[tuple[Sequence[ActorCritic], ActorCritic]], epsilon: float) -> StackedNetworks:
        """Lay networks out in rows, stack by stack, each with its cover; the moments are still 0."""
        critic_at = max(
            slot.stop for _, padded in stacked for slot in layout(padded) if slot.name.startswith("actor.")
        )  # a shared encoder is the actor's
        layouts = [layout(padded, {"critic": critic_at}) for _, padded in stacked]
        count = sum(len(networks) for networks, _ in stacked)
        like = next(stacked[0][0][0].parameters())
        flat, parts, start = like.new_zeros(count, max(slots[-1].stop for slots in layouts)), [], 0
        for (networks, padded), slots in zip(stacked, layouts, strict=True):
            rows = slice(start, start + len(networks))
            parts.append(StackRows(rows, ParamStack.of(networks, padded, flat=flat[rows], slots=slots)))
            start = rows.stop
        return cls(flat, Adam.fresh(flat, epsilon=epsilon), parts, critic_at)

    def over(self, compute: Callable[..., tuple[Tensor, ...]], *tensors: Tensor | None) -> tuple[Tensor, ...]:
        """Compute stack by stack, on a stack's network and its rows of the tensors; results stand behind each other."""
        if len(self.parts) == 1:
            return compute(self.parts[0].stack.module, *tensors)
        found = [
            compute(stack.module, *(None if tensor is None else tensor[rows] for tensor in tensors))
            for rows, stack in self.parts
        ]
        return tuple(torch.cat(column) for column in zip(*found, strict=True))

    def with_gradients(self, flat: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        """Return every stacked parameter, and its place in a flat gradient `[P, N]` as a view."""
        return [
            (parameter, place)
            for rows, stack in self.parts
            for parameter, place in zip(stack.module.parameters(), views(flat[rows], stack.slots).values(), strict=True)
        ]

    @property
    def is_finite(self) -> Tensor:
        """Whether all of a member's weights are, and the scales of its observations and values, `[P]`."""
        scales = [
            sum((norm.var.sum(1) for norm in _norms(stack.module)), self.flat.new_zeros(len(self.flat[rows])))
            for rows, stack in self.parts
        ]
        return torch.isfinite(self.flat).all(1) & torch.isfinite(torch.cat(scales))

    def train(self, training: bool) -> None:
        """Switch between exploring and acting as well as they can."""
        for _, stack in self.parts:
            if stack.module.training != training:  # to tell every submodule takes as long as a small forward
                stack.module.train(training)

    def take(self, rows: Tensor) -> StackedNetworks:
        """Copy some rows, given in ascending order."""
        flat, parts, start = self.flat.index_select(0, rows), [], 0
        for part, its_rows in self._by_part(rows):
            here = slice(start, start + len(its_rows))
            parts.append(StackRows(here, part.stack.take(its_rows, flat[here])))
            start = here.stop
        return StackedNetworks(flat, self.optimizer.take(rows), parts, self.critic_at)

    def put(self, rows: Tensor, copy: StackedNetworks) -> None:
        """Write rows that were taken back."""
        self.optimizer.put(rows, copy.optimizer)
        for (part, its_rows), (_, stack) in zip(self._by_part(rows), copy.parts, strict=True):
            part.stack.put(its_rows, stack)

    def _by_part(self, rows: Tensor) -> list[tuple[StackRows, Tensor]]:
        found = [(part, rows[(rows >= part.rows.start) & (rows < part.rows.stop)]) for part in self.parts]
        return [(part, its_rows - part.rows.start) for part, its_rows in found if len(its_rows)]


def _norms(network: ActorCritic) -> list[RunningNorm]:
    return [norm for norm in (network.observation_norm, network.value_norm) if isinstance(norm, RunningNorm)]
