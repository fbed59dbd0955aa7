"""Members' parameters laid out on one leading axis, of which every member keeps views of its own row.

`ParamStack.of([a, b, c])` makes one flat `[P, N]` tensor, or fills one that it is given. The stacked module's parameters are
views of it with shape `[P, …]`, and each member's own parameters are re-pointed to views of its row: while the stack
trains, `agent.actor` is live. One flat tensor makes Adam, clipping, cloning and finiteness checks a handful of kernels
however many layers there are.

Members may be of unequal shape: a cover has room for each of them, a member's tensors fill the leading corners of the
cover's, and the rest is zero. That is exact: a unit that is not there stays 0, and so do its gradients and moments.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from agilerl_like.modules.base import EvolvableModule
from agilerl_like.modules.layers import Activation, LayerNorm, Linear
from agilerl_like.modules.module_utils import Walk, blank_, walk

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class ParamSlot(NamedTuple):
    """Where one parameter lies in a member's flat row."""

    name: str
    start: int
    stop: int
    shape: torch.Size


def layout(module: nn.Module | Walk, starts: Mapping[str, int] | None = None) -> tuple[ParamSlot, ...]:
    """The places of a module's parameters in its flat row, in the order of `named_parameters`.

    They lie without gaps, but that those of a submodule named in `starts` begin where it says.
    """
    slots, start, inside = [], 0, ""
    for name, parameter in (module if isinstance(module, Walk) else walk(module)).parameters.items():
        owner = name.partition(".")[0]
        if owner != inside:
            start, inside = (starts or {}).get(owner, start), owner
        slots.append(ParamSlot(name, start, start + parameter.numel(), parameter.shape))
        start += parameter.numel()
    return tuple(slots)


def views(row: Tensor, slots: Sequence[ParamSlot]) -> dict[str, Tensor]:
    """Name the parts of a flat row `[N]`, or of rows `[P, N]`, as views with each parameter's shape."""
    rows, across, source_name = row.shape[:-1], row.stride()[:-1], row.storage_offset()
    return {  # each in one call: to cut and then view takes twice as long
        slot.name: row.as_strided((*rows, *slot.shape), (*across, *_steps(slot.shape)), source_name + slot.start)
        for slot in slots
    }


def _steps(shape: torch.Size) -> list[int]:
    """The strides of numbers that lie without gaps."""
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return steps[::-1]


def flatten_parameters_(module: nn.Module) -> None:
    """Move a module's parameters into one flat row, as a stack would: where numbers lie decides their last bits."""
    _flatten_(list(walk(module).parameters.values()))


@torch.no_grad()
def _flatten_(parameters: Collection[Tensor]) -> None:
    bind_parameters_(torch.cat([parameter.ravel() for parameter in parameters]), parameters)


def bind_parameters_(row: Tensor, parameters: Collection[Tensor]) -> None:
    """Make parameters views of a flat row `[N]`, whose numbers they have from now on."""
    start = row.storage_offset()
    for parameter in parameters:
        shape = parameter.shape
        parameter.data = row.as_strided(shape, _steps(shape), start)
        start += parameter.numel()


