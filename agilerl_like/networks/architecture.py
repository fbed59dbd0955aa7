"""The architecture of an actor and its critic: encoder, latent layer, optional recurrent layers, head.

`NetworkSpec` is the architecture half of a genome. Actor and critic have the same shape, and a mutation changes both in
the same way, unless the critic has an architecture of its own (`critic_config`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple, cast

from agilerl_like.envs.spaces import Leaf, ObservationEncoder
from agilerl_like.errors import ConfigurationError, check_mapping, unknown_name
from agilerl_like.modules.cnn import CNNSpec, EvolvableCNN
from agilerl_like.modules.composite import CompositeSpec
from agilerl_like.modules.evolvable_module import EvolvableModule
from agilerl_like.modules.flatten_inputs import FlatMLP, FlatSimBa
from agilerl_like.modules.memories import MEMORIES
from agilerl_like.modules.memory_module import MemorySpec
from agilerl_like.modules.mlp import EvolvableMLP, MLPSpec
from agilerl_like.modules.multi_input import EvolvableMultiInput, MultiInputSpec
from agilerl_like.modules.recurrent import LSTMSpec
from agilerl_like.modules.resnet import EvolvableResNet, ResNetSpec
from agilerl_like.modules.simba import EvolvableSimBa, SimBaSpec
from agilerl_like.modules.spec import Arguments, OperatorKind, Spec, check_limits, check_normalised_latent, check_range
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
    "critic_config",
)
"""The keys of a `net_config`."""

CRITIC = "critic"
"""First part of the operators that change the critic alone."""
CRITIC_EVOLVES = ("alike", "apart")
"""Whether a mutation changes actor and critic in the same way, or one of them."""


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
    critic: NetworkSpec | None = None
    """The critic's own architecture, without memory, which is the actor's; None: that of the actor."""
    critic_evolves: str = "alike"
    """How the critic's own architecture evolves (see `CRITIC_EVOLVES`)."""

    OPERATORS: ClassVar[Mapping[str, OperatorKind]] = {
        "add_latent_node": "node",
        "remove_latent_node": "node",
        "change_activation": "activation",
    }

    UNION_FIELDS = ("latent_dim", "max_latent_dim")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_limits(self, "min_latent_dim", "max_latent_dim")
        check_range(self, "latent_dim", self.latent_dim, "min_latent_dim", "max_latent_dim")
        check_normalised_latent(self, [self.encoder])

    @property
    def parts(self) -> dict[str, Spec]:
        return {name: getattr(self, name) for name in PARTS}

    def with_parts(self, parts: Mapping[str, Spec], **changes: Any) -> NetworkSpec:
        return self.evolve(**parts, **changes)

    # -- the critic's own architecture

    @property
    def of_critic(self) -> NetworkSpec:
        """The architecture of the critic; its `encoder`, `memory`, `head` and `latent_dim` are the critic's."""
        return self if self.critic is None else self.critic.evolve(memory=self.memory)

    @property
    def operator_kinds(self) -> Mapping[str, OperatorKind]:
        if self.critic is None:
            return super().operator_kinds
        its = self.critic.operator_kinds
        prefix = f"{CRITIC}." if self.critic_evolves == "apart" else ""
        return {**super().operator_kinds, **{f"{prefix}{operator}": kind for operator, kind in its.items()}}

    def branch_operators(self, operator: str) -> tuple[str, str]:
        """Return what an operator is for the actor and for the critic: its own name, or "" for no change."""
        if self.critic is None:
            return operator, operator
        if self.critic_evolves == "apart":
            inner = operator.removeprefix(f"{CRITIC}.")
            return (operator, "") if inner == operator else ("", inner)
        own, its = super().operator_kinds, self.critic.operator_kinds
        return operator if operator in own else "", operator if operator in its else ""

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        if "." not in operator and isinstance(self.encoder, CustomSpec):
            return ()
        if self.critic is None:
            return super().choices(operator)
        own, its = self.branch_operators(operator)
        of_actor = super().choices(own) if own else ()
        of_critic = self.critic.choices(its) if its else ()
        if own and its:
            return tuple(arguments for arguments in of_actor if arguments in of_critic)
        return of_actor or of_critic

    def apply(self, operator: str, **arguments: int | float | str) -> NetworkSpec:
        if self.critic is None or operator not in self.operator_kinds:
            return super().apply(operator, **arguments)
        own, its = self.branch_operators(operator)
        changed = super().apply(own, **arguments) if own else self
        return changed.evolve(critic=self.critic.apply(its, **arguments)) if its else changed

    @property
    def is_fading(self) -> bool:
        return super().is_fading or (self.critic is not None and self.critic.is_fading)

    def without_fading(self) -> NetworkSpec:
        found = super().without_fading()
        return found if self.critic is None else found.evolve(critic=self.critic.without_fading())

    # -- stacking members

    @property
    def stack_sort_key(self) -> tuple[tuple[str, ...], int]:
        """Sort key of members in a stack: activations, then how much deeper the head is than the encoder.

        Members with a deep encoder come first and those with a deep head last, so that the members that have a certain
        layer are contiguous.
        """
        return self.activation_names, self.head.depth - self.encoder.depth

    def stack_key(self) -> Hashable:
        return super().stack_key() if self.critic is None else (super().stack_key(), self.critic.stack_key())

    @classmethod
    def padded_union(cls, specs: Sequence[Any]) -> NetworkSpec:
        union = super().padded_union(specs)
        if union.critic is None:
            return union
        return union.evolve(critic=NetworkSpec.padded_union([spec.critic for spec in specs]))

    def multiply_adds(self, padded: NetworkSpec, inputs: Any, num_outputs: int, critic_inputs: Any = None) -> int:
        """Return the multiply-adds of an actor for one observation; with a critic of its own, the mean of both."""
        if self.critic is not None and padded.critic is not None:
            of_actor = self.evolve(critic=None).multiply_adds(padded, inputs, num_outputs)
            of_critic = self.of_critic.multiply_adds(padded.of_critic, critic_inputs or inputs, 1)
            return (of_actor + of_critic) // 2
        head_inputs = head_input_size(padded)
        return (
            self.encoder.multiply_adds(padded.encoder, inputs, padded.latent_dim)
            + cast(Spec, self.memory).multiply_adds(padded.memory, padded.latent_dim, head_inputs)
            + cast(Spec, self.head).multiply_adds(padded.head, head_inputs, num_outputs)
        )

    def value_head(self) -> MLPSpec | EmptySpec:
        """Return the critic's head: without output activation or normalization, which would distort the value."""
        head = self.head if self.critic is None else self.critic.head
        if isinstance(head, EmptySpec):
            return head
        fading = (*head.fading[:-1], "") if head.fading else ()
        plain = {"output_activation": "Identity", "output_layernorm": False, "fading": fading}
        is_plain = all(getattr(head, name) == value for name, value in plain.items())
        return head if is_plain else head.evolve(**plain)

    # -- description and configuration

    def describe(self) -> str:
        """Return one line for tables and logs."""
        if isinstance(self.encoder, CustomSpec):
            return self.encoder.describe()
        if self.critic is not None:
            return f"{self.evolve(critic=None).describe()} / {self.critic.describe()}"
        return f"{' | '.join(self._sizes.values())} {'/'.join(self._activations)}".rstrip()

    def legend(self) -> str:
        """Return the names of the fields of `describe`."""
        if isinstance(self.encoder, CustomSpec):
            return ""
        own = f"{' | '.join(self._sizes)}{' activation' if self._activations else ''}"
        return own if self.critic is None else f"actor {own} / critic {self.critic.legend()}"

    @property
    def _activations(self) -> dict[str, None]:
        """The activations of encoder and head, in order, each once; empty for a linear network."""
        return dict.fromkeys((*self.encoder.shown_activations, *self.head.shown_activations))

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
        critic_leaves: Sequence[Leaf] | None = None,
        evolved: bool = False,
    ) -> NetworkSpec:
        """Return the spec of AgileRL's `net_config` for observations with these leaves; without leaves, for one vector.

        Its keys are `encoder` (a name in `ENCODERS`; by default the kind that fits the observations), `encoder_config`,
        `memory_config`, `head_config`, `latent_dim`, `min_latent_dim`, `max_latent_dim`; None means the default. The
        encoder's output activation is its hidden one unless given. Convolutions that are not configured are chosen for
        the image's size (see `modules.cnn_defaults.default_conv_layers`).

        `critic_config` has the keys that differ for the critic, also within `encoder_config` and `head_config`, and
        `evolves`: "alike" (each mutation that both allow changes both) or "apart" (each mutation changes one of them).
        The memory is the same in both. `critic_leaves` are those of the critic's observations, if they are not the
        actor's. A critic with the actor's architecture that evolves alike is no critic of its own, unless the
        architecture has `evolved`: mutations may have made them equal.

        Raises:
            ConfigurationError: a key is unknown (near ones are named) or a value illegal, or `simba` (AgileRL's key for
                that encoder) is true beside another `encoder`.
        """
        check_mapping("net_config", {} if net_config is None else net_config)
        config = {key: value for key, value in (net_config or {}).items() if value is not None}
        for key in config:
            if key not in NET_CONFIG_KEYS:
                raise unknown_name("net_config key", key, NET_CONFIG_KEYS)
        of_critic = dict(_mapping("critic_config", config.pop("critic_config", {})))
        if of_critic or critic_leaves is not None:
            own = cls.from_net_config(config, leaves, recurrent=recurrent)
            spec = _with_critic(own, config, of_critic, leaves if critic_leaves is None else critic_leaves)
            is_own = evolved or spec.critic_evolves != "alike" or spec.critic != own.evolve(memory=EmptySpec())
            return spec if is_own else own
        named = named_encoder(config)
        name = default_encoder(leaves) if named is None else named
        check_encoder_name(name)
        config = {key: value for key, value in config.items() if key not in ("encoder", "simba")}
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
        name = _encoder_name(self.encoder)
        parts = {f"{part}_config": spec.to_config() for part, spec in self.parts.items()}
        if type(self.memory) not in (EmptySpec, LSTMSpec):
            kind = next(name for name, kind in MEMORIES.items() if kind.spec is type(self.memory))
            parts["memory_config"] = {"cell": kind, **parts["memory_config"]} | {"cell": kind}
        own = {key: value for key, value in values.items() if key not in (*PARTS, "critic", "critic_evolves")}
        critic = {} if self.critic is None else {**self.critic.to_config(), "evolves": self.critic_evolves}
        return {"encoder": name, **parts, **own, **({"critic_config": critic} if critic else {})}


