"""Adam for a stack of members: one flat row of parameters each, with a learning rate and a step count of its own.

For one member it is `torch.optim.Adam` (Kingma and Ba 2015). On flat rows a step is half a dozen passes over memory
for the whole population, however many layers the members have; the corrections for the early steps are folded into
the denominator, which saves three.
"""

from __future__ import annotations

import torch
from torch import Tensor

BETAS = (0.9, 0.999)
EPSILON = 1e-5
"""Larger than Adam's own 1e-8, as in PPO's first code: tiny gradients do not become full steps (Huang et al. 2022)."""


class Adam:
    """First and second moments `[P, N]` and step counts `[P]`.

    They are moved together with the parameters through clones and mutations.
    """

    def __init__(self, exp_avg: Tensor, exp_avg_sq: Tensor, steps: Tensor, *, epsilon: float = EPSILON) -> None:
        self.exp_avg, self.exp_avg_sq, self.steps, self.epsilon = exp_avg, exp_avg_sq, steps, epsilon

    @classmethod
    def fresh(cls, flat: Tensor, *, epsilon: float = EPSILON) -> Adam:
        """Start with zero moments for parameters `[P, N]`."""
        steps = torch.zeros(len(flat), dtype=flat.dtype, device=flat.device)
        return cls(torch.zeros_like(flat), torch.zeros_like(flat), steps, epsilon=epsilon)

    @torch.no_grad()
    def step_(self, flat: Tensor, gradient: Tensor, lr: Tensor, active: Tensor | None = None) -> None:
        """Move `flat` `[P, N]` against `gradient` `[P, N]` at rates `lr` `[P]`.

        Members that are not `active` `[P]` keep every bit.
        """
        if active is not None:
            rows = active.nonzero().squeeze(1)
            part, moved = self.take(rows), flat[rows]
            part.step_(moved, gradient[rows], lr[rows])
            flat[rows] = moved
            self.put(rows, part)
            return
        beta1, beta2 = BETAS
        self.steps += 1
        root = (1 - beta2**self.steps).sqrt()
        rate = (lr * root / (1 - beta1**self.steps)).unsqueeze(1)  # [P, 1]
        self.exp_avg.lerp_(gradient, 1 - beta1)
        self.exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        # lr m^ / (sqrt(v^) + eps)  =  m / ((sqrt(v) + eps root) / rate)
        denominator = torch.addcmul(self.epsilon * root.unsqueeze(1) / rate, self.exp_avg_sq.sqrt(), 1 / rate)
        flat.addcdiv_(self.exp_avg, denominator, value=-1)

    def take(self, rows: Tensor) -> Adam:
        """Copy some rows."""
        return Adam(self.exp_avg[rows], self.exp_avg_sq[rows], self.steps[rows], epsilon=self.epsilon)

    def put(self, rows: Tensor, part: Adam) -> None:
        """Write rows that were taken back."""
        self.exp_avg[rows], self.exp_avg_sq[rows], self.steps[rows] = part.exp_avg, part.exp_avg_sq, part.steps

    @classmethod
    def stacked(cls, parts: list[Adam]) -> Adam:
        """Lay the rows of several optimizers behind each other."""
        return cls(
            torch.cat([part.exp_avg for part in parts]),
            torch.cat([part.exp_avg_sq for part in parts]),
            torch.cat([part.steps for part in parts]),
            epsilon=parts[0].epsilon,
        )

    def lend(self, row: int) -> Adam:
        """One member's row, as views."""
        here = slice(row, row + 1)
        return Adam(self.exp_avg[here], self.exp_avg_sq[here], self.steps[here], epsilon=self.epsilon)


def clip_(gradient: Tensor, max_norm: Tensor) -> Tensor:
    """Scale each row of `[P, N]` down to a norm of at most `max_norm` `[P]`; return the norms before."""
    norm = torch.linalg.vector_norm(gradient, dim=1)
    gradient.mul_((max_norm / (norm + 1e-6)).clamp_(max=1.0).unsqueeze(1))
    return norm
