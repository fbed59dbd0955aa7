"""How off-policy members explore: distributions whose noise decides whether, and where, an action leaves the policy."""

from __future__ import annotations

import math

import gymnasium
import torch
from torch import Tensor

from agilerl_like.networks.distributions import (
    LOG_STD_RANGE,
    ActionDistribution,
    Categorical,
    Divergence,
    Gaussian,
    mean_log_det_jacobian,
    tanh_log_det_jacobian,
)

INITIAL_LOG_STD = math.log(0.1)
"""Log of the usual exploration noise, in half-widths of the action space."""


class EpsilonGreedy(Categorical):
    """The action of the largest value, or with a probability a random legal one.

    The outputs are action values. The first column of the noise is uniform in [0, 1), minus the probability: where it
    is negative, the largest of the other columns chooses the action.
    """

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        uniform = torch.rand(*shape, 1, generator=generator, device=generator.device)
        return torch.cat([uniform, super().noise(shape, generator)], -1)

    def sample(self, outputs: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.mode(torch.where(noise[..., :1] < 0, noise[..., 1:].to(outputs.dtype), outputs), mask)


class _Squashed(Gaussian):
    """Actions within finite bounds; raw actions are in half-widths of the space, from -1 to 1.

    The first column of the noise is the size of the exploration noise, or negative: then the action is uniform.
    """

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        super().__init__(space, log_std=INITIAL_LOG_STD, squash=True)  # which checks the bounds
        self.squash = False  # the outputs are squashed here, and raw actions are what the critics read
        log_std = self.log_std.detach()
        del self.log_std
        self.register_buffer("log_std", log_std)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        normal = torch.randn(*shape, self.size, generator=generator, device=generator.device)
        return torch.cat([torch.zeros_like(normal[..., :1]), normal], -1)

    def explored(self, action: Tensor, noise: Tensor) -> Tensor:
        """Return uniform actions where the noise's first column is negative, else the given ones."""
        return torch.where(noise[..., :1] < 0, torch.erf(noise[..., 1:] / math.sqrt(2)), action)


class NoisyTanh(_Squashed):
    """A deterministic action, the tanh of the outputs, with Gaussian noise in training."""

    def mode(self, outputs: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.tanh(outputs)

    def sample(self, outputs: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        action = torch.tanh(outputs) + noise[..., :1] * noise[..., 1:]
        return self.explored(action.clamp(-1.0, 1.0), noise)

    def evaluate(self, outputs: Tensor, raw: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the densities of Gaussians around the actions, whose standard deviation is that of usual noise."""
        return super().evaluate(torch.tanh(outputs), raw, mask)

    def kl_from(self, outputs: Tensor) -> Divergence:
        """Compare the actions as the means of Gaussians whose standard deviation is that of usual noise."""
        before = super().kl_from(torch.tanh(outputs))
        return lambda other, other_outputs: before(self, torch.tanh(other_outputs))


class SquashedGaussian(_Squashed):
    """The tanh of a Gaussian whose mean and log standard deviation are outputs (Haarnoja et al. 2018)."""

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        super().__init__(space)
        self.num_outputs = 2 * self.size

    def _moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = outputs.chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD_RANGE)

    def mode(self, outputs: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.tanh(self._moments(outputs)[0])

    def sample(self, outputs: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.explored(self.reparametrized(outputs, noise[..., 1:])[0], noise)

    def reparametrized(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return raw actions `[…, size]`, differentiable in the outputs, and their log-densities `[…]`.

        Both are in half-widths of the space.
        """
        mean, log_std = self._moments(outputs)
        before = torch.addcmul(mean, noise, log_std.exp())
        density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi) - tanh_log_det_jacobian(before)
        return torch.tanh(before), density.sum(-1)

    def evaluate(self, outputs: Tensor, raw: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mean, log_std = self._moments(outputs)
        before = self.before_tanh(raw)
        z = (before - mean) * (-log_std).exp()
        density = -0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi) - tanh_log_det_jacobian(before)
        entropy = log_std + 0.5 + 0.5 * math.log(2 * math.pi) + mean_log_det_jacobian(mean, log_std.exp())
        return density.sum(-1) - self.log_width, entropy.sum(-1) + self.log_width

    def kl_from(self, outputs: Tensor) -> Divergence:
        mean, ours = self._moments(outputs)

        def kl(other: ActionDistribution, other_outputs: Tensor) -> Tensor:
            their_mean, theirs = self._moments(other_outputs)
            spread = ((2 * ours).exp() + (mean - their_mean).square()) / (2 * (2 * theirs).exp())
            return (theirs - ours + spread - 0.5).sum(-1)

        return kl
