"""Members' parameters laid out on one leading axis, of which every member keeps views of its own row.

`Stack.of([a, b, c])` makes one flat `[P, N]` tensor, or fills one that it is given. The stacked module's parameters are
views of it with shape `[P, …]`, and each member's own parameters are re-pointed to views of its row: while the stack
trains, `agent.actor` is live. One flat tensor makes Adam, clipping, cloning and finiteness checks a handful of kernels
however many layers there are.

Members may be of unequal shape: a cover has room for each of them, a member's tensors fill the leading corners of the
cover's, and the rest is zero. That is exact: a unit that is not there stays 0, and so do its gradients and moments.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from agilerl_like.modules.base import EvolvableModule
from agilerl_like.modules.layers import Activation, LayerNorm

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Slot(NamedTuple):
    """Where one parameter lies in a member's flat row."""

    name: str
    start: int
    stop: int
    shape: torch.Size


def layout(module: nn.Module, starts: Mapping[str, int] | None = None) -> tuple[Slot, ...]:
    """The places of a module's parameters in its flat row, in the order of `named_parameters`.

    They lie without gaps, but that those of a submodule named in `starts` begin where it says.
    """
    slots, start, inside = [], 0, ""
    for name, parameter in module.named_parameters():
        owner = name.partition(".")[0]
        if owner != inside:
            start, inside = (starts or {}).get(owner, start), owner
        slots.append(Slot(name, start, start + parameter.numel(), parameter.shape))
        start += parameter.numel()
    return tuple(slots)


def views(row: Tensor, slots: Sequence[Slot]) -> dict[str, Tensor]:
    """Name the parts of a flat row `[N]`, or of rows `[P, N]`, as views with each parameter's shape."""
    return {slot.name: row[..., slot.start : slot.stop].view(*row.shape[:-1], *slot.shape) for slot in slots}


@torch.no_grad()
def lay_flat_(module: nn.Module) -> None:
    """Move a module's parameters into one flat row, as a stack would: where numbers lie decides their last bits."""
    row = torch.cat([parameter.reshape(-1) for parameter in module.parameters()])
    parts = views(row, layout(module))
    for name, parameter in module.named_parameters():
        parameter.data = parts[name]


def skeleton(module: ModuleT) -> ModuleT:
    """Copy a module's structure while sharing its tensors."""
    tensors = (*module.parameters(), *module.buffers())
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})


def refresh(module: nn.Module) -> None:
    """Let layers re-read what they keep in Python about buffers that were just written."""
    for layer in module.modules():
        if isinstance(layer, LayerNorm):
            layer.refresh()


class Home(NamedTuple):
    """Where one of a member's tensors lives in the stack."""

    name: str
    """What it is called there."""
    shape: torch.Size
    """Its own shape: the leading corner of what is there."""


class Tenant(NamedTuple):
    """A member, and where its layers and tensors are in the stack."""

    layers: dict[str, nn.Module]
    """By their names in the cover."""
    parameters: dict[str, Home]
    buffers: dict[str, Home]

    @classmethod
    def of(cls, module: nn.Module, cover: Mapping[str, nn.Module]) -> Tenant:
        """Find the place of a member among the cover's submodules."""
        names = counterparts(module, cover)

        def home(name: str, tensor: Tensor) -> Home:
            owner, dot, attribute = name.rpartition(".")
            return Home(names[owner] + dot + attribute, tensor.shape)

        return cls(
            {names[name]: layer for name, layer in module.named_modules()},
            {name: home(name, tensor) for name, tensor in module.named_parameters()},
            {name: home(name, tensor) for name, tensor in module.named_buffers()},
        )


