"""What every evolvable module is: a frozen spec, the `nn.Module` built from it, and the mutations that the spec allows.

A spec decides on shapes and touches no tensor; a mutation is a new spec. A module names the unit group on every axis of
its parameters, which is all that `morphism` needs to carry weights and optimizer moments from one shape to another.

So that members of unequal shape can be computed together, a kind of module says four things more. Its spec says what
members must have in common (`stack_key`), which spec has room for all of some (`padded_union`) and how much work one sample
is (`multiply_adds`); the module says where its layers stand in a deeper one (`name_in_padded`), and may give up room that none
of its members needs (`shrink_`). Every tensor then fills the leading corner of the larger one, so an axis must hold units
of one group (four gates of an LSTM are an axis of their own), and zeros fill the rest. Layers that need to know more of
their members have `set_members` (see `layers`).

So that a mutation can be carried out on it, a kind of module says which groups an operator widens or narrows
(`unit_change`), which of its tensors are newborn (`source_name`) and how a newborn layer keeps silent (`init_new_layer_`); after a
removal, who read what was lost (`consumers`, `layer_input`). `morphism.morph` does the rest, for every kind alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.modules.layers import Activation, check_activation
from agilerl_like.modules.module_utils import Layer, walk

OperatorKind = Literal["layer", "node", "activation"]
Arguments = dict[str, int | float | str]
UnitAxes = dict[str, tuple[str, ...]]
"""Tensor name -> the unit group of each of its axes, "" for one without units. The first group named is its outputs."""
UnitMaps = Mapping[str, Tensor]
"""Unit group -> for every unit of the child, the parent's unit that it comes from, or -1 if it is new.

A group that is not named is unchanged.
"""


class UnitChange(NamedTuple):
    """What an operator does to a module, in the module's own names."""

    units: Mapping[str, int] = MappingProxyType({})
    """By how many units each group gets wider or, negative, narrower."""
    fixed_maps: UnitMaps = MappingProxyType({})
    """Maps that are known beforehand: of axes that hold no units of which one could choose, like a kernel's."""
    consumers: tuple[tuple[str, str], ...] = ()
    """Linear maps, by their names in the parent and in the child, that read what a removal takes away."""


SpecT = TypeVar("SpecT", bound="Spec")
ModuleT = TypeVar("ModuleT", bound="EvolvableModule")


Pull = Callable[[Tensor, Sequence[Tensor]], Tensor | None]
"""(gradient of the outputs, where to write those of the parameters, in their order) -> gradient of the input.

It may write over the gradient that it is given, and its caller over the one that it gives.
"""


