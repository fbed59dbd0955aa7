"""A deterministic policy without a critic, for algorithms that learn from returns alone."""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

import gymnasium
import torch
from torch import Tensor

from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.modules.mlp import EvolvableMLP, MLPSpec
from agilerl_like.networks.actor_critic import VANISHING_GAIN, Actor, Network
from agilerl_like.networks.architecture import NetworkSpec, make_encoder
from agilerl_like.networks.branched_network import BranchedNetwork, no_memory
from agilerl_like.networks.distributions import make_distribution
from agilerl_like.networks.exploration import NoisyTanh
from agilerl_like.networks.observation_norm import ObservationNormKind, make_observation_norm, norm_parts
from agilerl_like.networks.recurrent_state import NO_SEQUENCE, SequenceInfo


class PolicyNetwork(BranchedNetwork):
    """The best action of a Discrete, MultiDiscrete or MultiBinary space, or the tanh of the outputs within a Box.

    It has no value: that of every observation is 0, so that a mutation is limited by the policy alone.
    """

    def __init__(
        self,
        spec: NetworkSpec,
        encoding: ObservationEncoder,
        action_space: gymnasium.Space,
        *,
        normalize_observation: ObservationNormKind = False,
    ) -> None:
        super().__init__(spec)
        self.observation_norm = make_observation_norm(encoding, normalize_observation)
        is_box = isinstance(action_space, gymnasium.spaces.Box)
        distribution = NoisyTanh(action_space) if is_box else make_distribution(action_space)
        encoder = make_encoder(spec, encoding, "actor", distribution.num_outputs)
        head = EvolvableMLP(cast(MLPSpec, spec.head), spec.latent_dim, distribution.num_outputs)
        self.actor = Actor(encoder, no_memory(spec), head, distribution)

    @property
    def branches(self) -> dict[str, Network]:
        return {"actor": self.actor}

    def stack_key(self) -> Hashable:
        return super().stack_key(), *map(type, norm_parts(self.observation_norm))

    def reset_(self, generator: torch.Generator, *, output_gain: float = VANISHING_GAIN) -> None:
        """Draw initial weights from one generator; `output_gain` is that of the last layer."""
        super().reset_(generator, output_gain=output_gain if getattr(self.spec.head, "output_vanish", False) else 1.0)

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs for normalised observations."""
        return self.actor.head(self.actor.encoder(x)).to(self.dtype)

    def evaluate(self, x: Tensor, sequence_info: SequenceInfo = NO_SEQUENCE) -> tuple[Tensor, Tensor]:
        """Return the outputs, and values `[…]` that are 0."""
        outputs = self.outputs(x)
        return outputs, outputs.new_zeros(outputs.shape[:-1])