def _with_critic(
    actor: NetworkSpec, net_config: Mapping[str, Any], given: dict[str, Any], leaves: Sequence[Leaf]
) -> NetworkSpec:
    """Return the architecture with the critic's own, of a `critic_config` and of observations with these leaves.

    Keys that are not given, also within `encoder_config` and `head_config`, are those of `net_config`; an encoder of
    another kind has its own defaults.

    Raises:
        ConfigurationError: a key is unknown, or a value illegal.
    """
    evolves = given.pop("evolves", CRITIC_EVOLVES[0])
    if evolves not in CRITIC_EVOLVES:
        raise ConfigurationError(f"critic_config: evolves={evolves!r}; allowed are {' and '.join(CRITIC_EVOLVES)}")
    allowed = [key for key in NET_CONFIG_KEYS if key not in ("memory_config", "critic_config")]
    for key in given:
        if key == "memory_config" and not given[key]:
            continue
        if key not in allowed:
            raise unknown_name("critic_config key", key, [*allowed, "evolves"])
    kind, named = _encoder_name(actor.encoder), named_encoder(given, "critic_config: ")
    if named is not None:
        kind = named
    elif ENCODERS[kind].input_form not in _input_forms(leaves):
        kind = default_encoder(leaves)
    inherited = {key: value for key, value in net_config.items() if key in allowed and key != "simba"}
    is_same_kind = kind == _encoder_name(actor.encoder)
    inherited["encoder_config"] = (
        split_recurrent(inherited.get("encoder_config", {}))[0] if is_same_kind else {}  # without an LSTM's settings
    )
    own = {key: value for key, value in given.items() if value is not None and key not in ("simba", "memory_config")}
    for part in ("encoder_config", "head_config"):
        own[part] = {**_mapping(part, inherited.get(part) or {}), **_mapping(part, own.get(part, {}))}
    try:
        critic = NetworkSpec.from_net_config({**inherited, **own, "encoder": kind}, leaves)
    except ConfigurationError as error:
        raise ConfigurationError(f"critic_config: {error}") from error
    return actor.evolve(critic=critic, critic_evolves=evolves)


