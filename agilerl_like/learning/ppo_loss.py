"""The loss of proximal policy optimisation (Schulman et al. 2017), for P members at once: `[P, B]` in, `[P]` out.

Members share no parameter, so the gradient of the summed loss gives each one exactly what it would have alone. The
gradient is written down rather than traced: on minibatches of small networks, tracing these thirty little operations
costs as much as the network. For the same reason only what the gradient needs is computed in every minibatch, from
`Weights` that are worked out for many at once; what the loss was is said afterwards, of all of them together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from agilerl_like.networks.actor_critic import Slopes


class Opinion(NamedTuple):
    """What actor and critic say of samples now, all `[P, B]`."""

    log_probs: Tensor
    entropy: Tensor
    values: Tensor


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


class Weights(NamedTuple):
    """What the gradient is made of beside opinions, all `[P, B]`."""

    log_probs: Tensor
    returns: Tensor
    values: Tensor
    side: Tensor
    """Sign of the advantage. The gain is cut where, on this side, the ratio of probabilities has passed its"""
    limit: Tensor
    """limit: `r > 1 + clip` where it is positive, `-r > -(1 - clip)` where it is negative."""
    policy: Tensor
    """Gradient of the loss by the ratio, where it is not cut."""
    entropy: Tensor
    value: Tensor
    """Gradient of the loss by the value, for each unit of its error."""

    @classmethod
    def of(cls, targets: Targets, coefficients: Coefficients) -> Weights:
        """Work them out."""
        side = targets.advantages.sign()
        return cls(
            targets.log_probs,
            targets.returns,
            targets.values,
            side,
            side + coefficients.clip_coef,
            -targets.share * targets.advantages,
            -targets.share * coefficients.ent_coef,
            targets.share * coefficients.vf_coef,
        )


def slopes(opinion: Opinion, weights: Weights, coefficients: Coefficients) -> Slopes:
    """Gradient of the total loss by opinions."""
    ratio = (opinion.log_probs - weights.log_probs).exp_()
    inside = ratio * weights.side <= weights.limit
    error = opinion.values - weights.returns
    if coefficients.clips_values:
        cut, _ = _cut(opinion.values, weights.values, weights.returns, coefficients.clip_coef_vf)
        error = error * ~cut  # a value at its limit has no slope
    return Slopes(ratio.mul_(weights.policy).mul_(inside), weights.entropy, error.mul_(weights.value))


class Loss(NamedTuple):
    """The loss, and what to report of it."""

    total: Tensor  # [P]
    report: Tensor  # [P, 5] in the order of REPORT


REPORT = ("policy_gradient_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def ppo_loss(opinion: Opinion, targets: Targets, coefficients: Coefficients) -> Loss:
    """Clipped surrogate, value error with the factor one half, entropy bonus.

    A clipped value takes the larger of the two errors. `approx_kl` is Schulman's k3, (r - 1) - log r >= 0.
    """
    clip, clip_vf, ent_coef, vf_coef, clips_values = coefficients
    log_ratio = opinion.log_probs - targets.log_probs
    ratio = log_ratio.exp()
    above = ratio - 1
    gain = ratio * targets.advantages
    cut_gain = ratio.clamp(1 - clip, 1 + clip).mul_(targets.advantages)
    squared = (opinion.values - targets.returns).square()
    if clips_values:
        cut, cut_error = _cut(opinion.values, targets.values, targets.returns, clip_vf)
        squared = torch.where(cut, cut_error.square(), squared)
    far = (above.abs() > clip).to(ratio.dtype)
    parts = [-torch.minimum(gain, cut_gain), 0.5 * squared, opinion.entropy, above - log_ratio, far]
    report = (torch.stack(parts) * targets.share).sum(-1).T  # [P, 5]
    total = report[:, 0] + vf_coef[:, 0] * report[:, 1] - ent_coef[:, 0] * report[:, 2]
    return Loss(total, report)


def _cut(values: Tensor, before: Tensor, returns: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """Where a value that went too far from what it was counts as if it had not, and the error that it has then."""
    moved = values - before
    cut_error = before + moved.clamp(-limit, limit) - returns
    return (moved.abs() > limit) & (cut_error.square() > (values - returns).square()), cut_error