def alias_parameter(tensor: Tensor) -> Tensor:
    """Another parameter of the same numbers, where they lie; or a copy of a buffer."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
    return tensor.clone(memory_format=torch.contiguous_format)


def clone_module(module: ModuleT) -> ModuleT:
    """A copy of a module with tensors of its own, whose parameters lie in one flat row."""
    tensors: list[Tensor] = []

    def own(tensor: Tensor) -> Tensor:
        tensors.append(alias_parameter(tensor))
        return tensors[-1]

    copied = rebuild_with(module, own)
    _flatten_([tensor for tensor in tensors if isinstance(tensor, nn.Parameter)])
    return copied


def detached_clone(module: ModuleT) -> ModuleT:
    """A copy of a module with tensors of its own, each by itself: what can be pickled without what lies beside it."""

    def own(tensor: Tensor) -> Tensor:
        alone = tensor.detach().clone(memory_format=torch.contiguous_format)
        return nn.Parameter(alone, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else alone

    return rebuild_with(module, own)


def rebuild_with(
    module: ModuleT, body: Callable[[Tensor], Tensor], instead: Mapping[nn.Module, nn.Module] = MappingProxyType({})
) -> ModuleT:
    """Copy a module's structure, with another tensor for each of its own; asked once for each, in their order.

    `instead` of some submodules others stand in the copy. What else our modules keep is only ever replaced, so copies
    may share it (a deep copy takes twenty times as long). A module that keeps something else says by `__deepcopy__` how
    it is copied.
    """
    return cast(ModuleT, _Copier(body, instead).copied(module))


class _Copier:
    """Copies modules, each of them and of their tensors once."""

    def __init__(self, body: Callable[[Tensor], Tensor], instead: Mapping[nn.Module, nn.Module]) -> None:
        self._body = body
        self._modules = {id(one): other for one, other in instead.items()}
        self._tensors: dict[int, Any] = {}

    def copied(self, one: nn.Module) -> nn.Module:
        if id(one) not in self._modules:
            self._modules[id(one)] = self._deep(one) if hasattr(type(one), "__deepcopy__") else self._alike(one)
        return self._modules[id(one)]

    def _bodied(self, own: Tensor) -> Any:
        if id(own) not in self._tensors:
            self._tensors[id(own)] = self._body(own)
        return self._tensors[id(own)]

    def _deep(self, one: nn.Module) -> nn.Module:
        return copy.deepcopy(one, {id(own): self._bodied(own) for own in walk(one).tensors.values()})

    def _alike(self, one: nn.Module) -> nn.Module:
        other = type(one).__new__(type(one))
        vars(other).update(vars(one))
        blank_(other)  # hooks stay where they were hung
        for name, parameter in one._parameters.items():
            other._parameters[name] = self._bodied(cast(Tensor, parameter))
        for name, buffer in one._buffers.items():
            other._buffers[name] = self._bodied(cast(Tensor, buffer))
        for name, inner in one._modules.items():
            other._modules[name] = self.copied(cast(nn.Module, inner))
        return other


def update_count_flags(module: nn.Module | Walk) -> None:
    """Let layers re-read what they keep in Python about buffers that were just written."""
    for layer in (module if isinstance(module, Walk) else walk(module)).modules.values():
        if isinstance(layer, LayerNorm):
            layer.update_count_flags()


class TensorPlacement(NamedTuple):
    """Where one of a member's tensors lives in the stack."""

    name: str
    """What it is called there."""
    shape: torch.Size
    """Its own shape: the leading corner of what is there."""


class MemberLayout(NamedTuple):
    """A member, or all that are alike, and where its layers and tensors are in the stack."""

    layers: dict[str, nn.Module]
    """By their names in the cover."""
    parameters: dict[str, TensorPlacement]
    buffers: dict[str, TensorPlacement]

    @classmethod
    def of(cls, member: Walk, padded: Mapping[str, nn.Module]) -> MemberLayout:
        """Find the place of a member among the cover's submodules."""
        names = names_in_padded(member.modules, padded)

        def home(name: str, tensor: Tensor) -> TensorPlacement:
            owner, dot, attribute = name.rpartition(".")
            return TensorPlacement(names[owner] + dot + attribute, tensor.shape)

        return cls(
            {names[name]: layer for name, layer in member.modules.items()},
            {name: home(name, tensor) for name, tensor in member.parameters.items()},
            {name: home(name, tensor) for name, tensor in member.buffers.items()},
        )


