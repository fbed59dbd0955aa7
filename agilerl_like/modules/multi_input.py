"""The evolvable encoder of observations with several parts: an extractor for each part, and a linear layer over all.

An image has a convolutional extractor. A vector may have an extractor, or is an input of the linear layer itself. Every
extractor evolves separately, under the name of its part ("camera.add_channel"). All have `latent_dim` outputs, except
recurrent ones, which have as many as hidden units. A text, which is a MultiDiscrete of word numbers, may have the
extractor `words`.

The linear layer is stored as one map per extractor, whose outputs are added. This equals one map of all concatenated
outputs, but no columns move when extractors widen or members of a stack have unequal widths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from agilerl_like.envs.spaces import Leaf
from agilerl_like.errors import ConfigurationError, check_mapping, unknown_name
from agilerl_like.modules.cnn import CNNSpec, EvolvableCNN
from agilerl_like.modules.composite import CompositeModule, CompositeSpec
from agilerl_like.modules.conv_layers import ImageEncoder
from agilerl_like.modules.evolvable_module import EvolvableModule, UnitAxes, UnitChange
from agilerl_like.modules.history_lstm import EvolvableHistoryLSTM, HistoryLSTMSpec
from agilerl_like.modules.inplace_mutation import mutation_method
from agilerl_like.modules.layers import Activation, Linear, check_activation
from agilerl_like.modules.mlp import EvolvableMLP, MLPSpec
from agilerl_like.modules.resnet import EvolvableResNet, ResNetSpec
from agilerl_like.modules.simba import EvolvableSimBa, SimBaSpec
from agilerl_like.modules.spec import Arguments, OperatorKind, Spec, check_limits, check_normalised_latent, check_range
from agilerl_like.modules.words import EvolvableWords, WordsSpec
from agilerl_like.registry import Registry, registered


class ExtractorKind(NamedTuple):
    """A kind of extractor."""

    spec: type[Spec]
    module: Callable[[Any, Any, int], EvolvableModule]
    input_form: str
    """The form in which it reads a part of an observation: a key of what `_forms` returns."""


EXTRACTORS: Registry[ExtractorKind] = registered(
    "extractor",
    {
        "mlp": ExtractorKind(MLPSpec, EvolvableMLP, "vector"),
        "lstm": ExtractorKind(HistoryLSTMSpec, lambda spec, inputs, _: EvolvableHistoryLSTM(spec, inputs), "window"),
        "cnn": ExtractorKind(CNNSpec, EvolvableCNN, "image"),
        "resnet": ExtractorKind(ResNetSpec, EvolvableResNet, "image"),
        "simba": ExtractorKind(SimBaSpec, EvolvableSimBa, "vector"),
        "words": ExtractorKind(WordsSpec, lambda spec, inputs, _: EvolvableWords(spec, inputs), "words"),
    },
)
"""All kinds of extractors, by the name that a configuration may give as `encoder`."""
DEFAULT_EXTRACTORS = ("cnn", "mlp", "lstm")
"""Extractors of parts for which none is named; `cnn_config`, `mlp_config` and `lstm_config` configure them."""


@dataclass(frozen=True)
class MultiInputSpec(CompositeSpec):
    """The architecture of an `EvolvableMultiInput`.

    `from_config` also accepts AgileRL's keys.
    """

    extractors: tuple[tuple[str, Spec], ...] = ()
    """Name ("body.arm" for a nested part) and spec of every extractor."""
    latent_dim: int = 32
    """Outputs of each extractor."""
    min_latent_dim: int = 8
    """Fewest outputs that a mutation may leave."""
    max_latent_dim: int = 128
    """Most outputs that a mutation may make."""
    activation: str = "ReLU"
    """Activation of extractors for which none is given."""
    output_activation: str = "Identity"
    """Activation of the linear layer."""
    init_layers: bool = True
    """Orthogonal initial weights; otherwise uniform in +-1/sqrt(inputs)."""
    fading: str = ""
    """Previous activation of the linear layer while it fades in; otherwise empty."""

    OPERATORS: ClassVar[Mapping[str, OperatorKind]] = {
        "add_latent_node": "node",
        "remove_latent_node": "node",
        "change_activation": "activation",
    }

    STACK_FIELDS = ()
    UNION_FIELDS = ("latent_dim", "max_latent_dim")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, spec in self.extractors:
            if type(spec) not in {kind.spec for kind in EXTRACTORS.values()}:
                allowed = ", ".join(kind.spec.__name__ for kind in EXTRACTORS.values())
                raise ConfigurationError(f"extractors[{name!r}]={spec!r} is no extractor; allowed are {allowed}")
        check_limits(self, "min_latent_dim", "max_latent_dim")
        check_range(self, "latent_dim", self.latent_dim, "min_latent_dim", "max_latent_dim")
        check_normalised_latent(self, (spec for _, spec in self.extractors))
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

        Besides the spec's fields, these keys configure parts without an entry in `extractors` (AgileRL: `init_dicts`):
        `cnn_config` for images, `lstm_config` (if given) for windows of time, which are Boxes `[time, features]`, and
        `mlp_config` for all else if `vector_space_mlp` is True. An entry of `extractors` is such a configuration, with
        a key `encoder` for its kind. Without leaves only the entries of `extractors` are built (see `to_config`).

        Raises:
            ConfigurationError: an unknown key or part (near ones are named), or an illegal value.
        """
        check_mapping(field, config)
        given = {key: value for key, value in config.items() if value is not None}
        usual = {kind: given.pop(f"{kind}_config") for kind in DEFAULT_EXTRACTORS if f"{kind}_config" in given}
        if "mlp" in usual and "vector_space_mlp" not in given:
            raise ConfigurationError(
                f"{field}: mlp_config={usual['mlp']!r:.200} has no effect without vector_space_mlp; allowed is "
                "vector_space_mlp: true beside it"
            )
        mlp_for_vectors = given.pop("vector_space_mlp", False)
        if not isinstance(mlp_for_vectors, bool):
            raise ConfigurationError(f"{field}: vector_space_mlp={mlp_for_vectors!r} must be True or False")
        named = given.pop("extractors", given.pop("init_dicts", {}))
        check_mapping(f"{field}.extractors", named)
        leaves = {leaf.name: leaf for leaf in inputs or ()}
        kinds = {name: _default_kind(leaf, windows="lstm" in usual) for name, leaf in leaves.items()}
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
        for kind, unread in usual.items():  # those that no part has are checked too
            _extractor_spec(f"{field}.{kind}_config", unread, kind, None, defaults)
        return super().from_config(field, {**given, "extractors": extractors})

    def to_config(self) -> dict[str, Any]:
        names = {kind.spec: name for name, kind in EXTRACTORS.items()}
        extractors = {name: {"encoder": names[type(spec)], **spec.to_config()} for name, spec in self.extractors}
        return {**super().to_config(), "extractors": extractors}

    # -- mutations

    @property
    def parts(self) -> dict[str, Spec]:
        return dict(self.extractors)

    def with_parts(self, parts: Mapping[str, Spec], **changes: Any) -> MultiInputSpec:
        extractors = tuple((name, parts.get(name, spec)) for name, spec in self.extractors)
        return self.evolve(extractors=extractors, **changes)

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        if operator.endswith("latent_node") and not any(_has_latent(spec) for _, spec in self.extractors):
            return ()
        return super().choices(operator)

    def with_activation(self, activation: str) -> MultiInputSpec:
        """The linear layer's activation changes too if it was that of the extractors."""
        changed = super().with_activation(activation).evolve(activation=activation)
        if self.output_activation != self.activation or activation == self.activation:
            return changed
        return changed.evolve(output_activation=activation, fading=self.activation)

    # -- in a stack

    @classmethod
    def padded_union(cls, specs: Sequence[MultiInputSpec]) -> MultiInputSpec:
        fading = next((spec.fading for spec in specs if spec.fading), "")
        return super().padded_union(specs).evolve(fading=fading)

    def multiply_adds(self, padded: MultiInputSpec, inputs: Sequence[Leaf], num_outputs: int) -> int:
        leaves, padded_parts = {leaf.name: leaf for leaf in inputs}, padded.parts
        extracted = sum(
            spec.multiply_adds(padded_parts[name], _extractor_input(spec, leaves.pop(name)), padded.latent_dim)
            for name, spec in self.extractors
        )
        fused = sum(_width(spec, padded.latent_dim) for spec in padded_parts.values())
        fused += sum(leaf.size for leaf in leaves.values())
        return extracted + fused * num_outputs

    @property
    def activation_names(self) -> tuple[str, ...]:
        return self.activation, self.output_activation, self.fading, *super().activation_names

    def describe(self) -> str:
        """Each extractor, and their latent width."""
        parts = ", ".join(f"{name} {spec.describe()}" for name, spec in self.extractors)
        return f"{parts} > {self.latent_dim}" if parts else "linear"


