"""Evolution strategies: perturbations of weights, the policies that act with them, and a gradient from their returns.

Each env of a member is played by a policy of its own, so a generation of perturbed policies is one batched forward
pass. Perturbations are drawn from a seed, a counter's stream, whenever they are needed: between processes only returns
travel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.learning.execution import Execution
from agilerl_like.learning.gradient_sync import GradientSync
from agilerl_like.learning.optimizer import DEFAULT_BETAS, OptimizerName, RowRule, StepRule
from agilerl_like.learning.population_learner import PopulationLearner
from agilerl_like.learning.ppo_update import FADE_UPDATES
from agilerl_like.learning.stacked_networks import StackedNetworks
from agilerl_like.modules.layers import RunningNorm
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.policy_network import PolicyNetwork

RETURN_METRICS = ("return_mean", "return_max", "return_std")
"""Of the perturbed policies' returns."""
METRICS = (*RETURN_METRICS, "grad_norm")
"""With that of the estimated gradient."""

UpdateT = TypeVar("UpdateT", bound="ReturnsUpdate")


# -- the estimate


def antithetic_pairs(seed: int, pairs: int, size: int, instances: int = 1) -> Tensor:
    """Return perturbations `[2 pairs, size]` of standard deviation 1, in pairs of opposites.

    Row r plays instance r % `instances`. Each set of rows for all instances is followed by the set of its opposites, so
    that both rows of a pair play the same instance.
    """
    normal = torch.randn(pairs, size, generator=torch.Generator().manual_seed(seed))
    sets = normal.unflatten(0, (-1, instances))
    return torch.stack([sets, -sets], 1).flatten(0, 2)


def centred_ranks(returns: Tensor) -> Tensor:
    """Return the ranks of returns `[…, E]`, from -0.5 for the lowest to 0.5; equal ones share a rank.

    A gradient of ranks does not depend on the scale of returns, and one outlier counts as much as any other best
    (Wierstra et al. 2014, Salimans et al. 2017). If all returns are equal every rank is 0.
    """
    one, other = returns.unsqueeze(-1), returns.unsqueeze(-2)
    lower, equal = ((one > other).sum(-1).to(returns), (one == other).sum(-1).to(returns))
    return (lower + (equal - 1) / 2) / (returns.shape[-1] - 1) - 0.5


def standardized(returns: Tensor) -> Tensor:
    """Return returns `[…, E]` minus their mean, over their standard deviation; 0 if they differ by rounding alone."""
    mean, std = returns.mean(-1, keepdim=True), returns.std(-1, keepdim=True, unbiased=False)
    return torch.where(std > 1e-6 * mean.abs(), (returns - mean) / std, 0.0)


SHAPINGS = {"ranks": centred_ranks, "standardized": standardized}


def within_instances(shaping: Callable[[Tensor], Tensor], returns: Tensor, instances: int) -> Tensor:
    """Return what returns `[…, E]`, of which number r is from instance r % `instances`, count for.

    Those from one instance are compared with each other alone, because instances may differ by more than policies do.
    """
    by_instance = returns.unflatten(-1, (-1, instances)).transpose(-1, -2)
    return shaping(by_instance).transpose(-1, -2).flatten(-2)


def estimated_gradient(utilities: Tensor, perturbations: Tensor, sigma: float | Tensor) -> Tensor:
    """Return the estimate `[N]` of the gradient of the expected utility, sum_i u_i e_i / (E sigma).

    `utilities` `[E]` are those of the weights plus sigma times `perturbations` `[E, N]`. With antithetic pairs it is
    exact, for each pair's direction, of a quadratic function.
    """
    return utilities @ perturbations / (len(utilities) * sigma)


# -- acting


class PerturbedNetworks:
    """Copies of each network of a population learner, one for each env, with offsets of their own."""

    def __init__(self, learner: PopulationLearner, envs: int) -> None:
        self.learner, self.envs = learner, envs
        self._stacked = learner.stacked.repeated(envs)

    def set_offsets(self, place: int, offsets: Tensor) -> None:
        """Set the weights of a member's copies to its own plus `offsets` `[E, n]`, in the order of its parameters."""
        row, size = self.learner.row_of(place), self.envs
        for (here, stack), (_, copies) in zip(self.learner.stacked.parts, self._stacked.parts, strict=True):
            if not here.start <= row < here.stop:
                continue
            own = row - here.start
            rows = slice(own * size, (own + 1) * size)
            copies.flat[rows] = stack.flat[own]
            copies.flat[rows].index_add_(1, stack.param_indices(own), offsets)
            for name, buffer in copies.buffers.items():
                buffer[rows] = stack.buffers[name][own]

    @torch.no_grad()
    def act(self, observations: Tensor, mask: Tensor | None) -> Tensor:
        """Return the raw actions `[P, E, A]` of the perturbed policies for encoded observations `[P, E, D]`."""
        rows = [None if x is None else self.learner.by_row(x).flatten(0, 1).unsqueeze(1) for x in (observations, mask)]
        with self.learner.execution.autocast(observations.device):
            (actions,) = self._stacked.over(_best_action, *rows)
        return self.learner.by_place(actions.squeeze(1).unflatten(0, (-1, self.envs)))


