"""Actor and critic: an encoder, an optional recurrent module and a head each, of one architecture.

With `share_encoders` they use one encoder and one recurrent module.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import nullcontext
from typing import cast

import gymnasium
import torch
from torch import Tensor, nn

from agilerl_like.envs.critic_observation import AsymmetricEncoder
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.composite import CompositeModule, maps_of
from agilerl_like.modules.evolvable_module import EvolvableModule, UnitChange, UnitMaps
from agilerl_like.modules.layers import RunningNorm, skip_init
from agilerl_like.modules.memory_module import MemorySpec
from agilerl_like.modules.mlp import EvolvableMLP, MLPSpec
from agilerl_like.modules.param_stack import alias_parameter, rebuild_with
from agilerl_like.modules.spec import Arguments
from agilerl_like.networks.architecture import PARTS, NetworkSpec, make_encoder, rebuild_encoder
from agilerl_like.networks.custom import Branch, CustomSpec, EvolvableCustom
from agilerl_like.networks.distributions import ActionDistribution, make_distribution
from agilerl_like.networks.identity_module import EmptySpec, IdentityModule
from agilerl_like.networks.observation_norm import (
    OBSERVATION_CLIP,
    OBSERVATION_EPS,
    NoNorm,
    ObservationNormKind,
    make_observation_norm,
    norm_parts,
)
from agilerl_like.networks.recurrent_state import (
    NO_SEQUENCE,
    RecurrentModule,
    SequenceInfo,
    apply_recurrent,
    make_recurrent,
    resize_hidden,
)

ACTOR, CRITIC = 0, -1
"""Indices of the actor's and the critic's hidden state; with shared encoders both select the same one."""

MOST_WORK, FEWEST = 2**32, 32
"""Multiplications allowed for evaluating the states on which a mutation is measured, and the fewest states evaluated at
any cost. 2**32 take about a fifth of a second on one core."""
VANISHING_GAIN = 0.01
"""Gain of a policy's last layer: a new policy is near uniform (Andrychowicz et al. 2021)."""


Head = EvolvableMLP | IdentityModule


def _head(spec: MLPSpec | EmptySpec, inputs: int, num_outputs: int) -> Head:
    return IdentityModule(spec, inputs) if isinstance(spec, EmptySpec) else EvolvableMLP(spec, inputs, num_outputs)


class Network(nn.Module):
    """An encoder, a recurrent module and a head: `[…, observation] -> […, outputs]`."""

    def __init__(self, encoder: EvolvableModule, memory: RecurrentModule, head: Head) -> None:
        super().__init__()
        self.encoder, self.memory, self.head = encoder, memory, head

    def forward(self, x: Tensor, sequence_info: SequenceInfo = NO_SEQUENCE, which: int = ACTOR) -> Tensor:
        return self.head(self.recurrent_output(x, sequence_info, which))

    def recurrent_output(self, x: Tensor, sequence_info: SequenceInfo, which: int) -> Tensor:
        """Return the input of the head; `which` selects this network's hidden state."""
        return apply_recurrent(self.memory, self.encoder(x), sequence_info, which)


class Actor(Network):
    """The policy: its outputs are the parameters of an action distribution."""

    def __init__(
        self, encoder: EvolvableModule, memory: RecurrentModule, head: Head, distribution: ActionDistribution
    ) -> None:
        super().__init__(encoder, memory, head)
        self.distribution = distribution

    @property
    def squash_output(self) -> bool:
        """Whether a hand-written loop must scale the actions of `get_action`, as in AgileRL: never here."""
        return False


