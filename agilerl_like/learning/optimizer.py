"""Adam for a stack of members: one flat row of parameters each, with a learning rate and a step count of its own.

For one member it is `torch.optim.Adam` (Kingma and Ba 2015). On flat rows a step is half a dozen passes over memory
for the whole population, however many layers the members have; the corrections for the early steps are folded into
the denominator, which saves three, and worked out for many steps at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import hardshrink

BETAS = (0.9, 0.999)
EPSILON = 1e-5
"""Larger than Adam's own 1e-8, as in PPO's first code: tiny gradients do not become full steps (Huang et al. 2022)."""

FORGOTTEN = 1e-30
"""Moments nearer to 0 are 0. Where no gradient comes any more they would fade to subnormal numbers and, rounded, rest
there for ever: steps on those take some processors three times as long, and none moves a weight."""


class Pace(NamedTuple):
    """How far one step goes: lr m^ / (sqrt(v^) + epsilon) = m / ((sqrt(v) + floor) / rate), both `[P, 1]`."""

    rate: Tensor
    floor: Tensor


class Adam:
    """First and second moments `[P, N]` and step counts `[P]`.

    They are moved together with the parameters through clones and mutations.
    """

    def __init__(self, exp_avg: Tensor, exp_avg_sq: Tensor, steps: Tensor, *, epsilon: float = EPSILON) -> None:
        self.exp_avg, self.exp_avg_sq, self.steps, self.epsilon = exp_avg, exp_avg_sq, steps, epsilon
        self._scratch: Tensor | None = None

    @classmethod
    def fresh(cls, flat: Tensor, *, epsilon: float = EPSILON) -> Adam:
        """Start with zero moments for parameters `[P, N]`."""
        steps = torch.zeros(len(flat), dtype=flat.dtype, device=flat.device)
        return cls(torch.zeros_like(flat), torch.zeros_like(flat), steps, epsilon=epsilon)

    @torch.no_grad()
    def paces(self, lr: Tensor, count: int) -> list[Pace]:
        """Of the next `count` steps at rates `lr` `[P]`, which are counted as done."""
        for moments in (self.exp_avg, self.exp_avg_sq):
            moments.copy_(hardshrink(moments, FORGOTTEN))
        beta1, beta2 = BETAS
        steps = self.steps + torch.arange(1, count + 1, device=lr.device).unsqueeze(1)  # [count, P]
        self.steps += count
        root = (1 - beta2**steps).sqrt_()
        rate = lr * root / (1 - beta1**steps)
        return [Pace(*both) for both in zip(rate.unsqueeze(2), (self.epsilon * root).unsqueeze(2), strict=True)]

    @torch.no_grad()
    def step_(self, flat: Tensor, gradient: Tensor, pace: Pace) -> None:
        """Move `flat` `[P, N]` against `gradient` `[P, N]`."""
        beta1, beta2 = BETAS
        self.exp_avg.lerp_(gradient, 1 - beta1)
        self.exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        if self._scratch is None:  # fresh memory in every step would cost more than the root
            self._scratch = torch.empty_like(flat)
        denominator = torch.sqrt(self.exp_avg_sq, out=self._scratch)
        flat.addcdiv_(self.exp_avg, denominator.add_(pace.floor).div_(pace.rate), value=-1)

    def copy(self) -> Adam:
        """Moments of its own."""
        return Adam(self.exp_avg.clone(), self.exp_avg_sq.clone(), self.steps.clone(), epsilon=self.epsilon)

    def take(self, rows: Tensor) -> Adam:
        """Copy some rows."""
        return Adam(self.exp_avg[rows], self.exp_avg_sq[rows], self.steps[rows], epsilon=self.epsilon)

    def put(self, rows: Tensor, part: Adam) -> None:
        """Write rows that were taken back."""
        self.exp_avg[rows], self.exp_avg_sq[rows], self.steps[rows] = part.exp_avg, part.exp_avg_sq, part.steps


def clip_(gradient: Tensor, max_norm: Tensor) -> Tensor:
    """Scale each row of `[P, N]` down to a norm of at most `max_norm` `[P]`; return the norms before."""
    norm = torch.linalg.vector_norm(gradient, dim=1)
    gradient.mul_((max_norm / (norm + 1e-6)).clamp_(max=1.0).unsqueeze(1))
    return norm
