"""Actor and critic as an algorithm needs them: an encoder and a head each, one architecture for both.

`NetworkSpec` is the architecture half of a genome. Actor and critic always have the same shape, so an architecture
mutation changes both alike; with `share_encoders` they also have the same encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, ClassVar, NamedTuple, cast

import gymnasium
import torch
from torch import Tensor, nn

from agilerl_like.envs.spaces import flat_size
from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.modules.base import Arguments, OperatorKind, Spec, check_mapping, check_range
from agilerl_like.modules.layers import ACTIVATIONS, Activation, RunningNorm
from agilerl_like.modules.mlp import EvolvableMLP, MLPSpec
from agilerl_like.networks.distributions import ActionDistribution, make_distribution

LATENT_STEPS = (8, 16, 32)
"""How many latent nodes a mutation adds or removes (AgileRL's choice)."""

VANISHING_GAIN = 0.01
"""Gain of a policy's last layer: a new policy is near uniform (Andrychowicz et al. 2021)."""


@dataclass(frozen=True)
class NetworkSpec(Spec):
    """The architecture of an actor and its critic: encoder, latent layer, head."""

    encoder: MLPSpec = field(default_factory=lambda: MLPSpec(output_activation=MLPSpec.activation))
    """From the observation to the latent layer."""
    head: MLPSpec = field(default_factory=MLPSpec)
    """From the latent layer to the outputs."""
    latent_dim: int = 64
    """Width of the latent layer, the encoder's output."""
    min_latent_dim: int = 8
    max_latent_dim: int = 128

    OPERATORS: ClassVar[Mapping[str, OperatorKind]] = {
        "encoder.add_layer": "layer",
        "encoder.remove_layer": "layer",
        "head.add_layer": "layer",
        "head.remove_layer": "layer",
        "encoder.add_node": "node",
        "encoder.remove_node": "node",
        "head.add_node": "node",
        "head.remove_node": "node",
        "add_latent_node": "node",
        "remove_latent_node": "node",
        "change_activation": "activation",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.min_latent_dim <= self.max_latent_dim:
            raise ConfigurationError(
                f"min_latent_dim={self.min_latent_dim!r} must be at least 1 "
                f"and at most max_latent_dim={self.max_latent_dim!r}"
            )
        check_range("latent_dim", self.latent_dim, self.min_latent_dim, self.max_latent_dim)
        if self.encoder.output_layernorm and self.min_latent_dim < 2:
            raise ConfigurationError(
                "min_latent_dim=1 is too few for output_layernorm=True, which leaves nothing of one"
            )

    @classmethod
    def from_net_config(cls, net_config: Mapping[str, Any] | None) -> NetworkSpec:
        """Read AgileRL's `net_config`.

        Its keys are `encoder_config`, `head_config`, `latent_dim`, `min_latent_dim`, `max_latent_dim`; None stands for
        the default. The encoder's output activation is its hidden one unless given.

        Raises:
            ConfigurationError: a key is unknown (near ones are named) or a value illegal.
        """
        check_mapping("net_config", {} if net_config is None else net_config)
        config = {key: value for key, value in (net_config or {}).items() if value is not None}
        allowed = {"encoder_config", "head_config", "latent_dim", "min_latent_dim", "max_latent_dim"}
        for key in config:
            if key not in allowed:
                raise unknown_name("net_config key", key, allowed)
        encoder, head = (config.pop(part, {}) for part in ("encoder_config", "head_config"))
        check_mapping("encoder_config", encoder)
        if encoder.get("output_activation") is None:
            encoder = {**encoder, "output_activation": encoder.get("activation") or MLPSpec.activation}
        return cls(
            encoder=MLPSpec.from_config("encoder_config", encoder),
            head=MLPSpec.from_config("head_config", head),
            **config,
        )

    def to_config(self) -> dict[str, Any]:
        values = super().to_config()
        return {
            "encoder_config": self.encoder.to_config(),
            "head_config": self.head.to_config(),
            **{key: value for key, value in values.items() if key not in ("encoder", "head")},
        }

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        part, _, inner = operator.rpartition(".")
        if part:
            return getattr(self, part).choices(inner)
        if self.encoder.fading or self.head.fading:
            return ()
        if operator == "change_activation":
            now = {self.encoder.activation, self.head.activation}
            return tuple({"activation": name} for name in ACTIVATIONS if now != {name} and name != "Identity")
        sign, limit = (1, self.max_latent_dim) if operator == "add_latent_node" else (-1, self.min_latent_dim)
        steps = sorted({min(step, sign * (limit - self.latent_dim)) for step in LATENT_STEPS})
        return tuple({"nodes": nodes} for nodes in steps if nodes > 0)

    def apply(self, operator: str, **arguments: int | float | str) -> NetworkSpec:
        if operator not in self.OPERATORS:
            raise unknown_name("operator", operator, self.OPERATORS)
        part, _, inner = operator.rpartition(".")
        if part:
            return self.evolve(**{part: getattr(self, part).apply(inner, **arguments)})
        if operator == "change_activation":
            return self.evolve(
                encoder=self.encoder.apply(operator, **arguments), head=self.head.apply(operator, **arguments)
            )
        sign = 1 if operator == "add_latent_node" else -1
        return self.evolve(latent_dim=self.latent_dim + sign * int(arguments["nodes"]))

    def settled(self) -> NetworkSpec:
        """The spec once nothing fades any more."""
        return self.evolve(encoder=self.encoder.settled(), head=self.head.settled())

    @property
    def fades(self) -> bool:
        """Whether a mutation is still fading in."""
        return bool(self.encoder.fading or self.head.fading)

    @property
    def likeness(self) -> tuple[tuple[str, ...], int]:
        """What neighbours in a stack should have in common: functions, and then which part is the deeper one.

        So those with a deep encoder come first and those with a deep head last, and each layer's owners in one run.
        """
        parts = (self.encoder, self.head)
        functions = tuple(name for part in parts for name in (part.activation, part.output_activation, *part.fading))
        return functions, len(self.head.hidden_size) - len(self.encoder.hidden_size)

    def describe(self) -> str:
        """One line for tables and logs."""
        groups = (self.encoder.hidden_size, (self.latent_dim,), self.head.hidden_size)
        activations = dict.fromkeys((self.encoder.activation, self.head.activation))
        return f"{' | '.join('-'.join(map(str, group)) for group in groups)} {'/'.join(activations)}"

    # -- beside others in a stack

    def structure(self) -> Hashable:
        return self.encoder.structure(), self.head.structure()

    @classmethod
    def covering(cls, specs: Sequence[NetworkSpec]) -> NetworkSpec:
        widest = max(spec.latent_dim for spec in specs)
        return specs[0].evolve(
            encoder=MLPSpec.covering([spec.encoder for spec in specs]),
            head=MLPSpec.covering([spec.head for spec in specs]),
            latent_dim=widest,
            max_latent_dim=max(widest, specs[0].max_latent_dim),
        )

    def multiply_adds(self, cover: NetworkSpec, num_inputs: int, num_outputs: int) -> int:
        """Of an actor."""
        latent = self.encoder.multiply_adds(cover.encoder, num_inputs, cover.latent_dim)
        return latent + self.head.multiply_adds(cover.head, cover.latent_dim, num_outputs)

    def value_head(self) -> MLPSpec:
        """The critic's head: a value is a plain number, which an output activation or normalisation would deform."""
        fading = (*self.head.fading[:-1], "") if self.head.fading else ()
        return self.head.evolve(output_activation="Identity", output_layernorm=False, fading=fading)


class Network(nn.Module):
    """An encoder and a head: `[…, observation] -> […, outputs]`."""

    def __init__(self, encoder: EvolvableMLP, head: EvolvableMLP) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


class Actor(Network):
    """The policy: its outputs are the parameters of an action distribution."""

    def __init__(self, encoder: EvolvableMLP, head: EvolvableMLP, distribution: ActionDistribution) -> None:
        super().__init__(encoder, head)
        self.distribution = distribution


class Slopes(NamedTuple):
    """Gradient of a summed loss by what an actor and a critic say, all `[P, B]`."""

    log_probs: Tensor
    entropy: Tensor
    values: Tensor


class ActorCritic(nn.Module):
    """Everything of a member that is learned or counted, but for the optimizer's moments.

    Observations are flat float32 `[…, flat_size(observation_space)]` (see `envs.spaces.encode`) and normalised by the
    caller, once.
    """

    def __init__(
        self,
        spec: NetworkSpec,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        *,
        share_encoders: bool,
        normalize_observation: bool,
        normalize_value: bool,
        log_std: float = 0.0,
        squash: bool = False,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.share_encoders = share_encoders
        num_inputs = flat_size(observation_space)
        distribution = make_distribution(action_space, log_std=log_std, squash=squash)
        continuous = isinstance(observation_space, gymnasium.spaces.Box)  # one-hot inputs have their scale already
        self.observation_norm = RunningNorm(num_inputs) if normalize_observation and continuous else NoNorm()
        self.value_norm = RunningNorm(1) if normalize_value else NoNorm()
        encoder = EvolvableMLP(spec.encoder, num_inputs, spec.latent_dim)
        self.actor = Actor(encoder, EvolvableMLP(spec.head, spec.latent_dim, distribution.num_outputs), distribution)
        critic_encoder = encoder if share_encoders else EvolvableMLP(spec.encoder, num_inputs, spec.latent_dim)
        self.critic = Network(critic_encoder, EvolvableMLP(spec.value_head(), spec.latent_dim, 1))
        encoders = [] if share_encoders else [critic_encoder]
        modules = [encoder, self.actor.head, distribution, *encoders, self.critic.head]
        self._bounds = [0, *accumulate(len(list(module.parameters())) for module in modules)]

    def structure(self) -> Hashable:
        """What must be equal for members to be computed together, as far as members of a population can differ."""
        norms = type(self.observation_norm), type(self.value_norm)
        return self.spec.structure(), self.share_encoders, norms, getattr(self.actor.distribution, "squash", False)

    def reset_(self, generator: torch.Generator) -> None:
        """Draw initial weights from one stream."""
        self.actor.encoder.reset_(generator, output_gain=2**0.5)
        self.actor.head.reset_(generator, output_gain=VANISHING_GAIN if self.spec.head.output_vanish else 1.0)
        if not self.share_encoders:
            self.critic.encoder.reset_(generator, output_gain=2**0.5)
        self.critic.head.reset_(generator, output_gain=1.0)

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The policy's outputs `[…, num_outputs]` and the normalised value `[…]` of normalised observations."""
        if self.share_encoders:
            latent = self.actor.encoder(x)
            outputs, values = self.actor.head(latent), self.critic.head(latent)
        else:
            outputs, values = self.actor(x), self.critic(x)
        return outputs.to(x.dtype), values.to(x.dtype).squeeze(-1)

    def evaluate_actions(
        self, x: Tensor, raw: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Callable[[Slopes, Sequence[Tensor]], None]]:
        """Log-probability and entropy of raw actions, value, all `[P, B]`, and the way back of their gradients.

        The way back writes the gradients of all parameters, in their order, where it is told to.
        """
        actor, critic = self.actor, self.critic
        latent, pull_encoder = actor.encoder.pullback(x, to_input=False)
        outputs, pull_head = actor.head.pullback(latent, to_input=True)
        if self.share_encoders:
            pull_other = pull_encoder
        else:
            latent, pull_other = critic.encoder.pullback(x, to_input=False)
        values, pull_value = critic.head.pullback(latent, to_input=True)
        # distributions and losses are computed as precisely as weights are stored
        outputs, values = outputs.to(x.dtype), values.to(x.dtype)
        log_probs, entropy, pull_distribution = actor.distribution.pullback(outputs, raw, mask)

        def back(slopes: Slopes, into: Sequence[Tensor]) -> None:
            encoder, head, distribution, *other, critics_head = (into[a:b] for a, b in pairwise(self._bounds))
            of_outputs, of_distribution = pull_distribution(slopes.log_probs, slopes.entropy)
            for whole, part in zip(distribution, of_distribution, strict=True):
                whole.copy_(part)
            from_head = cast(Tensor, pull_head(of_outputs, head))
            from_value = cast(Tensor, pull_value(slopes.values.unsqueeze(-1), critics_head))
            if self.share_encoders:
                pull_encoder(from_head + from_value, encoder)
            else:
                pull_encoder(from_head, encoder)
                pull_other(from_value, *other)

        return log_probs, entropy, values.squeeze(-1), back

    def value(self, x: Tensor) -> Tensor:
        """The value `[…]` of normalised observations, in the environment's own units of reward."""
        return self.value_norm.invert(self.critic(x).to(x.dtype)).squeeze(-1)

    def advance_fades_(self, share: float) -> None:
        """Move every mutation that fades in a step onward."""
        for activation in fades(self):
            activation.advance_(share)

    def fade_left(self) -> float:
        """How much of the latest mutation has still to fade in: 0 when nothing does (for one member)."""
        return max((1.0 - float(activation.blend) for activation in fades(self)), default=0.0)

    def settle_(self) -> None:
        """Forget what was faded from, once it is gone (for one member)."""
        for module in (self.actor.encoder, self.actor.head, self.critic.encoder, self.critic.head):
            module.settle_()
        self.spec = self.spec.settled()


class NoNorm(nn.Module):
    """The normaliser that does nothing."""

    is_new = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return x

    def invert(self, x: Tensor) -> Tensor:
        """Return the numbers as they are."""
        return x

    def update_(self, x: Tensor, weight: Tensor) -> None:
        """Learn nothing."""


def fades(module: nn.Module) -> list[Activation]:
    """The activations in a module that come from something else."""
    return [layer for layer in module.modules() if isinstance(layer, Activation) and layer.before]