class ParamStack(Generic[ModuleT]):
    """Modules as one: `module` computes all of them, `flat` `[P, N]` holds all their parameters.

    `padded` is a module like the members in which each of them has room; its own numbers play no part.
    """

    def __init__(
        self,
        padded: ModuleT,
        member_layouts: Sequence[MemberLayout],
        flat: Tensor,
        buffers: dict[str, Tensor],
        slots: tuple[ParamSlot, ...],
    ) -> None:
        self.padded, self.member_layouts, self.flat, self.buffers, self.slots = (
            padded,
            list(member_layouts),
            flat,
            buffers,
            slots,
        )
        self._places: dict[int, Tensor] = {}
        parts, own = views(flat, slots), walk(padded)
        body: dict[int, Tensor] = {id(tensor): nn.Parameter(parts[name]) for name, tensor in own.parameters.items()}
        body |= {id(tensor): buffers[name] for name, tensor in own.buffers.items()}
        self.module = rebuild_with(padded, lambda tensor: body[id(tensor)])

    @classmethod
    def of(
        cls,
        modules: Sequence[ModuleT],
        padded: ModuleT | None = None,
        *,
        flat: Tensor | None = None,
        slots: tuple[ParamSlot, ...] = (),
    ) -> ParamStack[ModuleT]:
        """ParamStack modules, and re-point their tensors to rows of the stack; equal ones need no cover."""
        padded, members = modules[0] if padded is None else padded, [walk(module) for module in modules]
        there, numbers, slots = walk(padded), next(iter(members[0].parameters.values())), slots or layout(padded)
        flat = numbers.new_zeros(len(modules), slots[-1].stop) if flat is None else flat
        buffers = {  # as precise as the members' numbers, which the cover's need not be; counters stay counters
            name: (numbers if buffer.is_floating_point() else buffer).new_zeros(len(modules), *buffer.shape)
            for name, buffer in there.buffers.items()
        }
        kinds = [_kind(module, member) for module, member in zip(modules, members, strict=True)]
        found = {
            kind: MemberLayout.of(member, there.modules)
            for kind, member in dict(zip(kinds, members, strict=True)).items()
        }
        stack = cls(padded, [found[kind] for kind in kinds], flat, buffers, slots)
        for row, member in enumerate(members):
            stack._move_in(row, member)
        stack.set_members()
        return stack

    @torch.no_grad()
    def _move_in(self, row: int, member: Walk) -> None:
        """A member's numbers move into its row, and its tensors become views of them."""
        parts = self.parts(self.flat, row)
        for name, (there, shape) in self.member_layouts[row].buffers.items():
            parts[name] = _leading_block(self.buffers[there][row], shape)
        for name, tensor in member.tensors.items():
            parts[name].copy_(tensor)
            tensor.data = parts[name]

    def set_members(self) -> None:
        """Tell the layers about their members."""
        for name, layer in walk(self.module).modules.items():
            if isinstance(layer, Activation | LayerNorm | Linear):
                layer.set_members(
                    [member_layout.layers.get(name) for member_layout in self.member_layouts], self.flat.device
                )

    def parts(self, rows: Tensor, row: int) -> dict[str, Tensor]:
        """Name the parts of a row of `[P, N]` (parameters, moments) that are the member's own."""
        everything = views(rows[row], self.slots)
        return {
            name: _leading_block(everything[there], shape)
            for name, (there, shape) in self.member_layouts[row].parameters.items()
        }

    def places(self, row: int) -> Tensor:
        """Where in a row of `[P, N]` a member's own numbers lie, in the order in which it has them alone."""
        member_layout = id(self.member_layouts[row])  # those that are alike have one
        if member_layout not in self._places:
            columns = torch.arange(self.flat.shape[1], device=self.flat.device).expand(self.flat.shape)
            self._places[member_layout] = torch.cat([part.reshape(-1) for part in self.parts(columns, row).values()])
        return self._places[member_layout]

    def take(self, rows: Tensor, flat: Tensor | None = None) -> ParamStack[ModuleT]:
        """Copy some rows into a stack of their own (no member is re-pointed); `flat` is where they were copied to."""
        member_layouts = [self.member_layouts[row] for row in rows.tolist()]
        buffers = {name: buffer[rows] for name, buffer in self.buffers.items()}
        part = ParamStack(
            self.padded, member_layouts, self.flat.index_select(0, rows) if flat is None else flat, buffers, self.slots
        )
        part.module.train(self.module.training)
        part.set_members()
        return part

    def put(self, rows: Tensor, stack: ParamStack[ModuleT]) -> None:
        """Write a stack that was taken back into its rows."""
        self.flat[rows] = stack.flat
        for name, buffer in self.buffers.items():
            buffer[rows] = stack.buffers[name]


def names_in_padded(member: Mapping[str, nn.Module], padded: Mapping[str, nn.Module]) -> dict[str, str]:
    """The name of each of a member's submodules among those of the cover."""
    names: dict[str, str] = {}
    elsewhere: dict[str, str] = {}
    for name, module in member.items():
        names[name] = elsewhere.get(name, name)
        if isinstance(module, EvolvableModule):
            prefix = f"{name}." if name else ""
            name_in_padded = module.name_in_padded(cast(EvolvableModule, padded[name]))
            elsewhere |= {prefix + here: prefix + there for here, there in name_in_padded.items()}
    return names


def _kind(module: nn.Module, its: Walk) -> Hashable:
    """What modules have in common whose layers are alike, and have tensors of the same names and shapes."""
    spec = module.spec if isinstance(module, EvolvableModule) else id(module)
    return spec, tuple(parameter.shape for parameter in its.parameters.values())


def _leading_block(tensor: Tensor, shape: torch.Size) -> Tensor:
    return tensor if tensor.shape == shape else tensor[tuple(slice(size) for size in shape)]
