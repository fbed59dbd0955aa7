"""Members of one structure computed together: one forward for all of them, one backward, one Adam.

A cohort owns the stacked weights and moments; the members it was made of hold views of their rows, so they are live
at any time. Some of them can learn while the others wait: their rows are copied out, trained and written back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from agilerl_like.learning.gae import gae, next_of
from agilerl_like.learning.optimizer import Adam, clip_
from agilerl_like.learning.ppo_loss import REPORT, Coefficients, Targets, ppo_loss
from agilerl_like.learning.rollout import Rollout
from agilerl_like.modules.stack import Stack
from agilerl_like.networks.actor_critic import ActorCritic

FADE_UPDATES = 4
"""Updates over which a mutation fades in: about one generation."""

CACHED_ROWS = 8192
"""Rows that go through a network at once on a CPU when nothing is differentiated."""

Shuffle = Callable[[int, int], Tensor]
"""(epoch, samples) -> for each member a permutation of its samples `[P, samples]`."""


class Values(NamedTuple):
    """The hyperparameters that enter the maths, one number a member, all `[P]`."""

    lr: Tensor
    gamma: Tensor
    gae_lambda: Tensor
    clip_coef: Tensor
    clip_coef_vf: Tensor  # infinite: not clipped
    ent_coef: Tensor
    vf_coef: Tensor
    max_grad_norm: Tensor
    target_kl: Tensor  # infinite: no early stop
    update_epochs: Tensor


class Batch(NamedTuple):
    """A rollout as samples: N = T E of each member."""

    observations: Tensor  # [P, N, D], normalised
    actions: Tensor  # [P, N, A], raw
    numbers: Tensor  # [P, N, 5]: log_prob, advantage, return, value, weight
    masks: Tensor | None  # [P, N, M]


class Experience(NamedTuple):
    """What a hand-written loop measured itself, `[T, P, E]`: used instead of computing it again."""

    log_probs: Tensor
    values: Tensor


class Report(NamedTuple):
    """What an update says of itself, one number a member, all `[P]`."""

    loss: Tensor
    policy_gradient_loss: Tensor
    value_loss: Tensor
    entropy_loss: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor
    explained_variance: Tensor
    grad_norm: Tensor
    epochs: Tensor
    healthy: Tensor  # 1 if loss, gradients and weights are finite


class Cohort:
    """P members of one structure."""

    def __init__(self, networks: Sequence[ActorCritic], optimizers: Sequence[Adam]) -> None:
        self.networks = list(networks)
        self.stack = Stack.of(self.networks)
        self.optimizer = Adam.stacked(list(optimizers))

    def __len__(self) -> int:
        return len(self.networks)

    @property
    def network(self) -> ActorCritic:
        """The stacked network: `[P, B, …]` in, `[P, B, …]` out."""
        return self.stack.module

    @torch.no_grad()
    def act(self, observations: Tensor, noise: Tensor | None, mask: Tensor | None) -> Tensor:
        """Raw actions `[P, E, A]` for encoded observations `[P, E, D]`; without noise the most likely ones."""
        network = self.network
        outputs = network.actor(network.observation_norm(observations))
        distribution = network.actor.distribution
        return distribution.mode(outputs, mask) if noise is None else distribution.sample(outputs, noise, mask)

    def learn(
        self,
        rows: Sequence[int],
        rollout: Rollout,
        values: Values,
        *,
        batch_size: int,
        shuffle: Shuffle,
        measured: Experience | None = None,
    ) -> Report:
        """Let the members in `rows` learn from a rollout of theirs, in the same order."""
        everyone = list(rows) == list(range(len(self)))
        if everyone:
            return Update(self.stack, self.optimizer, values).run(rollout, batch_size, shuffle, measured)
        index = torch.tensor(list(rows), device=self.stack.flat.device)
        stack, optimizer = self.stack.take(index), self.optimizer.take(index)
        stack.module.train(self.network.training)
        report = Update(stack, optimizer, values).run(rollout, batch_size, shuffle, measured)
        with torch.no_grad():
            self.stack.put(index, stack)
            self.optimizer.put(index, optimizer)
        return report


class Update:
    """One PPO iteration of a stack of members."""

    def __init__(self, stack: Stack[ActorCritic], optimizer: Adam, values: Values) -> None:
        self.stack, self.network, self.optimizer, self.values = stack, stack.module, optimizer, values
        self.coefficients = Coefficients(
            *(v.unsqueeze(1) for v in (values.clip_coef, values.clip_coef_vf, values.ent_coef, values.vf_coef))
        )
        # named_parameters lists the actor's first; a shared encoder is the actor's
        self.actor_size = max(slot.stop for slot in stack.slots if slot.name.startswith("actor."))

    def run(self, rollout: Rollout, batch_size: int, shuffle: Shuffle, measured: Experience | None) -> Report:
        """Estimate advantages, then take epochs of minibatch steps; the normalisers learn too."""
        with torch.no_grad():
            batch, explained = self.digest(rollout, measured)
        samples = batch.observations.shape[1]
        minibatches = max(1, round(samples / batch_size))
        bounds = [samples * i // minibatches for i in range(minibatches + 1)]
        epochs = self.values.update_epochs
        count = torch.zeros_like(epochs)
        total = torch.zeros(len(epochs), len(REPORT) + 2, device=epochs.device)
        going = torch.ones_like(epochs, dtype=torch.bool)
        may_stop = bool(torch.isfinite(self.values.target_kl).any()) or len(set(epochs.tolist())) > 1
        for epoch in range(int(epochs.max())):
            if may_stop:
                going = going & (epoch < epochs)
                if not bool(going.any()):
                    break
            order = shuffle(epoch, samples)
            shuffled = _reorder(batch, order)
            epoch_total = torch.zeros_like(total)
            for start, stop in pairwise(bounds):
                epoch_total += self.step(_part(shuffled, start, stop), None if bool(going.all()) else going)
            total += torch.where(going.unsqueeze(1), epoch_total, 0.0) / minibatches
            count += going
            if may_stop:
                going = going & (epoch_total[:, REPORT.index("approx_kl")] / minibatches <= self.values.target_kl)
        with torch.no_grad():
            self.network.advance_fades_(1 / FADE_UPDATES)
        return self.report(total / count.clamp(min=1).unsqueeze(1), count, explained)

    def digest(self, rollout: Rollout, measured: Experience | None) -> tuple[Batch, Tensor]:
        """Turn a rollout into samples; return them and the critic's explained variance `[P]`.

        The observation statistics move after the update that learned from them, for the policy acted under the old
        ones; only the very first batch, taken before there were any, is learned from under its own.
        """
        steps, members, envs, _ = rollout.observations.shape
        samples = steps * envs
        network = self.network
        raw = _by_member(rollout.observations)  # [P, N, D]
        weight = _by_member(rollout.valid.unsqueeze(-1)).squeeze(-1)  # [P, N]
        norm = network.observation_norm
        first = norm.is_new  # [P, 1]
        norm.update_(raw, weight * first)
        x = norm(raw)
        actions = _by_member(rollout.actions)
        masks = None if rollout.masks is None else _by_member(rollout.masks)
        log_probs, normalised_values = self.look_back(x, actions, masks)
        values = network.value_norm.invert(normalised_values.unsqueeze(-1)).squeeze(-1)  # [P, N]
        if measured is not None:
            log_probs = _by_member(measured.log_probs.unsqueeze(-1)).squeeze(-1)
            values = _by_member(measured.values.unsqueeze(-1)).squeeze(-1)
        by_time = values.reshape(members, steps, envs).transpose(0, 1)  # [T, P, E]
        advantages = gae(
            rollout.rewards,
            by_time,
            self._next_values(rollout, by_time),
            terminated=rollout.terminated,
            ended=rollout.ended,
            gamma=self.values.gamma.unsqueeze(1),
            gae_lambda=self.values.gae_lambda.unsqueeze(1),
        )
        advantages = _by_member(advantages.unsqueeze(-1)).squeeze(-1)  # [P, N]
        returns = advantages + values
        explained = _explained_variance(values, returns, weight)
        network.value_norm.update_(returns.unsqueeze(-1), weight)
        targets = [network.value_norm(v.unsqueeze(-1)).squeeze(-1) for v in (returns, values)]
        numbers = torch.stack([log_probs, _standardised(advantages, weight), *targets, weight], -1)
        norm.update_(raw, weight * (1 - first))
        return Batch(x, actions.reshape(members, samples, -1), numbers, masks), explained

    def look_back(self, x: Tensor, actions: Tensor, masks: Tensor | None) -> tuple[Tensor, Tensor]:
        """Log-probability and normalised value `[P, N]` under the policy that acted, in pieces that fit a cache."""
        network = self.network
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

    def _next_values(self, rollout: Rollout, values: Tensor) -> Tensor:
        """The value of the state that each step truly led to, `[T, P, E]`."""
        network = self.network
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

    def step(self, batch: Batch, going: Tensor | None) -> Tensor:
        """One gradient step on a minibatch `[P, B, …]`; returns `[P, 7]`: REPORT, the loss, the gradient's norm."""
        outputs, values = self.network.evaluate(batch.observations)
        log_probs, entropy = self.network.actor.distribution.evaluate(outputs, batch.actions, batch.masks)
        *numbers, weight = batch.numbers.unbind(-1)
        targets = Targets(*numbers, share=weight / weight.sum(-1, keepdim=True).clamp(min=1.0))
        loss = ppo_loss(log_probs, entropy, values, targets, self.coefficients)
        gradient = self.stack.gradients(loss.total.sum())
        with torch.no_grad():
            # apart, so that a large value loss cannot use up the policy's share
            actor_norm = clip_(gradient[:, : self.actor_size], self.values.max_grad_norm)
            critic_norm = clip_(gradient[:, self.actor_size :], self.values.max_grad_norm)
            self.optimizer.step_(self.stack.flat, gradient, self.values.lr, going)
            return torch.cat([loss.report, loss.total.unsqueeze(1), (actor_norm + critic_norm).unsqueeze(1)], 1)

    def report(self, means: Tensor, epochs: Tensor, explained: Tensor) -> Report:
        """Name the numbers `[P, 7]` and say who is healthy."""
        policy, value, entropy, kl, clip_fraction, loss, grad_norm = means.unbind(1)
        healthy = torch.isfinite(means).all(1) & torch.isfinite(self.stack.flat).all(1)
        return Report(loss, policy, value, -entropy, kl, clip_fraction, explained, grad_norm, epochs, healthy.float())


def _by_member(x: Tensor) -> Tensor:
    """`[T, P, E, …]` -> `[P, T E, …]`."""
    steps, members, envs, *rest = x.shape
    return x.transpose(0, 1).reshape(members, steps * envs, *rest)


def _reorder(batch: Batch, order: Tensor) -> Batch:
    members, samples = order.shape
    flat = (order + samples * torch.arange(members, device=order.device).unsqueeze(1)).reshape(-1)

    def gather(x: Tensor) -> Tensor:
        return x.reshape(members * samples, -1).index_select(0, flat).view(members, samples, -1)

    return Batch(
        gather(batch.observations),
        gather(batch.actions),
        gather(batch.numbers),
        None if batch.masks is None else gather(batch.masks),
    )


def _part(batch: Batch, start: int, stop: int) -> Batch:
    observations, actions, numbers, masks = batch
    return Batch(
        observations[:, start:stop],
        actions[:, start:stop],
        numbers[:, start:stop],
        None if masks is None else masks[:, start:stop],
    )


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