class Stack(Generic[ModuleT]):
    """Modules as one: `module` computes all of them, `flat` `[P, N]` holds all their parameters.

    `cover` is a module like the members in which each of them has room; its own numbers play no part.
    """

    def __init__(
        self,
        cover: ModuleT,
        tenants: Sequence[Tenant],
        flat: Tensor,
        buffers: dict[str, Tensor],
        slots: tuple[Slot, ...],
    ) -> None:
        self.cover, self.tenants, self.flat, self.buffers, self.slots = cover, list(tenants), flat, buffers, slots
        self.module = skeleton(cover)
        owners = dict(self.module.named_modules())
        for name, part in views(flat, slots).items():
            owner, _, attribute = name.rpartition(".")
            owners[owner]._parameters[attribute] = nn.Parameter(part)
        for name, buffer in buffers.items():
            owner, _, attribute = name.rpartition(".")
            owners[owner]._buffers[attribute] = buffer

    @classmethod
    def of(
        cls,
        modules: Sequence[ModuleT],
        cover: ModuleT | None = None,
        *,
        flat: Tensor | None = None,
        slots: tuple[Slot, ...] = (),
    ) -> Stack[ModuleT]:
        """Stack modules, and re-point their tensors to rows of the stack; equal ones need no cover."""
        cover, numbers = modules[0] if cover is None else cover, next(modules[0].parameters())
        slots = slots or layout(cover)
        flat = numbers.new_zeros(len(modules), slots[-1].stop) if flat is None else flat
        buffers = {  # as precise as the members' numbers, which the cover's need not be; counters stay counters
            name: (numbers if buffer.is_floating_point() else buffer).new_zeros(len(modules), *buffer.shape)
            for name, buffer in cover.named_buffers()
        }
        submodules = dict(cover.named_modules())
        stack = cls(cover, [Tenant.of(module, submodules) for module in modules], flat, buffers, slots)
        for row, module in enumerate(modules):
            stack._settle_in(row, module)
        stack.attune()
        return stack

    @torch.no_grad()
    def _settle_in(self, row: int, module: ModuleT) -> None:
        """A member's numbers move into its row, and its tensors become views of them."""
        parts = self.parts(self.flat, row)
        for name, (there, shape) in self.tenants[row].buffers.items():
            parts[name] = _corner(self.buffers[there][row], shape)
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            parts[name].copy_(tensor)
            tensor.data = parts[name]

    def attune(self) -> None:
        """Tell the layers about their members."""
        for name, layer in self.module.named_modules():
            if isinstance(layer, Activation | LayerNorm):
                layer.attune([tenant.layers.get(name) for tenant in self.tenants], self.flat.device)

    def parts(self, rows: Tensor, row: int) -> dict[str, Tensor]:
        """Name the parts of a row of `[P, N]` (parameters, moments) that are the member's own."""
        everything = views(rows[row], self.slots)
        return {
            name: _corner(everything[there], shape) for name, (there, shape) in self.tenants[row].parameters.items()
        }

    def take(self, rows: Tensor, flat: Tensor | None = None) -> Stack[ModuleT]:
        """Copy some rows into a stack of their own (no member is re-pointed); `flat` is where they were copied to."""
        tenants = [self.tenants[row] for row in rows.tolist()]
        buffers = {name: buffer[rows] for name, buffer in self.buffers.items()}
        part = Stack(self.cover, tenants, self.flat[rows] if flat is None else flat, buffers, self.slots)
        part.module.train(self.module.training)
        part.attune()
        return part

    def put(self, rows: Tensor, stack: Stack[ModuleT]) -> None:
        """Write a stack that was taken back into its rows."""
        self.flat[rows] = stack.flat
        for name, buffer in self.buffers.items():
            buffer[rows] = stack.buffers[name]


def counterparts(member: nn.Module, cover: Mapping[str, nn.Module]) -> dict[str, str]:
    """The name of each of a member's submodules among those of the cover."""
    names: dict[str, str] = {}
    elsewhere: dict[str, str] = {}
    for name, module in member.named_modules():
        names[name] = elsewhere.get(name, name)
        if isinstance(module, EvolvableModule):
            prefix = f"{name}." if name else ""
            lodging = module.lodging(cast(EvolvableModule, cover[name]))
            elsewhere |= {prefix + here: prefix + there for here, there in lodging.items()}
    return names


def _corner(tensor: Tensor, shape: torch.Size) -> Tensor:
    return tensor if tensor.shape == shape else tensor[tuple(slice(size) for size in shape)]
