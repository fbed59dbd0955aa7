"""Parameters of a population in one flat `[P, N]` tensor, of which each member's own parameters are views.

`ParamStack.of([a, b, c])` copies each module's parameters into one row and re-points them to views of that row, so
`agent.actor` is live while the stack trains. The stacked module's parameters are views `[P, …]` of the same tensor.
With one flat tensor, Adam, clipping, cloning and finiteness checks are a handful of kernels for any number of layers.

Members may have unequal shapes: each tensor of a member fills the leading block of the padded module's tensor, and the
rest is zero. Padding is exact: a missing unit stays 0, and so do its gradients and moments.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from agilerl_like.modules.evolvable_module import EvolvableModule
from agilerl_like.modules.layers import LayerNorm, MemberAware

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_EMPTY = tuple((name, type(value)) for name, value in vars(nn.Module()).items() if name != "training")
"""The dictionaries in which torch stores a module's tensors, submodules and hooks."""
_HOOKS = tuple(name for name, _ in _EMPTY if "_hooks" in name and "state_dict" not in name)


class ParamSlot(NamedTuple):
    """Position of one parameter in a member's flat row."""

    name: str
    start: int
    stop: int
    shape: torch.Size


def layout(module: nn.Module, starts: Mapping[str, int] | None = None) -> tuple[ParamSlot, ...]:
    """Return the slots of a module's parameters in a flat row, in the order of `named_parameters`.

    Slots are contiguous, except that those of a direct submodule named in `starts` begin at the given column.
    """
    return slots_of(dict(module.named_parameters()), starts)


def slots_of(parameters: Mapping[str, Tensor], starts: Mapping[str, int] | None = None) -> tuple[ParamSlot, ...]:
    """Return the slots of named parameters; see `layout`."""
    slots, start, owner = [], 0, ""
    for name, parameter in parameters.items():
        child = name.partition(".")[0]
        if child != owner:
            start, owner = (starts or {}).get(child, start), child
        slots.append(ParamSlot(name, start, start + parameter.numel(), parameter.shape))
        start += parameter.numel()
    return tuple(slots)


def views(row: Tensor, slots: Sequence[ParamSlot]) -> dict[str, Tensor]:
    """Return the parameters in a flat row `[N]` or in rows `[P, N]`, by name, as views of their own shapes."""
    lead = row.shape[:-1]
    return {slot.name: row[..., slot.start : slot.stop].view((*lead, *slot.shape)) for slot in slots}


@torch.no_grad()
def flatten_parameters_(module: nn.Module) -> None:
    """Move a module's parameters into one flat row, as in a stack: the memory layout decides the last bits."""
    parameters = list(module.parameters())
    bind_parameters_(torch.cat([parameter.ravel() for parameter in parameters]), parameters)


def bind_parameters_(row: Tensor, parameters: Iterable[Tensor]) -> None:
    """Make parameters views of a flat row `[N]`, whose values they take."""
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        parameter.data = row[start:stop].view(parameter.shape)
        start = stop


# -- copies of modules