def _extractor_spec(field: str, config: Any, usual: str, leaf: Leaf | None, defaults: Mapping[str, Any]) -> Spec:
    """Read an extractor's configuration; the activation of its output is that of its layers. `leaf` may be unknown."""
    check_mapping(field, config)
    given = {key: value for key, value in config.items() if value is not None}
    name = given.pop("encoder", usual)
    kind = EXTRACTORS.find(f"{field}: encoder", name)
    spec, inputs = kind.spec, _forms(leaf).get(kind.input_form) if leaf else None
    known = {entry.name for entry in fields(spec)}
    defaults = {**defaults, "output_activation": given.get("activation", defaults["activation"])}
    return spec.from_config(field, {**{key: value for key, value in defaults.items() if key in known}, **given}, inputs)


def _default_kind(leaf: Leaf, *, windows: bool) -> str:
    if leaf.kind == "image":
        return "cnn"
    return "lstm" if windows and "window" in _forms(leaf) else "mlp"


def _forms(leaf: Leaf) -> dict[str, Any]:
    """Return the forms in which a part of an observation can be read, with its size in each."""
    if leaf.kind == "image":
        return {"image": leaf.shape, "vector": leaf.size}
    forms: dict[str, Any] = {"vector": leaf.size}
    if leaf.kind == "vector" and len(leaf.env_shape) == 2:
        forms["window"] = leaf.env_shape
    if leaf.counts.size > 1 and len(set(leaf.counts.tolist())) == 1:
        forms["words"] = (leaf.counts.size, int(leaf.counts[0]))  # numbers of words and of the vocabulary
    return forms


