"""TD3 (Fujimoto et al. 2018), of which DDPG (Lillicrap et al. 2016) is a special case, and SAC (Haarnoja et al. 2018).

The critics' columns of the stacked weights and the actor's have steps of their own, since the actor may learn less
often: Adam's step count is the critics', the actor's is a buffer of the network.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.learning.execution import Execution
from agilerl_like.learning.gradient_sync import GradientSync
from agilerl_like.learning.off_policy_update import OffPolicyUpdate, weighted_mean
from agilerl_like.learning.optimizer import Adam, clip_, copy_gradients_
from agilerl_like.learning.replay_buffer import Batch
from agilerl_like.learning.stacked_networks import StackedNetworks
from agilerl_like.networks.exploration import SquashedGaussian
from agilerl_like.networks.target_networks import ContinuousNetwork, smallest

METRICS = ("loss", "actor_loss", "q_value", "grad_norm")
"""What an update reports; `loss` is the critics', and `actor_loss` is nan where the actor took no step."""

UpdateT = TypeVar("UpdateT", bound="ContinuousUpdate")


class _Half:
    """The weights of the actor (and its temperature), or of the critics, with their gradients and moments."""

    def __init__(
        self, stacked: StackedNetworks, gradient: Tensor, columns: slice, *, is_critic: bool, steps: Tensor
    ) -> None:
        adam = stacked.optimizer
        self.flat, self.gradient = stacked.flat[:, columns], gradient[:, columns]
        self.adam = Adam(adam.exp_avg[:, columns], adam.exp_avg_sq[:, columns], steps, epsilon=adam.epsilon)
        pairs = stacked.with_gradients(gradient)
        names = [name for _, stack in stacked.parts for name in stack.parameters]
        own = [pair for name, pair in zip(names, pairs, strict=True) if name.startswith("critic") == is_critic]
        self.parameters, self.places = [parameter for parameter, _ in own], [place for _, place in own]

    def set_gradient(self, loss: Tensor) -> None:
        """Compute the gradient of the sum of the members' losses `[Q]`."""
        copy_gradients_(self.places, torch.autograd.grad(loss.sum(), self.parameters, allow_unused=True))


