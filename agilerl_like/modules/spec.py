"""Specs of evolvable modules: validated, hashable descriptions of architectures, and the mutations they allow."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from agilerl_like.errors import ConfigurationError, check_mapping, unknown_name
from agilerl_like.modules.layers import ACTIVATIONS, SKIP, check_activation

OperatorKind = Literal["layer", "node", "activation"]
Arguments = dict[str, int | float | str]
SpecT = TypeVar("SpecT", bound="Spec")
FadingSpecT = TypeVar("FadingSpecT", bound="FadingSpec")


FIELD_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "True or False"),
    "int": ((int,), "an integer"),
    "float": ((int, float), "a number"),
    "str": ((str,), "a name"),
    "tuple[int, ...]": ((int,), "a list of integers"),
    "tuple[str, ...]": ((str,), "a list of names"),
}
"""Types of a spec's fields by annotation (of the entries, for a tuple), and their description in errors."""


@dataclass(frozen=True)
class Spec:
    """A validated, hashable description of an evolvable module."""

    OPERATORS: ClassVar[Mapping[str, OperatorKind]] = {}
    BOUNDS: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Fields, and the fields of their limits: limits that are not configured are widened to include the value."""

    def __post_init__(self) -> None:
        for name, annotation, types in _annotations(type(self)):
            if type(value := getattr(self, name)) not in types:
                check_field_type(name, value, annotation)

    @classmethod
    def config_keys(cls) -> set[str]:
        """Return the keys that `from_config` accepts."""
        return {field.name for field in fields(cls) if field.init}

    @classmethod
    def defaults_for(cls, inputs: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return defaults that depend on the module's inputs and on the configured keys.

        `inputs` is as in the module's constructor, None where it is not known yet.
        """
        return dict(bound for field in cls.BOUNDS if field in given for bound in cls._bounds_of(field, given[field]))

    @classmethod
    def _bounds_of(cls, field: str, value: Any) -> Iterator[tuple[str, int]]:
        """Return the limits of a field that include a value, or all of a list; none if it is no positive integer."""
        values = value if isinstance(value, (list, tuple)) else (value,)
        if values and all(type(entry) is int and entry > 0 for entry in values):
            low, high = cls.BOUNDS[field]
            yield low, min(getattr(cls, low), *values)
            yield high, max(getattr(cls, high), *values)

    @classmethod
    def from_config(cls: type[SpecT], field: str, config: Mapping[str, Any], inputs: Any = None) -> SpecT:
        """Build a spec from a plain mapping: lists become tuples, and None means the default, as in AgileRL.

        `inputs` is as in the module's constructor; defaults may depend on it (see `defaults_for`).

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
        return {f.name: _with_lists(getattr(self, f.name)) for f in fields(self)}

    @property
    def operator_kinds(self) -> Mapping[str, OperatorKind]:
        """The kind of every operator, legal now or not; a composite spec has more than `OPERATORS`."""
        return self.OPERATORS

    def operators(self, kind: OperatorKind) -> tuple[str, ...]:
        """Return the operators of one kind that are legal now, in a fixed order."""
        return tuple(name for name, its_kind in self.operator_kinds.items() if its_kind == kind and self.choices(name))

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        """Return all arguments with which an operator may be applied now; none if it is not legal."""
        raise NotImplementedError

    def apply(self: SpecT, operator: str, **arguments: int | float | str) -> SpecT:
        """Return the spec after one mutation with given arguments."""
        raise NotImplementedError

    def mutate(
        self: SpecT, operator: str, rng: np.random.Generator, *, activations: tuple[str, ...] = ()
    ) -> tuple[SpecT, Arguments]:
        """Draw an operator's arguments uniformly from the legal ones; return the new spec and the arguments.

        If `activations` allows no other activation, a change of activation returns the spec itself and no arguments.

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
    """Fields that must be equal for members to be stacked; other differences are padded, or handled in the layers.

    It covers the fields of the class that sets it; those that a subclass adds must be equal, too, unless they are in
    `UNION_FIELDS` or the subclass sets it again.
    """
    UNION_FIELDS: ClassVar[tuple[str, ...]] = ()
    """Fields of which a padded union has the maximum."""

    def stack_key(self) -> Hashable:
        """Return what must be equal for members to be stacked: `STACK_FIELDS`, and fields that subclasses add."""
        return tuple(getattr(self, name) for name in (*self.STACK_FIELDS, *_added_fields(type(self))))

    @classmethod
    def padded_union(cls: type[SpecT], specs: Sequence[Any]) -> SpecT:
        """Return the smallest spec in which all these, of equal `stack_key`, fit."""
        return specs[0].evolve(**{name: max(getattr(spec, name) for spec in specs) for name in cls.UNION_FIELDS})

    def multiply_adds(self, padded: Any, inputs: Any, num_outputs: int) -> int:
        """Return the multiplications per sample in a stack of this padded spec; `inputs` as in the constructor."""
        raise NotImplementedError

    @property
    def has_noise(self) -> bool:
        """Whether the module's outputs have noise or dropout in training mode."""
        return bool(getattr(self, "noisy", False) or getattr(self, "dropout", 0.0))

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
    def shown_activations(self) -> tuple[str, ...]:
        """The activations that the description of a network names, at most one."""
        return self.activation_names[:1]

    @property
    def depth(self) -> int:
        """Number of its layers; in a stack, members of the same depth are neighbours."""
        return 0

    def describe(self) -> str:
        """Return a few characters for tables and logs."""
        raise NotImplementedError

    def __deepcopy__(self: SpecT, memo: dict[int, Any]) -> SpecT:
        """Specs are immutable, so copies share them."""
        return self

    def evolve(self: SpecT, **changes: Any) -> SpecT:
        """Return a copy with some fields changed, validated again."""
        return replace(self, **changes)