def _kind_of(spec: Spec) -> ExtractorKind:
    return next(kind for kind in EXTRACTORS.values() if kind.spec is type(spec))


def _extractor_input(spec: Spec, leaf: Leaf) -> Any:
    """Return the size that an extractor is built for."""
    forms = _forms(leaf)
    if _kind_of(spec).input_form not in forms:
        allowed = (name for name, kind in EXTRACTORS.items() if kind.input_form in forms)
        raise ConfigurationError(
            f"extractors[{leaf.name!r}]={type(spec).__name__} does not suit {leaf.space}; "
            f"allowed for encoder are {', '.join(allowed)}"
        )
    return forms[_kind_of(spec).input_form]


def _has_latent(spec: Spec) -> bool:
    """Whether an extractor has `latent_dim` outputs."""
    return not isinstance(spec, HistoryLSTMSpec)


def _width(spec: Spec, latent_dim: int) -> int:
    """Number of outputs of an extractor."""
    return spec.hidden_state_size if isinstance(spec, HistoryLSTMSpec) else latent_dim


class EvolvableMultiInput(CompositeModule[MultiInputSpec]):
    """Extractors for parts of an observation, and a linear layer: rows `[…, D]` -> `[…, num_outputs]`.

    `inputs` are the leaves of an `ObservationEncoder`. Extractors are named by the indices of their leaves.

    Raises:
        ConfigurationError: the spec has an extractor for an unknown part, or none for an image; or the observations
            have no parts.
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
        for index, leaf in enumerate(self.inputs):
            if leaf.name in specs:
                extractor = _build_extractor(specs[leaf.name], leaf, spec.latent_dim)
                self.extractors[str(index)] = extractor
                self.fusion[str(index)] = Linear(extractor.num_outputs, num_outputs)
            elif leaf.kind == "image":
                raise ConfigurationError(f"extractors has no entry for {leaf.name!r}, which is an image")
        self.raw = tuple(leaf for leaf in self.inputs if leaf.name not in specs)
        if self.raw:
            self.fusion["raw"] = Linear(sum(leaf.size for leaf in self.raw), num_outputs)
        self.output_activation = Activation(num_outputs, spec.output_activation, spec.fading)

    def reset_(self, generator: torch.Generator, *, output_gain: float) -> None:
        """Draw initial weights, those of the linear layer as one matrix."""
        for extractor in self.parts.values():
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
        """Return the input of one of the linear layer's maps for rows `[…, D]`."""
        if name == "raw":
            return torch.cat([self._given(leaf, x) for leaf in self.raw], -1)
        return self.extractors[name](self.part_input(f"extractors.{name}", x))

    def part_input(self, path: str, x: Tensor) -> Tensor:
        """An extractor's part of rows `[…, D]`: an image as such, or flattened for an extractor of vectors."""
        leaf = self.inputs[int(path.removeprefix("extractors."))]
        part = self._given(leaf, x)
        is_flat = leaf.kind == "image" and not isinstance(self.parts[path], ImageEncoder)
        return part.flatten(-len(leaf.shape)) if is_flat else part

    def _given(self, leaf: Leaf, x: Tensor) -> Tensor:
        return leaf.read(x).to(self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        return next(iter(self.fusion.values())).bias.dtype  # pyright: ignore[reportReturnType]  # a tensor's

    # -- mutations

    @property
    def parts(self) -> dict[str, EvolvableModule]:
        return {f"extractors.{index}": cast(EvolvableModule, module) for index, module in self.extractors.items()}

    def targets(self, operator: str) -> tuple[tuple[str, ...], str]:
        name, inner = self.spec.split_operator(operator)
        return tuple(f"extractors.{i}" for i, leaf in enumerate(self.inputs) if name and leaf.name == name), inner

    def output_consumers(self, path: str) -> tuple[str, ...]:
        return (path.replace("extractors", "fusion"),)

    def unit_axes(self) -> UnitAxes:
        axes = super().unit_axes()
        for index in self.fusion:
            axes[f"fusion.{index}.weight"] = ("out", f"extractors.{index}.out")
            axes[f"fusion.{index}.bias"] = ("out",)
        return axes

    def unit_change(self, operator: str, arguments: Arguments) -> UnitChange:
        if not operator.endswith("latent_node"):
            return super().unit_change(operator, arguments)
        nodes = int(arguments["nodes"]) * (1 if operator == "add_latent_node" else -1)
        paths = (path for path, extractor in self.parts.items() if _has_latent(extractor.spec))
        return self.combined({path: UnitChange({"out": nodes}) for path in paths})

    def layer_input(self, name: str, x: Tensor) -> Tensor:
        if name.startswith("fusion."):
            return self._features(name.removeprefix("fusion."), x)
        return super().layer_input(name, x)


def _build_extractor(spec: Spec, leaf: Leaf, num_outputs: int) -> EvolvableModule:
    """Build an extractor for a leaf; errors name it."""
    inputs: Any = _extractor_input(spec, leaf)
    try:
        return _kind_of(spec).module(spec, inputs, num_outputs)
    except ConfigurationError as error:
        raise ConfigurationError(f"extractors[{leaf.name!r}]: {error}") from error