class ActorCritic(CompositeModule[NetworkSpec]):
    """A member's networks and normalisers: all of its state but the optimizer's moments.

    Observations are rows `[…, D]` (see `envs.spaces.ObservationEncoder`), normalised once by the caller. For recurrent
    networks `SequenceInfo` arranges them in sequences; other networks ignore it.
    """

    def __init__(
        self,
        spec: NetworkSpec,
        encoding: ObservationEncoder | AsymmetricEncoder,
        action_space: gymnasium.Space,
        *,
        share_encoders: bool,
        normalize_observation: ObservationNormKind,
        normalize_value: bool,
        observation_clip: float = OBSERVATION_CLIP,
        observation_eps: float = OBSERVATION_EPS,
        log_std: float = 0.0,
        squash: bool = False,
        std_range: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.share_encoders = share_encoders
        distribution = make_distribution(action_space, log_std=log_std, squash=squash, std_range=std_range)
        self.observation_norm = make_observation_norm(
            encoding, normalize_observation, clip=observation_clip, epsilon=observation_eps
        )
        self._norm_key = observation_clip, observation_eps
        self.encoding = encoding
        self.value_norm = RunningNorm(1) if normalize_value else NoNorm()

        def trunk(its: NetworkSpec, branch: Branch, num_outputs: int) -> tuple[EvolvableModule, RecurrentModule]:
            seen = encoding.policy if branch == "actor" else encoding.critic
            encoder = make_encoder(its, seen, branch, num_outputs)
            return encoder, make_recurrent(its.memory, encoder.num_outputs)

        encoder, memory = trunk(spec, "actor", distribution.num_outputs)
        head = _head(spec.head, memory.num_outputs, distribution.num_outputs)
        self.actor = Actor(encoder, memory, head, distribution)
        if not share_encoders:
            encoder, memory = trunk(spec.of_critic, "critic", 1)
        self.critic = Network(encoder, memory, _head(spec.value_head(), memory.num_outputs, 1))

    def rebuild(self, spec: NetworkSpec) -> ActorCritic:
        """Return a network with the same inputs and outputs, built from another spec.

        Unchanged parts alias this network's parameters, because building a part takes several times as long as copying
        it; the caller must give them storage of their own. The weights of the other parts are not initialised.
        """
        given, instead = isinstance(spec.encoder, CustomSpec), dict[nn.Module, nn.Module]()
        with nullcontext() if given else skip_init():  # a module of the user's may count on those it is built with
            for branch, its, head_spec in (
                (self.actor, spec, spec.head),
                (self.critic, spec.of_critic, spec.value_head()),
            ):
                encoder, memory, head = branch.encoder, branch.memory, branch.head
                latent = encoder.num_outputs if given else its.latent_dim
                if encoder not in instead and (encoder.spec, encoder.num_outputs) != (its.encoder, latent):
                    instead[encoder] = rebuild_encoder(encoder, its.encoder, latent)
                if memory not in instead and (memory.spec, memory.inputs) != (its.memory, latent):
                    instead[memory] = make_recurrent(its.memory, latent)
                features = cast(RecurrentModule, instead.get(memory, memory)).num_outputs
                if (head.spec, head.inputs) != (head_spec, features):
                    instead[head] = _head(head_spec, features, head.num_outputs)
        like = next(self.parameters())
        for part in instead.values():
            part.train(self.training)
            if any((its.dtype, its.device) != (like.dtype, like.device) for its in part.parameters()):
                part.to(like)
        network = rebuild_with(self, alias_parameter, instead)
        network.spec = spec
        return network

    def stack_key(self) -> Hashable:
        """Return what must be equal for members to share a stack."""
        norms = (*map(type, norm_parts(self.observation_norm)), type(self.value_norm), self._norm_key)
        policy = tuple(getattr(self.actor.distribution, name, False) for name in ("squash", "state_dependent"))
        return self.spec.stack_key(), self.share_encoders, norms, policy

    def check_learned(self) -> None:
        """Raise ConfigurationError if `requires_grad` was changed after construction, which has no effect."""
        parameters = dict(self.named_parameters())
        customs = {name: one for name, one in self.named_modules() if isinstance(one, EvolvableCustom)}
        frozen_parameters = {name for name, parameter in parameters.items() if not parameter.requires_grad}
        given = {f"{name}.net.{inner}" for name, one in customs.items() for inner in one.frozen_parameters}
        if changed := sorted((frozen_parameters ^ given) & parameters.keys()):
            raise ConfigurationError(
                f"requires_grad={changed[0] not in frozen_parameters} was set for {', '.join(changed):.200} after the "
                "agent was made, which has no effect; allowed is requires_grad=False in an actor_network and "
                "critic_network of your own that do not evolve, before an agent is made of them"
            )

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Shape `(M, K, H)` of the hidden state: M recurrent modules with K vectors of H units each."""
        vectors, units = self.actor.memory.state_shape
        return 1 if self.share_encoders else 2, vectors, units

    @property
    def is_recurrent(self) -> bool:
        """Whether there are recurrent layers."""
        return not isinstance(self.actor.memory, IdentityModule)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights, in which distributions and losses are computed too."""
        head = self.critic.head  # faster than iterating over parameters, and read in every step
        return head.dtype if isinstance(head, EvolvableMLP) else next(self.parameters()).dtype

    def reset_(self, generator: torch.Generator, *, output_gain: float = VANISHING_GAIN) -> None:
        """Initialise the weights from one generator; `output_gain` is that of the policy's last layer."""
        for branch in (self.actor,) if self.share_encoders else (self.actor, self.critic):
            branch.encoder.reset_(generator, output_gain=2**0.5)
            branch.memory.reset_(generator, output_gain=1.0)
            if branch is self.actor:
                vanishes = getattr(self.spec.head, "output_vanish", False)
                branch.head.reset_(generator, output_gain=output_gain if vanishes else 1.0)
        self.critic.head.reset_(generator, output_gain=1.0)

    # -- acting and evaluating

    def evaluate(self, x: Tensor, sequence_info: SequenceInfo = NO_SEQUENCE) -> tuple[Tensor, Tensor]:
        """Return the policy's outputs `[…, num_outputs]` and the normalised value `[…]` of normalised observations."""
        if self.share_encoders:
            recurrent = self.actor.recurrent_output(x, sequence_info, ACTOR)
            outputs, values = self.actor.head(recurrent), self.critic.head(recurrent)
        else:
            outputs = self.actor(self.branch_input("actor", x), sequence_info, ACTOR)
            values = self.critic(self.branch_input("critic", x), sequence_info, CRITIC)
        return outputs.to(self.dtype), values.to(self.dtype).squeeze(-1)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the policy's outputs `[…, num_outputs]` for one step, and the next hidden state `[…, M, K, H]`.

        The critic's hidden state is unchanged where the rows `x` have nothing that the critic reads.
        """
        own = self.branch_input("actor", x)
        if not self.is_recurrent:
            return self.actor.head(self.actor.encoder(own)).to(self.dtype), state
        recurrent, after = self.actor.memory.step(self.actor.encoder(own), state[..., ACTOR, :, :])
        after = after.unsqueeze(-3)
        if not self.share_encoders:
            of_critic = state[..., CRITIC, :, :]
            if self.encoding.has_critic_part(x):
                of_critic = self.critic.memory.step(self.critic.encoder(self.branch_input("critic", x)), of_critic)[1]
            after = torch.cat([after, of_critic.unsqueeze(-3).to(after.dtype)], -3)
        return self.actor.head(recurrent).to(self.dtype), after.to(state.dtype)

    def branch_input(self, branch: str, x: Tensor) -> Tensor:
        """Return the part of rows that the actor or the critic reads."""
        return self.encoding.policy_rows(x) if branch == "actor" else self.encoding.critic_rows(x)

    def value(self, x: Tensor, sequence_info: SequenceInfo = NO_SEQUENCE) -> Tensor:
        """Return the value `[…]` of normalised observations, in the environment's units of reward."""
        own = self.branch_input("critic", x)
        return self.environment_value(self.critic(own, sequence_info, CRITIC).to(self.dtype).squeeze(-1))

    def environment_value(self, values: Tensor) -> Tensor:
        """Return normalised values `[…]`, as those of `evaluate`, in the environment's units of reward."""
        return self.value_norm.invert(values.unsqueeze(-1)).squeeze(-1)

    def some_of(self, observations: Tensor) -> Tensor:
        """Return evenly spaced observations, or sequences, whose evaluation takes at most `MOST_WORK` multiplications.

        At least `FEWEST` observations are returned, if there are so many.
        """
        networks = 1 if self.share_encoders else 2
        inputs, outputs = self.actor.encoder.inputs, self.actor.distribution.num_outputs
        each = networks * self.spec.multiply_adds(self.spec, inputs, outputs, self.critic.encoder.inputs)
        wanted = max(FEWEST, MOST_WORK // max(1, each))
        steps = observations.shape[1] if observations.dim() == 3 else 1
        count = -(-wanted // steps)
        if len(observations) <= count:
            return observations
        places = torch.linspace(0, len(observations) - 1, count, dtype=torch.float64, device=observations.device)
        return observations[places.long()]

    # -- mutations

    @property
    def parts(self) -> dict[str, EvolvableModule]:
        """The evolvable modules by name; modules that actor and critic share are the actor's."""
        shared = ("critic.encoder", "critic.memory") if self.share_encoders else ()
        everything = {
            f"{name}.{part}": branch._modules[part]
            for name, branch in (("actor", self.actor), ("critic", self.critic))
            for part in PARTS
        }
        return {name: cast(EvolvableModule, module) for name, module in everything.items() if name not in shared}

    def targets(self, operator: str) -> tuple[tuple[str, ...], str]:
        if self.spec.critic is None:
            part, _, inner = operator.partition(".")
            return tuple(path for path in self.parts if inner and path.endswith(f".{part}")), inner
        by_branch = dict(zip(("actor", "critic"), self.spec.branch_operators(operator), strict=True))
        part, _, inner = next(filter(None, by_branch.values())).partition(".")
        branches = by_branch if part == "memory" else [branch for branch, own in by_branch.items() if own]
        return tuple(f"{branch}.{part}" for branch in branches if inner), inner

    def group_name(self, path: str, group: str) -> str:
        """The inputs of a memory or head are the outputs of the part before it."""
        branch, _, part = path.partition(".")
        if group == "in" and part != "encoder":
            part, group = "memory" if part == "head" and self.is_recurrent else "encoder", "out"
            branch = "actor" if self.share_encoders else branch
        return super().group_name(f"{branch}.{part}", group)

    def output_consumers(self, path: str) -> tuple[str, ...]:
        branch, _, part = path.partition(".")
        behind = "memory" if part == "encoder" and self.is_recurrent else "head"
        readers = [name for name in self.parts if name.endswith(f".{behind}")]
        if not self.share_encoders:
            readers = [name for name in readers if name.startswith(f"{branch}.")]
        return tuple(f"{name}.{linear}" for name in readers for linear in self.parts[name].input_consumers)

    def unit_change(self, operator: str, arguments: Arguments) -> UnitChange:
        of_actor, of_critic = self.spec.branch_operators(operator)
        own = of_actor or of_critic
        if not own.endswith("_latent_node") or "." in own:
            return super().unit_change(operator, arguments)
        nodes = int(arguments["nodes"]) * (1 if own.startswith("add") else -1)
        others = ("" if of_actor else "actor.", "" if of_critic else "critic.")
        unchanged = tuple(filter(None, others))
        encoders = (path for path in self.parts if path.endswith(".encoder") and not path.startswith(unchanged))
        return self.combined({path: UnitChange({"out": nodes}) for path in encoders})

    def part_input(self, path: str, x: Tensor) -> Tensor:
        """`x` holds normalised observations `[n, D]`, or sequences `[S, L, D]` that each begin an episode."""
        owner, _, part = path.partition(".")
        branch, sequence_info = (self.actor if owner == "actor" else self.critic), self.sequence_info_of(x)
        rows = self.branch_input(owner, x.reshape(-1, x.shape[-1]))
        if part == "encoder":
            return rows
        if part == "memory":
            return branch.encoder(rows).unflatten(0, sequence_info.starts.shape)
        return branch.recurrent_output(
            rows, sequence_info, ACTOR if owner == "actor" or self.share_encoders else CRITIC
        )

    def transfer_state(
        self, state: Tensor, old: MemorySpec | EmptySpec, new: MemorySpec | EmptySpec, maps: UnitMaps
    ) -> Tensor:
        """Return the hidden states `[…, M, K, H]` of running episodes after a mutation of the recurrent modules.

        `maps` give, for each unit of the offspring, the parent's unit.
        """
        memory = self.actor.memory
        if isinstance(memory, IdentityModule) or isinstance(old, EmptySpec):
            return state
        owners = [owner for owner in self.parts if owner.endswith("memory")]
        pairs = zip(owners, resize_hidden(state, (len(owners), *old.state_shape)).unbind(-3), strict=True)
        return torch.stack([memory.transfer_state(one, old, new, maps_of(owner, maps)) for owner, one in pairs], -3)

    def sequence_info_of(self, x: Tensor) -> SequenceInfo:
        """Return the arrangement of observations `[n, D]`, or of sequences `[S, L, D]` that each begin an episode."""
        if not self.is_recurrent:
            return NO_SEQUENCE
        return SequenceInfo.beginning(x if x.dim() == 3 else x.unsqueeze(1), self.state_shape, self.dtype)
