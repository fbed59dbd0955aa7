"""The loss of proximal policy optimisation (Schulman et al. 2017), for P members at once: `[P, B]` in, `[P]` out.

Members share no parameter, so `loss.sum().backward()` gives each one exactly the gradient that it would have alone.
"""

from __future__ import annotations

from typing import NamedTuple

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
    report: Tensor  # [P, 5] in the order of REPORT


REPORT = ("policy_gradient_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def ppo_loss(log_probs: Tensor, entropy: Tensor, values: Tensor, targets: Targets, coefficients: Coefficients) -> Loss:
    """Clipped surrogate, value error with the factor one half, entropy bonus; approx_kl is Schulman's k3, (r - 1) - log r >= 0."""
    clip = coefficients.clip_coef
    log_ratio = log_probs - targets.log_probs
    ratio = log_ratio.exp()
    clipped = torch.minimum(torch.maximum(ratio, 1 - clip), 1 + clip)
    policy = -torch.minimum(ratio * targets.advantages, clipped * targets.advantages)
    value = 0.5 * (values - targets.returns).square()
    if bool(torch.isfinite(coefficients.clip_coef_vf).any()):
        limit = coefficients.clip_coef_vf
        near = targets.values + torch.minimum(torch.maximum(values - targets.values, -limit), limit)
        value = torch.maximum(value, 0.5 * (near - targets.returns).square())
    total = policy + coefficients.vf_coef * value - coefficients.ent_coef * entropy
    with torch.no_grad():
        far = (ratio - 1).abs() > clip
        parts = torch.stack([policy, value, entropy, ratio - 1 - log_ratio, far.to(ratio.dtype)], -1)  # [P, B, 5]
        report = torch.einsum("pbk,pb->pk", parts, targets.share)
    return Loss((total * targets.share).sum(-1), report)
