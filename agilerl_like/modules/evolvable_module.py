"""Evolvable modules: a frozen spec, the `nn.Module` built from it, and the mutations that the spec allows.

A spec decides on shapes and touches no tensor; a mutation returns a new spec. A kind of network defines

- its spec: the mutations (`choices`, `apply`), and for stacks of members of unequal shape the fields that must be equal
  (`STACK_FIELDS`, and all that a subclass adds), those whose maximum is used (`UNION_FIELDS`) and the work per sample
  (`multiply_adds`);
- its module: the unit group on every axis of every tensor (`unit_axes`), the groups that an operator widens or narrows
  (`unit_change`), the lists that have an entry for each layer (`LAYER_LISTS`), how a new layer is initialised so that
  it changes no output (`init_new_layer_`), and for removals the inputs of its linear maps (`layer_input`).

`weight_transfer` carries out a mutation from this for every kind of network alike, `param_stack` stacks members. In a
stack each tensor fills the leading block of the padded tensor, so an axis must hold units of one group (the four gates
of an LSTM are an axis of their own).
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.layers import Activation
from agilerl_like.modules.spec import Arguments, SpecT

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


ModuleT = TypeVar("ModuleT", bound="EvolvableModule")


class EvolvableModule(nn.Module, Generic[SpecT]):
    """A module built from a spec: `[..., in] -> [..., out]`, or `[P, B, in] -> [P, B, out]` when stacked."""

    spec: SpecT
    inputs: Any
    """The constructor's argument: a number of features, or the shape or leaves that its kind reads."""
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
        """Return a module with the same inputs and outputs built from another spec, with undefined weights.

        A class whose constructor has other parameters than these three overrides it, to pass them on.

        Raises:
            ConfigurationError: as `check_rebuild`.
        """
        self.check_rebuild("module")
        return cast(Any, type(self))(spec, self.inputs, self.num_outputs)

    def check_rebuild(self, field: str) -> None:
        """Raise ConfigurationError if `rebuild` is inherited and would not give the constructor all of its arguments.

        `field` is the name of the module in the message.
        """
        if type(self).rebuild is not EvolvableModule.rebuild:
            return
        own = inspect.signature(type(self)).parameters.values()
        by_place = [its for its in own if its.kind in (its.POSITIONAL_ONLY, its.POSITIONAL_OR_KEYWORD)]
        takes_three = len(by_place) == 3 or (len(by_place) < 3 and any(its.kind is its.VAR_POSITIONAL for its in own))
        if not takes_three or any(its.kind is its.KEYWORD_ONLY for its in own):
            name, names = type(self).__name__, ", ".join(map(str, own)) or "none"
            raise ConfigurationError(
                f"{field}={name} evolves, and its constructor has the parameters {names:.200}, but a "
                f"mutation builds {name}(spec, inputs, num_outputs); allowed are these three alone, or a method "
                "rebuild(self, spec) of the class that returns the module for another spec with all of its arguments"
            )

    def reset_(self, generator: torch.Generator, *, output_gain: float) -> None:
        """Draw initial weights; `output_gain` scales the last layer's."""
        raise NotImplementedError

    def name_in_padded(self, padded: EvolvableModule) -> dict[str, str]:
        """Map layers to their names in a module built from a padded union, where these differ."""
        return {}

    def advance_fades_(self, share: float = 1.0) -> None:
        """Advance every mutation that fades in by a share of its way: between updates, never within one.

        Raises:
            ConfigurationError: `share` is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise ConfigurationError(f"share={share!r} is outside its range [0.0, 1.0]")
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

    # -- what a mutation depends on (of one member)

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


def _fades(module: nn.Module) -> list[Activation]:
    """Return the activations in a module that are fading in."""
    return [layer for layer in module.modules() if isinstance(layer, Activation) and layer.before]