@torch.enable_grad()
def vjp(outputs: Sequence[Tensor], inputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradient of each input, from those of the outputs; 0 for those on which they do not depend.

    By autograd, of a weighted sum: the same bits, but for weights of outputs it would load symbolic algebra, half a
    second and more in the midst of a run.
    """
    total = torch.stack([(y * gradient).sum() for y, gradient in zip(outputs, gradients, strict=True)]).sum()
    if not total.requires_grad:
        return tuple(torch.zeros_like(x) for x in inputs)
    return torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)


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

    def stack_key(self) -> Hashable:
        """What must be equal for members to be computed together; all else is made up for by zeros or in the layers."""
        raise NotImplementedError

    @classmethod
    def padded_union(cls: type[SpecT], specs: Sequence[Any]) -> SpecT:
        """The smallest spec in which all these, of equal structure, have room."""
        raise NotImplementedError

    def multiply_adds(self, padded: Any, inputs: Any, num_outputs: int) -> int:
        """Multiplications that one sample takes in a stack of this cover; `inputs` as in the module's constructor."""
        raise NotImplementedError

    @property
    def is_fading(self) -> bool:
        """Whether a mutation is still fading in."""
        return False

    def without_fading(self: SpecT) -> SpecT:
        """The spec once nothing fades any more."""
        return self

    @property
    def activation_names(self) -> tuple[str, ...]:
        """Names of all its activations: neighbours in a stack should have them in common."""
        return ()

    @property
    def depth(self) -> int:
        """Number of its layers: neighbours in a stack should have that in common too."""
        return 0

    def describe(self) -> str:
        """A few characters for tables and logs."""
        raise NotImplementedError

    def __deepcopy__(self: SpecT, memo: dict[int, Any]) -> SpecT:
        """A spec never changes, so a copy of a module may share it."""
        return self

    def evolve(self: SpecT, **changes: Any) -> SpecT:
        """Return a copy with some fields changed, validated again."""
        return replace(self, **changes)


class EvolvableModule(Layer, Generic[SpecT]):
    """A module that was built from a spec: `[..., in] -> [..., out]`, or `[P, B, in] -> [P, B, out]` when stacked."""

    spec: SpecT
    inputs: Any
    """What it reads: a number of features, or what else its kind is built for."""
    num_outputs: int

    @property
    def sample_shape(self) -> Any:
        """Shape of one sample of what it reads, where that is numbers of one kind."""
        return (self.inputs,) if isinstance(self.inputs, int) else self.inputs

    def rebuild(self: ModuleT, spec: Any) -> ModuleT:
        """A module of the same ends built from another spec, with the weights as they come."""
        return cast(Any, type(self))(spec, self.inputs, self.num_outputs)

    def reset_(self, generator: torch.Generator, *, output_gain: float) -> None:
        """Draw initial weights; `output_gain` scales the last layer's."""
        raise NotImplementedError

    def pullback(self, x: Tensor, *, to_input: bool) -> tuple[Tensor, Pull]:
        """The outputs, and how to carry their gradient back to the parameters and, if asked for, to the input.

        By autograd, unless a kind of module knows a faster way. The way back lasts until it is asked again, or computes
        anything else of samples of the same shape.
        """
        with torch.enable_grad():
            x = x.detach().requires_grad_(to_input)
            y = self(x)

        def pull(gradient: Tensor, into: Sequence[Tensor]) -> Tensor | None:
            wanted = [*self.parameters(), *([x] if to_input else [])]
            found = vjp((y,), wanted, (gradient,))
            for whole, part in zip(into, found, strict=False):  # behind them stands the input's
                whole.copy_(part)
            return found[-1] if to_input else None

        return y.detach(), pull

    def name_in_padded(self, padded: EvolvableModule) -> dict[str, str]:
        """Where its layers stand in a module built from a covering spec, for those that stand elsewhere there."""
        return {}

    def shrink_(self, members: Sequence[EvolvableModule]) -> None:
        """In a cover: let go of room for parameters that none of these members needs."""

    def advance_fades_(self, share: float = 1.0) -> None:
        """Move every mutation that fades in by a share of its way onward: between updates, never within one.

        Raises:
            ConfigurationError: `share` is not between 0 and 1.
        """
        check_range("share", share, 0.0, 1.0)
        for activation in _fades(self):
            activation.advance_(share)

    def fade_left(self) -> float:
        """How much of the latest mutation has still to fade in: 0 when nothing does (for one member)."""
        return max((1.0 - float(activation.blend) for activation in _fades(self)), default=0.0)

    def finish_fading_(self) -> None:
        """Forget what was faded from, once it is gone (for one member)."""

    # -- what a mutation needs to know (of one member)

    input_consumers: tuple[str, ...] = ()
    """The linear maps that read the module's input."""

    def unit_axes(self) -> UnitAxes:
        """Name the unit group on each axis of every parameter and buffer that has units.

        The groups "in" and "out" are the module's ends.
        """
        raise NotImplementedError

    def expand_maps(self, maps: UnitMaps) -> UnitMaps:
        """The maps of groups that follow from those of others, like pixels from their channel's."""
        return {}

    def unit_change(self, operator: str, arguments: Arguments) -> UnitChange:
        """What an operator does to the units."""
        raise NotImplementedError

    def source_name(self, name: str, operator: str, arguments: Arguments) -> str:
        """The parent's name of one of this child's tensors; empty for one that nobody had before."""
        return name

    def source_names(self, names: Collection[str], operator: str, arguments: Arguments) -> dict[str, str]:
        """The same of all of them, without the newborn."""
        found = {name: self.source_name(name, operator, arguments) for name in names}
        return {name: source_name for name, source_name in found.items() if source_name}

    def init_new_layer_(self, operator: str, arguments: Arguments, generator: torch.Generator) -> None:
        """Let a newborn layer of this child's change nothing."""

    def merge_removed_layer_(self, parent: EvolvableModule, operator: str, arguments: Arguments) -> None:
        """Let this child do about what its parent did with the layer that was removed, before readers are refitted."""

    def layer_input(self, name: str, x: Tensor) -> Tensor:
        """What one of its linear maps reads `[n, columns]` when the module reads `x` `[B, in]`."""
        raise NotImplementedError

    def layer_output(self, name: str, outputs: Tensor, inputs: Tensor) -> Tensor:
        """What the layer of a linear map says where the map gives `outputs` (which are not overwritten)."""
        return outputs


@cache
def _annotations(kind: type[Spec]) -> tuple[tuple[str, str, tuple[type, ...]], ...]:
    """Name and annotation of those fields of a kind of spec that can be checked by it, and types that need no check."""
    annotated = [(field.name, str(field.type)) for field in fields(kind) if str(field.type) in FIELD_TYPES]
    return tuple((name, its, () if its.startswith("tuple") else FIELD_TYPES[its][0]) for name, its in annotated)


def _fades(module: nn.Module) -> list[Activation]:
    """The activations in a module that come from something else."""
    return [layer for layer in walk(module).modules.values() if isinstance(layer, Activation) and layer.before]


def check_field_type(field: str, value: object, annotation: str) -> None:
    """Raise ConfigurationError unless a value is of the kind that a spec's annotation says."""
    types, wanted = FIELD_TYPES[annotation]
    is_list = annotation.startswith("tuple")
    entries = value if is_list and isinstance(value, tuple) else (value,)
    if is_list == isinstance(value, tuple) and all(type(entry) in types for entry in entries):
        return  # nearly always, and soon found out
    flags_misplaced = bool not in types and any(isinstance(entry, bool) for entry in entries)
    if is_list != isinstance(value, tuple) or flags_misplaced or not all(isinstance(entry, types) for entry in entries):
        raise ConfigurationError(f"{field}={value!r} must be {wanted}")


def num_floats(inputs: Any) -> int:
    """How many numbers a module of vectors is built for: as it is, or as leaves of an observation."""
    return inputs if isinstance(inputs, int) else sum(leaf.size for leaf in inputs)


def check_input_output_sizes(inputs: int, num_outputs: int) -> None:
    """Raise ConfigurationError unless a module has something to read and something to say."""
    for name, count in (("num_inputs", inputs), ("num_outputs", num_outputs)):
        if count < 1:
            raise ConfigurationError(f"{name}={count!r} must be at least 1")


def check_mapping(field: str, value: object) -> None:
    """Raise ConfigurationError unless a value maps names to settings."""
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{field}={value!r} must be a mapping from names to values")


def check_limits(spec: Spec, low: str, high: str) -> None:
    """Raise ConfigurationError unless, of two fields of a spec, 1 <= low <= high."""
    if not 1 <= getattr(spec, low) <= getattr(spec, high):
        raise ConfigurationError(
            f"{low}={getattr(spec, low)!r} must be at least 1 and at most {high}={getattr(spec, high)!r}"
        )


def check_range(field: str, value: float, low: float, high: float) -> None:
    """Raise ConfigurationError unless `low <= value <= high`."""
    if not low <= value <= high:
        raise ConfigurationError(f"{field}={value!r} is outside its range [{low}, {high}]")
