"""The loss of proximal policy optimisation (Schulman et al. 2017), for P members at once: `[P, B]` in, `[P]` out.

Members share no parameter, so `loss.sum().backward()` gives each one exactly the gradient that it would have alone.
The gradient is written down rather than traced: on minibatches of small networks, tracing these thirty little
operations costs as much as the network.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor


class Targets(NamedTuple):
    """What a minibatch says each sample should become, all `[P, B]`."""

    log_probs: Tensor
    """Log-probability of the action under the policy that took it."""
    advantages: Tensor
    """Normalised over the rollout."""
    returns: Tensor
    """Value targets, in the critic's own (normalised) units."""
    values: Tensor
    """What the critic said when the rollout was taken, in the same units."""
    share: Tensor
    """Weight of each sample in the means: sums to 1 over B, and is 0 for rows that no agent acted in."""


class Coefficients(NamedTuple):
    """Each member's numbers, all `[P, 1]`."""

    clip_coef: Tensor
    clip_coef_vf: Tensor
    """Infinite where the value is not clipped."""
    ent_coef: Tensor
    vf_coef: Tensor


class Loss(NamedTuple):
    """The loss and what to report of it."""

    total: Tensor  # [P]
    report: Tensor  # [P, 5] in the order of REPORT, without gradient


REPORT = ("policy_gradient_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def ppo_loss(log_probs: Tensor, entropy: Tensor, values: Tensor, targets: Targets, coefficients: Coefficients) -> Loss:
    """Clipped surrogate, value error with the factor one half, entropy bonus.

    A clipped value takes the larger of the two errors. `approx_kl` is Schulman's k3, (r - 1) - log r >= 0.
    """
    return Loss(*cast(tuple[Tensor, Tensor], _PPOLoss.apply(log_probs, entropy, values, targets, coefficients)))


class _PPOLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, log_probs: Tensor, entropy: Tensor, values: Tensor, targets: Targets, coefficients: Coefficients
    ) -> tuple[Tensor, Tensor]:
        old_log_probs, advantages, returns, old_values, share = targets
        clip, clip_vf, ent_coef, vf_coef = coefficients
        log_ratio = log_probs - old_log_probs
        ratio = log_ratio.exp()
        gain = ratio * advantages
        cut_gain = torch.clamp(ratio, 1 - clip, 1 + clip).mul_(advantages)
        policy = -torch.minimum(gain, cut_gain)
        error = values - returns
        squared = error.square()
        if bool(torch.isfinite(clip_vf).any()):
            moved = values - old_values
            cut_error = old_values + torch.clamp(moved, -clip_vf, clip_vf) - returns
            cut = (moved.abs() > clip_vf) & (cut_error.square() > squared)
            squared = torch.where(cut, cut_error.square(), squared)
            error = torch.where(cut, 0.0, error)  # a value at its limit has no slope
        far = ((ratio - 1).abs() > clip).to(ratio.dtype)
        parts = torch.stack([policy, 0.5 * squared, entropy, ratio - 1 - log_ratio, far])  # [5, P, B]
        report = (parts * share).sum(-1).T  # [P, 5]
        total = report[:, 0] + vf_coef[:, 0] * report[:, 1] - ent_coef[:, 0] * report[:, 2]
        ctx.save_for_backward(
            -share * gain * (gain <= cut_gain),  # d -min(r A, cut(r) A) / d log p = -r A where it is not cut
            -share * ent_coef,
            share * error * vf_coef,
        )
        ctx.mark_non_differentiable(report)
        return total, report

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        by_log_prob, by_entropy, by_value = ctx.saved_tensors
        upstream = gradients[0].unsqueeze(1)
        return by_log_prob * upstream, by_entropy * upstream, by_value * upstream, None, None
