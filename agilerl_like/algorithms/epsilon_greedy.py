"""Agents of action values that explore by random actions, whose probability falls over a share of the run."""

from __future__ import annotations

from numbers import Real
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from agilerl_like.algorithms.learner_group import LearnerGroup
from agilerl_like.errors import ConfigurationError
from agilerl_like.networks.architecture import NetworkSpec


class EpsilonGreedyGroup(LearnerGroup[Any]):
    """P learners whose members explore each with its own probability."""

    def next_noise(self, envs: int) -> Tensor:
        noise = super().next_noise(envs).clone()
        chances = torch.tensor([learner.algorithm.epsilon for learner in self], device=noise.device)
        noise[..., 0] -= chances.unsqueeze(1)
        return noise


class EpsilonGreedyAgent:
    """What DQN, PQN and Q-learning have in common."""

    index: int
    progress: float
    eps_start: float
    eps_end: float
    eps_share: float

    @property
    def epsilon(self) -> float:
        """The probability of a random action, at the run's present progress."""
        left = 1 - self.progress / self.eps_share if self.progress < self.eps_share else 0.0
        return self.eps_end + (self.eps_start - self.eps_end) * left

    def get_action(self, obs: Any, epsilon: float = 0.0, action_mask: np.ndarray | None = None) -> np.ndarray:
        """Return actions for observations `[B, *shape]`: random legal ones with probability `epsilon`, else the best.

        Raises:
            ConfigurationError: an observation or mask does not fit, or `epsilon` is no probability.
        """
        if not isinstance(epsilon, Real) or not 0 <= epsilon <= 1:
            raise ConfigurationError(f"epsilon={epsilon!r:.100} must be a probability, from 0 to 1")
        learner = cast(Any, self).learner
        learner.warn_of_missing_masks("get_action", action_mask, stacklevel=3)
        with torch.no_grad():
            x = learner.normalize(obs)
            noise = learner.noise((len(x),))
            noise[..., 0] -= epsilon
            raw = learner.distribution.sample(learner.network.q_values(x), noise, learner._mask(action_mask, len(x)))
            return learner.distribution.to_env(raw)


def check_value_head(algo: str, architecture: NetworkSpec) -> None:
    """Raise ConfigurationError if a head, whose outputs are values, has an output activation or normalised outputs."""
    for name in ("output_activation", "output_layernorm"):
        given, used = (getattr(head, name) for head in (architecture.head, architecture.value_head()))
        if given != used:
            raise ConfigurationError(
                f"head_config: {name}={given!r} has no effect in {algo}, because the head's outputs are values; "
                f"allowed is {used!r}"
            )
