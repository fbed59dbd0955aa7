"""Specs and modules made of evolvable parts, to which they forward mutations under prefixed names.

An operator of a part is written behind the part's name ("camera.add_channel"); tensors and unit groups of a part have
the path of its attribute in front ("extractors.0.convs.1.weight").
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from agilerl_like.errors import unknown_name
from agilerl_like.modules.evolvable_module import EvolvableModule, UnitAxes, UnitChange, UnitMaps
from agilerl_like.modules.spec import Arguments, OperatorKind, Spec, SpecT, size_steps

CompositeSpecT = TypeVar("CompositeSpecT", bound="CompositeSpec")

LATENT_STEPS = (8, 16, 32)
"""How many latent nodes a mutation adds or removes (AgileRL's choice)."""


class CompositeSpec(Spec):
    """A spec of named parts. Its own operators, if it has any, change the latent layer and the activation of all."""

    latent_dim: int
    min_latent_dim: int
    max_latent_dim: int

    @property
    def parts(self) -> dict[str, Spec]:
        """The specs of the parts by name."""
        raise NotImplementedError

    def with_parts(self: CompositeSpecT, parts: Mapping[str, Spec], **changes: Any) -> CompositeSpecT:
        """Return a copy with other specs of some parts, and other fields changed."""
        raise NotImplementedError

    def split_operator(self, operator: str) -> tuple[str, str]:
        """Return the part that an operator changes and the part's name of it; "" in front if it is the spec's own."""
        name = max((name for name in self.parts if operator.startswith(f"{name}.")), key=len, default="")
        return name, operator.removeprefix(f"{name}.")

    @property
    def has_noise(self) -> bool:
        return any(spec.has_noise for spec in self.parts.values())

    # -- mutations

    @property
    def operator_kinds(self) -> Mapping[str, OperatorKind]:
        parts: dict[str, OperatorKind] = {
            f"{name}.{operator}": kind
            for name, spec in self.parts.items()
            for operator, kind in spec.operator_kinds.items()
            if kind != "activation"
        }
        return {**parts, **self.OPERATORS}

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        name, inner = self.split_operator(operator)
        if name:
            return self.parts[name].choices(inner)
        if self.is_fading:
            return ()
        if operator == "change_activation":
            found = (str(choice["activation"]) for spec in self.parts.values() for choice in _activations(spec))
            return tuple({"activation": activation} for activation in dict.fromkeys(found))
        low, high = self.min_latent_dim, self.max_latent_dim
        return tuple({"nodes": nodes} for nodes in size_steps(operator, self.latent_dim, low, high, LATENT_STEPS))

    def apply(self: CompositeSpecT, operator: str, **arguments: int | float | str) -> CompositeSpecT:
        if operator not in self.operator_kinds:
            raise unknown_name("operator", operator, self.operator_kinds)
        name, inner = self.split_operator(operator)
        if name:
            return self.with_parts({name: self.parts[name].apply(inner, **arguments)})
        if operator == "change_activation":
            return self.with_activation(str(arguments["activation"]))
        sign = 1 if operator == "add_latent_node" else -1
        return self.evolve(latent_dim=self.latent_dim + sign * int(arguments["nodes"]))

    def with_activation(self: CompositeSpecT, activation: str) -> CompositeSpecT:
        """Change the activation of all parts that can change to it."""
        able = {name: spec for name, spec in self.parts.items() if {"activation": activation} in _activations(spec)}
        return self.with_parts(
            {name: spec.apply("change_activation", activation=activation) for name, spec in able.items()}
        )

    @property
    def is_fading(self) -> bool:
        return super().is_fading or any(spec.is_fading for spec in self.parts.values())

    def without_fading(self: CompositeSpecT) -> CompositeSpecT:
        if not self.is_fading:
            return self
        return super().without_fading().with_parts({name: spec.without_fading() for name, spec in self.parts.items()})

    # -- in a stack

    @property
    def activation_names(self) -> tuple[str, ...]:
        return tuple(name for spec in self.parts.values() for name in spec.activation_names)

    @property
    def depth(self) -> int:
        return max((spec.depth for spec in self.parts.values()), default=0)

    def stack_key(self) -> Hashable:
        return super().stack_key(), *((name, type(spec), spec.stack_key()) for name, spec in self.parts.items())

    @classmethod
    def padded_union(cls: type[CompositeSpecT], specs: Sequence[Any]) -> CompositeSpecT:
        parts = {
            name: type(spec).padded_union([other.parts[name] for other in specs])
            for name, spec in specs[0].parts.items()
        }
        return super().padded_union(specs).with_parts(parts)


def _activations(spec: Spec) -> tuple[Arguments, ...]:
    return spec.choices("change_activation") if "change_activation" in spec.operator_kinds else ()


class CompositeModule(EvolvableModule[SpecT]):
    """A module with evolvable parts."""

    @property
    def parts(self) -> dict[str, EvolvableModule]:
        """The evolvable parts by the paths of their attributes."""
        raise NotImplementedError

    def targets(self, operator: str) -> tuple[tuple[str, ...], str]:
        """Return the paths of the parts that an operator changes and the parts' name of it; no paths for its own."""
        raise NotImplementedError

    def part_input(self, path: str, x: Tensor) -> Any:
        """Return what a part reads when the module reads `x`."""
        raise NotImplementedError

    def output_consumers(self, path: str) -> tuple[str, ...]:
        """Return the linear maps that read the output of a part."""
        return ()

    def group_name(self, path: str, group: str) -> str:
        """Return the name of a part's unit group."""
        return group and f"{path}.{group}"

    def split_name(self, name: str) -> tuple[str, str]:
        """Return the path of the part that owns a name, "" if there is none, and the part's own name."""
        path = next((path for path in self.parts if name.startswith(f"{path}.")), "")
        return path, name.removeprefix(f"{path}.")

    # -- mutations

    def unit_axes(self) -> UnitAxes:
        return {
            f"{path}.{name}": tuple(self.group_name(path, group) for group in groups)
            for path, part in self.parts.items()
            for name, groups in part.unit_axes().items()
        }

    def expand_maps(self, maps: UnitMaps) -> UnitMaps:
        return {
            f"{path}.{group}": unit_map
            for path, part in self.parts.items()
            for group, unit_map in part.expand_maps(maps_of(path, maps)).items()
        }

    def unit_change(self, operator: str, arguments: Arguments) -> UnitChange:
        paths, inner = self.targets(operator)
        return self.combined({path: self.parts[path].unit_change(inner, arguments) for path in paths})

    def combined(self, changes: Mapping[str, UnitChange]) -> UnitChange:
        """Return the changes of some parts as one; what reads a changed output is refitted."""
        units, fixed_maps, consumers = dict[str, int](), dict[str, Tensor](), list[tuple[str, str]]()
        for path, change in changes.items():
            units |= {f"{path}.{group}": added for group, added in change.units.items()}
            fixed_maps |= {f"{path}.{group}": unit_map for group, unit_map in change.fixed_maps.items()}
            consumers += [(f"{path}.{name}", f"{path}.{replacement}") for name, replacement in change.consumers]
            if change.refits_output or change.units.get("out", 0) < 0:
                consumers += [(name, name) for name in self.output_consumers(path)]
        return UnitChange(units, fixed_maps, tuple(consumers))

    def source_names(self, names: Collection[str], operator: str, arguments: Arguments) -> dict[str, str]:
        paths, inner = self.targets(operator)
        changed = tuple(f"{path}." for path in paths)
        found = {name: name for name in names if not name.startswith(changed)}
        for path in paths:
            own = [name.removeprefix(f"{path}.") for name in names if name.startswith(f"{path}.")]
            sources = self.parts[path].source_names(own, inner, arguments)
            found |= {f"{path}.{name}": f"{path}.{source}" for name, source in sources.items()}
        return found

    def init_new_layer_(self, operator: str, arguments: Arguments, generator: torch.Generator) -> None:
        paths, inner = self.targets(operator)
        for path in paths:
            self.parts[path].init_new_layer_(inner, arguments, generator)

    def merge_removed_layer_(self, parent: EvolvableModule, operator: str, arguments: Arguments) -> None:
        paths, inner = self.targets(operator)
        for path in paths:
            self.parts[path].merge_removed_layer_(cast(CompositeModule[Any], parent).parts[path], inner, arguments)

    def layer_input(self, name: str, x: Tensor) -> Tensor:
        path, inner = self.split_name(name)
        return self.parts[path].layer_input(inner, self.part_input(path, x))

    def layer_output(self, name: str, outputs: Tensor, inputs: Tensor) -> Tensor:
        path, inner = self.split_name(name)
        return self.parts[path].layer_output(inner, outputs, inputs) if path else outputs


def maps_of(path: str, maps: UnitMaps) -> UnitMaps:
    """Return the unit maps of one part by the part's own names of the groups."""
    return {
        group.removeprefix(f"{path}."): unit_map for group, unit_map in maps.items() if group.startswith(f"{path}.")
    }
