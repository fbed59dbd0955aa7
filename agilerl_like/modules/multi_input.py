"""The evolvable encoder of observations with several parts: an extractor for each, and one linear layer over them all.

An image has a convolutional extractor. A vector may have one of its own, or goes into the linear layer as it is. Every
extractor evolves by itself, under the name of its part ("camera.add_channel"); how wide their outputs are (the latent
layer) is one number for all; a memory, which reads a window of time, has as many as it remembers.

The subtlety is the linear layer: it is kept as one map for each extractor, and what they give is added. That is the
same as one map of all outputs side by side, but when extractors get wider, or members of a stack have unequal ones, no
columns have to move.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from agilerl_like.envs.spaces import Leaf
from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.modules.base import (
    Arguments,
    EvolvableModule,
    OperatorKind,
    Spec,
    UnitAxes,
    UnitChange,
    UnitMaps,
    check_limits,
    check_mapping,
    check_range,
)
from agilerl_like.modules.cnn import CNNSpec, EvolvableCNN
from agilerl_like.modules.conv_layers import ImageEncoder
from agilerl_like.modules.history_lstm import EvolvableHistoryLSTM, HistoryLSTMSpec
from agilerl_like.modules.inplace_mutation import mutation_method
from agilerl_like.modules.layers import Activation, Linear, check_activation
from agilerl_like.modules.mlp import EvolvableMLP, MLPSpec
from agilerl_like.modules.resnet import EvolvableResNet, ResNetSpec
from agilerl_like.modules.simba import EvolvableSimBa, SimBaSpec
from agilerl_like.registry import Registry, registered

LATENT_STEPS = (8, 16, 32)
"""How many latent nodes a mutation adds or removes (AgileRL's choice)."""


class ExtractorKind(NamedTuple):
    """A kind of extractor."""

    spec: type[Spec]
    module: Callable[[Any, Any, int], EvolvableModule]
    input_form: str
    """Which form of an observation's part: a key of what `_forms` returns."""


EXTRACTORS: Registry[ExtractorKind] = registered(
    "extractor",
    {
        "mlp": ExtractorKind(MLPSpec, EvolvableMLP, "numbers"),
        "lstm": ExtractorKind(HistoryLSTMSpec, lambda spec, inputs, _: EvolvableHistoryLSTM(spec, inputs), "window"),
        "cnn": ExtractorKind(CNNSpec, EvolvableCNN, "image"),
        "resnet": ExtractorKind(ResNetSpec, EvolvableResNet, "image"),
        "simba": ExtractorKind(SimBaSpec, EvolvableSimBa, "numbers"),
    },
)
"""Every kind of extractor, by the name that a configuration may give as `encoder`."""
DEFAULT_EXTRACTORS = ("cnn", "mlp", "lstm")
"""Those that parts get for which none is named, as `cnn_config`, `mlp_config` and `lstm_config` have them."""


@dataclass(frozen=True)
class MultiInputSpec(Spec):
    """The architecture of an `EvolvableMultiInput`.

    `from_config` makes one of AgileRL's keys for the parts of an observation.
    """

    extractors: tuple[tuple[str, Spec], ...] = ()
    """The name of each part that has an extractor ("body.arm" for what lies deeper), and the extractor's spec."""
    latent_dim: int = 32
    """Outputs of each extractor."""
    min_latent_dim: int = 8
    """Fewest of them that a mutation may leave."""
    max_latent_dim: int = 128
    """Most of them that a mutation may make."""
    activation: str = "ReLU"
    """Activation of those extractors that are given none of their own."""
    output_activation: str = "Identity"
    """Activation of the linear layer."""
    init_layers: bool = True
    """Orthogonal initial weights; otherwise uniform in +-1/sqrt(inputs)."""
    fading: str = ""
    """What the linear layer's activation fades from; empty if it does not."""

    OPERATORS: ClassVar[Mapping[str, OperatorKind]] = {
        "add_latent_node": "node",
        "remove_latent_node": "node",
        "change_activation": "activation",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, spec in self.extractors:
            if type(spec) not in {kind.spec for kind in EXTRACTORS.values()}:
                allowed = ", ".join(kind.spec.__name__ for kind in EXTRACTORS.values())
                raise ConfigurationError(f"extractors[{name!r}]={spec!r} is no extractor; allowed are {allowed}")
        check_limits(self, "min_latent_dim", "max_latent_dim")
        check_range("latent_dim", self.latent_dim, self.min_latent_dim, self.max_latent_dim)
        check_activation("activation", self.activation)
        check_activation("output_activation", self.output_activation)
        if self.fading:
            check_activation("fading", self.fading)

    # -- configurations

    @classmethod
    def config_keys(cls) -> set[str]:
        return super().config_keys() | {
            "vector_space_mlp",
            "init_dicts",
            *(f"{kind}_config" for kind in DEFAULT_EXTRACTORS),
        }

    @classmethod
    def from_config(cls, field: str, config: Mapping[str, Any], inputs: Sequence[Leaf] | None = None) -> MultiInputSpec:
        """Build a spec from a plain mapping, for observations of these leaves.

        Beside the fields of the spec it takes AgileRL's keys, which say what parts without an entry in `extractors`
        (AgileRL: `init_dicts`) get: `cnn_config` for images, `lstm_config` (if given) for windows of time, which are
        Boxes `[time, features]`, and `mlp_config` for all else if `vector_space_mlp` is True. An entry of `extractors`
        is such a configuration too; its key `encoder` says of which kind. Without leaves only what is in `extractors`
        gets an extractor, as `to_config` has written it.

        Raises:
            ConfigurationError: an unknown key or part (near ones are named), or an illegal value.
        """
        check_mapping(field, config)
        given = {key: value for key, value in config.items() if value is not None}
        usual = {kind: given.pop(f"{kind}_config") for kind in DEFAULT_EXTRACTORS if f"{kind}_config" in given}
        mlp_for_vectors = given.pop("vector_space_mlp", False)
        if not isinstance(mlp_for_vectors, bool):
            raise ConfigurationError(f"{field}: vector_space_mlp={mlp_for_vectors!r} must be True or False")
        named = given.pop("extractors", given.pop("init_dicts", {}))
        check_mapping(f"{field}.extractors", named)
        leaves = {leaf.name: leaf for leaf in inputs or ()}
        kinds = {name: _usual_kind(leaf, windows="lstm" in usual) for name, leaf in leaves.items()}
        for name in named if kinds else ():
            if name not in kinds:
                raise unknown_name(f"{field}.extractors key", name, kinds)
        wanted = {name: usual.get(kind, {}) for name, kind in kinds.items() if kind != "mlp" or mlp_for_vectors}
        wanted |= named
        defaults = {key: given.get(key, getattr(cls, key)) for key in ("activation", "init_layers")}
        extractors = tuple(
            (
                name,
                _extractor_spec(f"{field}.extractors[{name!r}]", wanted[name], usual_kind, leaves.get(name), defaults),
            )
            for name, usual_kind in (kinds or dict.fromkeys(wanted, "mlp")).items()
            if name in wanted
        )
        return super().from_config(field, {**given, "extractors": extractors})

    def to_config(self) -> dict[str, Any]:
        names = {kind.spec: name for name, kind in EXTRACTORS.items()}
        extractors = {name: {"encoder": names[type(spec)], **spec.to_config()} for name, spec in self.extractors}
        return {**super().to_config(), "extractors": extractors}

    # -- mutations

    @property
    def operator_kinds(self) -> Mapping[str, OperatorKind]:
        inner: dict[str, OperatorKind] = {
            f"{name}.{verb}": kind
            for wanted in ("layer", "node")
            for name, spec in self.extractors
            for verb, kind in spec.operator_kinds.items()
            if kind == wanted
        }
        return {**inner, **self.OPERATORS}

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        name, _, verb = operator.rpartition(".")
        if name:
            return dict(self.extractors)[name].choices(verb)
        if self.is_fading:
            return ()
        if operator == "change_activation":
            found = (str(choice["activation"]) for _, spec in self.extractors for choice in _activation_choices(spec))
            return tuple({"activation": activation} for activation in dict.fromkeys(found))
        sign, limit = (1, self.max_latent_dim) if operator == "add_latent_node" else (-1, self.min_latent_dim)
        steps = sorted({min(step, sign * (limit - self.latent_dim)) for step in LATENT_STEPS})
        if not any(_has_latent(spec) for _, spec in self.extractors):
            return ()
        return tuple({"nodes": nodes} for nodes in steps if nodes > 0)

    def apply(self, operator: str, **arguments: int | float | str) -> MultiInputSpec:
        if operator not in self.operator_kinds:
            raise unknown_name("operator", operator, self.operator_kinds)
        name, _, verb = operator.rpartition(".")
        if name:
            return self._with({name: dict(self.extractors)[name].apply(verb, **arguments)})
        if operator == "change_activation":
            return self._with_activation(str(arguments["activation"]))
        sign = 1 if operator == "add_latent_node" else -1
        return self.evolve(latent_dim=self.latent_dim + sign * int(arguments["nodes"]))

    def _with(self, changed: Mapping[str, Spec], **changes: Any) -> MultiInputSpec:
        extractors = tuple((name, changed.get(name, spec)) for name, spec in self.extractors)
        return self.evolve(extractors=extractors, **changes)

    def _with_activation(self, activation: str) -> MultiInputSpec:
        """Those extractors change that can; the linear layer's goes along if it was the usual one."""
        arguments: Arguments = {"activation": activation}
        able = {name: spec for name, spec in self.extractors if arguments in _activation_choices(spec)}
        changed = {name: spec.apply("change_activation", **arguments) for name, spec in able.items()}
        if self.output_activation != self.activation or activation == self.activation:
            return self._with(changed, activation=activation)
        return self._with(changed, activation=activation, output_activation=activation, fading=self.activation)

    @property
    def is_fading(self) -> bool:
        return bool(self.fading) or any(spec.is_fading for _, spec in self.extractors)

    def without_fading(self) -> MultiInputSpec:
        return self._with({name: spec.without_fading() for name, spec in self.extractors}, fading="")

    # -- beside others in a stack

    def stack_key(self) -> Hashable:
        return tuple((name, type(spec), spec.stack_key()) for name, spec in self.extractors)

    @classmethod
    def padded_union(cls, specs: Sequence[MultiInputSpec]) -> MultiInputSpec:
        rows = zip(*(spec.extractors for spec in specs), strict=True)
        widest = max(spec.latent_dim for spec in specs)
        return specs[0].evolve(
            extractors=tuple((row[0][0], type(row[0][1]).padded_union([spec for _, spec in row])) for row in rows),
            latent_dim=widest,
            max_latent_dim=max(widest, *(spec.max_latent_dim for spec in specs)),
            fading=next((spec.fading for spec in specs if spec.fading), ""),
        )

    def multiply_adds(self, padded: MultiInputSpec, inputs: Sequence[Leaf], num_outputs: int) -> int:
        leaves, covers = {leaf.name: leaf for leaf in inputs}, dict(padded.extractors)
        extracted = sum(
            spec.multiply_adds(covers[name], _read_by(spec, leaves.pop(name)), padded.latent_dim)
            for name, spec in self.extractors
        )
        fused = sum(_width(spec, padded.latent_dim) for spec in covers.values())
        fused += sum(leaf.size for leaf in leaves.values())
        return extracted + fused * num_outputs

    # -- in words

    @property
    def activation_names(self) -> tuple[str, ...]:
        inner = (name for _, spec in self.extractors for name in spec.activation_names)
        return self.activation, self.output_activation, self.fading, *inner

    @property
    def depth(self) -> int:
        return max((spec.depth for _, spec in self.extractors), default=0)

    def describe(self) -> str:
        """Each extractor's own words, and the width of what they give."""
        parts = ", ".join(f"{name} {spec.describe()}" for name, spec in self.extractors)
        return f"{parts} > {self.latent_dim}" if parts else "linear"


def _extractor_spec(field: str, config: Any, usual: str, leaf: Leaf | None, defaults: Mapping[str, Any]) -> Spec:
    """Read an extractor's configuration for a leaf, if it is known; its output's activation is that of its layers."""
    check_mapping(field, config)
    given = {key: value for key, value in config.items() if value is not None}
    name = given.pop("encoder", usual)
    kind = EXTRACTORS.find(f"{field}: encoder", name)
    spec, inputs = kind.spec, _forms(leaf).get(kind.input_form) if leaf else None
    known = {entry.name for entry in fields(spec)}
    defaults = {**defaults, "output_activation": given.get("activation", defaults["activation"])}
    return spec.from_config(field, {**{key: value for key, value in defaults.items() if key in known}, **given}, inputs)


def _activation_choices(spec: Spec) -> tuple[Arguments, ...]:
    return spec.choices("change_activation") if "change_activation" in spec.operator_kinds else ()


def _usual_kind(leaf: Leaf, *, windows: bool) -> str:
    if leaf.kind == "image":
        return "cnn"
    return "lstm" if windows and "window" in _forms(leaf) else "mlp"


def _forms(leaf: Leaf) -> dict[str, Any]:
    """What kinds of extractors may take a part of an observation for, and how large it is then."""
    if leaf.kind == "image":
        return {"image": leaf.shape, "numbers": leaf.size}
    is_window = leaf.kind == "vector" and len(leaf.env_shape) == 2
    return {"numbers": leaf.size, **({"window": leaf.env_shape} if is_window else {})}


def _kind_of(spec: Spec) -> ExtractorKind:
    return next(kind for kind in EXTRACTORS.values() if kind.spec is type(spec))


def _read_by(spec: Spec, leaf: Leaf) -> Any:
    """What an extractor is built for: the size of the form in which it reads a leaf."""
    forms = _forms(leaf)
    if _kind_of(spec).input_form not in forms:
        allowed = (name for name, kind in EXTRACTORS.items() if kind.input_form in forms)
        raise ConfigurationError(
            f"extractors[{leaf.name!r}]={type(spec).__name__} does not suit {leaf.space}; "
            f"allowed for encoder are {', '.join(allowed)}"
        )
    return forms[_kind_of(spec).input_form]


def _has_latent(spec: Spec) -> bool:
    """Whether an extractor has the common number of outputs."""
    return not isinstance(spec, HistoryLSTMSpec)


def _width(spec: Spec, latent_dim: int) -> int:
    """Outputs of an extractor."""
    return spec.hidden_state_size if isinstance(spec, HistoryLSTMSpec) else latent_dim


class EvolvableMultiInput(EvolvableModule[MultiInputSpec]):
    """An extractor for every part of an observation that has one, and a linear layer: rows `[…, D]` -> `[…, outputs]`.

    `inputs` are the leaves of an `ObservationEncoder`. Its extractors have the numbers of their leaves for names.

    Raises:
        ConfigurationError: the spec has an extractor for a part that is not there, or none for an
            image; or the observations have no parts.
    """

    add_latent_node = mutation_method("add_latent_node")
    remove_latent_node = mutation_method("remove_latent_node")
    change_activation = mutation_method("change_activation")

    def __init__(self, spec: MultiInputSpec, inputs: Sequence[Leaf], num_outputs: int) -> None:
        super().__init__()
        self.spec, self.inputs, self.num_outputs = spec, tuple(inputs), num_outputs
        specs, names = dict(spec.extractors), {leaf.name for leaf in self.inputs}
        if "" in names:
            raise ConfigurationError(f"{self.inputs[0].space} has no parts with names; allowed are Dict and Tuple")
        for name in specs:
            if name not in names:
                raise unknown_name("extractors key", name, names)
        self.extractors, self.fusion = nn.ModuleDict(), nn.ModuleDict()
        for place, leaf in enumerate(self.inputs):
            if leaf.name in specs:
                extractor = _make(specs[leaf.name], leaf, spec.latent_dim)
                self.extractors[str(place)] = extractor
                self.fusion[str(place)] = Linear(extractor.num_outputs, num_outputs)
            elif leaf.kind == "image":
                raise ConfigurationError(f"extractors has no entry for {leaf.name!r}, which is an image")
        self.raw = tuple(leaf for leaf in self.inputs if leaf.name not in specs)
        if self.raw:
            self.fusion["raw"] = Linear(sum(leaf.size for leaf in self.raw), num_outputs)
        self.output_activation = Activation(num_outputs, spec.output_activation, spec.fading)

    def reset_(self, generator: torch.Generator, *, output_gain: float) -> None:
        """Draw initial weights; those of the linear layer as if it were one matrix."""
        for extractor in self._extractors.values():
            extractor.reset_(generator, output_gain=2**0.5)
        maps = [cast(Linear, linear) for linear in self.fusion.values()]
        whole = Linear(sum(linear.weight.shape[1] for linear in maps), self.num_outputs)
        whole.reset_(output_gain, generator, orthogonal=self.spec.init_layers)
        with torch.no_grad():
            for linear, part in zip(maps, whole.weight.split([m.weight.shape[1] for m in maps], 1), strict=True):
                linear.weight.copy_(part)
                linear.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        total = None
        for name, linear in self.fusion.items():
            part = linear(self._features(name, x))
            total = part if total is None else total + part
        total = cast(Tensor, total)
        return self.output_activation(total, total)

    def _features(self, name: str, x: Tensor) -> Tensor:
        """What one of the linear layer's maps reads, of rows `[…, D]`."""
        if name == "raw":
            return torch.cat([self._given(leaf, x) for leaf in self.raw], -1)
        return self.extractors[name](self._given_to(name, x))

    def _given_to(self, place: str, x: Tensor) -> Tensor:
        """What an extractor reads of rows `[…, D]`: images as such, or flattened for an extractor of vectors."""
        leaf = self.inputs[int(place)]
        given = self._given(leaf, x)
        as_it_is = leaf.kind != "image" or isinstance(self.extractors[place], ImageEncoder)
        return given if as_it_is else given.flatten(-len(leaf.shape))

    def _given(self, leaf: Leaf, x: Tensor) -> Tensor:
        return leaf.read(x).to(self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        return next(iter(self.fusion.values())).bias.dtype  # pyright: ignore[reportReturnType]  # a tensor's

    @property
    def _extractors(self) -> dict[str, EvolvableModule]:
        return {name: cast(EvolvableModule, extractor) for name, extractor in self.extractors.items()}

    def finish_fading_(self) -> None:
        for extractor in self._extractors.values():
            extractor.finish_fading_()
        self.output_activation.finish_fading_()
        self.spec = self.spec.without_fading()

    # -- mutations: what the extractors say, in names of their own

    def unit_axes(self) -> UnitAxes:
        unit_axes: UnitAxes = {
            f"extractors.{place}.{name}": tuple(group and f"{place}.{group}" for group in groups)
            for place, extractor in self._extractors.items()
            for name, groups in extractor.unit_axes().items()
        }
        for place in self.fusion:
            unit_axes[f"fusion.{place}.weight"] = ("out", f"{place}.out")
            unit_axes[f"fusion.{place}.bias"] = ("out",)
        return unit_axes

    def expand_maps(self, maps: UnitMaps) -> UnitMaps:
        found: dict[str, Tensor] = {}
        for place, extractor in self._extractors.items():
            own = {group.removeprefix(f"{place}."): m for group, m in maps.items() if group.startswith(f"{place}.")}
            found |= {f"{place}.{group}": unit_map for group, unit_map in extractor.expand_maps(own).items()}
        return found

    def unit_change(self, operator: str, arguments: Arguments) -> UnitChange:
        place, verb = self._target(operator)
        if place:
            return self._qualified(place, self._extractors[place].unit_change(verb, arguments))
        if operator == "change_activation":
            return UnitChange()
        nodes = int(arguments["nodes"]) * (1 if operator == "add_latent_node" else -1)
        places = [place for place, extractor in self._extractors.items() if _has_latent(extractor.spec)]
        consumers = [(f"fusion.{place}", f"fusion.{place}") for place in places] if nodes < 0 else []
        return UnitChange({f"{place}.out": nodes for place in places}, consumers=tuple(consumers))

    def _qualified(self, place: str, unit_change: UnitChange) -> UnitChange:
        """What an extractor does, in the names of the whole; who reads the end of it is the linear layer."""
        inside = f"extractors.{place}"
        consumers = [(f"{inside}.{before}", f"{inside}.{after}") for before, after in unit_change.consumers]
        if unit_change.units.get("out", 0) < 0:
            consumers.append((f"fusion.{place}", f"fusion.{place}"))
        return UnitChange(
            {f"{place}.{group}": change for group, change in unit_change.units.items()},
            {f"{place}.{group}": unit_map for group, unit_map in unit_change.fixed_maps.items()},
            tuple(consumers),
        )

    def _target(self, operator: str) -> tuple[str, str]:
        """The number of the extractor that an operator changes, and what it does there; empty for the whole."""
        name, _, verb = operator.rpartition(".")
        return next((str(i) for i, leaf in enumerate(self.inputs) if name and leaf.name == name), ""), verb

    def source_name(self, name: str, operator: str, arguments: Arguments) -> str:
        place, verb = self._target(operator)
        prefix = f"extractors.{place}."
        if not place or not name.startswith(prefix):
            return name
        found = self._extractors[place].source_name(name.removeprefix(prefix), verb, arguments)
        return found and prefix + found

    def init_new_layer_(self, operator: str, arguments: Arguments, generator: torch.Generator) -> None:
        place, verb = self._target(operator)
        if place:
            self._extractors[place].init_new_layer_(verb, arguments, generator)

    def merge_removed_layer_(self, parent: EvolvableModule, operator: str, arguments: Arguments) -> None:
        place, verb = self._target(operator)
        if place:
            its_parent = cast(EvolvableMultiInput, parent)._extractors[place]
            self._extractors[place].merge_removed_layer_(its_parent, verb, arguments)

    def layer_input(self, name: str, x: Tensor) -> Tensor:
        kind, place, *inner = name.split(".", 2)
        if kind == "fusion":
            return self._features(place, x)
        return self._extractors[place].layer_input(inner[0], self._given_to(place, x))

    def layer_output(self, name: str, outputs: Tensor, inputs: Tensor) -> Tensor:
        kind, place, *inner = name.split(".", 2)
        return outputs if kind == "fusion" else self._extractors[place].layer_output(inner[0], outputs, inputs)


def _make(spec: Spec, leaf: Leaf, num_outputs: int) -> EvolvableModule:
    """Build an extractor for a leaf; what is wrong with its shapes is said under its name."""
    inputs: Any = _read_by(spec, leaf)
    try:
        return _kind_of(spec).module(spec, inputs, num_outputs)
    except ConfigurationError as error:
        raise ConfigurationError(f"extractors[{leaf.name!r}]: {error}") from error
