"""Stacks of networks whose parameters share one flat tensor.

Networks of different structure cannot be computed in one batched product, but their parameters are rows of one tensor,
so clipping, Adam and the check for non-finite values run once for all members.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from tensordict import TensorClass
from torch import Tensor, nn

from agilerl_like.learning.optimizer import Adam, AdamStep
from agilerl_like.modules.layers import RunningNorm
from agilerl_like.modules.param_stack import ParamStack, layout, views
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.observation_norm import norm_parts


class StackRows(NamedTuple):
    """Contiguous rows of the flat tensor that form one stack."""

    rows: slice
    stack: ParamStack[ActorCritic]


class StackedNetworks:
    """Several stacks whose parameters are rows of `flat` `[P, N]`; Adam's moments have the same layout.

    Actor parameters are stored before column `critic_at`, critic parameters from there on.
    """

    def __init__(self, flat: Tensor, optimizer: Adam, parts: Sequence[StackRows], critic_at: int) -> None:
        self.flat, self.optimizer, self.parts, self.critic_at = flat, optimizer, tuple(parts), critic_at

    @classmethod
    def of(cls, stacked: Sequence[tuple[Sequence[ActorCritic], ActorCritic]], epsilon: float) -> StackedNetworks:
        """Lay out networks in rows, stack by stack, each stack with its padded network; moments start at 0."""
        critic_at = max(
            slot.stop for _, padded in stacked for slot in layout(padded) if slot.name.startswith("actor.")
        )  # a shared encoder belongs to the actor
        layouts = [layout(padded, {"critic": critic_at}) for _, padded in stacked]
        count = sum(len(networks) for networks, _ in stacked)
        like = next(stacked[0][0][0].parameters())
        flat, parts, start = like.new_zeros(count, max(slots[-1].stop for slots in layouts)), [], 0
        for (networks, padded), slots in zip(stacked, layouts, strict=True):
            rows = slice(start, start + len(networks))
            parts.append(StackRows(rows, ParamStack.of(networks, padded, flat=flat[rows], slots=slots)))
            start = rows.stop
        return cls(flat, Adam.fresh(flat, epsilon=epsilon), parts, critic_at)

    def over(
        self, compute: Callable[..., tuple[Tensor, ...]], *tensors: Tensor | TensorClass | None
    ) -> tuple[Tensor, ...]:
        """Call `compute(network, *rows of the tensors)` for each stack; concatenate the results over members.

        A TensorClass `[P]`, such as a rollout, is divided as a tensor is.
        """
        if len(self.parts) == 1:
            return compute(self.parts[0].stack.module, *tensors)
        found = [
            compute(stack.module, *(None if tensor is None else tensor[rows] for tensor in tensors))
            for rows, stack in self.parts
        ]
        return tuple(torch.cat(column) for column in zip(*found, strict=True))

    def with_gradients(self, flat: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        """Return every stacked parameter with the view of a flat gradient `[P, N]` that belongs to it."""
        return [
            (parameter, place)
            for rows, stack in self.parts
            for parameter, place in zip(stack.parameters.values(), views(flat[rows], stack.slots).values(), strict=True)
        ]

    def frozen_parameters(self) -> list[Tensor]:
        """Return the stacked parameters that stand for those with `requires_grad=False` in a user's own network."""
        return [
            stack.parameters[f"{prefix}.net.{name}"].data
            for _, stack in self.parts
            for prefix, module in stack.module.named_modules()
            for name in getattr(module, "frozen_parameters", ())
        ]

    @torch.no_grad()
    def step_(self, gradient: Tensor, step: AdamStep, members: Tensor | None = None) -> None:
        """Take a step of the optimizer by a gradient `[P, N]` with the members flagged in `members` `[P]`; None: all.

        Weights and moments of the others stay. Weight decay does not reach parameters with `requires_grad=False`.
        """
        adam = self.optimizer
        rows = () if members is None else (self.flat, adam.exp_avg, adam.exp_avg_sq)
        others = slice(0) if members is None else (~members).nonzero().squeeze(1)
        before = [x[others] for x in rows]
        decays = any(row.weight_decay for row in step.rule.rows)
        frozen = [(its, its.clone()) for its in self.frozen_parameters()] if decays else []
        adam.step_(self.flat, gradient, step)
        for parameter, its in frozen:
            parameter.copy_(its)
        for x, its in zip(rows, before, strict=True):
            x[others] = its

    @property
    def is_finite(self) -> Tensor:
        """Whether each member's weights and normaliser variances are finite, `[P]`."""
        scales = [
            sum((norm.var.sum(1) for norm in _norms(stack.module)), self.flat.new_zeros(len(self.flat[rows])))
            for rows, stack in self.parts
        ]
        return torch.isfinite(self.flat.sum(1) + torch.cat(scales))  # a sum is finite only if all of its terms are

    @cached_property
    def target_pairs(self) -> list[list[tuple[Tensor, Tensor]]]:
        """Each stack's pairs of target and weight, of networks that have targets."""
        return [cast(Any, stack.module).target_pairs() for _, stack in self.parts]

    def train(self, training: bool) -> None:
        """Set all networks to training or evaluation mode."""
        for _, stack in self.parts:
            if stack.module.training != training:  # visiting every submodule takes as long as a small forward pass
                stack.module.train(training)

    def take(self, rows: Tensor) -> StackedNetworks:
        """Return a copy of some rows, given in ascending order."""
        return self._copy_of(rows, self.optimizer.take(rows))

    def repeated(self, count: int) -> StackedNetworks:
        """Return `count` copies of each row, one after another, for acting: the moments are not copied."""
        rows = torch.arange(len(self.flat), device=self.flat.device).repeat_interleave(count)
        return self._copy_of(rows, self.optimizer)

    def _copy_of(self, rows: Tensor, optimizer: Adam) -> StackedNetworks:
        flat, parts, start = self.flat.index_select(0, rows), [], 0
        for part, its_rows in self._by_part(rows):
            here = slice(start, start + len(its_rows))
            parts.append(StackRows(here, part.stack.take(its_rows, flat[here])))
            start = here.stop
        return StackedNetworks(flat, optimizer, parts, self.critic_at)

    def put(self, rows: Tensor, copy: StackedNetworks) -> None:
        """Write a copy from `take` back into its rows."""
        self.optimizer.put(rows, copy.optimizer)
        for (part, its_rows), (_, stack) in zip(self._by_part(rows), copy.parts, strict=True):
            part.stack.put(its_rows, stack)

    def _by_part(self, rows: Tensor) -> list[tuple[StackRows, Tensor]]:
        found = [(part, rows[(rows >= part.rows.start) & (rows < part.rows.stop)]) for part in self.parts]
        return [(part, its_rows - part.rows.start) for part, its_rows in found if len(its_rows)]


def _norms(network: ActorCritic) -> list[RunningNorm]:
    norms = (*norm_parts(network.observation_norm), network.value_norm)
    return [norm for norm in norms if isinstance(norm, RunningNorm)]
