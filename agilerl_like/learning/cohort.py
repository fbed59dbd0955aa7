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
from agilerl_like.learning.optimizer import Adam, Pace, clip_
from agilerl_like.learning.ppo_loss import REPORT, Coefficients, Targets, ppo_loss
from agilerl_like.learning.rollout import Rollout
from agilerl_like.modules.stack import Stack, layout, views
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
    """P members that are computed together; if they are of unequal shape, `cover` is a network with room for each."""

    def __init__(
        self, networks: Sequence[ActorCritic], optimizers: Sequence[Adam], cover: ActorCritic | None = None
    ) -> None:
        self.networks = list(networks)
        self.stack = Stack.of(self.networks, cover)
        self.optimizer = Adam.fresh(self.stack.flat, epsilon=optimizers[0].epsilon)
        for row, optimizer in enumerate(optimizers):
            self._take_over(row, optimizer)

    def __len__(self) -> int:
        return len(self.networks)

    @property
    def network(self) -> ActorCritic:
        """The stacked network: `[P, B, …]` in, `[P, B, …]` out."""
        return self.stack.module

    def moments(self, row: int) -> Adam:
        """One member's own part of the moments, `[1, N]` as it would be alone: a copy."""
        first, second = (
            torch.cat([part.reshape(-1) for part in self.stack.parts(rows, row).values()]).unsqueeze(0)
            for rows in (self.optimizer.exp_avg, self.optimizer.exp_avg_sq)
        )
        return Adam(first, second, self.optimizer.steps[row : row + 1].clone(), epsilon=self.optimizer.epsilon)

    def _take_over(self, row: int, optimizer: Adam) -> None:
        slots = layout(self.networks[row])
        for rows, own in (
            (self.optimizer.exp_avg, optimizer.exp_avg),
            (self.optimizer.exp_avg_sq, optimizer.exp_avg_sq),
        ):
            rows[row] = 0.0
            numbers = views(own[0], slots)
            for name, part in self.stack.parts(rows, row).items():
                part.copy_(numbers[name])
        self.optimizer.steps[row] = optimizer.steps[0]

    @torch.no_grad()
    def act(self, observations: Tensor, noise: Tensor | None, mask: Tensor | None) -> Tensor:
        """Raw actions `[P, E, A]` for encoded observations `[P, E, D]`; without noise the most likely ones."""
        network = self.network
        outputs = network.actor(network.observation_norm(observations))
        distribution = network.actor.distribution
        return distribution.mode(outputs, mask) if noise is None else distribution.sample(outputs, noise, mask)

    @torch.no_grad()
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
        if list(rows) == list(range(len(self))):
            return Update(self.stack, self.optimizer, values).run(rollout, batch_size, shuffle, measured)
        index = torch.tensor(list(rows), device=self.stack.flat.device)
        part = Update(self.stack.take(index), self.optimizer.take(index), values)
        report = part.run(rollout, batch_size, shuffle, measured)
        self.stack.put(index, part.stack)
        self.optimizer.put(index, part.optimizer)
        return report