def alias_parameter(tensor: Tensor) -> Tensor:
    """Return a new parameter that shares the memory of the given one, or a copy of a buffer."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
    return tensor.clone(memory_format=torch.contiguous_format)


def clone_module(module: ModuleT) -> ModuleT:
    """Return a copy of a module with its own tensors, whose parameters lie in one flat row."""
    copied = rebuild_with(module, alias_parameter)
    flatten_parameters_(copied)
    return copied


def detached_clone(module: ModuleT) -> ModuleT:
    """Return a copy of a module in which each tensor has its own storage, so that pickling stores nothing else."""

    def new_tensor(tensor: Tensor) -> Tensor:
        cloned = tensor.detach().clone(memory_format=torch.contiguous_format)
        return nn.Parameter(cloned, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else cloned

    return rebuild_with(module, new_tensor)


def rebuild_with(
    module: ModuleT,
    new_tensor: Callable[[Tensor], Tensor],
    replacements: Mapping[nn.Module, nn.Module] = MappingProxyType({}),
) -> ModuleT:
    """Copy a module, replacing each of its tensors by `new_tensor(tensor)` (called once per tensor, in their order).

    `replacements` maps submodules to those that take their place in the copy. Hooks are not copied. Other attributes
    are shared, since our modules never mutate them (`copy.deepcopy` takes twenty times as long); a module that does
    defines `__deepcopy__`, which is used.
    """
    return cast(ModuleT, _Copier(new_tensor, replacements).copy(module))


class _Copier:
    """Copies modules, each module and each tensor once."""

    def __init__(self, new_tensor: Callable[[Tensor], Tensor], replacements: Mapping[nn.Module, nn.Module]) -> None:
        self._new_tensor = new_tensor
        self._modules = {id(old): new for old, new in replacements.items()}
        self._tensors: dict[int, Any] = {}

    def copy(self, module: nn.Module) -> nn.Module:
        if id(module) not in self._modules:
            copied = self._deepcopy(module) if hasattr(type(module), "__deepcopy__") else self._copy(module)
            self._modules[id(module)] = copied
        return self._modules[id(module)]

    def _tensor(self, tensor: Tensor) -> Any:
        if id(tensor) not in self._tensors:
            self._tensors[id(tensor)] = self._new_tensor(tensor)
        return self._tensors[id(tensor)]

    def _deepcopy(self, module: nn.Module) -> nn.Module:
        tensors = (*module.parameters(), *module.buffers())
        return copy.deepcopy(module, {id(tensor): self._tensor(tensor) for tensor in tensors})

    def _copy(self, module: nn.Module) -> nn.Module:
        copied = type(module).__new__(type(module))
        vars(copied).update({**vars(module), **{name: kind() for name, kind in _EMPTY}})
        for name, parameter in module._parameters.items():
            copied._parameters[name] = self._tensor(cast(Tensor, parameter))
        for name, buffer in module._buffers.items():
            copied._buffers[name] = self._tensor(cast(Tensor, buffer))
        for name, inner in module._modules.items():
            copied._modules[name] = self.copy(cast(nn.Module, inner))
        return copied


def update_count_flags(module: nn.Module) -> None:
    """Update the flags that layers derive from buffers, after the buffers were written."""
    for layer in module.modules():
        if isinstance(layer, LayerNorm):
            layer.update_count_flags()


# -- stacks


class TensorPlacement(NamedTuple):
    """Position of one of a member's tensors in the stack."""

    name: str
    """Its name in the padded module."""
    shape: torch.Size
    """Its own shape, the leading block of the padded tensor."""


class MemberLayout(NamedTuple):
    """Positions of a member's layers and tensors in the stack, by the member's own names of the tensors."""

    layers: dict[str, nn.Module]
    """The member's layers by their names in the padded module."""
    parameters: dict[str, TensorPlacement]
    buffers: dict[str, TensorPlacement]

    @classmethod
    def of(cls, member: nn.Module, padded: nn.Module) -> MemberLayout:
        """Find the positions of a member's layers in the padded module."""
        layers = dict(member.named_modules())
        names = names_in_padded(layers, dict(padded.named_modules()))

        def placement(name: str, tensor: Tensor) -> TensorPlacement:
            owner, dot, attribute = name.rpartition(".")
            return TensorPlacement(names[owner] + dot + attribute, tensor.shape)

        return cls(
            {names[name]: layer for name, layer in layers.items()},
            {name: placement(name, tensor) for name, tensor in member.named_parameters()},
            {name: placement(name, tensor) for name, tensor in member.named_buffers()},
        )