def _best_action(network: ActorCritic, observations: Tensor, mask: Tensor | None) -> tuple[Tensor]:
    outputs = cast(PolicyNetwork, network).outputs(network.observation_norm(observations))
    return (network.actor.distribution.mode(outputs, mask),)


# -- learning


@dataclass(frozen=True)
class ReturnsUpdate:
    """What updates from returns have in common: the observations' statistics and the metrics."""

    returns: Tensor
    """Returns `[Q, E]` of the perturbed policies."""
    observations: Tensor
    """Rows `[Q, 2, size]` with the mean and variance of the observations, for running statistics."""
    counts: Tensor
    """How many observations each row stands for, `[Q, 2]`."""
    instances: int = 1
    """Number r of the returns is from instance r % `instances`."""

    def of_members(self: UpdateT, members: Tensor) -> UpdateT:
        """Return the update of some members, in this order."""
        tensors = {name: getattr(self, name)[members] for name in ("returns", "observations", "counts")}
        return replace(self, **tensors)

    def alone(self: UpdateT, member: int, state_shape: tuple[int, int, int]) -> UpdateT:
        """Return the update of one member in memory of its own."""
        return self.of_members(torch.tensor([member], device=self.returns.device))

    def run(self, stacked: StackedNetworks, execution: Execution, gradient_sync: GradientSync) -> TensorDict:
        """Change weights and statistics in place; return metrics `[Q]`."""
        metrics = dict(self.take_step(stacked))
        for rows, stack in stacked.parts:
            stack.module.advance_fades_(1 / FADE_UPDATES)
            norm = stack.module.observation_norm
            if isinstance(norm, RunningNorm):  # of a row's floats, which its subclass would select again
                RunningNorm.update_(norm, self.observations[rows], self.counts[rows])
        metrics |= {
            "return_mean": self.returns.mean(1),
            "return_max": self.returns.max(1).values,
            "return_std": self.returns.std(1, unbiased=False),
        }
        healthy = stacked.is_finite & torch.isfinite(self.returns).all(1)
        return TensorDict({**metrics, "healthy": healthy.float()}, batch_size=[len(self.returns)])

    def take_step(self, stacked: StackedNetworks) -> Mapping[str, Tensor]:
        """Change the weights in place; return further metrics `[Q]`."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class GradientUpdate(ReturnsUpdate):
    """One step of an optimizer on the gradient that antithetic perturbations estimate (Salimans et al. 2017).

    Members whose returns are equal have no gradient but that of the weight decay. Without decay they take no step,
    because momentum of earlier gradients would move their weights.
    """

    seeds: Sequence[int]
    """Of each member's perturbations."""
    sigma: Tensor
    """Their standard deviations `[Q]`."""
    lr: Tensor
    weight_decay: Tensor
    shaping: Sequence[str]
    """The name in `SHAPINGS` of what each member's returns count for."""
    optimizer: OptimizerName
    betas: Sequence[tuple[float, float] | None]
    """Of each member; None: those of the optimizer."""

    def of_members(self, members: Tensor) -> GradientUpdate:
        tensors = {name: getattr(self, name)[members] for name in ("sigma", "lr", "weight_decay")}
        lists = {
            name: [getattr(self, name)[member] for member in members.tolist()] for name in ("seeds", "betas", "shaping")
        }
        return replace(super().of_members(members), **tensors, **lists)

    def take_step(self, stacked: StackedNetworks) -> Mapping[str, Tensor]:
        utilities = torch.stack(
            [
                within_instances(SHAPINGS[name], its, self.instances)
                for name, its in zip(self.shaping, self.returns, strict=True)
            ]
        )
        loss_gradient = torch.zeros_like(stacked.flat)
        pairs = self.returns.shape[1] // 2
        for here, stack in stacked.parts:
            for row in range(here.start, here.stop):
                own = stack.param_indices(row - here.start)
                perturbations = antithetic_pairs(self.seeds[row], pairs, len(own), self.instances).to(own.device)
                estimate = estimated_gradient(utilities[row], perturbations, self.sigma[row])
                loss_gradient[row].index_copy_(0, own, -estimate)
        epsilon, moves = stacked.optimizer.epsilon, utilities.any(1) | (self.weight_decay > 0)
        rules = [
            RowRule(*(betas or DEFAULT_BETAS[self.optimizer]), epsilon=epsilon, weight_decay=decay)
            for betas, decay in zip(self.betas, self.weight_decay.tolist(), strict=True)
        ]
        (step,) = stacked.optimizer.prepare_steps(self.lr, 1, StepRule(rules, self.optimizer), moves.unsqueeze(0))
        stacked.step_(loss_gradient, step, moves)
        return {"grad_norm": torch.linalg.vector_norm(loss_gradient, dim=1)}
