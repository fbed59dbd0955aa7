"""Networks of action values: one value for each action of a Discrete space."""

from __future__ import annotations

from typing import cast

import gymnasium
from torch import Tensor

from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.modules.mlp import EvolvableMLP, MLPSpec
from agilerl_like.networks.actor_critic import Actor, Network
from agilerl_like.networks.architecture import NetworkSpec, make_encoder
from agilerl_like.networks.branched_network import BranchedNetwork, no_memory
from agilerl_like.networks.exploration import EpsilonGreedy
from agilerl_like.networks.observation_norm import ObservationNormKind, make_observation_norm
from agilerl_like.networks.recurrent_state import NO_SEQUENCE, SequenceInfo


class ActionValueNetwork(BranchedNetwork):
    """Action values of a Discrete space; dueling: a value and an advantage head on one encoder (Wang et al. 2016)."""

    def __init__(
        self,
        spec: NetworkSpec,
        encoding: ObservationEncoder,
        action_space: gymnasium.spaces.Discrete,
        *,
        dueling: bool = False,
        normalize_observation: ObservationNormKind = False,
    ) -> None:
        super().__init__(spec, make_observation_norm(encoding, normalize_observation))
        self.share_encoders = dueling
        distribution = EpsilonGreedy(action_space)
        encoder = make_encoder(spec, encoding, "actor", distribution.num_outputs)
        self.actor = Actor(encoder, no_memory(spec), value_head(spec, distribution.num_outputs), distribution)
        if dueling:
            self._modules["critic"] = Network(encoder, self.actor.memory, value_head(spec, 1))

    @property
    def branches(self) -> dict[str, Network]:
        return {"actor": self.actor, "critic": self.critic} if self.share_encoders else {"actor": self.actor}

    def head_spec(self, branch: str, spec: NetworkSpec) -> MLPSpec:
        return cast(MLPSpec, spec.value_head())

    def q_values(self, x: Tensor) -> Tensor:
        """Return the values `[…, actions]` of normalised observations."""
        latent = self.actor.encoder(x)
        values = self.actor.head(latent)
        if self.share_encoders:
            values = values - values.mean(-1, keepdim=True) + self.critic.head(latent)
        return values.to(self.dtype)

    def evaluate(self, x: Tensor, sequence_info: SequenceInfo = NO_SEQUENCE) -> tuple[Tensor, Tensor]:
        """Return the action values `[…, actions]` and the largest of them `[…]`."""
        values = self.q_values(x)
        return values, values.max(-1).values


def value_head(spec: NetworkSpec, outputs: int) -> EvolvableMLP:
    """Return a head of an architecture whose outputs are values."""
    return EvolvableMLP(cast(MLPSpec, spec.value_head()), spec.latent_dim, outputs)
