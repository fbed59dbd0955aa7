"""Advantages and value targets of a rollout, and the log-probabilities of the policy that acted.

Values and log-probabilities are computed here in one pass over the rollout, with the weights that acted. Normalisers
are updated here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch
from tensordict import TensorClass
from torch import Tensor

from agilerl_like.learning.gae import gae, next_of
from agilerl_like.learning.minibatches import sequences_in_use
from agilerl_like.learning.own_time import own_time
from agilerl_like.learning.rollout_buffer import Rollout
from agilerl_like.learning.sequences import SINGLE_STEP, SequenceSplit
from agilerl_like.modules.memory_module import MemoryModule, UnrolledStates
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.recurrent_state import NO_SEQUENCE, SequenceInfo, resize_hidden

CACHED_ROWS = 8192
"""Rows per forward pass on a CPU without gradients, so that activations fit the cache."""


class TrainingBatch(TensorClass):
    """A rollout as samples, `[P, S]`: S sequences of L steps per member; without recurrence each step is a sequence."""

    observations: Tensor  # [P, S, L, D], normalised
    actions: Tensor  # [P, S, L, A], raw
    old_log_probs: Tensor  # [P, S, L], of the actions under the policy that took them
    advantages: Tensor  # [P, S, L], normalised over the rollout, or not yet
    returns: Tensor  # [P, S, L], in the critic's normalised units
    old_values: Tensor  # [P, S, L], in the same units
    weight: Tensor  # [P, S, L], 0 for steps that do not count
    masks: Tensor | None  # [P, S, L, choices]
    starts: Tensor | None  # [P, S, L], 1 where an episode begins; None without recurrence
    state: Tensor | None  # [P, S, M, K, H], hidden state before each sequence; None without recurrence
    used: Tensor | None  # [P, S] bool, the sequences that are learned from; None: all


class Precomputed(TensorClass):
    """Log-probabilities and values from a hand-written loop, `[P, T, E]`, used instead of computing them again."""

    old_log_probs: Tensor
    old_values: Tensor


def compute_advantages(
    network: ActorCritic,
    rollout: Rollout,
    *,
    cut: SequenceSplit,
    gamma: Tensor,
    gae_lambda: Tensor,
    n_step: Tensor | None = None,
    bootstrap: Tensor | None = None,
    standardise: bool = True,
    ddof: int = 0,
    precomputed: Precomputed | None = None,
) -> tuple[TrainingBatch, Tensor]:
    """Return the rollout of a stack's members as samples, and the explained variance `[P]` of the critic that acted.

    `gamma` and `gae_lambda` are `[P]`, and so are `n_step`, the steps over which rewards are summed (None: all), and
    `bootstrap`, 0 where the values of truncated episodes' last observations are not added (None: nowhere). `cut`
    applies to recurrent networks; for others each step is a sequence. Observation statistics are updated after the
    samples are normalised, because the policy acted with the old ones; only the first rollout, collected without
    statistics, is normalised by its own.
    """
    members, steps, envs, _ = rollout.observations.shape
    cut = cut if network.is_recurrent else SINGLE_STEP
    raw = rollout.observations.flatten(1, 2)  # [P, N, D]
    own = own_time(rollout, gamma.unsqueeze(1))
    weight = _by_member(own.valid)  # [P, N]
    norm = network.observation_norm
    first = norm.is_new  # [P, 1]
    norm.update_(raw, weight * first)
    x = norm(raw)
    actions = rollout.actions.flatten(1, 2)
    masks = None if rollout.masks is None else rollout.masks.flatten(1, 2)
    past_policy = recompute_policy(network, x, rollout, actions, masks)
    log_probs = past_policy.log_probs if precomputed is None else precomputed.old_log_probs.flatten(1, 2)
    if rollout.uniform is not None:
        uniform = network.actor.distribution.uniform_log_prob(actions, masks)
        log_probs = torch.where(rollout.uniform.flatten(1, 2), uniform, log_probs)
    values = network.value_norm.invert(past_policy.values.unsqueeze(-1)).squeeze(-1)  # [P, N]
    values = values if precomputed is None else precomputed.old_values.flatten(1, 2)
    by_time = values.reshape(members, steps, envs).transpose(0, 1)  # [T, P, E]
    is_last = own.terminated
    if bootstrap is not None:
        is_last = torch.where(bootstrap.unsqueeze(1) > 0, is_last, own.ended)
    advantages = gae(
        own.rewards,
        by_time,
        own.at_next_step(next_values(network, rollout, by_time, past_policy.states)),
        terminated=is_last,
        ended=own.ended,
        valid=own.valid,
        gamma=gamma.unsqueeze(1),
        gae_lambda=gae_lambda.unsqueeze(1),
        n_step=None if n_step is None else n_step.unsqueeze(1),
        waited=own.waited,
    )
    advantages = _by_member(advantages)  # [P, N]
    returns = advantages + values
    explained = _explained_variance(values, returns, weight)
    network.value_norm.update_(returns.unsqueeze(-1), weight)
    targets = [network.value_norm(v.unsqueeze(-1)).squeeze(-1) for v in (returns, values)]
    norm.update_(raw, weight * (1 - first))
    starts = state = None
    if network.is_recurrent:
        starts = cut.of(rollout.starts.flatten(1, 2), steps)
        states = past_policy.states.before(cut.begins(steps)).flatten(1, 2)
        state = resize_hidden(states, rollout.state.shape[-3:])
    counts = cut.of(weight, steps)
    if network.is_recurrent:
        counts = counts * cut.inside(steps, x.device).unsqueeze(0).repeat_interleave(envs, 1)
    batch = TrainingBatch(
        observations=cut.of(x, steps),
        actions=cut.of(actions, steps),
        old_log_probs=cut.of(log_probs, steps),
        advantages=cut.of(standardised(advantages, weight, ddof) if standardise else advantages, steps),
        returns=cut.of(targets[0], steps),
        old_values=cut.of(targets[1], steps),
        weight=counts,
        masks=None if masks is None else cut.of(masks, steps),
        starts=starts,
        state=state,
        used=sequences_in_use(counts, rollout.waiting),
        batch_size=counts.shape[:2],
    )
    return batch, explained


class PastPolicy(NamedTuple):
    """Outputs of the policy that acted, for every step of a rollout."""

    log_probs: Tensor  # [P, N]
    values: Tensor  # [P, N], normalised
    states: RolloutStates


class RolloutStates(NamedTuple):
    """Hidden states `[…, M, K, H]` before and after the steps of a rollout."""

    beginning: Tensor  # [P, E, M, K, H], before the first step
    unrolled: Sequence[UnrolledStates] = ()  # of the M memories, over sequences [P, E, T]

    def before(self, steps: Sequence[int]) -> Tensor:
        """Return those before C steps of every env, `[P, C, E, M, K, H]`; the first of them is step 0."""
        first = self.beginning.unsqueeze(1)
        if len(steps) == 1:
            return first
        later = self._stacked(states.after([step - 1 for step in steps[1:]]) for states in self.unrolled)
        return torch.cat([first, later.transpose(1, 2)], 1)

    def after_step(self, step: int) -> Tensor:
        """Return those after a step of every env, `[P, E, M, K, H]`."""
        return self._stacked(states.after([step]) for states in self.unrolled).squeeze(2)

    def after(self, member: Tensor, env: Tensor, time: Tensor) -> Tensor:
        """Return those after n steps, `[n, M, K, H]`."""
        return self._stacked(states.at(member, env, time) for states in self.unrolled)

    def _stacked(self, states: Iterable[Tensor]) -> Tensor:
        return torch.stack(list(states), -3).to(self.beginning.dtype)


def recompute_policy(
    network: ActorCritic, x: Tensor, rollout: Rollout, actions: Tensor, masks: Tensor | None
) -> PastPolicy:
    """Recompute log-probabilities, values and hidden states of a rollout `[P, N, …]`, in pieces that fit a cache."""
    samples = x.shape[1]
    piece = samples if x.is_cuda else max(1, CACHED_ROWS // x.shape[0])
    pieces = [slice(start, start + piece) for start in range(0, samples, piece)]
    if network.is_recurrent:
        outputs, values, states = _unrolled(network, x, rollout, pieces)
        evaluated = [(outputs[:, here], values[:, here]) for here in pieces]
    else:
        evaluated, states = (network.evaluate(x[:, here], NO_SEQUENCE) for here in pieces), RolloutStates(rollout.state)
    log_probs, all_values = [], []
    for here, (outputs, values) in zip(pieces, evaluated, strict=True):
        its_masks = None if masks is None else masks[:, here]
        log_probs.append(network.actor.distribution.evaluate(outputs, actions[:, here], its_masks)[0])
        all_values.append(values)
    return PastPolicy(torch.cat(log_probs, 1), torch.cat(all_values, 1), states)


def _unrolled(
    network: ActorCritic, x: Tensor, rollout: Rollout, pieces: Sequence[slice]
) -> tuple[Tensor, Tensor, RolloutStates]:
    """Return outputs, normalised values and hidden states: encoders run on all steps, recurrent layers step by step."""
    members, steps, envs = rollout.rewards.shape
    starts = rollout.starts.transpose(1, 2)  # [P, E, T]
    beginning = resize_hidden(rollout.state, network.state_shape)
    recurrent_outputs, states = [], []
    for which, name in enumerate(["actor"] if network.share_encoders else ["actor", "critic"]):
        branch, rows = (network.actor if name == "actor" else network.critic), network.branch_input(name, x)
        latent = torch.cat([branch.encoder(rows[:, here]) for here in pieces], 1)
        by_env = latent.view(members, steps, envs, -1).transpose(1, 2)
        memory = cast(MemoryModule[Any], branch.memory)
        unrolled, its_states = memory.unroll(by_env, starts, beginning[..., which, :, :])
        recurrent_outputs.append(unrolled.transpose(1, 2).flatten(1, 2))
        states.append(its_states)
    outputs, values = network.actor.head(recurrent_outputs[0]), network.critic.head(recurrent_outputs[-1])
    return outputs.to(network.dtype), values.to(network.dtype).squeeze(-1), RolloutStates(beginning, states)


def next_values(network: ActorCritic, rollout: Rollout, values: Tensor, states: RolloutStates) -> Tensor:
    """Return the value of the true next state of each step, `[T, P, E]`.

    The first state of the next episode is never used: a terminated step has no successor, and a truncated step has
    either a final observation of its own or its successor in the next row.
    """
    norm, recurrent = network.observation_norm, network.is_recurrent
    sequence_info = NO_SEQUENCE
    if recurrent:
        sequence_info = SequenceInfo(torch.zeros_like(values[-1]).unsqueeze(-1), states.after_step(len(values) - 1))
    result = next_of(values, network.value(norm(rollout.next_observations), sequence_info))
    last = rollout.final_observations
    if last.time.shape[1]:
        member, place = (last.time >= 0).nonzero().unbind(1)
        time, env = last.time[member, place], last.env[member, place]
        rows = norm(last.observations[:, : int(place.max()) + 1 if len(place) else 0])
        if recurrent:
            state = states.beginning.new_zeros(*rows.shape[:2], *states.beginning.shape[-3:])
            state[member, place] = states.after(member, env, time)
            sequence_info = SequenceInfo(state.new_zeros(*rows.shape[:2], 1), state)
        result[time, member, env] = network.value(rows, sequence_info)[member, place]
    return result


def _by_member(x: Tensor) -> Tensor:
    """Reshape `[T, P, E, …]` to `[P, T E, …]`."""
    return x.transpose(0, 1).flatten(1, 2)


def standardised(x: Tensor, weight: Tensor, ddof: int = 0) -> Tensor:
    """Return x with mean 0 and standard deviation 1 over samples of weight 1; 0 if they differ by rounding alone.

    `ddof` 1 gives the standard deviation of `torch.std`.
    """
    count = weight.sum(-1, keepdim=True).clamp(min=1.0)
    share = weight / count
    mean = (x * share).sum(-1, keepdim=True)
    centred = x - mean
    std = (centred.square() * share).sum(-1, keepdim=True).sqrt()
    if ddof:
        std = std * (count / (count - ddof).clamp(min=1.0)).sqrt()
    return torch.where(std > 1e-6 * mean.abs(), centred / (std + 1e-8), 0.0)


def _explained_variance(values: Tensor, returns: Tensor, weight: Tensor) -> Tensor:
    """Return 1 - Var(returns - values) / Var(returns); nan where the returns do not vary."""
    share = weight / weight.sum(-1, keepdim=True).clamp(min=1.0)

    def variance(x: Tensor) -> Tensor:
        return ((x - (x * share).sum(-1, keepdim=True)).square() * share).sum(-1)

    spread = variance(returns)
    return torch.where(spread > 0, 1 - variance(returns - values) / spread, torch.nan)
