"""Optimizers for a stack of members: one flat row of parameters each, with its own learning rate and step count.

For one member it equals `torch.optim.Adam` (Kingma and Ba 2015). A CPU is bound by memory, so torch's fused kernel
makes one pass over each row, called once per learning rate. A GPU is bound by kernel launches, so half a dozen kernels
update all rows at once, with the bias corrections folded into the denominator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import hardshrink

BETAS = (0.9, 0.999)
EPSILON = 1e-5
"""Larger than Adam's own 1e-8, as in PPO's first code: tiny gradients do not become full steps (Huang et al. 2022)."""

MIN_MOMENT = 1e-30
"""Moments of a smaller magnitude are set to 0. Without gradients they would decay to subnormal numbers, with which some
processors take three times as long per step although no weight changes."""


OptimizerName = Literal["adam", "adamw", "rmsprop", "sgd"]
DEFAULT_BETAS: Mapping[str, tuple[float, float]] = {
    "adam": BETAS, "adamw": BETAS, "rmsprop": (0.0, 0.99), "sgd": (0.0, 0.0)
}  # fmt: skip
"""Decay of the mean of gradients, or momentum, and of the mean of squared gradients."""


class RowRule(NamedTuple):
    """The hyperparameters of one row's steps, besides its learning rate."""

    beta1: float = BETAS[0]
    beta2: float = BETAS[1]
    epsilon: float = EPSILON
    weight_decay: float = 0.0


class StepRule(NamedTuple):
    """How the optimizer turns gradients into steps, for all rows."""

    rows: Sequence[RowRule]
    name: OptimizerName = "adam"
    """The same for all rows."""
    lr_critic: Tensor | None = None
    """Learning rates `[P]` of the columns from `critic_at` on; None: those of all columns."""
    critic_at: int = 0


class AdamStep(NamedTuple):
    """Sizes of one step: lr m^ / (sqrt(v^) + epsilon) = m / ((sqrt(v) + floor) / rate), all `[P, 1]`."""

    rule: StepRule
    numbers: Tensor
    """The fields of `RowRule`, `[4, P, 1]`."""
    blocks: tuple[tuple[slice, Tensor, Tensor], ...]
    """Blocks of columns, their learning rates, and these times the bias corrections."""
    floor: Tensor
    """Epsilon times the bias correction of the second moment."""
    groups: tuple[tuple[slice, float, RowRule, list[int]], ...]
    """On a CPU: the rows of equal learning rate and rule, for each block of columns."""
    steps: tuple[Tensor, ...]
    """Step count of each row after this step."""


class _RowViews(NamedTuple):
    """Views of the rows, cached because making them takes longer than a small matrix product."""

    flat: Tensor
    gradient: Tensor
    groups: tuple[tuple[slice, float, RowRule, list[int]], ...]
    rows: list[list[list[Tensor]]]
    """For each group, in the order of the kernel's arguments: weights, gradients, first and second moments."""


