"""How an evaluation draws actions: the most likely ones, samples of the policy, or samples of a changed policy."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from agilerl_like.errors import ConfigurationError
from agilerl_like.networks.distributions import ActionDistribution, Bernoulli, Categorical, Gaussian
from agilerl_like.networks.exploration import EpsilonGreedy

ALLOWED = "allowed are greedy, sample, temperature(t) with t > 0, top_k(k) and bottom_k(k) with k >= 1"
FORM = re.compile(r"(greedy|sample)|(temperature|top_k|bottom_k)\(\s*([^()]+?)\s*\)")


@dataclass(frozen=True)
class Sampling:
    """A rule by which actions are drawn from a policy.

    - `greedy`: the most likely action.
    - `sample`: the policy itself.
    - `temperature(t)`: probabilities to the power 1/t, normalised; a Gaussian's variance is multiplied by t.
    - `top_k(k)`, `bottom_k(k)`: the policy among the k most or least likely legal choices of each discrete action.
    """

    kind: str = "greedy"
    value: float = 0.0

    @classmethod
    def parse(cls, sampling: str | Sampling) -> Sampling:
        """Return the rule that a text names, such as "top_k(2)"; ConfigurationError if it names none."""
        if isinstance(sampling, Sampling):
            return sampling
        found = FORM.fullmatch(sampling) if isinstance(sampling, str) else None
        if found is None:
            raise ConfigurationError(f"sampling={sampling!r}; {ALLOWED}")
        plain, kind, text = found.groups()
        if plain is not None:
            return cls(plain)
        try:
            value = float(text) if kind == "temperature" else int(text)
        except ValueError:
            value = 0
        if not (0 < value < math.inf):
            raise ConfigurationError(f"sampling={sampling!r}; {ALLOWED}")
        return cls(kind, value)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely actions are taken, for which no random numbers are needed."""
        return self.kind == "greedy"

    def of_policy(self, distribution: ActionDistribution, *, is_deterministic: bool) -> Sampling:
        """Return the rule for a policy, for which "sample" and "greedy" are the same if it is deterministic.

        Raises:
            ConfigurationError: actions of this policy cannot be drawn by the rule.
        """
        if not self.is_greedy and isinstance(distribution, EpsilonGreedy):
            raise ConfigurationError(
                f"sampling={self.kind!r} needs a policy of probabilities; of action values (DQN) allowed is greedy"
            )
        if self.kind not in ("greedy", "sample") and is_deterministic:
            raise ConfigurationError(
                f"sampling={self.kind}({self.value:g}) needs a policy of probabilities; of a deterministic policy "
                "(TD3, DDPG and evolution strategies) allowed are greedy and sample, which are the same"
            )
        if self.kind in ("top_k", "bottom_k") and isinstance(distribution, Gaussian):
            raise ConfigurationError(
                f"sampling={self.kind}({self.value:g}) needs discrete actions; allowed for a Box are greedy, "
                "sample and temperature(t)"
            )
        return Sampling() if is_deterministic else self

    def draw(
        self, distribution: ActionDistribution, outputs: Tensor, noise: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Return raw actions `[…, size]` for policy outputs `[…, num_outputs]` and noise as `sample` takes it."""
        match self.kind:
            case "greedy":
                return distribution.mode(outputs, mask)
            case "temperature" if isinstance(distribution, Gaussian):
                return distribution.sample(outputs, noise * math.sqrt(self.value), mask)
            case "temperature":
                return distribution.sample(outputs / self.value, noise, mask)
            case "top_k" | "bottom_k" if isinstance(distribution, Categorical):
                kept = [self._kept(*pair) for pair in _parts(distribution, outputs, mask)]
                return distribution.sample(outputs, noise, torch.cat(kept, -1))
            case "top_k" | "bottom_k" if isinstance(distribution, Bernoulli) and self.value < 2:
                best = distribution.mode(outputs, mask)
                return best if self.kind == "top_k" else (1 - best if mask is None else (1 - best) * mask)
            case _:
                return distribution.sample(outputs, noise, mask)

    def _kept(self, logits: Tensor, legal: Tensor) -> Tensor:
        """Return which choices `[…, choices]` of one discrete variable may be drawn."""
        score = (logits if self.kind == "top_k" else -logits).masked_fill(~legal, -math.inf)
        places = score.topk(min(int(self.value), logits.shape[-1]), -1).indices
        return torch.zeros_like(legal).scatter(-1, places, value=True) & legal


def _parts(distribution: Categorical, outputs: Tensor, mask: Tensor | None) -> list[tuple[Tensor, Tensor]]:
    """Return logits and legal choices of each variable."""
    legal = torch.ones_like(outputs, dtype=torch.bool) if mask is None else mask
    return list(zip(outputs.split(distribution.nvec, -1), legal.split(distribution.nvec, -1), strict=True))
