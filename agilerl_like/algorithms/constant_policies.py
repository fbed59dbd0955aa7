"""Policies that always take the same action: a baseline whose return a member exceeds only if it has learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from agilerl_like.algorithms.evaluation import GroupPolicy
from agilerl_like.algorithms.learner_group import LearnerGroup
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.networks.distributions import Categorical, Gaussian

LEVELS = (0.0, 1.0, -1.0)
"""Continuous actions, in half-widths of the action space: its centre and two corners."""


def constant_action(distribution: Any, number: int) -> Tensor:
    """Return the raw action `[size]` of constant policy number `number`, modulo the number of actions."""
    if isinstance(distribution, Categorical):
        return torch.tensor([number % count for count in distribution.nvec], dtype=distribution.raw_dtype)
    if isinstance(distribution, Gaussian):
        level = torch.full((distribution.size,), LEVELS[number % len(LEVELS)], dtype=distribution.raw_dtype)
        return distribution.raw_of_unit(level)
    return torch.full((distribution.size,), float(number % 2), dtype=distribution.raw_dtype)


def constant_policies(population: BasePopulation, numbers: Sequence[int]) -> dict[str, GroupPolicy]:
    """Return the policy of each group of agents with a constant one in the place of each member.

    `numbers` choose their actions: all agents of a team take those of the same number.
    """
    return {
        group: GroupPolicy(
            _acting(its, torch.stack([constant_action(its[0].distribution, number) for number in numbers])),
            its[0].encoding,
            its.initial_hidden_state,
            its[0].group.layout,
        )
        for group, its in population.by_group.items()
    }


def _acting(group: LearnerGroup[Any], raw: Tensor) -> Callable[[Tensor, Tensor | None, Tensor], tuple[Any, Tensor]]:
    """Return the policy with raw actions `[P, A]`."""
    raw = raw.to(group.device)

    def act(encoded: Tensor, mask: Tensor | None, state: Tensor) -> tuple[Any, Tensor]:
        rows = raw.unsqueeze(1).expand(-1, len(encoded) // len(raw), -1)
        return group.to_env(rows.contiguous()), state

    return act
