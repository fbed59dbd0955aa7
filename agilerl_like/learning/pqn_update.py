"""Q(lambda) targets and minibatch steps of PQN (Gallici et al. 2025) on stacked networks, without replay or target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.nn import functional as F

from agilerl_like.learning.advantages import AdvantageEstimator, pieces_of
from agilerl_like.learning.execution import Execution
from agilerl_like.learning.gae import next_of
from agilerl_like.learning.gradient_sync import GradientSync
from agilerl_like.learning.minibatches import Minibatches, reordered
from agilerl_like.learning.off_policy_update import weighted_mean
from agilerl_like.learning.optimizer import OptimizerName, RowRule, StepRule, clip_, copy_gradients_
from agilerl_like.learning.ppo_update import FADE_UPDATES, Shuffle
from agilerl_like.learning.rollout_buffer import Rollout
from agilerl_like.learning.stacked_networks import StackedNetworks
from agilerl_like.networks.action_values import ActionValueNetwork

METRICS = ("loss", "q_value", "grad_norm")
"""What an update reports, beside the probability of a random action: means over its minibatches."""
HYPERPARAMETERS = ("lr", "gamma", "q_lambda", "max_grad_norm", "epsilon")
"""The numbers of an update, of which each member has its own."""


class QSamples(NamedTuple):
    """The steps of a rollout as samples."""

    observations: Tensor  # [P, N, D], normalised
    actions: Tensor  # [P, N, 1], raw
    targets: Tensor  # [P, N], in units of reward
    weight: Tensor  # [P, N], 0 for rows without an action


@dataclass(frozen=True)
class PQNUpdate:
    """An update of P members, each from its own rollout: targets first, then epochs of minibatch steps."""

    rollout: Rollout
    hyperparams: Mapping[str, Tensor]
    """`HYPERPARAMETERS` by name, `[P]` each; `max_grad_norm` is infinite where gradients are not clipped."""
    rules: Sequence[RowRule]
    """The optimizer's further numbers, of each member."""
    batch_size: int
    update_epochs: int
    shuffle: Shuffle
    num_minibatches: int | None = None
    """In place of `batch_size`."""
    optimizer: OptimizerName = "adam"

    def of_members(self, members: Tensor) -> PQNUpdate:
        """Return the update of some members, in this order."""
        return replace(
            self,
            rollout=self.rollout[members],
            hyperparams={name: values[members] for name, values in self.hyperparams.items()},
            rules=[self.rules[row] for row in members.tolist()],
            shuffle=lambda epoch, count: self.shuffle(epoch, count)[members],
        )

    def alone(self, member: int, state_shape: tuple[int, int, int]) -> PQNUpdate:
        """Return the update of one member."""
        return self.of_members(torch.tensor([member], device=self.rollout.rewards.device))

    def run(self, stacked: StackedNetworks, execution: Execution, gradient_sync: GradientSync) -> TensorDict:
        """Compute targets, take the steps, and return `METRICS`, `epsilon` and `healthy` `[P]`.

        Weights, moments and normalisers change in place. The metrics of members without a sample are nan.
        """
        its, device = self.hyperparams, self.rollout.rewards.device
        with torch.no_grad(), execution.autocast(device):
            samples = QSamples(*stacked.over(q_samples, self.rollout, its["gamma"], its["q_lambda"]))
        gradient = torch.zeros_like(stacked.flat)
        learned = [pair for pair in stacked.with_gradients(gradient) if pair[0].requires_grad]
        parameters, places = [parameter for parameter, _ in learned], [place for _, place in learned]
        ones = torch.ones_like(its["lr"])
        minibatches = Minibatches.of_size(self.batch_size, self.num_minibatches, samples.weight.shape[1])
        sums, counts = torch.zeros(len(METRICS), len(ones), device=device), torch.zeros_like(ones)
        for epoch in range(self.update_epochs):
            columns, order, _ = minibatches.of(self.shuffle(epoch, minibatches.sequences))
            shuffled = [reordered(x, order) for x in samples]
            has_samples = torch.stack([shuffled[-1][:, here].sum(1) > 0 for here in columns])  # [minibatches, P]
            everywhere = bool(has_samples.all())
            rule, taken = StepRule(self.rules, self.optimizer), None if everywhere else has_samples
            steps = stacked.optimizer.prepare_steps(its["lr"], len(columns), rule, taken)
            for here, members, step in zip(columns, has_samples, steps, strict=True):
                batch = QSamples(*(x[:, here] for x in shuffled))
                with torch.enable_grad():
                    loss, values = self.loss(stacked, batch, execution)
                    copy_gradients_(places, torch.autograd.grad(loss, parameters, ones, allow_unused=True))
                norms = clip_([gradient], its["max_grad_norm"])
                stacked.step_(gradient, step, None if everywhere else members)
                found = torch.stack([loss.detach(), weighted_mean(values.detach(), batch.weight), norms[0]])
                sums += found * members
                counts += members
        for _, stack in stacked.parts:
            stack.module.advance_fades_(1 / FADE_UPDATES)
        healthy = torch.isfinite(sums).all(0) & stacked.is_finite
        metrics = dict(zip(METRICS, sums / counts, strict=True))
        return TensorDict({**metrics, "epsilon": its["epsilon"], "healthy": healthy.float()}, batch_size=ones.shape)

    def loss(self, stacked: StackedNetworks, batch: QSamples, execution: Execution) -> tuple[Tensor, Tensor]:
        """Return the mean squared error `[P]`, and the values `[P, B]` of the actions taken."""
        with execution.autocast(batch.weight.device):
            (q_values,) = stacked.over(_q_values, batch.observations)
        values = q_values.gather(-1, batch.actions).squeeze(-1)
        return weighted_mean(F.mse_loss(values, batch.targets, reduction="none"), batch.weight), values


