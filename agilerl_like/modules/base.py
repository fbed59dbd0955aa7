"""Evolvable modules: a frozen spec, the `nn.Module` built from it, and the mutations that the spec allows.

A spec decides on shapes and touches no tensor; a mutation returns a new spec. What one kind of network has to define:

- its spec: the mutations (`choices`, `apply`), and for stacks of members of unequal shape the fields that must be equal
  (`STACK_FIELDS`), those whose maximum is used (`UNION_FIELDS`) and the work per sample (`multiply_adds`);
- its module: the unit group on every axis of every tensor (`unit_axes`), the groups that an operator widens or narrows
  (`unit_change`), the lists that have an entry for each layer (`LAYER_LISTS`), how a new layer is initialised so that
  it changes no output (`init_new_layer_`), and for removals the inputs of its linear maps (`layer_input`).

`weight_transfer` carries out a mutation from this for every kind of network alike, `param_stack` stacks members. In a
stack each tensor fills the leading block of the padded tensor, so an axis must hold units of one group (the four gates
of an LSTM are an axis of their own).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.modules.layers import ACTIVATIONS, SKIP, Activation, check_activation

OperatorKind = Literal["layer", "node", "activation"]
Arguments = dict[str, int | float | str]
UnitAxes = dict[str, tuple[str, ...]]
"""Tensor name -> the unit group of each of its axes, "" for one without units. The first group named is its outputs."""
UnitMaps = Mapping[str, Tensor]
"""Unit group -> for every unit of the child, the parent's unit that it comes from, or -1 if it is new.

A group that is not named is unchanged.
"""


class UnitChange(NamedTuple):
    """What an operator does to a module's unit groups, by the module's own names."""

    units: Mapping[str, int] = MappingProxyType({})
    """Number of units that each group gains or, if negative, loses."""
    fixed_maps: UnitMaps = MappingProxyType({})
    """Unit maps of axes whose units are not chosen by importance, such as a kernel's positions."""
    consumers: tuple[tuple[str, str], ...] = ()
    """Linear maps to refit, which read what a removal takes away: their names in the parent and in the child."""
    refits_output: bool = False
    """Whether those that read the module's output have to be refitted too."""


SpecT = TypeVar("SpecT", bound="Spec")
FadingSpecT = TypeVar("FadingSpecT", bound="FadingSpec")
ModuleT = TypeVar("ModuleT", bound="EvolvableModule")


FIELD_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "True or False"),
    "int": ((int,), "an integer"),
    "float": ((int, float), "a number"),
    "str": ((str,), "a name"),
    "tuple[int, ...]": ((int,), "a list of integers"),
    "tuple[str, ...]": ((str,), "a list of names"),
}
"""What a spec's field may hold, by its annotation: the types (of the entries, for a tuple), and how to say it."""


