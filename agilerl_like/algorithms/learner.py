"""A learner: one actor and critic with their optimizer, random streams and updates.

An algorithm has one learner for each group of agents that share a policy: PPO has one, IPPO has one for each of its
groups. The agents of a group are further rows of the batch, so the `rows_per_step` and `rollout_rows` of a learner of A
agents are A times its algorithm's `num_envs` and `learn_step`. Settings are read from the algorithm, so they may be
changed there at any time.

A learner computes through a `PopulationLearner`, which it shares with the same group's learners of the other members
of a population. Every random stream is named by run seed, member index and a counter, so no other member influences it.
"""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from agilerl_like.algorithms.learner_acting import ActingLearner
from agilerl_like.algorithms.learner_base import RECENT, torch_generator
from agilerl_like.algorithms.learner_files import StoredLearner
from agilerl_like.hpo import Mutation, Mutations
from agilerl_like.learning.optimizer import Adam
from agilerl_like.modules.layers import NoisyLinear
from agilerl_like.modules.memory_module import MemoryModule
from agilerl_like.modules.param_stack import layout
from agilerl_like.networks.network_mutation import (
    MutatedNetwork,
    MutationSource,
    add_parameter_noise_,
    mutate_network,
)
from agilerl_like.seeding import Purpose

LearnerT = TypeVar("LearnerT", bound="Learner")

SAMPLE_STATES = 512
"""Random observations on which a mutation is measured before the first rollout."""
SAMPLE_STEPS = 32
"""Length of the sequences of observations on which a recurrent network's mutation is measured."""
NOISE = {"sd": Mutations.mutation_sd, "kl": Mutations.mutation_kl}
"""Bound and target of parameter noise where a mutation does not give them."""


class Learner(ActingLearner, StoredLearner):
    """The networks of one group of agents with their moments, random streams, mutations and files.

    A subclass adds what its algorithm computes. There is no network until `reinitialize`, `load_state` or `copy_for`
    sets one.
    """

    # -- learning

    def after_update(self, observations: Tensor, starts: Tensor | None = None) -> None:
        """Count an update, and store some of its observations `[T, E, D]`, on which mutations are measured.

        `starts` `[T, E]` is 1 where the hidden state of a recurrent network was reset.
        """
        self.updates += 1
        recent = observations
        if starts is not None:
            length = min(SAMPLE_STEPS, len(recent))
            recent = recent[: len(recent) // length * length].unflatten(0, (-1, length)).transpose(1, 2)  # [C, E, L, D]
            unbroken = starts[: recent.shape[0] * length].unflatten(0, (-1, length))[:, 1:].sum(1) == 0
            recent = recent[unbroken] if bool(unbroken.any()) else recent.flatten(0, 1)
            count = max(1, RECENT // length)
        else:
            recent, count = recent.flatten(0, 1), RECENT
        self.recent_observations = recent[:: max(1, len(recent) // count)][:count].detach().cpu().clone()
        self.resample_noise()

    def count_updates(self, steps: int) -> None:
        """Count gradient steps of an algorithm without rollouts, and draw the noise on the weights, if any."""
        self.updates += steps
        if self.architecture.has_noise or self.architecture.of_critic.has_noise:  # else no module is visited
            self.resample_noise()

    def resample_noise(self) -> None:
        """Draw the noise on the weights for the next env steps and their update, and that of a target network."""
        noisy = [layer for layer in self.network.modules() if isinstance(layer, NoisyLinear | MemoryModule)]
        if noisy:
            stream = torch_generator(self.device, self.seed, Purpose.WEIGHT_NOISE, self.index, self.updates)
            for layer in noisy:
                layer.resample_(stream)

    # -- mutation

    def mutate(self, change: Mutation) -> Mutation:
        """Apply a mutation to weights and moments; return the mutation that was carried out, which may be smaller."""
        if change.kind not in ("architecture", "activation", "parameters"):
            return change
        self.variations += 1  # two mutations without an update between them must not draw the same numbers
        keys = self.index, self.updates, self.variations
        stream = torch_generator("cpu", self.seed, Purpose.WEIGHT_TRANSFER, *keys)
        if change.kind == "parameters":
            self.own_network()
            sd, target_kl = (float(change.details.get(name, default)) for name, default in NOISE.items())
            details = add_parameter_noise_(self.network, self._sample_states(stream), sd, stream, target_kl=target_kl)
            return Mutation(change.kind, change.operator, details)
        adam = self.moments
        source = MutationSource(
            self.network, (adam.exp_avg[0], adam.exp_avg_sq[0]), partial(self._sample_states, stream)
        )
        result = mutate_network(source, change.operator, dict(change.details), stream)
        if "refused" in result.arguments:
            return Mutation("none", change.operator, {"wanted": change.kind, **result.arguments})
        if change.operator.startswith("memory."):
            self._memory_changes.append((self.architecture, result.maps))
        first, second = (moment.unsqueeze(0) for moment in result.moments)
        moments = Adam(first, second, adam.steps.clone(), adam.lr_scale.clone(), epsilon=adam.epsilon)
        self._use(result.network, moments)
        self.after_mutation(source, change.operator, result)
        return Mutation(change.kind, change.operator, result.arguments)

    def after_mutation(self, source: MutationSource, operator: str, result: MutatedNetwork) -> None:
        """Adapt what depends on the network, such as its target network; called after a mutation of structure."""

    def _sample_states(self, stream: torch.Generator) -> Tensor:
        """Return normalized observations on which a mutation is measured: recent ones, or random ones if none exist."""
        if len(self.recent_observations):
            recent = self.network.some_of(self.recent_observations)
            return self.network.observation_norm(recent.to(self.device))
        rows = self.rollout_encoding.random_rows(SAMPLE_STATES, stream).to(self.device)
        return rows.unflatten(0, (-1, SAMPLE_STEPS)) if self.network.is_recurrent else rows

    def finish_blend(self) -> None:
        """Remove the activations that a finished mutation blended out."""
        if self.architecture.is_fading and self.network.fade_left() <= 0:
            slots, optimizer = layout(self.network), self.optimizer
            self.network.finish_fading_()
            if slots != layout(self.network):
                raise RuntimeError("finishing a blend moved a parameter")
            self.set_network(self.network, optimizer)

    def bound_std_(self, shift: float) -> None:
        """Shift the log of the learned standard deviation, and clamp it to the algorithm's bounds."""
        self.own_network()
        self.distribution.bound_std_(shift, self.algorithm.action_std_min, self.algorithm.action_std_max)
