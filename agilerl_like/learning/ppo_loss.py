"""The loss of proximal policy optimisation (Schulman et al. 2017), for P members at once: `[P, B]` in, `[P]` out.

Members share no parameter, so the gradient of the summed loss gives each one exactly what it would have alone. The
gradient is written down rather than traced: on minibatches of small networks, tracing these thirty little operations
costs as much as the network.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from agilerl_like.networks.actor_critic import Slopes


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
    clips_values: bool
    """Whether anybody clips the value; known beforehand, so that no device is asked for it in every minibatch."""


class Loss(NamedTuple):
    """The loss, what to report of it, and its gradient."""

    total: Tensor  # [P]
    report: Tensor  # [P, 5] in the order of REPORT
    slopes: Slopes


REPORT = ("policy_gradient_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def ppo_loss(log_probs: Tensor, entropy: Tensor, values: Tensor, targets: Targets, coefficients: Coefficients) -> Loss:
    """Clipped surrogate, value error with the factor one half, entropy bonus.

    A clipped value takes the larger of the two errors. `approx_kl` is Schulman's k3, (r - 1) - log r >= 0.
    """
    clip, clip_vf, ent_coef, vf_coef, clips_values = coefficients
    share = targets.share
    log_ratio = log_probs - targets.log_probs
    ratio = log_ratio.exp()
    above = ratio - 1
    gain = ratio * targets.advantages
    cut_gain = ratio.clamp(1 - clip, 1 + clip).mul_(targets.advantages)
    error = values - targets.returns
    squared = error.square()
    if clips_values:
        moved = values - targets.values
        cut_error = targets.values + moved.clamp(-clip_vf, clip_vf) - targets.returns
        cut = (moved.abs() > clip_vf) & (cut_error.square() > squared)
        squared = torch.where(cut, cut_error.square(), squared)
        error = torch.where(cut, 0.0, error)  # a value at its limit has no slope
    far = (above.abs() > clip).to(ratio.dtype)
    parts = torch.stack([-torch.minimum(gain, cut_gain), 0.5 * squared, entropy, above - log_ratio, far])  # [5, P, B]
    report = (parts * share).sum(-1).T  # [P, 5]
    total = report[:, 0] + vf_coef[:, 0] * report[:, 1] - ent_coef[:, 0] * report[:, 2]
    slopes = Slopes(
        -share * gain * (gain <= cut_gain),  # d -min(r A, cut(r) A) / d log p = -r A where it is not cut
        -share * ent_coef,
        share * error * vf_coef,
    )
    return Loss(total, report, slopes)