def _with_lists(value: Any) -> Any:
    """Return a value with tuples as lists, also those within tuples."""
    return [_with_lists(entry) for entry in value] if isinstance(value, tuple) else value


def size_steps(operator: str, size: int, low: int, high: int, steps: Sequence[int]) -> list[int]:
    """Return the amounts by which `add_…` or `remove_…` may change a size within its limits."""
    left = high - size if operator.startswith("add") else size - low
    return sorted({amount for step in steps if (amount := min(step, left)) > 0})


class FadingSpec(Spec):
    """A spec with `activation`, `output_activation` and `fading`, which can change its activation.

    `fading` has an entry for each of `num_activations` hidden activations and one for the output's: the activation that
    is being blended out there, "" if none is.
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


@cache
def _annotations(kind: type[Spec]) -> tuple[tuple[str, str, tuple[type, ...]], ...]:
    """Return name, annotation, and the types that need no check, of those fields that can be checked."""
    annotated = [(field.name, str(field.type)) for field in fields(kind) if str(field.type) in FIELD_TYPES]
    return tuple((name, its, () if its.startswith("tuple") else FIELD_TYPES[its][0]) for name, its in annotated)


@cache
def _added_fields(kind: type[Spec]) -> tuple[str, ...]:
    """Return the fields beyond those of the class that sets `STACK_FIELDS` or defines `stack_key`; no padded ones."""
    owner = next(base for base in kind.__mro__ if {"STACK_FIELDS", "stack_key"} & vars(base).keys())
    covered = {*(field.name for field in fields(owner)), *kind.UNION_FIELDS}
    return tuple(field.name for field in fields(kind) if field.name not in covered)


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


def check_limits(spec: Spec, low: str, high: str, *, least: int = 1) -> None:
    """Raise ConfigurationError unless, of two fields of a spec, `least <= low <= high`."""
    if not least <= getattr(spec, low) <= getattr(spec, high):
        raise ConfigurationError(
            f"{low}={getattr(spec, low)!r} must be at least {least} and at most {high}={getattr(spec, high)!r}"
        )


def check_normalised_latent(spec: Any, parts: Iterable[Spec]) -> None:
    """Raise ConfigurationError if a mutation could leave a single output of a part whose outputs are normalised."""
    if spec.min_latent_dim < 2 and any(getattr(part, "output_layernorm", False) for part in parts):
        raise ConfigurationError(
            "min_latent_dim=1 is too few for output_layernorm=True, which maps a single node to a constant"
        )


def check_range(spec: Spec, field: str, value: int, low: str, high: str) -> None:
    """Raise ConfigurationError unless a value lies between the two fields of a spec that limit it."""
    limits = getattr(spec, low), getattr(spec, high)
    if not limits[0] <= value <= limits[1]:
        raise ConfigurationError(f"{field}={value!r} is outside its range {[*limits]}, which {low} and {high} set")