@dataclass(frozen=True)
class Spec:
    """A validated, hashable description of an evolvable module."""

    OPERATORS: ClassVar[Mapping[str, OperatorKind]] = {}
    BOUNDS: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Fields whose least and greatest value, where a configuration does not name these, make room for what it names."""

    def __post_init__(self) -> None:
        own = vars(self)
        for name, annotation, plainly in _annotations(type(self)):
            if type(own[name]) not in plainly:
                check_field_type(name, own[name], annotation)

    @classmethod
    def config_keys(cls) -> set[str]:
        """The keys that `from_config` knows."""
        return {field.name for field in fields(cls) if field.init}

    @classmethod
    def defaults_for(cls, inputs: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Defaults that follow from what the module reads and from what its configuration names.

        `inputs` is what the module is built for, as in its constructor; None where that is not known yet.
        """
        return dict(bound for field in cls.BOUNDS if field in given for bound in cls._bounds_of(field, given[field]))

    @classmethod
    def _bounds_of(cls, field: str, value: Any) -> Iterator[tuple[str, int]]:
        """Bounds of a field that include a value (or all of a list), by their names; none for what is no number."""
        numbers = value if isinstance(value, (list, tuple)) else (value,)
        if numbers and all(type(number) is int and number > 0 for number in numbers):
            low, high = cls.BOUNDS[field]
            yield low, min(getattr(cls, low), *numbers)
            yield high, max(getattr(cls, high), *numbers)

    @classmethod
    def from_config(cls: type[SpecT], field: str, config: Mapping[str, Any], inputs: Any = None) -> SpecT:
        """Build a spec from a plain mapping: lists become tuples, and None stands for the default, as in AgileRL.

        `inputs` is what the module will be built for, on which defaults may depend (see `defaults_for`).

        Raises:
            ConfigurationError: `config` is no mapping, has an unknown key (near ones are named) or an illegal value.
        """
        check_mapping(field, config)
        for key in config:
            if key not in cls.config_keys():
                raise unknown_name(f"{field} key", key, cls.config_keys())
        given = {key: value for key, value in config.items() if value is not None}
        given = {**cls.defaults_for(inputs, given), **given}
        try:
            return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})
        except ConfigurationError as error:
            raise ConfigurationError(f"{field}: {error}") from error

    def to_config(self) -> dict[str, Any]:
        """Return the plain mapping that `from_config` turns back into an equal spec."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    @property
    def operator_kinds(self) -> Mapping[str, OperatorKind]:
        """Every operator and its kind, legal now or not; a spec that is made of others has more than `OPERATORS`."""
        return self.OPERATORS

    def operators(self, kind: OperatorKind) -> tuple[str, ...]:
        """Names of the operators of one kind that are legal now, in a fixed order."""
        return tuple(name for name, its_kind in self.operator_kinds.items() if its_kind == kind and self.choices(name))

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        """Every set of arguments with which an operator may be applied now; empty where it is not legal."""
        raise NotImplementedError

    def apply(self: SpecT, operator: str, **arguments: int | float | str) -> SpecT:
        """Return the spec after one mutation with given arguments."""
        raise NotImplementedError

    def mutate(
        self: SpecT, operator: str, rng: np.random.Generator, *, activations: tuple[str, ...] = ()
    ) -> tuple[SpecT, Arguments]:
        """Draw an operator's arguments uniformly from its legal ones; return the new spec and what was drawn.

        A change of activation for which `activations` leaves no other one returns the spec as it is, and no arguments.

        Raises:
            ConfigurationError: the operator is unknown or not legal now, or an activation is unknown.
        """
        for name in activations:
            check_activation("activation_selection entry", name)
        if operator not in self.operator_kinds:
            raise unknown_name("operator", operator, self.operator_kinds)
        choices = self.choices(operator)
        if not choices:
            raise ConfigurationError(f"operator={operator!r} is not legal for {self}")
        if self.operator_kinds[operator] == "activation":
            choices = tuple(choice for choice in choices if choice["activation"] in activations)
            if not choices:
                return self, {}
        arguments = dict(choices[rng.integers(len(choices))])
        return self.apply(operator, **arguments), arguments

    STACK_FIELDS: ClassVar[tuple[str, ...]] = ()
    """Fields that must be equal for members to be stacked; other differences are padded, or handled in the layers."""
    UNION_FIELDS: ClassVar[tuple[str, ...]] = ()
    """Fields of which a padded union has the maximum."""

    def stack_key(self) -> Hashable:
        """Return what must be equal for members to be stacked."""
        return tuple(getattr(self, name) for name in self.STACK_FIELDS)

    @classmethod
    def padded_union(cls: type[SpecT], specs: Sequence[Any]) -> SpecT:
        """Return the smallest spec in which all these, of equal `stack_key`, fit."""
        return specs[0].evolve(**{name: max(getattr(spec, name) for spec in specs) for name in cls.UNION_FIELDS})

    def multiply_adds(self, padded: Any, inputs: Any, num_outputs: int) -> int:
        """Return the multiplications per sample in a stack of this padded spec; `inputs` as in the constructor."""
        raise NotImplementedError

    @property
    def is_fading(self) -> bool:
        """Whether a mutation is still fading in (see `layers.Activation`)."""
        return bool(getattr(self, "fading", ()))

    def without_fading(self: SpecT) -> SpecT:
        """Return the spec after everything has faded in."""
        fading = getattr(self, "fading", ())
        return self.evolve(fading=type(fading)()) if fading else self

    @property
    def activation_names(self) -> tuple[str, ...]:
        """Names of all its activations; in a stack, members with the same ones are neighbours."""
        names = [getattr(self, field) for field in ("activation", "output_activation") if hasattr(self, field)]
        return *names, *getattr(self, "fading", ())

    @property
    def depth(self) -> int:
        """Number of its layers; in a stack, members of the same depth are neighbours."""
        return 0

    def describe(self) -> str:
        """A few characters for tables and logs."""
        raise NotImplementedError

    def __deepcopy__(self: SpecT, memo: dict[int, Any]) -> SpecT:
        """Specs are immutable, so copies share them."""
        return self

    def evolve(self: SpecT, **changes: Any) -> SpecT:
        """Return a copy with some fields changed, validated again."""
        return replace(self, **changes)


def size_steps(operator: str, size: int, low: int, high: int, steps: Sequence[int]) -> list[int]:
    """Return the amounts by which `add_…` or `remove_…` may change a size within its limits."""
    left = high - size if operator.startswith("add") else size - low
    return sorted({amount for step in steps if (amount := min(step, left)) > 0})


class FadingSpec(Spec):
    """A spec with `activation`, `output_activation` and `fading`, which can change its activation.

    `fading` names, for each of `num_activations` activations and the output's, what it fades from ("" for nothing).
    """

    activation: str
    output_activation: str
    fading: tuple[str, ...]

    @property
    def num_activations(self) -> int:
        """Number of activations that fade, the output's not counted."""
        raise NotImplementedError

    def _check_activations(self) -> None:
        """Raise ConfigurationError unless the activations are known and `fading` has one entry for each."""
        check_activation("activation", self.activation)
        check_activation("output_activation", self.output_activation)
        if self.fading and len(self.fading) != self.num_activations + 1:
            raise ConfigurationError(
                f"fading={self.fading!r} must be empty or have {self.num_activations + 1} entries, "
                "the last of them for the output"
            )
        for before in self.fading:
            if before not in ("", SKIP):
                check_activation("fading", before)

    def activation_choices(self) -> tuple[Arguments, ...]:
        """Return the arguments of "change_activation": every other activation but the identity."""
        return tuple({"activation": name} for name in ACTIVATIONS if name not in (self.activation, "Identity"))

    def with_activation(self: FadingSpecT, activation: str) -> FadingSpecT:
        """Return the spec that fades to another activation; the output's changes too if it was the same."""
        if activation == self.activation:
            return self
        output_follows = self.output_activation == self.activation
        fading = (self.activation,) * self.num_activations + (self.activation if output_follows else "",)
        output = activation if output_follows else self.output_activation
        return self.evolve(activation=activation, output_activation=output, fading=fading)


