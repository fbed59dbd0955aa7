"""One PPO iteration of all members of an ensemble: a digest of their rollouts, then epochs of minibatch steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agilerl_like.learning.digest import Batch, Digest, Experience, digest
from agilerl_like.learning.ensemble import Ensemble
from agilerl_like.learning.execution import Execution
from agilerl_like.learning.optimizer import Pace, clip_
from agilerl_like.learning.ppo_loss import METRICS, Coefficients, Opinion, Targets, ppo_loss
from agilerl_like.learning.rollout import Rollout
from agilerl_like.learning.sequences import Cut
from agilerl_like.learning.team import SOLO, Team
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.memory import TIMELESS, Course, fitted

FADE_UPDATES = 4
"""Updates over which a mutation fades in: about one generation."""

Shuffle = Callable[[int, int], Tensor]
"""(epoch, count) -> for each member a permutation of its sequences `[P, count]`."""


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


class Update:
    """One PPO iteration of an ensemble."""

    def __init__(self, ensemble: Ensemble, values: Values, execution: Execution, team: Team = SOLO) -> None:
        self.ensemble, self.values, self.execution, self.team = ensemble, values, execution, team
        numbers = (values.clip_coef, values.clip_coef_vf, values.ent_coef, values.vf_coef)
        self.coefficients = Coefficients(
            *(number.unsqueeze(1) for number in numbers),
            clips_values=bool(torch.isfinite(values.clip_coef_vf).any()),
        )
        self.gradient = torch.zeros_like(ensemble.flat)
        self.halves = self.gradient.tensor_split((ensemble.critic_at,), 1)  # the policy's, and the value's
        self.gradients = ensemble.with_gradients(self.gradient)

    def run(self, rollout: Rollout, batch_size: int, cut: Cut, shuffle: Shuffle, measured: Experience | None) -> Report:
        """Estimate advantages, then take epochs of minibatch steps; the normalisers learn too."""
        batch, explained = self.digest(rollout, cut, measured)
        _, sequences, length, _ = batch.observations.shape
        minibatches = min(sequences, max(1, round(sequences * length / batch_size)))
        bounds = [sequences * i // minibatches for i in range(minibatches + 1)]
        total, count = self.epochs(batch, bounds, shuffle, first=0)
        for _, stack in self.ensemble.parts:
            stack.module.advance_fades_(1 / FADE_UPDATES)
        return self.report(total / count.unsqueeze(1), count, explained)

    def digest(self, rollout: Rollout, cut: Cut, measured: Experience | None) -> Digest:
        """Turn a rollout into samples, stack by stack."""
        found = []
        for rows, stack in self.ensemble.parts:
            everyone = len(self.ensemble.parts) == 1
            its_rows = torch.arange(rows.start, rows.stop, device=rollout.rewards.device)
            its_measured = measured if measured is None or everyone else Experience(*(x[:, rows] for x in measured))
            its_rollout = rollout if everyone else rollout.of_members(its_rows)
            gamma, gae_lambda = self.values.gamma[rows], self.values.gae_lambda[rows]
            with self.execution.autocast(its_rows.device):
                found.append(
                    digest(
                        stack.module,
                        its_rollout,
                        cut=cut,
                        gamma=gamma,
                        gae_lambda=gae_lambda,
                        measured=its_measured,
                    )
                )
        return found[0] if len(found) == 1 else Digest.joined(found)

    def epochs(self, batch: Batch, bounds: Sequence[int], shuffle: Shuffle, *, first: int) -> tuple[Tensor, Tensor]:
        """Go through the sequences from epoch `first` on; return the sums `[P, 7]` and the number `[P]` of epochs.

        Members end at different times, by their number of epochs or by their KL. Those who go on do so by themselves.
        """
        planned, limits = self.values.update_epochs, self.values.target_kl
        alike = len(set(planned.tolist())) == 1 and not bool(torch.isfinite(limits).any())
        total = torch.zeros(len(planned), len(METRICS) + 2, dtype=planned.dtype, device=planned.device)
        count = torch.zeros_like(planned)
        for epoch in range(first, int(planned.max())):
            means = self.epoch(batch, bounds, shuffle(epoch, bounds[-1]))
            total += means
            count += 1
            if alike:
                continue
            going = (epoch + 1 < planned) & (means[:, METRICS.index("approx_kl")] <= limits)
            if bool(going.all()):
                continue
            rows = going.nonzero().squeeze(1)
            if len(rows):
                part = self.ensemble.take(rows)
                more = Update(
                    part, Values(*(number[rows] for number in self.values)), self.execution, self.team
                ).epochs(
                    batch.rows(rows),
                    bounds,
                    lambda epoch, count, rows=rows: shuffle(epoch, count)[rows],
                    first=epoch + 1,
                )
                self.ensemble.put(rows, part)
                total[rows] += more[0]
                count[rows] += more[1]
            break
        return total, count

    def epoch(self, batch: Batch, bounds: Sequence[int], order: Tensor) -> Tensor:
        """Take a step on every minibatch of the sequences in an order `[P, S]`; return the means `[P, 7]` of metrics."""
        shuffled = batch.reordered(order)
        minibatches = [slice(*ends) for ends in pairwise(bounds)]
        targets = _targets(shuffled.numbers, minibatches)  # [5, P, S, L]
        paces = self.ensemble.optimizer.paces(self.values.lr, len(minibatches))
        steps = []
        for minibatch, pace in zip(minibatches, paces, strict=True):
            own = self.team.own(minibatch)
            steps.append(self.step(shuffled.sequences(own), targets[:, :, own].flatten(2), pace))
        found = torch.stack([torch.stack(column, 1) for column in zip(*steps, strict=True)], 1)  # [P, 7, minibatches]
        means = found.mean(2)
        means[:, :-1] = self.team.sum_(means[:, :-1].contiguous())  # the norm is that of everybody's gradient
        return means

    def step(self, batch: Batch, targets: Tensor, pace: Pace) -> list[Tensor]:
        """One gradient step on a minibatch `[P, S, L, …]` with `Targets` `[5, P, S L]`; return its metrics, all `[P]`."""
        compute = self.execution.compiled(minibatch_loss, targets.device)
        with torch.enable_grad():
            loss, metrics = compute(self.ensemble, batch, targets, self.coefficients, self.execution)
            total = loss.sum()
        total.backward()
        for parameter, place in self.gradients:  # a parameter that plays no part has none, and its place holds zeros
            if parameter.grad is not None:
                place.copy_(parameter.grad)
                parameter.grad = None
        self.team.sum_(self.gradient)
        norms = clip_(self.halves, self.values.max_grad_norm)
        self.ensemble.optimizer.step_(self.ensemble.flat, self.gradient, pace)
        return [*(metrics[name] for name in METRICS), loss.detach(), norms.sum(0)]

    def report(self, means: Tensor, epochs: Tensor, explained: Tensor) -> Report:
        """Name the numbers `[P, 7]` and say who is healthy."""
        policy, value, entropy, kl, clip_fraction, loss, grad_norm = means.unbind(1)
        healthy = self.healthy(means).float()
        return Report(loss, policy, value, -entropy, kl, clip_fraction, explained, grad_norm, epochs, healthy)

    def healthy(self, means: Tensor) -> Tensor:
        """Whose numbers `[P, 7]` and weights are finite, `[P]`."""
        return torch.isfinite(means).all(1) & self.ensemble.is_finite


def _targets(numbers: Tensor, minibatches: Sequence[slice]) -> Tensor:
    """The columns of `Targets` `[5, P, S, L]`, of a batch's numbers `[P, S, L, 5]`: shares are of a minibatch."""
    columns = numbers.movedim(-1, 0).contiguous()
    weight = columns[-1]
    for here in minibatches:
        its = weight[:, here]
        its.div_(its.sum((1, 2), keepdim=True).clamp_(min=1.0))
    return columns


def minibatch_loss(
    ensemble: Ensemble, batch: Batch, targets: Tensor, coefficients: Coefficients, execution: Execution
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss `[P]` and the metrics of a minibatch `[P, S, L, …]` with `Targets` `[5, P, S L]`."""
    course = batch.course if batch.course.is_told else (None, None)
    samples = (x if x is None else x.flatten(1, 2) for x in (batch.observations, batch.actions, batch.masks))
    with execution.autocast(targets.device):
        opinion = Opinion(*ensemble.over(_evaluate, *samples, *course))
    return ppo_loss(opinion, Targets(*targets), coefficients)


def _evaluate(
    network: ActorCritic, x: Tensor, actions: Tensor, masks: Tensor | None, starts: Any, state: Any
) -> tuple[Tensor, ...]:
    course = TIMELESS if starts is None else Course(starts, fitted(state, network.state_shape))
    return network.evaluate_actions(x, course, actions, masks)
