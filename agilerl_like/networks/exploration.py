"""How off-policy members explore: distributions whose noise decides whether, and where, an action leaves the policy."""

from __future__ import annotations

import torch
from torch import Tensor

from agilerl_like.networks.distributions import Categorical


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
