"""Members that are computed one by one, so that a member's results are bit-identical in every population.

A batched product with more rows may sum in another order, which changes the last bits, and so may other strides. Every
input of a member's own learner is therefore copied into the shape and strides of a population of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.learning.experience import Update
from agilerl_like.learning.population_learner import PopulationLearner
from agilerl_like.networks.recurrent_state import resize_hidden


class PerMemberLearner:
    """P members with a `PopulationLearner` each: the methods of one for all, which are slower here."""

    def __init__(self, population_learners: Sequence[PopulationLearner]) -> None:
        self.population_learners = list(population_learners)
        """The population learner that computes each member, by place."""

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Shape `(M, K, H)` that holds the hidden state of any member."""
        memories, vectors, units = map(
            max, zip(*(learner.state_shape for learner in self.population_learners), strict=True)
        )
        return memories, vectors, units

    def train(self, training: bool) -> None:
        """Set all networks to training or evaluation mode."""
        for learner in self.population_learners:
            learner.train(training)

    def act(
        self, observations: Tensor, state: Tensor, noise: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Act as `PopulationLearner.act` does."""
        results = []
        for i, learner in enumerate(self.population_learners):
            own = resize_hidden(state[i : i + 1], learner.state_shape)
            drawn, allowed = (x if x is None else _copy(x[i : i + 1]) for x in (noise, mask))
            actions, after = learner.act(_copy(observations[i : i + 1]), _copy(own), drawn, allowed)
            results.append((actions, resize_hidden(after, state.shape[-3:])))
        actions, states = zip(*results, strict=True)
        return torch.cat(actions), torch.cat(states)

    def learn(self, places: Sequence[int], update: Update) -> TensorDict:
        """Update as `PopulationLearner.learn` does."""
        learners = [self.population_learners[place] for place in places]
        metrics: list[Any] = [
            learner.learn([0], update.alone(i, learner.state_shape)) for i, learner in enumerate(learners)
        ]
        return cast(TensorDict, torch.cat(metrics))


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)