class EvolvableModule(nn.Module, Generic[SpecT]):
    """A module built from a spec: `[..., in] -> [..., out]`, or `[P, B, in] -> [P, B, out]` when stacked."""

    spec: SpecT
    inputs: Any
    """What it is built for: a number of features, or what else its kind reads."""
    num_outputs: int
    LAYER_LISTS: ClassVar[tuple[str, ...]] = ()
    """Attributes that are lists with an entry for each layer, into which operators of kind "layer" insert."""
    INSERT_OFFSET: ClassVar[int] = 0
    """Index of an inserted layer minus the operator's argument: 1 where the argument is the layer before it."""

    @property
    def sample_shape(self) -> Any:
        """Shape of one input sample, where inputs are floats of one kind."""
        return (self.inputs,) if isinstance(self.inputs, int) else self.inputs

    def rebuild(self: ModuleT, spec: Any) -> ModuleT:
        """Return a module with the same inputs and outputs built from another spec, with undefined weights."""
        return cast(Any, type(self))(spec, self.inputs, self.num_outputs)

    def reset_(self, generator: torch.Generator, *, output_gain: float) -> None:
        """Draw initial weights; `output_gain` scales the last layer's."""
        raise NotImplementedError

    def name_in_padded(self, padded: EvolvableModule) -> dict[str, str]:
        """Map layers to their names in a module built from a padded union, where these differ."""
        return {}

    def shrink_(self, members: Sequence[EvolvableModule]) -> None:
        """In a padded module: drop parameters that none of these members needs."""

    def advance_fades_(self, share: float = 1.0) -> None:
        """Advance every mutation that fades in by a share of its way: between updates, never within one.

        Raises:
            ConfigurationError: `share` is not between 0 and 1.
        """
        check_range("share", share, 0.0, 1.0)
        for activation in _fades(self):
            activation.advance_(share)

    def fade_left(self) -> float:
        """Return how much of the latest mutation has still to fade in, 0 when nothing does (for one member)."""
        return max((1.0 - float(activation.blend) for activation in _fades(self)), default=0.0)

    def finish_fading_(self) -> None:
        """Drop what was faded from, once everything has faded in (for one member)."""
        for layer in self.modules():
            if isinstance(layer, Activation):
                layer.finish_fading_()
            elif isinstance(layer, EvolvableModule):
                layer.spec = layer.spec.without_fading()

    # -- what a mutation needs to know (of one member)

    input_consumers: tuple[str, ...] = ()
    """The linear maps that read the module's input."""

    def unit_axes(self) -> UnitAxes:
        """Return the unit groups on the axes of every parameter and buffer that has units.

        The module's inputs are the group "in", its outputs "out".
        """
        raise NotImplementedError

    def expand_maps(self, maps: UnitMaps) -> UnitMaps:
        """Return the maps of groups that follow from others, such as pixels from their channel."""
        return {}

    def unit_change(self, operator: str, arguments: Arguments) -> UnitChange:
        """Return what an operator does to the unit groups."""
        raise NotImplementedError

    def source_name(self, name: str, operator: str, arguments: Arguments) -> str:
        """Return the parent's name of one of this child's tensors, "" if it is new.

        In the lists of layers, names behind an inserted or removed layer shift by one.
        """
        owner, _, rest = name.partition(".")
        if owner not in self.LAYER_LISTS or self.spec.operator_kinds[operator] != "layer":
            return name
        number, _, attribute = rest.partition(".")
        index, changed = int(number), int(arguments["block"] if "block" in arguments else arguments["layer"])
        if operator.startswith("remove"):
            return f"{owner}.{index + (index >= changed)}.{attribute}"
        changed += self.INSERT_OFFSET
        return "" if index == changed else f"{owner}.{index - (index > changed)}.{attribute}"

    def source_names(self, names: Collection[str], operator: str, arguments: Arguments) -> dict[str, str]:
        """Return the parent's names of this child's tensors by the child's; new tensors are left out."""
        found = {name: self.source_name(name, operator, arguments) for name in names}
        return {name: source for name, source in found.items() if source}

    def init_new_layer_(self, operator: str, arguments: Arguments, generator: torch.Generator) -> None:
        """Initialise a new layer of this child so that it changes no output."""

    def merge_removed_layer_(self, parent: EvolvableModule, operator: str, arguments: Arguments) -> None:
        """Approximate the removed layer of the parent in the next layer of this child, before that is refitted."""

    def layer_input(self, name: str, x: Tensor) -> Tensor:
        """Return the input `[n, columns]` of one of the linear maps when the module reads `x` `[B, in]`."""
        raise NotImplementedError

    def layer_output(self, name: str, outputs: Tensor, inputs: Tensor) -> Tensor:
        """Return the activation of a linear map's layer for given `outputs` of the map, which are not modified."""
        return outputs