@dataclass(frozen=True)
class ContinuousUpdate(OffPolicyUpdate):
    """Gradient steps of actor and critics; every member has taken as many before, modulo `policy_delay`."""

    noise: Tensor = field(kw_only=True)
    """Normal numbers for next actions and for actions, `[Q, steps, 2, B, A]`."""
    policy_delay: int = 1
    """Gradient steps of the critics for each of the actor."""

    def of_members(self: UpdateT, members: Tensor) -> UpdateT:
        return replace(super().of_members(members), noise=self.noise[members])

    def run(self, stacked: StackedNetworks, execution: Execution, gradient_sync: GradientSync) -> TensorDict:
        report = super().run(stacked, execution, gradient_sync)
        if "actor_loss" not in report.keys():  # noqa: SIM118  # of a TensorDict; the actor took no step
            report.set("actor_loss", torch.full_like(report.get("loss"), torch.nan))
        return report

    def take_steps(self, stacked: StackedNetworks, execution: Execution, steps: int) -> Mapping[str, Tensor]:
        gradient, at = torch.zeros_like(stacked.flat), stacked.critic_at
        counts = [cast(ContinuousNetwork, stack.module).actor_steps for _, stack in stacked.parts]
        actor_steps = torch.cat(counts).view(-1)
        critic = _Half(stacked, gradient, slice(at, None), is_critic=True, steps=stacked.optimizer.steps)
        actor = _Half(stacked, gradient, slice(0, at), is_critic=False, steps=actor_steps)
        due = [step for step in range(steps) if (self.updates[0] + step + 1) % self.policy_delay == 0]
        lr, limit = self.hyperparams["lr"], self.hyperparams["max_grad_norm"]
        critic_adam = critic.adam.prepare_steps(lr, steps)
        actor_steps_due = actor.adam.prepare_steps(self.hyperparams["lr_actor"], len(due)) if due else []
        actor_adam = dict(zip(due, actor_steps_due, strict=True))
        device = lr.device
        metrics: dict[str, Tensor] = {}
        for step, batch in enumerate(self.batches()):
            with torch.enable_grad(), execution.autocast(device):
                loss, values = self.critic_loss(stacked, batch, self.noise[:, step, 0])
                critic.set_gradient(loss)
            norms = clip_([critic.gradient], limit)
            critic.adam.step_(critic.flat, critic.gradient, critic_adam[step])
            if step in actor_adam:
                with torch.enable_grad(), execution.autocast(device):
                    actor_loss, temperature_loss = self.actor_loss(stacked, batch, self.noise[:, step, 1])
                    actor.set_gradient(actor_loss + temperature_loss)
                clip_([actor.gradient[:, self.temperatures :]], limit)
                actor.adam.step_(actor.flat, actor.gradient, actor_adam[step])
                metrics["actor_loss"] = actor_loss
            self.move_targets_(stacked, step)
            if step == steps - 1:
                metrics |= {"loss": loss, "q_value": weighted_mean(values, batch.weight), "grad_norm": norms[0]}
        for count, (rows, _) in zip(counts, stacked.parts, strict=True):
            count.copy_(actor_steps[rows].unsqueeze(1))
        return metrics

    temperatures = 0
    """Columns before the actor's, which are not clipped."""

    @abstractmethod
    def next_values(self, network: ContinuousNetwork, after: Tensor, noise: Tensor, sizes: Tensor) -> Tensor:
        """Return the values `[Q, B]` of next observations that the critics learn from."""

    @abstractmethod
    def actor_loss(self, stacked: StackedNetworks, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses `[Q]` of the actor and of the temperature."""

    def sizes(self) -> Tensor:
        """Return numbers `[Q, n]` that `next_values` needs of each member."""
        return self.hyperparams["gamma"].unsqueeze(1)

    def critic_loss(self, stacked: StackedNetworks, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the critics' mean squared errors `[Q]`, and the first one's values `[Q, B]`."""

        def evaluate(network: ContinuousNetwork, *tensors: Tensor) -> tuple[Tensor, ...]:
            observations, actions, next_observations, its_noise, sizes = tensors
            with torch.no_grad():
                after = network.observation_norm(next_observations)
                values = self.next_values(network, after, its_noise, sizes)
            return values, *network.q_values(network.observation_norm(observations), actions)

        tensors = (batch.observations, batch.actions, batch.next_observations, noise, self.sizes())
        after, *values = stacked.over(evaluate, *tensors)
        goal = torch.where(batch.discounts > 0, batch.returns + batch.discounts * after, batch.returns)
        errors = [weighted_mean((its - goal).square(), batch.weight) for its in values]
        return torch.stack(errors).sum(0), values[0].detach()


@dataclass(frozen=True)
class TD3Update(ContinuousUpdate):
    """Gradient steps of deterministic policies."""

    def sizes(self) -> Tensor:
        return torch.stack([self.hyperparams["target_noise"], self.hyperparams["noise_clip"]], 1)

    def next_values(self, network: ContinuousNetwork, after: Tensor, noise: Tensor, sizes: Tensor) -> Tensor:
        """Return the smallest value of the target policy's action, with noise that smooths the value."""
        size, clip = sizes.view(-1, 1, 1, 2).unbind(-1)
        action = network.target.best_action(after) + torch.minimum(torch.maximum(size * noise, -clip), clip)
        return smallest(network.target.q_values(after, action.clamp(-1.0, 1.0)))

    def actor_loss(self, stacked: StackedNetworks, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        def evaluate(network: ContinuousNetwork, observations: Tensor) -> tuple[Tensor, ...]:
            x = network.observation_norm(observations)
            return (network.first_q_value(x, network.best_action(x)),)

        (values,) = stacked.over(evaluate, batch.observations)
        loss = -weighted_mean(values, batch.weight)
        return loss, torch.zeros_like(loss)


@dataclass(frozen=True)
class SACUpdate(ContinuousUpdate):
    """Gradient steps of stochastic policies that maximise value and entropy, whose weight adapts."""

    temperatures = 1

    def take_steps(self, stacked: StackedNetworks, execution: Execution, steps: int) -> Mapping[str, Tensor]:
        metrics = super().take_steps(stacked, execution, steps)
        alpha = torch.empty_like(metrics["loss"])
        for rows, stack in stacked.parts:
            alpha[rows] = cast(ContinuousNetwork, stack.module).log_alpha.detach().exp().view(-1)
        return {**metrics, "alpha": alpha}

    def next_values(self, network: ContinuousNetwork, after: Tensor, noise: Tensor, sizes: Tensor) -> Tensor:
        actions, log_densities = _sampled(network, after, noise)
        return smallest(network.target.q_values(after, actions)) - network.log_alpha.exp() * log_densities

    def actor_loss(self, stacked: StackedNetworks, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        def evaluate(network: ContinuousNetwork, observations: Tensor, its_noise: Tensor) -> tuple[Tensor, ...]:
            x = network.observation_norm(observations)
            actions, log_densities = _sampled(network, x, its_noise)
            log_alpha = network.log_alpha.expand(log_densities.shape)
            return smallest(network.q_values(x, actions)), log_densities, log_alpha

        values, log_densities, log_alpha = stacked.over(evaluate, batch.observations, noise)
        loss = weighted_mean(log_alpha.detach().exp() * log_densities - values, batch.weight)
        wanted = -self.hyperparams["target_entropy_scale"].unsqueeze(1) * noise.shape[-1]
        return loss, -weighted_mean(log_alpha * (log_densities.detach() + wanted), batch.weight)


def _sampled(network: ContinuousNetwork, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    return cast(SquashedGaussian, network.actor.distribution).reparametrized(network.outputs(x), noise)
