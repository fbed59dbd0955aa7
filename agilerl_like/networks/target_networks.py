"""Networks of off-policy algorithms: branches of one architecture, and a target copy of them.

The target's weights are buffers of the network, so they are stacked, cloned and saved with it, and no optimizer sees
them. After a mutation the target follows (`follow_mutation`): the same units are added, with the same random draws, or
removed, and the layers that read removed units are refitted to the target's own outputs. So growth changes neither the
network's nor the target's outputs.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.modules.evolvable_module import UnitMaps
from agilerl_like.modules.mlp import EvolvableMLP, MLPSpec
from agilerl_like.modules.param_stack import rebuild_with, update_count_flags
from agilerl_like.modules.spec import Arguments
from agilerl_like.modules.weight_transfer import transfer_weights_
from agilerl_like.networks.action_values import ActionValueNetwork, value_head
from agilerl_like.networks.actor_critic import VANISHING_GAIN, Actor, Network
from agilerl_like.networks.architecture import NetworkSpec, make_encoder
from agilerl_like.networks.branched_network import BranchedNetwork, no_memory
from agilerl_like.networks.exploration import NoisyTanh, SquashedGaussian
from agilerl_like.networks.observation_norm import ObservationNormKind, make_observation_norm
from agilerl_like.networks.recurrent_state import NO_SEQUENCE, SequenceInfo


class OffPolicyNetwork(BranchedNetwork):
    """Branches without memory, and their target; the first branch, `actor`, acts."""

    target: OffPolicyNetwork

    # -- the target

    def add_target(self) -> None:
        """Make the target from the present weights."""
        self.target = _as_target(rebuild_with(self, _new_tensor))

    @torch.no_grad()
    def sync_target_(self) -> None:
        """Set the target's tensors to the network's."""
        own = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        for name, tensor in self.target.named_buffers():
            tensor.copy_(own[name])
        update_count_flags(self.target)

    def target_pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return each weight of the target with the network's, of a stack `[P, …]` or of one member."""
        targets = dict(self.target.named_buffers())
        return [(targets[name], parameter) for name, parameter in self.named_parameters()]

    # -- as one module

    def reset_(self, generator: torch.Generator, *, output_gain: float = 1.0) -> None:
        """Draw initial weights from one generator, and make the target equal."""
        super().reset_(generator, output_gain=output_gain)
        self.sync_target_()

    def rebuild(self, spec: NetworkSpec) -> OffPolicyNetwork:
        """Return a network built from another spec, as `ActorCritic.rebuild`; its target stays as it was."""
        return cast(OffPolicyNetwork, super().rebuild(spec))


class QNetwork(OffPolicyNetwork, ActionValueNetwork):
    """Action values of a Discrete space, and their target."""

    target: QNetwork  # pyright: ignore[reportIncompatibleVariableOverride]  # a copy of this network

    def __init__(
        self,
        spec: NetworkSpec,
        encoding: ObservationEncoder,
        action_space: gymnasium.spaces.Discrete,
        *,
        dueling: bool = False,
        normalize_observation: ObservationNormKind = False,
    ) -> None:
        super().__init__(spec, encoding, action_space, dueling=dueling, normalize_observation=normalize_observation)
        self.add_target()