@cache
def _annotations(kind: type[Spec]) -> tuple[tuple[str, str, tuple[type, ...]], ...]:
    """Return name, annotation, and the types that need no check, of those fields that can be checked."""
    annotated = [(field.name, str(field.type)) for field in fields(kind) if str(field.type) in FIELD_TYPES]
    return tuple((name, its, () if its.startswith("tuple") else FIELD_TYPES[its][0]) for name, its in annotated)


def _fades(module: nn.Module) -> list[Activation]:
    """Return the activations in a module that are fading in."""
    return [layer for layer in module.modules() if isinstance(layer, Activation) and layer.before]


def check_field_type(field: str, value: object, annotation: str) -> None:
    """Raise ConfigurationError unless a value has the type that a spec's annotation names."""
    types, wanted = FIELD_TYPES[annotation]
    is_list = annotation.startswith("tuple")
    entries = value if is_list and isinstance(value, tuple) else (value,)
    if is_list == isinstance(value, tuple) and all(type(entry) in types for entry in entries):
        return  # the usual case, fast
    flags_misplaced = bool not in types and any(isinstance(entry, bool) for entry in entries)
    if is_list != isinstance(value, tuple) or flags_misplaced or not all(isinstance(entry, types) for entry in entries):
        raise ConfigurationError(f"{field}={value!r} must be {wanted}")


def num_floats(inputs: Any) -> int:
    """Return the number of inputs of a module that reads vectors: given as such, or as leaves of an observation."""
    return inputs if isinstance(inputs, int) else sum(leaf.size for leaf in inputs)


def check_input_output_sizes(inputs: int, num_outputs: int) -> None:
    """Raise ConfigurationError unless a module has at least one input and one output."""
    for name, count in (("num_inputs", inputs), ("num_outputs", num_outputs)):
        if count < 1:
            raise ConfigurationError(f"{name}={count!r} must be at least 1")


def check_mapping(field: str, value: object) -> None:
    """Raise ConfigurationError unless a value maps names to settings."""
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{field}={value!r} must be a mapping from names to values")


def check_limits(spec: Spec, low: str, high: str, *, least: int = 1) -> None:
    """Raise ConfigurationError unless, of two fields of a spec, `least <= low <= high`."""
    if not least <= getattr(spec, low) <= getattr(spec, high):
        raise ConfigurationError(
            f"{low}={getattr(spec, low)!r} must be at least {least} and at most {high}={getattr(spec, high)!r}"
        )


def check_range(field: str, value: float, low: float, high: float) -> None:
    """Raise ConfigurationError unless `low <= value <= high`."""
    if not low <= value <= high:
        raise ConfigurationError(f"{field}={value!r} is outside its range [{low}, {high}]")
