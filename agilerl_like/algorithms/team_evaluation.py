"""Playing counted episodes with teams: the multi-agent sibling of `evaluation`.

A return is what all agents of a team earn together in an episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agilerl_like.algorithms.evaluation import Episodes
from agilerl_like.algorithms.ppo import PPO
from agilerl_like.envs.team_rows import GroupRows
from agilerl_like.envs.team_transitions import TeamTransitionEnv

Policy = Callable[[Tensor, Tensor | None, Tensor], tuple[Any, Tensor]]
"""Encoded observations `[N, D]`, masks `[N, choices]` and memory `[N, M, K, H]` of a group's agents -> actions, and
what is remembered then."""


class Brain(NamedTuple):
    """What a group's agents think with."""

    policy: Policy
    learner: PPO
    """Any member's: all encode alike."""
    nothing: Tensor
    """What is remembered when an episode begins, `[M, K, H]`."""


def evaluate_teams(
    brains: Mapping[str, Brain],
    groups: Mapping[str, Sequence[str]],
    env: TeamTransitionEnv,
    seeds: Sequence[int],
    *,
    members: int,
    max_steps: int | None = None,
) -> Episodes:
    """Play one episode for each of `seeds` and each of `members`, whose envs are equal blocks of the env's.

    `env` is one of counted episodes: a copy stands still after its end.
    """
    envs = env.num_envs // members
    table = {group: Seats(brains[group], GroupRows(env, ids)) for group, ids in groups.items()}
    rounds = [_round(table, env, seeds[i : i + envs], members, max_steps) for i in range(0, len(seeds), envs)]
    return Episodes(*(np.concatenate(parts, axis=1) for parts in zip(*rounds, strict=True)))


class Seats:
    """One group's agents in all envs: what they see, may do and remember."""

    def __init__(self, brain: Brain, rows: GroupRows) -> None:
        self._brain, self._rows, self._state = brain, rows, brain.nothing

    def begin(self, envs: int, observations: Mapping[str, Any], masks: Mapping[str, Any]) -> None:
        """See the first observations, and remember nothing."""
        self._state = self._brain.nothing.repeat(envs * len(self._rows.agent_ids), 1, 1, 1)
        self.see(observations, masks)

    def see(self, observations: Mapping[str, Any], masks: Mapping[str, Any]) -> None:
        """See what is there now."""
        self._seen, self._masks = self._rows.rows(observations), self._rows.masks(masks)

    def act(self) -> dict[str, np.ndarray]:
        """What each agent does, `[N, …]`."""
        learner = self._brain.learner
        encoded = torch.from_numpy(learner.encoding.encode(self._seen)).to(learner.device)
        mask = None if self._masks is None else torch.from_numpy(self._masks).to(learner.device)
        actions, self._state = self._brain.policy(encoded, mask, self._state)
        return self._rows.by_agent(actions if isinstance(actions, np.ndarray) else actions.cpu().numpy())


def _round(
    table: Mapping[str, Seats], env: TeamTransitionEnv, seeds: Sequence[int], members: int, max_steps: int | None
) -> Episodes:
    envs = env.num_envs // members
    observations = env.reset([seeds[i % len(seeds)] for i in range(envs)] * members)
    for seats in table.values():
        seats.begin(env.num_envs, observations, env.action_mask)
    playing = np.tile(np.arange(envs) < len(seeds), members)
    returns, lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
    lost = np.zeros(env.num_envs, np.bool_)
    while playing.any():
        actions: dict[str, np.ndarray] = {}
        for seats in table.values():
            actions |= seats.act()
        step = env.step(actions)
        acted = np.any(list(step.valid.values()), axis=0)
        returns += np.where(playing, np.sum(list(step.reward.values()), axis=0), 0.0)
        lengths += playing & acted
        lost |= playing & step.over & ~acted
        playing &= ~step.over
        if max_steps is not None:
            playing &= lengths < max_steps
        for seats in table.values():
            seats.see(step.obs, step.action_mask)
    return Episodes(*(x.reshape(members, envs)[:, : len(seeds)] for x in (returns, lengths, lost)))
