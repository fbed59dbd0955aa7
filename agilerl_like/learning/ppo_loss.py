"""The loss of proximal policy optimisation (Schulman et al. 2017), for P members at once: `[P, B]` in, `[P]` out.

Members share no parameter, so the gradient of the summed loss is, for each member, that of its own loss.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PolicyEval(NamedTuple):
    """Actor and critic evaluated on samples, all `[P, B]`."""

    log_probs: Tensor
    entropy: Tensor
    values: Tensor


class Targets(NamedTuple):
    """Per-sample constants of the loss, all `[P, B]`."""

    log_probs: Tensor
    """Log-probability of the action under the policy that took it."""
    advantages: Tensor
    """Normalised over the rollout."""
    returns: Tensor
    """Value targets, in the critic's normalised units."""
    values: Tensor
    """Values predicted when the rollout was taken, in the same units."""
    share: Tensor
    """Weight of each sample in the means: sums to 1 over B, and is 0 for rows in which no agent acted."""


class LossCoefs(NamedTuple):
    """Per-member loss coefficients, all `[P, 1]`."""

    clip_coef: Tensor
    clip_coef_vf: Tensor
    """Infinite where the value is not clipped."""
    ent_coef: Tensor
    vf_coef: Tensor
    clips_values: bool
    """Whether any member clips its values: decided once an update, since reading it from a GPU in every minibatch would
    wait for the device."""


LOSS_METRICS = ("policy_gradient_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def ppo_loss(evaluation: PolicyEval, targets: Targets, coefs: LossCoefs) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss `[P]` (clipped surrogate, half the squared value error, entropy bonus), and metrics, `[P]` each.

    A clipped value takes the larger of the two errors. `approx_kl` is Schulman's k3, (r - 1) - log r >= 0. The metrics
    are detached.
    """
    clip, clip_vf, ent_coef, vf_coef, clips_values = coefs
    log_ratio = evaluation.log_probs - targets.log_probs
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * targets.advantages, ratio.clamp(1 - clip, 1 + clip) * targets.advantages)
    squared_error = (evaluation.values - targets.returns).square()
    if clips_values:
        clipped = targets.values + (evaluation.values - targets.values).clamp(-clip_vf, clip_vf)
        squared_error = torch.maximum(squared_error, (clipped - targets.returns).square())
    per_sample = 0.5 * vf_coef * squared_error - surrogate - ent_coef * evaluation.entropy
    loss = (per_sample * targets.share).sum(-1)
    with torch.no_grad():
        change = ratio - 1
        clipped_share = (change.abs() > clip).to(ratio.dtype)
        terms = torch.stack((-surrogate, 0.5 * squared_error, evaluation.entropy, change - log_ratio, clipped_share))
        means = (terms * targets.share).sum(-1)  # [5, P]
    return loss, dict(zip(LOSS_METRICS, means.unbind(), strict=True))
