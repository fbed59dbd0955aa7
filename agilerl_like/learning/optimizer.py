"""Adam for a stack of members: one flat row of parameters each, with a learning rate and a step count of its own.

For one member it is `torch.optim.Adam` (Kingma and Ba 2015). On a CPU memory decides, and torch's fused kernel goes
through it once, row by row, called once for all rows of one rate. Elsewhere the number of kernels does, and half a
dozen go through all rows, however many there are; the corrections for the early steps are folded into their
denominator, and worked out for many steps at once.
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
"""Moments nearer to 0 are 0. Where no gradient comes any more they would fade to subnormal numbers and, rounded, rest
there for ever: steps on those take some processors three times as long, and none moves a weight."""


class AdamStep(NamedTuple):
    """How far one step goes: lr m^ / (sqrt(v^) + epsilon) = m / ((sqrt(v) + floor) / rate), both `[P, 1]`."""

    rate: Tensor
    floor: Tensor
    groups: tuple[tuple[float, list[int]], ...]
    """On a CPU: each learning rate, and the rows that learn at it."""
    steps: tuple[Tensor, ...]
    """How many steps each row will have taken."""


class _RowViews(NamedTuple):
    """Rows that were taken from tensors once, and which tensors these were: it takes longer than a small product."""

    flat: Tensor
    gradient: Tensor
    groups: tuple[tuple[float, list[int]], ...]
    rows: list[list[list[Tensor]]]
    """Of each group, in the order in which the kernel takes them: weights, gradients, first and second moments."""


class Adam:
    """First and second moments `[P, N]` and step counts `[P]`.

    They are moved together with the parameters through clones and mutations.
    """

    def __init__(self, exp_avg: Tensor, exp_avg_sq: Tensor, steps: Tensor, *, epsilon: float = EPSILON) -> None:
        self.exp_avg, self.exp_avg_sq, self.steps, self.epsilon = exp_avg, exp_avg_sq, steps, epsilon
        self._kept: _RowViews | None = None

    @classmethod
    def fresh(cls, flat: Tensor, *, epsilon: float = EPSILON) -> Adam:
        """Start with zero moments for parameters `[P, N]`."""
        steps = torch.zeros(len(flat), dtype=flat.dtype, device=flat.device)
        return cls(torch.zeros_like(flat), torch.zeros_like(flat), steps, epsilon=epsilon)

    @torch.no_grad()
    def prepare_steps(self, lr: Tensor, count: int) -> list[AdamStep]:
        """Of the next `count` steps at rates `lr` `[P]`, which are counted as done."""
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
        alike, floor = tuple(groups.items()), self.epsilon * root
        told = zip(rate.unsqueeze(2), floor.unsqueeze(2), steps.unbind(), strict=True)
        return [AdamStep(its_rate, its_floor, alike, its_steps.unbind()) for its_rate, its_floor, its_steps in told]

    @torch.no_grad()
    def step_(self, flat: Tensor, gradient: Tensor, pace: AdamStep) -> None:
        """Move `flat` `[P, N]` against `gradient` `[P, N]`."""
        if flat.device.type == "cpu" and not torch.compiler.is_compiling():
            self._step_by_row(flat, gradient, pace)
            return
        beta1, beta2 = BETAS
        self.exp_avg.lerp_(gradient, 1 - beta1)
        self.exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        denominator = self.exp_avg_sq.sqrt().add_(pace.floor).div_(pace.rate)
        flat.addcdiv_(self.exp_avg, denominator, value=-1)

    def _step_by_row(self, flat: Tensor, gradient: Tensor, pace: AdamStep) -> None:
        kept = self._kept
        if kept is None or kept.flat is not flat or kept.gradient is not gradient or kept.groups is not pace.groups:
            everything = [numbers.unbind() for numbers in (flat, gradient, self.exp_avg, self.exp_avg_sq)]
            rows = [[[numbers[row] for row in rows] for numbers in everything] for _, rows in pace.groups]
            self._kept = kept = _RowViews(flat, gradient, pace.groups, rows)
        for (lr, rows), (weights, slopes, first, second) in zip(kept.groups, kept.rows, strict=True):
            torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage]  # what torch.optim's fused Adam calls
                weights,
                slopes,
                first,
                second,
                [],
                [pace.steps[row] for row in rows],
                lr=lr,
                beta1=BETAS[0],
                beta2=BETAS[1],
                weight_decay=0.0,
                eps=self.epsilon,
                amsgrad=False,
                maximize=False,
            )

    def copy(self) -> Adam:
        """Moments of its own."""
        return Adam(self.exp_avg.clone(), self.exp_avg_sq.clone(), self.steps.clone(), epsilon=self.epsilon)

    def take(self, rows: Tensor) -> Adam:
        """Copy some rows."""
        parts = (numbers.index_select(0, rows) for numbers in (self.exp_avg, self.exp_avg_sq, self.steps))
        return Adam(*parts, epsilon=self.epsilon)

    def put(self, rows: Tensor, part: Adam) -> None:
        """Write rows that were taken back."""
        self.exp_avg[rows], self.exp_avg_sq[rows], self.steps[rows] = part.exp_avg, part.exp_avg_sq, part.steps


def clip_(parts: Sequence[Tensor], max_norm: Tensor) -> Tensor:
    """Scale each row of G gradients `[P, n]` down to a norm of at most `max_norm` `[P]`; return norms before, `[G, P]`.

    They are clipped apart, so that a large one cannot use up another's share.
    """
    norms = torch.stack([torch.linalg.vector_norm(part, dim=1) for part in parts])
    for part, scale in zip(parts, (max_norm / (norms + 1e-6)).clamp_(max=1.0).unsqueeze(2).unbind(), strict=True):
        part.mul_(scale)
    return norms
