"""Members that are computed one by one, so that the bits of each do not depend on who the others are.

To be computed together costs a member nothing but its last bits: a product of more rows may be added up in another
order. Everything that a member's own cohort gets is therefore a copy, in the shape that it would have alone: where in
memory a number lies, and at what distance from the next, decides how it is computed, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import cast

import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.learning.advantages import Precomputed
from agilerl_like.learning.optimizer import Adam
from agilerl_like.learning.population_learner import PopulationLearner
from agilerl_like.learning.ppo_update import Hyperparams, Shuffle
from agilerl_like.learning.rollout_buffer import Rollout
from agilerl_like.learning.sequences import SINGLE_STEP, SequenceSplit
from agilerl_like.learning.stacked_networks import StackedNetworks
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.recurrent_state import resize_hidden


class PerMemberLearner:
    """P members of which each has a cohort of its own; it does what one `PopulationLearner` of them would do, but slower."""

    def __init__(self, homes: Sequence[PopulationLearner]) -> None:
        self.learners = list(homes)
        """The cohort that each member lives in."""

    def __len__(self) -> int:
        return len(self.learners)

    @property
    def networks(self) -> list[ActorCritic]:
        """The members' own."""
        return [cohort.networks[0] for cohort in self.learners]

    @property
    def stacks(self) -> list[list[int]]:
        """The members of each stack: one."""
        return [[place] for place in range(len(self))]

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Shape `(M, K, H)` in which there is room for what any member remembers."""
        memories, vectors, units = map(max, zip(*(cohort.state_shape for cohort in self.learners), strict=True))
        return memories, vectors, units

    def train(self, training: bool) -> None:
        """Switch between exploring and acting as well as they can."""
        for cohort in self.learners:
            cohort.train(training)

    def moments(self, place: int) -> Adam:
        """One member's moments, `[1, N]`: to be read, for they may be views."""
        return self.learners[place].moments(0)

    def snapshot(self, place: int) -> StackedNetworks:
        """A copy of everything that is one member's, for `restore`."""
        return self.learners[place].snapshot(0)

    def restore(self, place: int, kept: StackedNetworks) -> None:
        """Make a member what it was when it was kept."""
        self.learners[place].restore(0, kept)

    def act(
        self, observations: Tensor, state: Tensor, noise: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As `PopulationLearner.act`."""
        found = []
        for i, cohort in enumerate(self.learners):
            own = resize_hidden(state[i : i + 1], cohort.state_shape)
            drawn, allowed = (x if x is None else _copy(x[i : i + 1]) for x in (noise, mask))
            actions, after = cohort.act(_copy(observations[i : i + 1]), _copy(own), drawn, allowed)
            found.append((actions, resize_hidden(after, state.shape[-3:])))
        actions, states = zip(*found, strict=True)
        return torch.cat(actions), torch.cat(states)

    def learn(
        self,
        places: Sequence[int],
        rollout: Rollout,
        values: Hyperparams,
        *,
        batch_size: int,
        shuffle: Shuffle,
        cut: SequenceSplit = SINGLE_STEP,
        precomputed: Precomputed | None = None,
    ) -> TensorDict:
        """As `PopulationLearner.learn`."""
        order, reports = cache(shuffle), []
        for i, place in enumerate(places):
            cohort = self.learners[place]
            own = rollout.of_members(torch.tensor([i], device=rollout.rewards.device))
            reports.append(
                cohort.learn(
                    [0],
                    own._replace(state=_copy(resize_hidden(own.state, cohort.state_shape))),
                    values[i : i + 1],
                    batch_size=batch_size,
                    shuffle=lambda *key, i=i: order(*key)[i : i + 1],
                    cut=cut,
                    precomputed=None if precomputed is None else precomputed[:, i : i + 1],
                )
            )
        return cast(TensorDict, torch.cat(reports))


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)
