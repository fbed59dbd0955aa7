"""Advantages and value targets of a rollout, and the log-probabilities of the policy that acted.

Values and log-probabilities are computed here in one pass over the rollout, with the weights that acted. Normalisers
are updated here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from tensordict import TensorClass
from torch import Tensor

from agilerl_like.learning.gae import gae, next_of
from agilerl_like.learning.minibatches import sequences_in_use
from agilerl_like.learning.own_time import OwnTime, own_time
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
    returns: Tensor  # [P, S, L], in the critic's normalised units, after the update of its statistics
    old_values: Tensor  # [P, S, L], the critic's outputs before the first gradient step
    weight: Tensor  # [P, S, L], 0 for steps that do not count
    masks: Tensor | None  # [P, S, L, choices]
    starts: Tensor | None  # [P, S, L], 1 where an episode begins; None without recurrence
    state: Tensor | None  # [P, S, M, K, H], hidden state before each sequence; None without recurrence
    used: Tensor | None  # [P, S] bool, the sequences that are learned from; None: all


class Precomputed(TensorClass):
    """Log-probabilities and values from a hand-written loop, `[P, T, E]`, used instead of computing them again.

    Those of the first rollout are ignored if observations are normalised: its loop acted before there were statistics.
    """

    old_log_probs: Tensor
    old_values: Tensor


class AdvantageEstimator(NamedTuple):
    """How the advantages of P members are estimated: GAE, n-step returns or returns of whole episodes."""

    gamma: Tensor
    """Discount factors `[P]`."""
    gae_lambda: Tensor
    """`[P]`; 1 for n-step returns and returns of whole episodes."""
    n_step: Tensor | None = None
    """Steps `[P]` over which rewards are summed; None: to the end of the episode or of the rollout."""
    bootstrap: Tensor | None = None
    """0 where truncation is treated as termination, `[P]`; None: for no member."""
    standardise: bool = True
    """Whether advantages are centred and scaled over the rollout."""
    ddof: int = 0
    """Delta degrees of freedom of the standard deviation by which they are scaled."""

    def of_rows(self, rows: slice) -> AdvantageEstimator:
        """Return the estimator of some members."""
        return self._replace(
            gamma=self.gamma[rows],
            gae_lambda=self.gae_lambda[rows],
            n_step=None if self.n_step is None else self.n_step[rows],
            bootstrap=None if self.bootstrap is None else self.bootstrap[rows],
        )

    def own_time(self, rollout: Rollout) -> OwnTime:
        """Return rewards and flags of a rollout in each agent's own time."""
        return own_time(
            rollout, self.gamma.unsqueeze(1), None if self.bootstrap is None else self.bootstrap.unsqueeze(1)
        )

    def advantages(self, own: OwnTime, values: Tensor, next_values: Tensor) -> Tensor:
        """Return advantages `[T, P, E]`, not standardised, from the values of each step and of its next state."""
        return gae(
            own.rewards,
            values,
            own.at_next_step(next_values),
            terminated=own.terminated,
            ended=own.ended,
            valid=own.valid,
            gamma=self.gamma.unsqueeze(1),
            gae_lambda=self.gae_lambda.unsqueeze(1),
            n_step=None if self.n_step is None else self.n_step.unsqueeze(1),
            waited=own.waited,
        )


def compute_advantages(
    network: ActorCritic,
    rollout: Rollout,
    estimator: AdvantageEstimator,
    *,
    cut: SequenceSplit,
    precomputed: Precomputed | None = None,
) -> tuple[TrainingBatch, Tensor]:
    """Return the rollout of a stack's members as samples, and the explained variance `[P]` of the critic that acted.

    `cut` applies to recurrent networks; for others each step is a sequence. Observation statistics are updated after
    the samples are normalised, because the policy acted with the old ones; only the first rollout, collected without
    statistics, is normalised by its own.
    """
    own = estimator.own_time(rollout)
    weight = _by_member(own.valid)  # [P, N]
    raw, norm = rollout.observations.flatten(1, 2), network.observation_norm  # raw: [P, N, D]
    first = norm.is_new  # [P, 1]
    norm.update_(raw, weight * first)
    x = norm(raw)
    policy = behavior_policy(network, rollout, x, precomputed, first)
    by_time = policy.values.unflatten(1, rollout.rewards.shape[1:]).transpose(0, 1)  # [T, P, E]
    advantages = _by_member(estimator.advantages(own, by_time, next_values(network, rollout, by_time, policy.states)))
    returns = advantages + policy.values
    explained = _explained_variance(policy.values, returns, weight)
    old_values = network.value_norm(policy.values.unsqueeze(-1)).squeeze(-1)  # by the statistics that acted
    network.value_norm.update_(returns.unsqueeze(-1), weight)
    norm.update_(raw, weight * (1 - first))
    if estimator.standardise:
        advantages = standardised(advantages, weight, estimator.ddof)
    columns = {
        "observations": x,
        "actions": policy.actions,
        "old_log_probs": policy.log_probs,
        "advantages": advantages,
        "returns": network.value_norm(returns.unsqueeze(-1)).squeeze(-1),
        "old_values": old_values,
        "masks": None if rollout.masks is None else rollout.masks.flatten(1, 2),
    }
    if network.is_recurrent:
        return _as_sequences(rollout, columns, weight, cut, policy.states), explained
    return _as_sequences(rollout, columns, weight, SINGLE_STEP), explained