class ContinuousNetwork(OffPolicyNetwork):
    """An actor of bounded actions, and one or two critics that read observation and action as one vector."""

    target: ContinuousNetwork  # pyright: ignore[reportIncompatibleVariableOverride]  # a copy of this network

    def __init__(
        self,
        spec: NetworkSpec,
        encoding: ObservationEncoder,
        action_space: gymnasium.spaces.Box,
        *,
        twin: bool = True,
        stochastic: bool = False,
        normalize_observation: ObservationNormKind = False,
    ) -> None:
        super().__init__(spec, make_observation_norm(encoding, normalize_observation))
        distribution = SquashedGaussian(action_space) if stochastic else NoisyTanh(action_space)
        if stochastic:
            self.log_alpha = nn.Parameter(torch.zeros(1))
            """Log of the temperature, the weight of the entropy."""
        self.register_buffer("actor_steps", torch.zeros(1))
        self.actor_steps: Tensor
        """Gradient steps of the actor; those of the critics are Adam's."""
        encoder = make_encoder(spec, encoding, "actor", distribution.num_outputs)
        head = EvolvableMLP(cast(MLPSpec, spec.head), spec.latent_dim, distribution.num_outputs)
        self.actor = Actor(encoder, no_memory(spec), head, distribution)
        both = gymnasium.spaces.Box(-np.inf, np.inf, (encoding.size + distribution.size,))
        for name in ("critic", "critic2") if twin else ("critic",):
            encoder = make_encoder(spec, ObservationEncoder(both), "critic", 1)
            self._modules[name] = Network(encoder, no_memory(spec), value_head(spec, 1))
        self.add_target()

    @property
    def branches(self) -> dict[str, Network]:
        return {name: cast(Network, self._modules[name]) for name in ("actor", *self.critic_names)}

    @property
    def critic_names(self) -> tuple[str, ...]:
        """The names of the critics."""
        return ("critic", "critic2") if "critic2" in self._modules else ("critic",)

    def stack_key(self) -> Hashable:
        return super().stack_key(), self.critic_names, type(self.actor.distribution)

    def reset_(self, generator: torch.Generator, *, output_gain: float = VANISHING_GAIN) -> None:
        """Draw initial weights from one generator; a new policy acts near the centre of the space by `output_gain`.

        Without `output_vanish` in the head's spec the gain of the policy's last layer is 1.
        """
        vanishes = cast(MLPSpec, self.spec.head).output_vanish
        for name, branch in self.branches.items():
            branch.encoder.reset_(generator, output_gain=2**0.5)
            branch.head.reset_(generator, output_gain=output_gain if name == "actor" and vanishes else 1.0)
        self.sync_target_()

    def outputs(self, x: Tensor) -> Tensor:
        """Return the actor's outputs for normalised observations."""
        return self.actor.head(self.actor.encoder(x)).to(self.dtype)

    def best_action(self, x: Tensor) -> Tensor:
        """Return the raw actions `[…, A]` without exploration."""
        return self.actor.distribution.mode(self.outputs(x))

    def q_values(self, x: Tensor, actions: Tensor) -> tuple[Tensor, ...]:
        """Return each critic's value `[…]` of raw actions `[…, A]`."""
        both = torch.cat([x, actions], -1)
        return tuple(self._value_of(name, both) for name in self.critic_names)

    def first_q_value(self, x: Tensor, actions: Tensor) -> Tensor:
        """Return the first critic's value `[…]` of raw actions `[…, A]`."""
        return self._value_of("critic", torch.cat([x, actions], -1))

    def _value_of(self, critic: str, both: Tensor) -> Tensor:
        branch = cast(Network, self._modules[critic])
        return branch.head(branch.encoder(both)).squeeze(-1).to(self.dtype)

    def branch_input(self, branch: str, x: Tensor) -> Tensor:
        """A critic reads the action of the policy, too."""
        return x if branch == "actor" else torch.cat([x, self.best_action(x)], -1)

    def evaluate(self, x: Tensor, sequence_info: SequenceInfo = NO_SEQUENCE) -> tuple[Tensor, Tensor]:
        """Return the actor's outputs and the smallest value `[…]` of the policy's action."""
        outputs = self.outputs(x)
        return outputs, smallest(self.q_values(x, self.actor.distribution.mode(outputs)))


def smallest(values: tuple[Tensor, ...]) -> Tensor:
    """Return the smallest of the critics' values `[…]`."""
    return values[0] if len(values) == 1 else torch.minimum(*values)


def _new_tensor(tensor: Tensor) -> Tensor:
    copy = tensor.detach().clone()
    return nn.Parameter(copy) if isinstance(tensor, nn.Parameter) else copy


def _as_target(network: OffPolicyNetwork) -> OffPolicyNetwork:
    """Make buffers of a network's parameters, in place."""
    for layer in network.modules():
        for name, parameter in list(layer._parameters.items()):
            del layer._parameters[name]
            layer.register_buffer(name, None if parameter is None else parameter.detach())
    return network


def _as_network(target: OffPolicyNetwork, like: OffPolicyNetwork) -> OffPolicyNetwork:
    """Return a copy of a target whose weights are parameters, as in the network `like` that it belongs to."""
    network = rebuild_with(target, lambda tensor: tensor.clone())
    for name, _ in like.named_parameters():
        owner, _, attribute = name.rpartition(".")
        layer = network.get_submodule(owner)
        layer.register_parameter(attribute, nn.Parameter(cast(Tensor, layer._buffers.pop(attribute))))
    return network


@torch.no_grad()
def follow_mutation(
    parent: OffPolicyNetwork,
    child: OffPolicyNetwork,
    operator: str,
    arguments: Arguments,
    maps: UnitMaps,
    states: Tensor | None,
    generator: torch.Generator,
) -> None:
    """Set the target of a mutated child: the parent's target after the same mutation.

    `maps` are the unit maps of the child, `states` normalised observations on which layers are refitted after a
    removal, `generator` is seeded as that of the child was.
    """
    before = _as_network(parent.target, parent).eval()
    change = before.unit_change(operator, arguments)._replace(units={}, fixed_maps=maps)
    after = before.rebuild(child.spec)
    transfer_weights_(after, before, operator, arguments, states=states, generator=generator, unit_change=change)
    child.target = _as_target(after.train(child.training))
