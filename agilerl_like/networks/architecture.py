"""The architecture of an actor and its critic: encoder, latent layer, optional recurrent layers, head.

`NetworkSpec` is the architecture half of a genome. Actor and critic always have the same shape, so a mutation changes
both in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple, cast

from agilerl_like.envs.spaces import Leaf, ObservationEncoder
from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.modules.cnn import CNNSpec, EvolvableCNN
from agilerl_like.modules.composite import CompositeSpec
from agilerl_like.modules.evolvable_module import EvolvableModule
from agilerl_like.modules.flatten_inputs import FlatMLP, FlatSimBa
from agilerl_like.modules.memory_module import MemorySpec
from agilerl_like.modules.mlp import EvolvableMLP, MLPSpec
from agilerl_like.modules.multi_input import EvolvableMultiInput, MultiInputSpec
from agilerl_like.modules.recurrent import MEMORIES, LSTMSpec
from agilerl_like.modules.resnet import EvolvableResNet, ResNetSpec
from agilerl_like.modules.simba import EvolvableSimBa, SimBaSpec
from agilerl_like.modules.spec import Arguments, OperatorKind, Spec, check_limits, check_mapping, check_range
from agilerl_like.networks.custom import Branch, CustomSpec, EvolvableCustom
from agilerl_like.networks.identity_module import EmptySpec
from agilerl_like.registry import Registry, registered

PARTS = ("encoder", "memory", "head")
"""The parts of a network, from input to output; "memory" holds the recurrent layers."""

NET_CONFIG_KEYS = (
    "encoder",
    "simba",
    *(f"{part}_config" for part in PARTS),
    "latent_dim",
    "min_latent_dim",
    "max_latent_dim",
)
"""The keys of a `net_config`."""


class EncoderKind(NamedTuple):
    """A kind of encoder: its spec, the module that is built from it, and the form of its inputs."""

    spec: type[Spec]
    module: Callable[..., EvolvableModule]
    input_form: Literal["vectors", "image", "parts"]
    flat: Callable[..., EvolvableModule] | None = None
    """The module for a kind that reads vectors when the observation contains images: it flattens them."""


ENCODERS: Registry[EncoderKind] = registered(
    "encoder",
    {
        "mlp": EncoderKind(MLPSpec, EvolvableMLP, "vectors", FlatMLP),
        "simba": EncoderKind(SimBaSpec, EvolvableSimBa, "vectors", FlatSimBa),
        "cnn": EncoderKind(CNNSpec, EvolvableCNN, "image"),
        "resnet": EncoderKind(ResNetSpec, EvolvableResNet, "image"),
        "multi_input": EncoderKind(MultiInputSpec, EvolvableMultiInput, "parts"),
    },
)
"""Kinds of encoder by the name in `net_config["encoder"]`."""


@dataclass(frozen=True)
class NetworkSpec(CompositeSpec):
    """The architecture of an actor and its critic: encoder, latent layer, memory, head."""

    encoder: Spec = field(default_factory=lambda: MLPSpec(output_activation=MLPSpec.activation))
    """From the observation to the latent layer."""
    memory: EmptySpec | MemorySpec = field(default_factory=EmptySpec)
    """Recurrent layers on top of the latent layer, if any."""
    head: MLPSpec | EmptySpec = field(default_factory=MLPSpec)
    """From there to the outputs; empty where the encoder is a whole network supplied by the user."""
    latent_dim: int = 64
    """Width of the latent layer, which is the encoder's output."""
    min_latent_dim: int = 8
    max_latent_dim: int = 128

    OPERATORS: ClassVar[Mapping[str, OperatorKind]] = {
        "add_latent_node": "node",
        "remove_latent_node": "node",
        "change_activation": "activation",
    }

    UNION_FIELDS = ("latent_dim", "max_latent_dim")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_limits(self, "min_latent_dim", "max_latent_dim")
        check_range("latent_dim", self.latent_dim, self.min_latent_dim, self.max_latent_dim)
        if getattr(self.encoder, "output_layernorm", False) and self.min_latent_dim < 2:
            raise ConfigurationError(
                "min_latent_dim=1 is too few for output_layernorm=True, which maps a single node to a constant"
            )

    @property
    def parts(self) -> dict[str, Spec]:
        return {name: getattr(self, name) for name in PARTS}

    def with_parts(self, parts: Mapping[str, Spec], **changes: Any) -> NetworkSpec:
        return self.evolve(**parts, **changes)

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        if "." not in operator and isinstance(self.encoder, CustomSpec):
            return ()
        return super().choices(operator)

    # -- stacking members

    @property
    def stack_sort_key(self) -> tuple[tuple[str, ...], int]:
        """Sort key of members in a stack: activations, then how much deeper the head is than the encoder.

        Members with a deep encoder come first and those with a deep head last, so that the members that have a certain
        layer are contiguous.
        """
        return self.activation_names, self.head.depth - self.encoder.depth

    def multiply_adds(self, padded: NetworkSpec, inputs: Any, num_outputs: int) -> int:
        """Return the multiply-adds of an actor for one observation."""
        head_inputs = head_input_size(padded)
        return (
            self.encoder.multiply_adds(padded.encoder, inputs, padded.latent_dim)
            + cast(Spec, self.memory).multiply_adds(padded.memory, padded.latent_dim, head_inputs)
            + cast(Spec, self.head).multiply_adds(padded.head, head_inputs, num_outputs)
        )

    def value_head(self) -> MLPSpec | EmptySpec:
        """Return the critic's head: without output activation or normalization, which would distort the value."""
        if isinstance(self.head, EmptySpec):
            return self.head
        fading = (*self.head.fading[:-1], "") if self.head.fading else ()
        plain = {"output_activation": "Identity", "output_layernorm": False, "fading": fading}
        is_plain = all(getattr(self.head, name) == value for name, value in plain.items())
        return self.head if is_plain else self.head.evolve(**plain)

    # -- description and configuration

    def describe(self) -> str:
        """Return one line for tables and logs."""
        if isinstance(self.encoder, CustomSpec):
            return self.encoder.describe()
        activations = dict.fromkeys((*self.encoder.activation_names[:1], *self.head.activation_names[:1]))
        return f"{' | '.join(self._sizes.values())} {'/'.join(activations)}"

    def legend(self) -> str:
        """Return the names of the fields of `describe`."""
        return "" if isinstance(self.encoder, CustomSpec) else f"{' | '.join(self._sizes)} activation"

    @property
    def _sizes(self) -> dict[str, str]:
        """The descriptions of the parts that are not empty."""
        parts = {name: spec.describe() for name, spec in self.parts.items()}
        sizes = {"encoder": parts.pop("encoder"), "latent": str(self.latent_dim), **parts}
        return {name: size for name, size in sizes.items() if size}

    @classmethod
    def from_net_config(
        cls,
        net_config: Mapping[str, Any] | None,
        leaves: Sequence[Leaf] = (),
        *,
        recurrent: bool = False,
    ) -> NetworkSpec:
        """Return the spec of AgileRL's `net_config` for observations with these leaves; without leaves, for one vector.

        Its keys are `encoder` (a name in `ENCODERS`; by default the kind that fits the observations), `encoder_config`,
        `memory_config`, `head_config`, `latent_dim`, `min_latent_dim`, `max_latent_dim`; None means the default. The
        encoder's output activation is its hidden one unless given. Convolutions that are not configured are chosen for
        the image's size (see `modules.default_convs`).

        Raises:
            ConfigurationError: a key is unknown (near ones are named) or a value illegal.
        """
        check_mapping("net_config", {} if net_config is None else net_config)
        config = {key: value for key, value in (net_config or {}).items() if value is not None}
        for key in config:
            if key not in NET_CONFIG_KEYS:
                raise unknown_name("net_config key", key, NET_CONFIG_KEYS)
        default = "simba" if config.pop("simba", False) else default_encoder(leaves)
        name = config.pop("encoder", default)
        check_encoder_name(name)
        encoder, memory, head = (dict(_mapping(f"{part}_config", config.pop(f"{part}_config", {}))) for part in PARTS)
        if recurrent:
            encoder, own = split_recurrent(encoder)
            memory = own | memory
            memory.pop("max_seq_len", None)  # see `sequence_length`
        if memory and not recurrent:
            raise ConfigurationError(f"memory_config={memory!r} has no meaning without recurrent=True; leave it out")
        spec, inputs = ENCODERS[name].spec, _input_forms(leaves).get(ENCODERS[name].input_form)
        if encoder.get("output_activation") is None and hasattr(spec, "output_activation"):
            encoder["output_activation"] = encoder.get("activation") or getattr(spec, "activation", "ReLU")
        return cls(
            encoder=spec.from_config("encoder_config", encoder, inputs),
            memory=_memory_spec(memory) if recurrent else EmptySpec(),
            head=MLPSpec.from_config("head_config", head),
            **config,
        )

    @classmethod
    def custom(cls, networks: CustomSpec) -> NetworkSpec:
        """Return the architecture of whole networks supplied by the user."""
        return cls(encoder=networks, head=EmptySpec())

    def to_config(self) -> dict[str, Any]:
        values = super().to_config()
        name = next((name for name, kind in ENCODERS.items() if kind.spec is type(self.encoder)), "custom")
        parts = {f"{part}_config": spec.to_config() for part, spec in self.parts.items()}
        if not isinstance(self.memory, EmptySpec | LSTMSpec):
            kind = next(name for name, kind in MEMORIES.items() if kind.spec is type(self.memory))
            parts["memory_config"] = {"cell": kind, **parts["memory_config"]}
        return {"encoder": name, **parts, **{key: value for key, value in values.items() if key not in PARTS}}


