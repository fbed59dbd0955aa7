"""From a rollout to samples: advantages, value targets, and what the policy that acted thought of its actions.

Values and log-probabilities are computed here, in one pass over the rollout, by the weights that acted. Normalisers
learn here too, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from tensordict import TensorClass
from torch import Tensor

from agilerl_like.learning.gae import gae, next_of
from agilerl_like.learning.rollout_buffer import Rollout
from agilerl_like.learning.sequences import SINGLE_STEP, SequenceSplit
from agilerl_like.modules.recurrent import EvolvableLSTM
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.recurrent_state import NO_SEQUENCE, SequenceInfo, resize_hidden

CACHED_ROWS = 8192
"""Rows that go through a network at once on a CPU when nothing is differentiated."""


class TrainingBatch(TensorClass):
    """A rollout as samples, `[P, S]`: S sequences of L steps of each member; without memory each step is a sequence."""

    observations: Tensor  # [P, S, L, D], normalised
    actions: Tensor  # [P, S, L, A], raw
    old_log_probs: Tensor  # [P, S, L], of the actions under the policy that took them
    advantages: Tensor  # [P, S, L], normalised over the rollout
    returns: Tensor  # [P, S, L], in the critic's normalised units
    old_values: Tensor  # [P, S, L], in the same units
    weight: Tensor  # [P, S, L], 0 for steps that do not count
    masks: Tensor | None  # [P, S, L, choices]
    starts: Tensor | None  # [P, S, L], 1 where an episode begins; None without memory
    state: Tensor | None  # [P, S, M, K, H], before each sequence; None without memory


class Precomputed(TensorClass):
    """What a hand-written loop measured itself, `[T, P, E]`: used instead of computing it again."""

    old_log_probs: Tensor
    old_values: Tensor


def compute_advantages(
    network: ActorCritic,
    rollout: Rollout,
    *,
    cut: SequenceSplit,
    gamma: Tensor,
    gae_lambda: Tensor,
    precomputed: Precomputed | None = None,
) -> tuple[TrainingBatch, Tensor]:
    """Turn a rollout of a stack's members into samples; `gamma` and `gae_lambda` are `[P]`.

    Returns the samples and the explained variance `[P]` of the critic that acted.

    `cut` counts for networks with memory; to all others each step is a sequence.
    The observation statistics move after the update that learned from them, for the policy acted under the old
    ones; only the very first batch, taken before there were any, is learned from under its own.
    """
    steps, members, envs, _ = rollout.observations.shape
    cut = cut if network.is_recurrent else SINGLE_STEP
    raw = _by_member(rollout.observations)  # [P, N, D]
    weight = _by_member(rollout.valid)  # [P, N]
    norm = network.observation_norm
    first = norm.is_new  # [P, 1]
    norm.update_(raw, weight * first)
    x = norm(raw)
    actions = _by_member(rollout.actions)
    masks = None if rollout.masks is None else _by_member(rollout.masks)
    past_policy = recompute_policy(network, x, rollout, actions, masks)
    log_probs = past_policy.log_probs if precomputed is None else _by_member(precomputed.old_log_probs)
    values = network.value_norm.invert(past_policy.values.unsqueeze(-1)).squeeze(-1)  # [P, N]
    values = values if precomputed is None else _by_member(precomputed.old_values)
    by_time = values.reshape(members, steps, envs).transpose(0, 1)  # [T, P, E]
    advantages = gae(
        rollout.rewards,
        by_time,
        next_values(network, rollout, by_time, past_policy.states),
        terminated=rollout.terminated,
        ended=rollout.ended,
        valid=rollout.valid,
        gamma=gamma.unsqueeze(1),
        gae_lambda=gae_lambda.unsqueeze(1),
    )
    advantages = _by_member(advantages)  # [P, N]
    returns = advantages + values
    explained = _explained_variance(values, returns, weight)
    network.value_norm.update_(returns.unsqueeze(-1), weight)
    targets = [network.value_norm(v.unsqueeze(-1)).squeeze(-1) for v in (returns, values)]
    norm.update_(raw, weight * (1 - first))
    starts = state = None
    if network.is_recurrent:
        starts = cut.of(_by_member(rollout.starts), steps)
        state = cut.beginnings(resize_hidden(past_policy.states[:, :-1], rollout.state.shape[-3:]))
    counts = cut.of(weight, steps)
    if network.is_recurrent:
        counts = counts * cut.inside(steps, x.device).unsqueeze(0).repeat_interleave(envs, 1)
    batch = TrainingBatch(
        observations=cut.of(x, steps),
        actions=cut.of(actions, steps),
        old_log_probs=cut.of(log_probs, steps),
        advantages=cut.of(_standardised(advantages, weight), steps),
        returns=cut.of(targets[0], steps),
        old_values=cut.of(targets[1], steps),
        weight=counts,
        masks=None if masks is None else cut.of(masks, steps),
        starts=starts,
        state=state,
        batch_size=counts.shape[:2],
    )
    return batch, explained


class PastPolicy(NamedTuple):
    """What the policy that acted thought of its steps."""

    log_probs: Tensor  # [P, N]
    values: Tensor  # [P, N], normalised
    states: Tensor  # [P, T + 1, E, M, K, H], remembered before each step and after the last; nothing without memory


def recompute_policy(
    network: ActorCritic, x: Tensor, rollout: Rollout, actions: Tensor, masks: Tensor | None
) -> PastPolicy:
    """Think everything that was thought `[P, N, …]` once more, in pieces that fit a cache."""
    samples = x.shape[1]
    piece = samples if x.is_cuda else max(1, CACHED_ROWS // x.shape[0])
    pieces = [slice(start, start + piece) for start in range(0, samples, piece)]
    if network.is_recurrent:
        outputs, values, states = _remembered(network, x, rollout, pieces)
        judged = [(outputs[:, here], values[:, here]) for here in pieces]
    else:
        judged, states = (network.evaluate(x[:, here], NO_SEQUENCE) for here in pieces), rollout.state
    log_probs, found = [], []
    for here, (outputs, values) in zip(pieces, judged, strict=True):
        its_masks = None if masks is None else masks[:, here]
        log_probs.append(network.actor.distribution.evaluate(outputs, actions[:, here], its_masks)[0])
        found.append(values)
    return PastPolicy(torch.cat(log_probs, 1), torch.cat(found, 1), states)


def _remembered(
    network: ActorCritic, x: Tensor, rollout: Rollout, pieces: Sequence[slice]
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, normalised values and states along a rollout: what is seen at once, what is remembered step by step."""
    steps, members, envs = rollout.rewards.shape
    starts = rollout.starts.permute(1, 2, 0)  # [P, E, T]
    beginning = resize_hidden(rollout.state, network.state_shape)
    said, states = [], []
    for which, branch in enumerate([network.actor] if network.share_encoders else [network.actor, network.critic]):
        latent = torch.cat([branch.encoder(x[:, here]) for here in pieces], 1)
        by_env = latent.view(members, steps, envs, -1).transpose(1, 2)
        begins = beginning[..., which, :, :]
        its_said, its_states = cast(EvolvableLSTM, branch.memory).unroll(by_env, starts, begins)
        said.append(its_said.transpose(1, 2).flatten(1, 2))
        states.append(torch.cat([begins.unsqueeze(2), its_states.to(begins.dtype)], 2).transpose(1, 2))
    outputs, values = network.actor.head(said[0]), network.critic.head(said[-1])
    return outputs.to(network.dtype), values.to(network.dtype).squeeze(-1), torch.stack(states, -3)


