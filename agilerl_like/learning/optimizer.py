"""Adam for a stack of members: one flat row of parameters each, with its own learning rate and step count.

For one member it equals `torch.optim.Adam` (Kingma and Ba 2015). A CPU is bound by memory, so torch's fused kernel
makes one pass over each row, called once per learning rate. A GPU is bound by kernel launches, so half a dozen kernels
update all rows at once, with the bias corrections folded into the denominator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import hardshrink

BETAS = (0.9, 0.999)
EPSILON = 1e-5
"""Larger than Adam's own 1e-8, as in PPO's first code: tiny gradients do not become full steps (Huang et al. 2022)."""

MIN_MOMENT = 1e-30
"""Moments of a smaller magnitude are set to 0. Without gradients they would decay to subnormal numbers, with which some
processors take three times as long per step although no weight changes."""


class AdamStep(NamedTuple):
    """Size of one step: lr m^ / (sqrt(v^) + epsilon) = m / ((sqrt(v) + floor) / rate), both `[P, 1]`."""

    rate: Tensor
    floor: Tensor
    groups: tuple[tuple[float, list[int]], ...]
    """On a CPU: each learning rate and the rows that have it."""
    steps: tuple[Tensor, ...]
    """Step count of each row after this step."""


class _RowViews(NamedTuple):
    """Views of the rows, cached because making them takes longer than a small matrix product."""

    flat: Tensor
    gradient: Tensor
    groups: tuple[tuple[float, list[int]], ...]
    rows: list[list[list[Tensor]]]
    """For each group, in the order of the kernel's arguments: weights, gradients, first and second moments."""


class Adam:
    """First and second moments `[P, N]` and step counts `[P]`; clones and mutations transfer them with the weights."""

    def __init__(self, exp_avg: Tensor, exp_avg_sq: Tensor, steps: Tensor, *, epsilon: float = EPSILON) -> None:
        self.exp_avg, self.exp_avg_sq, self.steps, self.epsilon = exp_avg, exp_avg_sq, steps, epsilon
        self._views: _RowViews | None = None

    @classmethod
    def fresh(cls, flat: Tensor, *, epsilon: float = EPSILON) -> Adam:
        """Start with zero moments for parameters `[P, N]`."""
        steps = torch.zeros(len(flat), dtype=flat.dtype, device=flat.device)
        return cls(torch.zeros_like(flat), torch.zeros_like(flat), steps, epsilon=epsilon)

    @torch.no_grad()
    def prepare_steps(self, lr: Tensor, count: int) -> list[AdamStep]:
        """Return the next `count` steps at learning rates `lr` `[P]`, and add them to the step counts."""
        for moments in (self.exp_avg, self.exp_avg_sq):
            moments.copy_(hardshrink(moments, MIN_MOMENT))
        beta1, beta2 = BETAS
        steps = self.steps + torch.arange(1, count + 1, device=lr.device).unsqueeze(1)  # [count, P]
        self.steps += count
        root = (1 - beta2**steps).sqrt_()
        rate = lr * root / (1 - beta1**steps)
        groups: dict[float, list[int]] = {}
        for row, its_rate in enumerate(lr.tolist() if lr.device.type == "cpu" else ()):
            groups.setdefault(its_rate, []).append(row)
        by_rate, floor = tuple(groups.items()), self.epsilon * root
        columns = zip(rate.unsqueeze(2), floor.unsqueeze(2), steps.unbind(), strict=True)
        return [AdamStep(its_rate, its_floor, by_rate, counts.unbind()) for its_rate, its_floor, counts in columns]

    @torch.no_grad()
    def step_(self, flat: Tensor, gradient: Tensor, step: AdamStep) -> None:
        """Update `flat` `[P, N]` in place from `gradient` `[P, N]`."""
        if flat.device.type == "cpu" and not torch.compiler.is_compiling():
            self._step_by_row(flat, gradient, step)
            return
        beta1, beta2 = BETAS
        self.exp_avg.lerp_(gradient, 1 - beta1)
        self.exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        denominator = self.exp_avg_sq.sqrt().add_(step.floor).div_(step.rate)
        flat.addcdiv_(self.exp_avg, denominator, value=-1)

    def _step_by_row(self, flat: Tensor, gradient: Tensor, step: AdamStep) -> None:
        views = self._views
        if views is None or views.flat is not flat or views.gradient is not gradient or views.groups is not step.groups:
            everything = [x.unbind() for x in (flat, gradient, self.exp_avg, self.exp_avg_sq)]
            rows = [[[x[row] for row in rows] for x in everything] for _, rows in step.groups]
            self._views = views = _RowViews(flat, gradient, step.groups, rows)
        for (lr, rows), (weights, gradients, first, second) in zip(views.groups, views.rows, strict=True):
            torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage]  # what torch.optim's fused Adam calls
                weights,
                gradients,
                first,
                second,
                [],
                [step.steps[row] for row in rows],
                lr=lr,
                beta1=BETAS[0],
                beta2=BETAS[1],
                weight_decay=0.0,
                eps=self.epsilon,
                amsgrad=False,
                maximize=False,
            )

    def copy(self) -> Adam:
        """Return a copy."""
        return Adam(self.exp_avg.clone(), self.exp_avg_sq.clone(), self.steps.clone(), epsilon=self.epsilon)

    def take(self, rows: Tensor) -> Adam:
        """Return a copy of some rows."""
        parts = (numbers.index_select(0, rows) for numbers in (self.exp_avg, self.exp_avg_sq, self.steps))
        return Adam(*parts, epsilon=self.epsilon)

    def put(self, rows: Tensor, part: Adam) -> None:
        """Write a copy from `take` back into its rows."""
        self.exp_avg[rows], self.exp_avg_sq[rows], self.steps[rows] = part.exp_avg, part.exp_avg_sq, part.steps


def clip_(parts: Sequence[Tensor], max_norm: Tensor) -> Tensor:
    """Clip each row of G gradients `[P, n]` to a norm of at most `max_norm` `[P]`; return the norms before, `[G, P]`.

    The gradients are clipped separately, so that a large one does not scale down the others.
    """
    norms = torch.stack([torch.linalg.vector_norm(part, dim=1) for part in parts])
    for part, scale in zip(parts, (max_norm / (norms + 1e-6)).clamp_(max=1.0).unsqueeze(2).unbind(), strict=True):
        part.mul_(scale)
    return norms
