"""Networks of any number of branches without memory, in the place of an actor and a critic."""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

import torch
from torch import Tensor, nn

from agilerl_like.modules.composite import CompositeModule
from agilerl_like.modules.evolvable_module import EvolvableModule
from agilerl_like.modules.layers import RunningNorm, skip_init
from agilerl_like.modules.mlp import EvolvableMLP, MLPSpec
from agilerl_like.modules.param_stack import alias_parameter, rebuild_with
from agilerl_like.networks.actor_critic import ActorCritic, Network
from agilerl_like.networks.architecture import PARTS, NetworkSpec, rebuild_encoder
from agilerl_like.networks.identity_module import EmptySpec, IdentityModule
from agilerl_like.networks.observation_norm import NoNorm
from agilerl_like.networks.recurrent_state import NO_SEQUENCE, SequenceInfo


def no_memory(spec: NetworkSpec) -> IdentityModule:
    """Return the memory of a branch without one."""
    return IdentityModule(EmptySpec(), spec.latent_dim)


class BranchedNetwork(ActorCritic):
    """Branches of one architecture without memory; the first one, `actor`, acts.

    A subclass builds the branches, and names them in `branches`.
    """

    def __init__(self, spec: NetworkSpec, observation_norm: RunningNorm | NoNorm | None = None) -> None:
        CompositeModule.__init__(self)
        self.spec = spec
        self.share_encoders = False
        self.observation_norm = NoNorm() if observation_norm is None else observation_norm
        self.value_norm = NoNorm()

    @property
    def branches(self) -> dict[str, Network]:
        """The networks by name."""
        raise NotImplementedError

    @property
    def critic(self) -> Network:  # pyright: ignore[reportIncompatibleVariableOverride]  # there may be none
        """The first network of values."""
        return cast(Network, self._modules.get("critic", self.actor))

    @property
    def dtype(self) -> torch.dtype:
        return cast(EvolvableMLP, self.actor.head).dtype

    def head_spec(self, branch: str, spec: NetworkSpec) -> MLPSpec:
        """Return the spec of a branch's head; values have no output activation."""
        return cast(MLPSpec, spec.head if branch == "actor" else spec.value_head())

    # -- as one module

    def reset_(self, generator: torch.Generator, *, output_gain: float = 1.0) -> None:
        """Draw initial weights from one generator."""
        for name, branch in self.branches.items():
            if name == "actor" or not self.share_encoders:
                branch.encoder.reset_(generator, output_gain=2**0.5)
            branch.head.reset_(generator, output_gain=output_gain)

    def rebuild(self, spec: NetworkSpec) -> BranchedNetwork:
        """Return a network built from another spec, as `ActorCritic.rebuild`."""
        instead = dict[nn.Module, nn.Module]()
        like = next(self.parameters())
        with skip_init():
            for name, branch in self.branches.items():
                encoder, head, head_spec = branch.encoder, branch.head, self.head_spec(name, spec)
                if encoder not in instead and (encoder.spec, encoder.num_outputs) != (spec.encoder, spec.latent_dim):
                    instead[encoder] = rebuild_encoder(encoder, spec.encoder, spec.latent_dim)
                if branch.memory.inputs != spec.latent_dim:
                    instead[branch.memory] = IdentityModule(EmptySpec(), spec.latent_dim)
                if (head.spec, head.inputs) != (head_spec, spec.latent_dim):
                    instead[head] = EvolvableMLP(head_spec, spec.latent_dim, head.num_outputs)
        for part in instead.values():
            part.train(self.training)
            part.to(like)
        network = rebuild_with(self, alias_parameter, instead)
        network.spec = spec
        return network

    def stack_key(self) -> Hashable:
        return type(self), self.spec.stack_key(), self.share_encoders, type(self.observation_norm)

    @property
    def parts(self) -> dict[str, EvolvableModule]:
        return {
            f"{name}.{part}": cast(EvolvableModule, branch._modules[part])
            for name, branch in self.branches.items()
            for part in PARTS
            if part == "head" or name == "actor" or not self.share_encoders
        }

    def part_input(self, path: str, x: Tensor) -> Tensor:
        """`x` holds normalised observations `[n, D]`."""
        owner, _, part = path.partition(".")
        inputs = self.branch_input(owner, x)
        return inputs if part == "encoder" else self.branches[owner].encoder(inputs)

    def value(self, x: Tensor, sequence_info: SequenceInfo = NO_SEQUENCE) -> Tensor:
        return self.evaluate(x)[1]

    def branch_input(self, branch: str, x: Tensor) -> Tensor:
        """Return what a branch reads for normalised observations."""
        return x