def next_values(network: ActorCritic, rollout: Rollout, values: Tensor, states: Tensor) -> Tensor:
    """The value of the state that each step truly led to, `[T, P, E]`; `states` as in `Past`.

    Of the next episode's first state nobody asks: a step that terminated has no successor, and one that was truncated
    either has a last observation of its own, or led to what is seen in the next row.
    """
    norm, recurrent = network.observation_norm, network.is_recurrent
    sequence_info = (
        SequenceInfo(torch.zeros_like(values[-1]).unsqueeze(-1), states[:, -1]) if recurrent else NO_SEQUENCE
    )
    result = next_of(values, network.value(norm(rollout.next_observations), sequence_info))
    last = rollout.final_observations
    if len(last.time):
        order = torch.argsort(last.member, stable=True)
        time, member, env, rows = (column[order] for column in last)
        counts = torch.bincount(member, minlength=values.shape[1])
        place = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[member]
        shape = (values.shape[1], int(counts.max()))
        padded = rows.new_zeros(*shape, rows.shape[-1])
        padded[member, place] = rows
        if recurrent:
            state = states.new_zeros(*shape, *states.shape[-3:])
            state[member, place] = states[member, time + 1, env]
            sequence_info = SequenceInfo(states.new_zeros(*shape, 1), state)
        result[time, member, env] = network.value(norm(padded), sequence_info)[member, place]
    return result


def _by_member(x: Tensor) -> Tensor:
    """`[T, P, E, …]` -> `[P, T E, …]`."""
    return x.transpose(0, 1).flatten(1, 2)


def _standardised(x: Tensor, weight: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over the samples that count; 0 where they differ by no more than roundings."""
    share = weight / weight.sum(-1, keepdim=True).clamp(min=1.0)
    mean = (x * share).sum(-1, keepdim=True)
    centred = x - mean
    std = (centred.square() * share).sum(-1, keepdim=True).sqrt()
    return torch.where(std > 1e-6 * mean.abs(), centred / (std + 1e-8), 0.0)


def _explained_variance(values: Tensor, returns: Tensor, weight: Tensor) -> Tensor:
    """1 - Var(returns - values) / Var(returns); nan where the returns do not vary."""
    share = weight / weight.sum(-1, keepdim=True).clamp(min=1.0)

    def variance(x: Tensor) -> Tensor:
        return ((x - (x * share).sum(-1, keepdim=True)).square() * share).sum(-1)

    spread = variance(returns)
    return torch.where(spread > 0, 1 - variance(returns - values) / spread, torch.nan)