class ParamStack(Generic[ModuleT]):
    """Several modules as one: `module` computes all of them, `flat` `[P, N]` holds all their parameters.

    `padded` is a module in which each member fits; its own values are not used.
    """

    def __init__(
        self,
        padded: ModuleT,
        member_layouts: Sequence[MemberLayout],
        flat: Tensor,
        buffers: dict[str, Tensor],
        slots: tuple[ParamSlot, ...],
    ) -> None:
        self.padded, self.member_layouts = padded, list(member_layouts)
        self.flat, self.buffers, self.slots = flat, buffers, slots
        self._param_indices: dict[int, Tensor] = {}
        parameters = views(flat, slots)
        stacked: dict[int, Tensor] = {
            id(old): nn.Parameter(parameters[name]) for name, old in padded.named_parameters()
        }
        stacked |= {id(old): buffers[name] for name, old in padded.named_buffers()}
        self.module = rebuild_with(padded, lambda tensor: stacked[id(tensor)])
        self.parameters = dict(self.module.named_parameters())
        """The module's parameters by name; finding them takes as long as a small forward pass."""

    @classmethod
    def of(
        cls,
        modules: Sequence[ModuleT],
        padded: ModuleT | None = None,
        *,
        flat: Tensor | None = None,
        slots: tuple[ParamSlot, ...] = (),
    ) -> ParamStack[ModuleT]:
        """Stack modules and re-point their tensors to rows of the stack; equal modules need no `padded` one."""
        padded = modules[0] if padded is None else padded
        like, slots = next(modules[0].parameters()), slots or layout(padded)
        flat = like.new_zeros(len(modules), slots[-1].stop) if flat is None else flat
        buffers = {  # in the members' dtype, which may differ from the padded module's; integer buffers keep theirs
            name: (like if buffer.is_floating_point() else buffer).new_zeros(len(modules), *buffer.shape)
            for name, buffer in padded.named_buffers()
        }
        stack = cls(padded, [MemberLayout.of(module, padded) for module in modules], flat, buffers, slots)
        for row, module in enumerate(modules):
            stack._move_in(row, module)
        stack._set_members()
        if len(modules) == 1:
            stack._share_hooks()
        return stack

    def _share_hooks(self) -> None:
        """Let the hooks on a single member's layers run when the stack is computed, those registered later too.

        Members of a larger stack are computed at once, so none of their layers is called on its own.
        """
        layers = self.member_layouts[0].layers
        for name, layer in self.module.named_modules():
            vars(layer).update({hooks: vars(layers[name])[hooks] for hooks in _HOOKS})
            layer._is_full_backward_hook = True  # a registration sets it on the member's layer alone

    @torch.no_grad()
    def _move_in(self, row: int, member: nn.Module) -> None:
        """Copy a member's values into its row, and make its tensors views of them."""
        rows = self.member_views(self.flat, row)
        for name, (padded_name, shape) in self.member_layouts[row].buffers.items():
            rows[name] = _leading_block(self.buffers[padded_name][row], shape)
        for name, tensor in (*member.named_parameters(), *member.named_buffers()):
            rows[name].copy_(tensor)
            tensor.data = rows[name]

    def _set_members(self) -> None:
        """Pass each layer its counterparts in the members."""
        for name, layer in self.module.named_modules():
            if isinstance(layer, MemberAware):
                layer.set_members([member.layers.get(name) for member in self.member_layouts], self.flat.device)

    def member_views(self, rows: Tensor, row: int) -> dict[str, Tensor]:
        """Return one member's values in a row of `[P, N]` (parameters or moments), by its own names and shapes."""
        padded = views(rows[row], self.slots)
        placements = self.member_layouts[row].parameters.items()
        return {name: _leading_block(padded[padded_name], shape) for name, (padded_name, shape) in placements}

    def param_indices(self, row: int) -> Tensor:
        """Return the columns of `[P, N]` that hold a member's own parameters, in the order of the member alone."""
        if row not in self._param_indices:
            columns = torch.arange(self.flat.shape[1], device=self.flat.device).expand(self.flat.shape)
            own = self.member_views(columns, row).values()
            self._param_indices[row] = torch.cat([part.reshape(-1) for part in own])
        return self._param_indices[row]

    def take(self, rows: Tensor, flat: Tensor | None = None) -> ParamStack[ModuleT]:
        """Return a stack of copies of some rows (no member is re-pointed); `flat` is an existing copy of them."""
        member_layouts = [self.member_layouts[row] for row in rows.tolist()]
        buffers = {name: buffer[rows] for name, buffer in self.buffers.items()}
        flat = self.flat.index_select(0, rows) if flat is None else flat
        taken = ParamStack(self.padded, member_layouts, flat, buffers, self.slots)
        taken.module.train(self.module.training)
        taken._set_members()
        return taken

    def put(self, rows: Tensor, stack: ParamStack[ModuleT]) -> None:
        """Write a stack that `take` returned back into its rows."""
        self.flat[rows] = stack.flat
        for name, buffer in self.buffers.items():
            buffer[rows] = stack.buffers[name]


def names_in_padded(member: Mapping[str, nn.Module], padded: Mapping[str, nn.Module]) -> dict[str, str]:
    """Map the name of each submodule of a member to its name in the padded module."""
    names: dict[str, str] = {}
    moved: dict[str, str] = {}
    for name, module in member.items():
        names[name] = moved.get(name, name)
        if isinstance(module, EvolvableModule):
            prefix = f"{name}." if name else ""
            inner = module.name_in_padded(cast(EvolvableModule, padded[name]))
            moved |= {prefix + own: prefix + other for own, other in inner.items()}
    return names


def _leading_block(tensor: Tensor, shape: torch.Size) -> Tensor:
    return tensor if tensor.shape == shape else tensor[tuple(slice(size) for size in shape)]
