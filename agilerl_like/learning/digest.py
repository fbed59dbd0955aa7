"""From a rollout to samples: advantages, value targets, and what the policy that acted thought of its actions.

Values and log-probabilities are computed here, in one pass over the rollout, by the weights that acted. Normalisers
learn here too, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from agilerl_like.learning.gae import gae, next_of
from agilerl_like.learning.rollout import Rollout
from agilerl_like.networks.actor_critic import ActorCritic

CACHED_ROWS = 8192
"""Rows that go through a network at once on a CPU when nothing is differentiated."""


class Batch(NamedTuple):
    """A rollout as samples: N = T E of each member."""

    observations: Tensor  # [P, N, D], normalised
    actions: Tensor  # [P, N, A], raw
    numbers: Tensor  # [P, N, 5]: log_prob, advantage, return, value, weight
    masks: Tensor | None  # [P, N, M]

    def rows(self, index: Tensor | slice) -> Batch:
        """The samples of some members."""
        return self._map(lambda x: x[index])

    def samples(self, here: slice) -> Batch:
        """Some samples of each member."""
        return self._map(lambda x: x[:, here])

    def reordered(self, order: Tensor) -> Batch:
        """Each member's samples in an order `[P, N]` of its own."""
        members, samples = order.shape
        flat = (order + samples * torch.arange(members, device=order.device).unsqueeze(1)).reshape(-1)
        return self._map(lambda x: x.reshape(members * samples, -1).index_select(0, flat).view(members, samples, -1))

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        masks = None if self.masks is None else change(self.masks)
        return Batch(change(self.observations), change(self.actions), change(self.numbers), masks)


class Experience(NamedTuple):
    """What a hand-written loop measured itself, `[T, P, E]`: used instead of computing it again."""

    log_probs: Tensor
    values: Tensor


class Digest(NamedTuple):
    """A rollout, ready to be learned from."""

    batch: Batch
    explained_variance: Tensor  # [P], of the critic that acted

    @classmethod
    def joined(cls, parts: Sequence[Digest]) -> Digest:
        """Members behind each other."""
        batches, explained = zip(*parts, strict=True)
        *columns, masks = zip(*batches, strict=True)
        together = Batch(*map(torch.cat, columns), masks=None if masks[0] is None else torch.cat(masks))
        return cls(together, torch.cat(explained))


def digest(
    network: ActorCritic, rollout: Rollout, *, gamma: Tensor, gae_lambda: Tensor, measured: Experience | None = None
) -> Digest:
    """Turn a rollout of a stack's members into samples; `gamma` and `gae_lambda` are `[P]`.

    The observation statistics move after the update that learned from them, for the policy acted under the old
    ones; only the very first batch, taken before there were any, is learned from under its own.
    """
    steps, members, envs, _ = rollout.observations.shape
    samples = steps * envs
    raw = _by_member(rollout.observations)  # [P, N, D]
    weight = _by_member(rollout.valid.unsqueeze(-1)).squeeze(-1)  # [P, N]
    norm = network.observation_norm
    first = norm.is_new  # [P, 1]
    norm.update_(raw, weight * first)
    x = norm(raw)
    actions = _by_member(rollout.actions)
    masks = None if rollout.masks is None else _by_member(rollout.masks)
    log_probs, normalised_values = look_back(network, x, actions, masks)
    values = network.value_norm.invert(normalised_values.unsqueeze(-1)).squeeze(-1)  # [P, N]
    if measured is not None:
        log_probs = _by_member(measured.log_probs.unsqueeze(-1)).squeeze(-1)
        values = _by_member(measured.values.unsqueeze(-1)).squeeze(-1)
    by_time = values.reshape(members, steps, envs).transpose(0, 1)  # [T, P, E]
    advantages = gae(
        rollout.rewards,
        by_time,
        next_values(network, rollout, by_time),
        terminated=rollout.terminated,
        ended=rollout.ended,
        valid=rollout.valid,
        gamma=gamma.unsqueeze(1),
        gae_lambda=gae_lambda.unsqueeze(1),
    )
    advantages = _by_member(advantages.unsqueeze(-1)).squeeze(-1)  # [P, N]
    returns = advantages + values
    explained = _explained_variance(values, returns, weight)
    network.value_norm.update_(returns.unsqueeze(-1), weight)
    targets = [network.value_norm(v.unsqueeze(-1)).squeeze(-1) for v in (returns, values)]
    numbers = torch.stack([log_probs, _standardised(advantages, weight), *targets, weight], -1)
    norm.update_(raw, weight * (1 - first))
    return Digest(Batch(x, actions.reshape(members, samples, -1), numbers, masks), explained)


def look_back(network: ActorCritic, x: Tensor, actions: Tensor, masks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Log-probability and normalised value `[P, N]` under the policy that acted, in pieces that fit a cache."""
    samples = x.shape[1]
    piece = samples if x.is_cuda else max(1, CACHED_ROWS // x.shape[0])
    parts = []
    for start in range(0, samples, piece):
        here = slice(start, start + piece)
        outputs, values = network.evaluate(x[:, here])
        its_masks = None if masks is None else masks[:, here]
        parts.append((network.actor.distribution.evaluate(outputs, actions[:, here], its_masks)[0], values))
    log_probs, values = zip(*parts, strict=True)
    return torch.cat(log_probs, 1), torch.cat(values, 1)


def next_values(network: ActorCritic, rollout: Rollout, values: Tensor) -> Tensor:
    """The value of the state that each step truly led to, `[T, P, E]`."""
    after = network.value(network.observation_norm(rollout.next_observations))
    result = next_of(values, after)
    last = rollout.last_observations
    if len(last.time):
        order = torch.argsort(last.member, stable=True)
        counts = torch.bincount(last.member, minlength=values.shape[1])
        place = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[last.member[order]]
        padded = rollout.observations.new_zeros(values.shape[1], int(counts.max()), rollout.observations.shape[-1])
        padded[last.member[order], place] = last.observations[order]
        found = network.value(network.observation_norm(padded))  # [P, K]
        result[last.time[order], last.member[order], last.env[order]] = found[last.member[order], place]
    return result


def _by_member(x: Tensor) -> Tensor:
    """`[T, P, E, …]` -> `[P, T E, …]`."""
    steps, members, envs, *rest = x.shape
    return x.transpose(0, 1).reshape(members, steps * envs, *rest)


def _standardised(x: Tensor, weight: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over the samples that count."""
    share = weight / weight.sum(-1, keepdim=True).clamp(min=1.0)
    centred = x - (x * share).sum(-1, keepdim=True)
    return centred / ((centred.square() * share).sum(-1, keepdim=True).sqrt() + 1e-8)


def _explained_variance(values: Tensor, returns: Tensor, weight: Tensor) -> Tensor:
    """1 - Var(returns - values) / Var(returns); nan where the returns do not vary."""
    share = weight / weight.sum(-1, keepdim=True).clamp(min=1.0)

    def variance(x: Tensor) -> Tensor:
        return ((x - (x * share).sum(-1, keepdim=True)).square() * share).sum(-1)

    spread = variance(returns)
    return torch.where(spread > 0, 1 - variance(returns - values) / spread, torch.nan)