def _as_sequences(
    rollout: Rollout,
    columns: Mapping[str, Tensor | None],
    weight: Tensor,
    cut: SequenceSplit,
    states: RolloutStates | None = None,
) -> TrainingBatch:
    """Return columns and weight `[P, N, …]` of a rollout's steps as sequences; `states` are those of memories."""
    steps, envs = rollout.rewards.shape[1:]
    counts = cut.of(weight, steps)
    sequences = {name: None if column is None else cut.of(column, steps) for name, column in columns.items()}
    starts = state = None
    if states is not None:
        starts = cut.of(rollout.starts.flatten(1, 2), steps)
        before = states.before(cut.begins(steps)).flatten(1, 2)
        state = resize_hidden(before, rollout.state.shape[-3:])
        counts = counts * cut.inside(steps, counts.device).unsqueeze(0).repeat_interleave(envs, 1)
    return TrainingBatch(
        **cast(Any, sequences),
        weight=counts,
        starts=starts,
        state=state,
        used=sequences_in_use(counts, rollout.waiting),
        batch_size=counts.shape[:2],
    )


class BehaviorPolicy(NamedTuple):
    """Outputs of the policy that acted, and of its critic, for every step of a rollout."""

    actions: Tensor  # [P, N, A], raw; the most likely ones where none was taken
    log_probs: Tensor  # [P, N], of the actions
    values: Tensor  # [P, N], in the environment's units of reward
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


def behavior_policy(
    network: ActorCritic, rollout: Rollout, x: Tensor, precomputed: Precomputed | None, first: Tensor | float
) -> BehaviorPolicy:
    """Return log-probabilities, values and hidden states of the policy that collected a rollout.

    They are recomputed from normalised observations `x` `[P, N, D]`, in pieces that fit a cache, unless they are
    `precomputed`. A `first` rollout, where that is 1 `[P, 1]`, is recomputed in any case, because its loop acted on
    observations that were not normalised. Uniformly random actions have the log-probability of a uniform draw.

    Rows without an action have the most likely one in place of what a hand-written loop leaves there: the loss weights
    these rows by 0, but the ratio of an arbitrary action may overflow, and inf * 0 is no number.
    """
    distribution, acted = network.actor.distribution, rollout.valid.flatten(1, 2) > 0
    actions = rollout.actions.flatten(1, 2)
    masks = None if rollout.masks is None else rollout.masks.flatten(1, 2)
    pieces = pieces_of(x)
    if network.is_recurrent:
        outputs, values, states = _unrolled(network, x, rollout, pieces)
        evaluated = [(outputs[:, here], values[:, here]) for here in pieces]
    else:
        evaluated, states = (network.evaluate(x[:, here], NO_SEQUENCE) for here in pieces), RolloutStates(rollout.state)
    taken, log_probs, all_values = [], [], []
    for here, (outputs, values) in zip(pieces, evaluated, strict=True):
        its_masks = None if masks is None else masks[:, here]
        most_likely = distribution.mode(outputs, its_masks)
        taken.append(torch.where(acted[:, here].unsqueeze(-1), actions[:, here], most_likely))
        log_probs.append(distribution.evaluate(outputs, taken[-1], its_masks)[0])
        all_values.append(values)
    actions, log_prob = torch.cat(taken, 1), torch.cat(log_probs, 1)
    value = network.environment_value(torch.cat(all_values, 1))
    if precomputed is not None:
        is_known = acted & (torch.as_tensor(first, device=x.device) == 0)
        log_prob = torch.where(is_known, precomputed.old_log_probs.flatten(1, 2), log_prob)
        value = torch.where(is_known, precomputed.old_values.flatten(1, 2), value)
    if rollout.uniform is not None:
        uniform = distribution.uniform_log_prob(actions, masks)
        log_prob = torch.where(acted & rollout.uniform.flatten(1, 2), uniform, log_prob)
    return BehaviorPolicy(actions, log_prob, value, states)


def pieces_of(x: Tensor) -> list[slice]:
    """Return pieces of the samples of x `[P, N, D]` that a forward pass without gradients computes one by one."""
    samples = x.shape[1]
    piece = samples if x.is_cuda else max(1, CACHED_ROWS // x.shape[0])
    return [slice(start, start + piece) for start in range(0, samples, piece)]


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
        member, place, time, env = last.places
        if not len(place):  # all are those of members of other stacks
            return result
        rows = norm(last.observations[:, : int(place.max()) + 1])
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

    A single sample, whose deviation is unknown, stays as it is. The standard deviation is below 1 where that of x
    is not well above 1e-8, which is added to the divisor. `ddof` 1 gives the standard deviation of `torch.std`.
    """
    count = weight.sum(-1, keepdim=True).clamp(min=1.0)
    share = weight / count
    mean = (x * share).sum(-1, keepdim=True)
    centred = x - mean
    std = (centred.square() * share).sum(-1, keepdim=True).sqrt()
    if ddof:
        std = std * (count / (count - ddof).clamp(min=1.0)).sqrt()
    scaled = torch.where(std > 1e-6 * mean.abs(), centred / (std + 1e-8), 0.0)
    return torch.where(weight.sum(-1, keepdim=True) == 1, x, scaled)


def _explained_variance(values: Tensor, returns: Tensor, weight: Tensor) -> Tensor:
    """Return 1 - Var(returns - values) / Var(returns); nan where the returns differ by rounding alone."""
    share = weight / weight.sum(-1, keepdim=True).clamp(min=1.0)

    def variance(x: Tensor) -> Tensor:
        return ((x - (x * share).sum(-1, keepdim=True)).square() * share).sum(-1)

    spread = variance(returns)
    magnitude = (torch.maximum(values.abs(), returns.abs()) * weight).amax(-1)  # returns are advantages plus values
    return torch.where(spread > (1e-6 * magnitude).square(), 1 - variance(returns - values) / spread, torch.nan)
