"""Deep Q-learning (Mnih et al. 2015), with double estimates (van Hasselt et al. 2016), on stacked networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from agilerl_like.learning.execution import Execution
from agilerl_like.learning.off_policy_update import OffPolicyUpdate, weighted_mean
from agilerl_like.learning.optimizer import clip_, copy_gradients_
from agilerl_like.learning.replay_buffer import Batch
from agilerl_like.learning.stacked_networks import StackedNetworks
from agilerl_like.networks.target_networks import QNetwork

METRICS = ("loss", "q_value", "grad_norm")
"""What an update reports."""


@dataclass(frozen=True)
class DQNUpdate(OffPolicyUpdate):
    """Gradient steps on the Huber loss of action values."""

    double: bool = True
    """Let the network choose the next action and the target value it."""

    def take_steps(self, stacked: StackedNetworks, execution: Execution, steps: int) -> Mapping[str, Tensor]:
        gradient = torch.zeros_like(stacked.flat)
        learned = [pair for pair in stacked.with_gradients(gradient) if pair[0].requires_grad]
        parameters, places = [parameter for parameter, _ in learned], [place for _, place in learned]
        ones = torch.ones_like(self.hyperparams["lr"])
        found: dict[str, Tensor] = {}
        adam_steps = stacked.optimizer.prepare_steps(self.hyperparams["lr"], steps)
        for step, (adam_step, batch) in enumerate(zip(adam_steps, self.batches(), strict=True)):
            with torch.enable_grad():
                loss, values = self.loss(stacked, batch, execution)
                copy_gradients_(places, torch.autograd.grad(loss, parameters, ones, allow_unused=True))
            norms = clip_([gradient], self.hyperparams["max_grad_norm"])
            stacked.optimizer.step_(stacked.flat, gradient, adam_step)
            self.move_targets_(stacked, step)
            if step == steps - 1:
                found = {"loss": loss, "q_value": weighted_mean(values, batch.weight), "grad_norm": norms[0]}
        return {**found, "epsilon": self.hyperparams["epsilon"]}

    def loss(self, stacked: StackedNetworks, batch: Batch, execution: Execution) -> tuple[Tensor, Tensor]:
        """Return the loss `[Q]` and the values `[Q, B]` of the actions taken."""

        def evaluate(network: QNetwork, observations: Tensor, next_observations: Tensor) -> tuple[Tensor, ...]:
            x, after = network.observation_norm(observations), network.observation_norm(next_observations)
            with torch.no_grad():
                of_target = network.target.q_values(after)
                chooser = network.q_values(after) if self.double else of_target
            return network.q_values(x), of_target, chooser

        with execution.autocast(batch.returns.device):
            q_values, of_target, chooser = stacked.over(evaluate, batch.observations, batch.next_observations)
        if batch.next_masks is not None:
            chooser = chooser.masked_fill(~batch.next_masks, -torch.inf)
        best = of_target.gather(-1, chooser.argmax(-1, keepdim=True)).squeeze(-1)
        values = q_values.gather(-1, batch.actions).squeeze(-1)
        goal = torch.where(batch.discounts > 0, batch.returns + batch.discounts * best, batch.returns)
        return weighted_mean(F.huber_loss(values, goal, reduction="none"), batch.weight), values
