"""The loss of proximal policy optimisation (Schulman et al. 2017), for P members at once: `[P, B]` in, `[P]` out.

Members share no parameter, so the gradient of the summed loss is, for each member, that of its own loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from agilerl_like.errors import ConfigurationError


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
    """Normalised over the rollout or the minibatch, if at all."""
    returns: Tensor
    """Value targets, in the critic's normalised units."""
    values: Tensor
    """The critic's outputs when the rollout was taken; clipped values are at most `clip_coef_vf` from them."""
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
    """Whether any member clips its values: decided once an update, because reading it from a GPU waits for the
    device."""
    value_clip_mode: Literal["max", "clipped"] = "max"
    """Whether the larger of the errors of the clipped and the unclipped value counts, or that of the clipped value."""


PPOLoss = Callable[[PolicyEval, Targets, LossCoefs], Tensor]
"""A loss `[P]`: for each member a sum over B of what its samples cost, weighted by `targets.share`.

It must be such a sum, because minibatches are divided among processes, whose gradients are added.
"""


class LossTerms(NamedTuple):
    """Terms of the loss of each sample, all `[P, B]`."""

    log_ratio: Tensor
    """Change of the action's log-probability since the rollout."""
    ratio: Tensor
    surrogate: Tensor
    """Clipped objective of the policy: min(r A, clip(r) A)."""
    squared_error: Tensor
    """Squared error of the value; see `value_clip_mode` where it is clipped."""


LOSS_METRICS = ("loss", "policy_gradient_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def loss_terms(evaluation: PolicyEval, targets: Targets, coefs: LossCoefs) -> LossTerms:
    """Return the terms of the loss.

    min(r A, clip(r, 1 - c, 1 + c) A) is min(r A, A + c |A|), which takes half as many operations.
    """
    log_ratio = evaluation.log_probs - targets.log_probs
    ratio = log_ratio.exp()
    limit = torch.addcmul(targets.advantages, coefs.clip_coef, targets.advantages.abs())
    surrogate = (ratio * targets.advantages).clamp(max=limit)
    squared_error = (evaluation.values - targets.returns).square()
    if coefs.clips_values:
        clip_vf = coefs.clip_coef_vf
        clipped = targets.values + (evaluation.values - targets.values).clamp(-clip_vf, clip_vf)
        clipped_error = (clipped - targets.returns).square()
        if coefs.value_clip_mode == "max":
            squared_error = torch.maximum(squared_error, clipped_error)
        else:
            squared_error = torch.where(torch.isinf(clip_vf), squared_error, clipped_error)
    return LossTerms(log_ratio, ratio, surrogate, squared_error)


def ppo_loss(evaluation: PolicyEval, targets: Targets, coefs: LossCoefs) -> Tensor:
    """Return the loss `[P]`: clipped surrogate, half the squared value error, entropy bonus."""
    _, _, surrogate, squared_error = loss_terms(evaluation, targets, coefs)
    objective = torch.addcmul(surrogate, coefs.ent_coef, evaluation.entropy)
    objective = torch.addcmul(objective, coefs.vf_coef, squared_error, value=-0.5)
    return -(objective * targets.share).sum(-1)


def check_loss(function: PPOLoss, loss: Any, shape: torch.Size) -> None:
    """Raise ConfigurationError unless a loss, which may be a user's own, has this shape and a gradient."""
    if not isinstance(loss, Tensor) or loss.shape != shape or not loss.requires_grad:
        name = getattr(function, "__qualname__", repr(function))
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"{loss!r:.100}"
        constant = ", which is constant" * (isinstance(loss, Tensor) and not loss.requires_grad)
        raise ConfigurationError(
            f"{name} returned {found}{constant}; allowed is a number for each member, shape {tuple(shape)}, that "
            "depends on the evaluation: (cost * targets.share).sum(-1)"
        )


@torch.no_grad()
def ppo_metrics(evaluation: PolicyEval, targets: Targets, coefs: LossCoefs) -> dict[str, Tensor]:
    """Return the loss, its parts and the distance from the policy that acted, `[P]` each, summed over the samples.

    `approx_kl` is Schulman's k3, (r - 1) - log r >= 0.
    """
    log_ratio, ratio, surrogate, squared_error = loss_terms(evaluation, targets, coefs)
    change = ratio - 1
    clipped = (change.abs() > coefs.clip_coef).to(ratio.dtype)
    terms = torch.stack((-surrogate, 0.5 * squared_error, evaluation.entropy, change - log_ratio, clipped))
    parts = (terms * targets.share).sum(-1)  # [5, P]
    policy, value, entropy = parts[:3]
    loss = policy + coefs.vf_coef.squeeze(1) * value - coefs.ent_coef.squeeze(1) * entropy
    return dict(zip(LOSS_METRICS, (loss, *parts), strict=True))