def _memory_spec(config: Mapping[str, Any]) -> MemorySpec:
    """Return the spec of a `memory_config`, whose `cell` names the kind of memory: "LSTM" by default."""
    kind = MEMORIES.find("memory_config: cell", config.get("cell", LSTMSpec.cell)).spec
    if not issubclass(kind, LSTMSpec):
        config = {key: value for key, value in config.items() if key != "cell"}
    return kind.from_config("memory_config", config)


def _mapping(field: str, value: Any) -> Mapping[str, Any]:
    check_mapping(field, value)
    return value


def head_input_size(spec: NetworkSpec) -> int:
    """Return the number of the head's inputs."""
    return spec.latent_dim if isinstance(spec.memory, EmptySpec) else spec.memory.hidden_state_size


def split_recurrent(encoder_config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split an `encoder_config` into the settings of the encoder and those of the recurrent layers behind it.

    AgileRL's recurrent encoder is an LSTM alone: where `hidden_state_size` is given, an LSTM's settings configure the
    recurrent layers, and the encoder is the default one.
    """
    names = {field.name for field in fields(LSTMSpec)} if "hidden_state_size" in encoder_config else set()
    memory = {name: value for name, value in encoder_config.items() if name in names | {"max_seq_len"}}
    return {name: value for name, value in encoder_config.items() if name not in memory}, memory


def sequence_length(net_config: Mapping[str, Any] | None) -> int | None:
    """Return the `max_seq_len` in a `net_config`, None if there is none.

    It is a setting of AgileRL's recurrent encoder. Here it is a setting of the update, which splits rollouts into
    sequences, so the value in the `net_config` is the default of the agent's `max_seq_len`.
    """
    configs = [_mapping(part, (net_config or {}).get(part) or {}) for part in ("encoder_config", "memory_config")]
    return next((config["max_seq_len"] for config in configs if config.get("max_seq_len") is not None), None)


def check_encoder(name: str | None, config: Any) -> None:
    """Raise ConfigurationError unless a configuration fits the named kind of encoder, or the best guess of it."""
    check_mapping("encoder_config", config)
    config, memory = split_recurrent(config)
    LSTMSpec.from_config("encoder_config", {name: value for name, value in memory.items() if name != "max_seq_len"})
    name = name or guess_encoder(config)
    check_encoder_name(name)
    ENCODERS[name].spec.from_config("encoder_config", config)


def check_encoder_name(name: object) -> None:
    """Raise ConfigurationError unless a kind of encoder has this name."""
    if not isinstance(name, str) or name not in ENCODERS:
        raise unknown_name("encoder", name, ENCODERS)


def inherits_encoder_config(common: Mapping[str, Any], its: Mapping[str, Any]) -> bool:
    """Return whether a group's encoder inherits the common `encoder_config`: some kind of encoder fits both."""
    names = [network["encoder"] for network in (common, its) if network.get("encoder") is not None]
    config, own = common.get("encoder_config", {}), its.get("encoder_config", {})
    keys = own.keys() if isinstance(own, Mapping) else set()
    for name, kind in ENCODERS.items():
        if all(name == wanted for wanted in names) and keys <= kind.spec.config_keys():
            with contextlib.suppress(ConfigurationError):
                check_encoder(name, config)
                return True
    return False


def guess_encoder(config: Mapping[str, Any]) -> str:
    """Return the kind of encoder that has the most keys of a configuration."""
    known = {name: kind.spec.config_keys() & config.keys() for name, kind in ENCODERS.items()}
    return max(known, key=lambda kind: len(known[kind]))


def make_encoder(spec: NetworkSpec, encoding: ObservationEncoder, branch: Branch, num_outputs: int) -> EvolvableModule:
    """Build the encoder of an actor or a critic.

    A whole network supplied by the user has `num_outputs` outputs, any other encoder as many as the latent layer.

    Raises:
        ConfigurationError: this kind of encoder cannot read the observations.
    """
    if isinstance(spec.encoder, CustomSpec):
        return EvolvableCustom(spec.encoder, (encoding, branch), num_outputs)
    name, kind = next((name, kind) for name, kind in ENCODERS.items() if kind.spec is type(spec.encoder))
    forms = _input_forms(encoding.leaves)
    if kind.input_form not in forms:
        allowed = [name for name, kind in ENCODERS.items() if kind.input_form in forms]
        raise ConfigurationError(f"encoder={name!r} cannot read {encoding.space}; allowed are {', '.join(allowed)}")
    module = kind.flat if kind.flat and any(leaf.kind == "image" for leaf in encoding.leaves) else kind.module
    return module(spec.encoder, forms[kind.input_form], spec.latent_dim)


def _input_forms(leaves: Sequence[Leaf]) -> dict[str, Any]:
    """Return the input forms that observations with these leaves have, and the `inputs` argument of each."""
    images = [leaf for leaf in leaves if leaf.kind == "image"]
    forms: dict[str, Any] = {"vectors": leaves if images else sum(leaf.size for leaf in leaves)}
    if len(images) == len(leaves) == 1:
        forms["image"] = leaves[0]
    if all(leaf.path for leaf in leaves):
        forms["parts"] = leaves
    return forms


def default_encoder(leaves: Sequence[Leaf]) -> str:
    """Return the name of the kind of encoder that fits the observations."""
    if len(leaves) > 1 or any(leaf.path for leaf in leaves):
        return "multi_input"
    return "cnn" if leaves and leaves[0].kind == "image" else "mlp"