def _encoder_name(spec: Spec) -> str:
    """Return the name of an encoder's kind; "custom" for networks supplied by the user."""
    return next((name for name, kind in ENCODERS.items() if kind.spec is type(spec)), "custom")


def _memory_spec(config: Mapping[str, Any]) -> MemorySpec:
    """Return the spec of a `memory_config`, whose `cell` names the kind of memory: "LSTM" by default."""
    kind = MEMORIES.find("memory_config: cell", config.get("cell", LSTMSpec.cell)).spec
    if kind is not LSTMSpec:
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


def with_layer_norm(net_config: Mapping[str, Any] | None, leaves: Sequence[Leaf]) -> dict[str, Any]:
    """Return a `net_config` whose layers are normalised where it does not set `layer_norm`, for these observations.

    Layers of encoder and head have it, and the encoder's outputs, too (`output_layernorm`). Of observations with
    several parts the extractors have it that no entry of `extractors` configures. Other kinds of encoders, such as
    `simba` and `resnet`, stay as they are.
    """
    config = {key: value for key, value in _mapping("net_config", net_config or {}).items() if value is not None}
    name = named_encoder(config)
    name = default_encoder(leaves) if name is None else name
    kind = ENCODERS.get(name) if isinstance(name, str) else None  # an unknown name is an error of the spec
    encoder = dict(_mapping("encoder_config", config.get("encoder_config", {})))
    normed = {"layer_norm": True}
    if kind is not None and kind.spec is MultiInputSpec:
        parts = ["cnn_config", *(["mlp_config"] if encoder.get("vector_space_mlp") is True else [])]
        encoder |= {part: {**normed, **_mapping(part, encoder.get(part) or {})} for part in parts}
    elif kind is not None:
        known = {each.name for each in fields(kind.spec)}
        encoder = {key: True for key in ("layer_norm", "output_layernorm") if key in known} | encoder
    head = {**normed, **_mapping("head_config", config.get("head_config", {}))}
    return {**config, "encoder_config": encoder, "head_config": head}