def q_samples(
    network: ActionValueNetwork, rollout: Rollout, gamma: Tensor, q_lambda: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the fields of `QSamples` of a stack's members, whose normalisers are updated; `gamma` etc. are `[P]`.

    With V_t the largest value of a legal action in step t, by the network before the update, the target is

        G_t = r_t + gamma (1 - terminated_t) ((1 - lambda) V_{t+1} + lambda G_{t+1}),

    and r_t + gamma V_{t+1} where the episode was truncated, with its last observation, or the rollout ends (equation 5
    and algorithm 1 of the paper; Daley and Amato 2019). It is computed as V_t plus the advantage of `gae`, because
    G_t - V_t = r_t + gamma (1 - terminated_t) V_{t+1} - V_t + gamma lambda (1 - ended_t) (G_{t+1} - V_{t+1}).
    """
    estimator = AdvantageEstimator(gamma, q_lambda)
    own = estimator.own_time(rollout)
    weight = own.valid.transpose(0, 1).flatten(1, 2)  # [P, N]
    raw, norm = rollout.observations.flatten(1, 2), network.observation_norm
    first = norm.is_new  # [P, 1]: actions were chosen without statistics
    norm.update_(raw, weight * first)
    x = norm(raw)
    evaluated = torch.cat([network.q_values(x[:, here]) for here in pieces_of(x)], 1)  # [P, N, actions]
    q_values = evaluated.unflatten(1, rollout.rewards.shape[1:]).transpose(0, 1)  # [T, P, E, actions]
    values = _best(q_values, rollout.masks)
    following = _best(_next_q_values(network, rollout, q_values), rollout.next_masks)
    targets = estimator.advantages(own, values, following) + values
    norm.update_(raw, weight * (1 - first))
    return x, rollout.actions.flatten(1, 2), targets.transpose(0, 1).flatten(1, 2), weight


def _next_q_values(network: ActionValueNetwork, rollout: Rollout, q_values: Tensor) -> Tensor:
    """Return the action values `[T, P, E, actions]` of the true next state of each step, as `next_values` does."""
    norm, last = network.observation_norm, rollout.final_observations
    found = next_of(q_values, network.q_values(norm(rollout.next_observations)))
    member, place, time, env = last.places
    if len(place):
        found[time, member, env] = network.q_values(norm(last.observations))[member, place]
    return found


def _best(q_values: Tensor, masks: Tensor | None) -> Tensor:
    """Return the largest value `[T, P, E]` of `[T, P, E, actions]`, of actions legal by masks `[P, T, E, actions]`.

    A row that allows nothing allows everything.
    """
    if masks is None:
        return q_values.amax(-1)
    legal = masks.transpose(0, 1)
    return q_values.masked_fill(~(legal | ~legal.any(-1, keepdim=True)), -torch.inf).amax(-1)


def _q_values(network: ActionValueNetwork, observations: Tensor) -> tuple[Tensor]:
    return (network.q_values(observations),)