class Adam:
    """First and second moments `[P, N]`, step counts and factors of the learning rate `[P]`.

    Clones and mutations transfer them with the weights. Other optimizers use the same moments: the first is their
    momentum, the second the mean of squared gradients.
    """

    def __init__(
        self,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        steps: Tensor,
        lr_scale: Tensor | None = None,
        *,
        epsilon: float = EPSILON,
    ) -> None:
        self.exp_avg, self.exp_avg_sq, self.steps, self.epsilon = exp_avg, exp_avg_sq, steps, epsilon
        self.lr_scale = torch.ones_like(steps) if lr_scale is None else lr_scale
        """Factor of each row's learning rate, which `lr_schedule: kl` adapts."""
        self._views: _RowViews | None = None

    @classmethod
    def fresh(cls, flat: Tensor, *, epsilon: float = EPSILON) -> Adam:
        """Start with zero moments for parameters `[P, N]`."""
        steps = torch.zeros(len(flat), dtype=flat.dtype, device=flat.device)
        return cls(torch.zeros_like(flat), torch.zeros_like(flat), steps, epsilon=epsilon)

    @torch.no_grad()
    def prepare_steps(
        self, lr: Tensor, count: int, rule: StepRule | None = None, taken: Tensor | None = None
    ) -> list[AdamStep]:
        """Return the next `count` steps at learning rates `lr` `[P]`, and add them to the step counts.

        `taken` `[count, P]` is True where a row takes the step; None: everywhere.
        """
        rule = StepRule([RowRule(epsilon=self.epsilon)] * len(lr)) if rule is None else rule
        for moments in (self.exp_avg, self.exp_avg_sq):
            moments.copy_(hardshrink(moments, MIN_MOMENT))
        columns = [(slice(None), lr)]
        if rule.lr_critic is not None:
            columns = [(slice(rule.critic_at), lr), (slice(rule.critic_at, None), rule.lr_critic)]
        done = torch.arange(1, count + 1, device=lr.device).unsqueeze(1) if taken is None else taken.cumsum(0)
        steps = self.steps + done  # [count, P]
        self.steps += done[-1]
        numbers = torch.tensor(list(zip(*rule.rows, strict=True)), dtype=lr.dtype, device=lr.device)  # [4, P]
        beta1, beta2, epsilon, _ = numbers
        root = (1 - beta2**steps).sqrt_()
        correction = root / (1 - beta1**steps)
        blocks = [[(at, rate.unsqueeze(1), x) for x in (rate * correction).unsqueeze(2)] for at, rate in columns]
        groups: dict[tuple[int, float, RowRule], list[int]] = {}
        for block, (_, rates) in enumerate(columns if lr.device.type == "cpu" else ()):
            for row, its_rate in enumerate(rates.tolist()):
                groups.setdefault((block, its_rate, rule.rows[row]), []).append(row)
        by_rate = tuple((columns[block][0], its_rate, its, rows) for (block, its_rate, its), rows in groups.items())
        each = zip(zip(*blocks, strict=True), (epsilon * root).unsqueeze(2), steps.unbind(), strict=True)
        return [
            AdamStep(rule, numbers.unsqueeze(2), its_blocks, floor, by_rate, counts.unbind())
            for its_blocks, floor, counts in each
        ]

    @torch.no_grad()
    def step_(self, flat: Tensor, gradient: Tensor, step: AdamStep) -> None:
        """Update `flat` `[P, N]` in place from `gradient` `[P, N]`."""
        name = step.rule.name
        if name.startswith("adam") and flat.device.type == "cpu" and not torch.compiler.is_compiling():
            self._step_by_row(flat, gradient, step)
            return
        beta1, beta2, epsilon, decay = step.numbers
        if any(row.weight_decay for row in step.rule.rows):
            if name == "adamw":
                for columns, rate, _ in step.blocks:
                    flat[:, columns].mul_(1 - rate * decay)
            else:
                gradient = torch.addcmul(gradient, flat, decay)
        if name != "sgd":
            self.exp_avg_sq.lerp_(gradient.square(), 1 - beta2)
        if name.startswith("adam"):
            self.exp_avg.lerp_(gradient, 1 - beta1)
            denominator = self.exp_avg_sq.sqrt().add_(step.floor)
            for columns, _, rate in step.blocks:
                flat[:, columns].addcdiv_(self.exp_avg[:, columns], denominator[:, columns].div_(rate), value=-1)
            return
        if name == "rmsprop":
            gradient = gradient / self.exp_avg_sq.sqrt().add_(epsilon)
        self.exp_avg.mul_(beta1).add_(gradient)
        for columns, rate, _ in step.blocks:
            flat[:, columns].addcmul_(self.exp_avg[:, columns], rate, value=-1)

    def _step_by_row(self, flat: Tensor, gradient: Tensor, step: AdamStep) -> None:
        views = self._views
        if views is None or views.flat is not flat or views.gradient is not gradient or views.groups is not step.groups:
            by_row = [x.unbind() for x in (flat, gradient, self.exp_avg, self.exp_avg_sq)]
            rows = [[[x[row][columns] for row in rows] for x in by_row] for columns, _, _, rows in step.groups]
            self._views = views = _RowViews(flat, gradient, step.groups, rows)
        kernel = torch._fused_adamw_ if step.rule.name == "adamw" else torch._fused_adam_  # pyright: ignore[reportPrivateImportUsage]  # what torch.optim's fused Adam calls
        for (_, lr, rule, rows), (weights, gradients, first, second) in zip(views.groups, views.rows, strict=True):
            kernel(
                weights,
                gradients,
                first,
                second,
                [],
                [step.steps[row] for row in rows],
                lr=lr,
                beta1=rule.beta1,
                beta2=rule.beta2,
                weight_decay=rule.weight_decay,
                eps=rule.epsilon,
                amsgrad=False,
                maximize=False,
            )

    def copy(self) -> Adam:
        """Return a copy."""
        return Adam(*(numbers.clone() for numbers in self._numbers), epsilon=self.epsilon)

    def take(self, rows: Tensor) -> Adam:
        """Return a copy of some rows."""
        parts = (numbers.index_select(0, rows) for numbers in self._numbers)
        return Adam(*parts, epsilon=self.epsilon)

    def put(self, rows: Tensor, part: Adam) -> None:
        """Write a copy from `take` back into its rows."""
        for numbers, its in zip(self._numbers, part._numbers, strict=True):
            numbers[rows] = its

    @property
    def _numbers(self) -> tuple[Tensor, ...]:
        return self.exp_avg, self.exp_avg_sq, self.steps, self.lr_scale


def copy_gradients_(places: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Copy gradients to their places, which hold zeros before the first one: an unused parameter's gradient is None."""
    for place, gradient in zip(places, gradients, strict=True):
        if gradient is not None:
            place.copy_(gradient)


def clip_(parts: Sequence[Tensor], max_norm: Tensor, *, together: bool = False) -> Tensor:
    """Clip each row of G gradients `[P, n]` to a norm of at most `max_norm` `[P]`; return the norms before, `[G, P]`.

    The gradients are clipped separately, so that a large one does not scale down the others, or `together`, by the norm
    over all of them, as `torch.nn.utils.clip_grad_norm_` does. An infinite `max_norm` clips nothing.
    """
    norms = torch.stack([torch.linalg.vector_norm(part, dim=1) for part in parts])
    for part, scale in zip(parts, clip_scales(norms, max_norm, together=together).unsqueeze(2).unbind(), strict=True):
        part.mul_(scale)
    return norms


def clip_scales(norms: Tensor, max_norm: Tensor, *, together: bool) -> Tensor:
    """Return the factors by which gradients of norms `[…, G, P]` are scaled, of the same shape."""
    if together:
        norms = torch.linalg.vector_norm(norms, dim=-2, keepdim=True).expand_as(norms)
    return (max_norm / (norms + 1e-6)).clamp_(max=1.0)