class Update:
    """One PPO iteration of a stack of members."""

    def __init__(self, stack: Stack[ActorCritic], optimizer: Adam, values: Values) -> None:
        self.stack, self.network, self.optimizer, self.values = stack, stack.module, optimizer, values
        numbers = (values.clip_coef, values.clip_coef_vf, values.ent_coef, values.vf_coef)
        self.coefficients = Coefficients(
            *(number.unsqueeze(1) for number in numbers),
            clips_values=bool(torch.isfinite(values.clip_coef_vf).any()),
        )
        # named_parameters lists the actor's first; a shared encoder is the actor's
        self.actor_size = max(slot.stop for slot in stack.slots if slot.name.startswith("actor."))
        self.gradient = torch.empty_like(stack.flat)

    def run(self, rollout: Rollout, batch_size: int, shuffle: Shuffle, measured: Experience | None) -> Report:
        """Estimate advantages, then take epochs of minibatch steps; the normalisers learn too."""
        batch, explained = self.digest(rollout, measured)
        samples = batch.observations.shape[1]
        minibatches = max(1, round(samples / batch_size))
        bounds = [samples * i // minibatches for i in range(minibatches + 1)]
        total, count = self.epochs(batch, bounds, shuffle, first=0)
        self.network.advance_fades_(1 / FADE_UPDATES)
        return self.report(total / count.unsqueeze(1), count, explained)

    def epochs(self, batch: Batch, bounds: Sequence[int], shuffle: Shuffle, *, first: int) -> tuple[Tensor, Tensor]:
        """Go through the samples from epoch `first` on; return the sums `[P, 7]` and the number `[P]` of epochs.

        Members end at different times, by their number of epochs or by their KL. Those who go on do so by themselves.
        """
        planned, limits = self.values.update_epochs, self.values.target_kl
        alike = len(set(planned.tolist())) == 1 and not bool(torch.isfinite(limits).any())
        total = torch.zeros(len(planned), len(REPORT) + 2, dtype=planned.dtype, device=planned.device)
        count = torch.zeros_like(planned)
        for epoch in range(first, int(planned.max())):
            means = self.epoch(batch, bounds, shuffle(epoch, bounds[-1]))
            total += means
            count += 1
            if alike:
                continue
            going = (epoch + 1 < planned) & (means[:, REPORT.index("approx_kl")] <= limits)
            if bool(going.all()):
                continue
            rows = going.nonzero().squeeze(1)
            if len(rows):
                values = Values(*(number[rows] for number in self.values))
                rest = Update(self.stack.take(rows), self.optimizer.take(rows), values)
                more = rest.epochs(
                    Batch(*(part if part is None else part[rows] for part in batch)),  # pyright: ignore[reportArgumentType]  # masks alone may be None
                    bounds,
                    lambda epoch, samples, rows=rows: shuffle(epoch, samples)[rows],
                    first=epoch + 1,
                )
                self.stack.put(rows, rest.stack)
                self.optimizer.put(rows, rest.optimizer)
                total[rows] += more[0]
                count[rows] += more[1]
            break
        return total, count

    def epoch(self, batch: Batch, bounds: Sequence[int], order: Tensor) -> Tensor:
        """Take a step on every minibatch of the samples in an order `[P, N]`; return the means of what they report."""
        shuffled = _reorder(batch, order)
        paces = self.optimizer.paces(self.values.lr, len(bounds) - 1)
        steps = [self.step(_part(shuffled, *ends), pace) for ends, pace in zip(pairwise(bounds), paces, strict=True)]
        return torch.stack(steps).mean(0)

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

    def step(self, batch: Batch, pace: Pace) -> Tensor:
        """One gradient step on a minibatch `[P, B, …]`; returns `[P, 7]`: REPORT, the loss, the gradient's norm."""
        outputs, values, pull = self.network.pullback(batch.observations)
        log_probs, entropy, pull_distribution = self.network.actor.distribution.pullback(
            outputs, batch.actions, batch.masks
        )
        *numbers, weight = batch.numbers.unbind(-1)
        targets = Targets(*numbers, share=weight / weight.sum(-1, keepdim=True).clamp_(min=1.0))
        loss = ppo_loss(log_probs, entropy, values, targets, self.coefficients)
        of_outputs, of_distribution = pull_distribution(loss.slopes.log_probs, loss.slopes.entropy)
        parts = pull(of_outputs, loss.slopes.values, of_distribution)
        gradient = torch.cat([part.reshape(len(part), -1) for part in parts], 1, out=self.gradient)
        # apart, so that a large value loss cannot use up the policy's share
        actor_norm = clip_(gradient[:, : self.actor_size], self.values.max_grad_norm)
        critic_norm = clip_(gradient[:, self.actor_size :], self.values.max_grad_norm)
        self.optimizer.step_(self.stack.flat, gradient, pace)
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