def with_critic_config(
    net_config: Mapping[str, Any] | None, critic_config: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return a `net_config` with a `critic_config` inside.

    Raises:
        ConfigurationError: it has another one already.
    """
    if critic_config is None:
        return net_config
    config = dict(_mapping("net_config", net_config or {}))
    if config.get("critic_config"):
        raise ConfigurationError(
            "critic_config is given, and net_config has the key critic_config; allowed is one of them"
        )
    return {**config, "critic_config": critic_config}


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
    if callable(name):  # a module, or its class
        shown = getattr(name, "__name__", type(name).__name__)
        raise ConfigurationError(
            f"encoder={shown}; allowed are names: {', '.join(sorted(ENCODERS))}, and those that "
            'register("encoder", NAME, EncoderKind(SPEC, MODULE, "vectors")) adds, as tutorials/own_encoder.py does'
        )
    if not isinstance(name, str) or name not in ENCODERS:
        raise unknown_name("encoder", name, ENCODERS)


def named_encoder(config: Mapping[str, Any], where: str = "") -> str | None:
    """Return the kind of encoder that a `net_config` names, by `encoder` or by AgileRL's `simba`; None if it has none.

    Raises:
        ConfigurationError: both are given, and differ; the message begins with `where`.
    """
    name = config.get("encoder")
    if not config.get("simba"):
        return name
    if name not in (None, "simba"):
        raise ConfigurationError(
            f"{where}encoder={name!r} contradicts simba={config['simba']!r}; allowed is one of them"
        )
    return "simba"


def inherited_by(own: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the common settings for a group with its own ones: without their kind of encoder if it names another."""
    return {**common, **({} if named_encoder(own) is None else {"encoder": None, "simba": False})}


def inherits_encoder_config(common: Mapping[str, Any], its: Mapping[str, Any]) -> bool:
    """Return whether a group's encoder inherits the common `encoder_config`: some kind of encoder fits both."""
    names = [name for name in map(named_encoder, (common, its)) if name is not None]
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
    forms, has_image = _input_forms(encoding.leaves), any(leaf.kind == "image" for leaf in encoding.leaves)
    modules = {
        name: kind.flat if has_image and kind.input_form == "vectors" else kind.module
        for name, kind in ENCODERS.items()
        if kind.input_form in forms
    }
    module = modules.get(name)
    if module is None:
        allowed = ", ".join(name for name, module in modules.items() if module is not None)
        raise ConfigurationError(f"encoder={name!r} cannot read {encoding.space}; allowed are {allowed}")
    return module(spec.encoder, forms[kind.input_form], spec.latent_dim)


def rebuild_encoder(encoder: EvolvableModule, spec: Spec, num_outputs: int) -> EvolvableModule:
    """Return an encoder with the same inputs, built from another spec of its kind; its weights may be undefined.

    As in `make_encoder`, the entry of its kind builds it, which may be a function with arguments of its own, such as a
    `functools.partial`, that the class of the module lacks.
    """
    if isinstance(encoder, EvolvableCustom):
        return EvolvableCustom(cast(CustomSpec, spec), encoder.inputs, num_outputs)
    kind = next(kind for kind in ENCODERS.values() if kind.spec is type(spec))
    if kind.flat is not None and kind.input_form == "vectors" and isinstance(encoder.inputs, Sequence):
        return kind.flat(spec, encoder.inputs, num_outputs)
    return kind.module(spec, encoder.inputs, num_outputs)


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
