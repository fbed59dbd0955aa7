"""Members' parameters laid out on one leading axis, of which every member keeps views of its own row.

`Stack.of([a, b, c])` makes one flat `[P, N]` tensor. The stacked module's parameters are views of it with shape
`[P, …]`, and each member's own parameters are re-pointed to views of its row: while the stack trains, `agent.actor` is
live. One flat tensor makes Adam, clipping, cloning and finiteness checks a handful of kernels however many layers there
are.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from agilerl_like.modules.layers import LayerNorm

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Slot(NamedTuple):
    """Where one parameter lies in a member's flat row."""

    name: str
    start: int
    stop: int
    shape: torch.Size


def layout(module: nn.Module) -> tuple[Slot, ...]:
    """The places of a module's parameters in its flat row, in the order of `named_parameters`."""
    slots, start = [], 0
    for name, parameter in module.named_parameters():
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


class Stack(Generic[ModuleT]):
    """Modules of equal structure as one: `module` computes all of them, `flat` `[P, N]` holds all their parameters."""

    def __init__(self, template: ModuleT, flat: Tensor, buffers: dict[str, Tensor]) -> None:
        self.slots = layout(template)
        self.flat = flat
        self.buffers = buffers
        self.module = skeleton(template)
        self.template = template
        parts = views(flat, self.slots)
        owners = dict(self.module.named_modules())
        for name, part in parts.items():
            owner, _, attribute = name.rpartition(".")
            owners[owner]._parameters[attribute] = nn.Parameter(part)
        for name, buffer in buffers.items():
            owner, _, attribute = name.rpartition(".")
            owners[owner]._buffers[attribute] = buffer
        self.parameters: tuple[Tensor, ...] = tuple(self.module.parameters())
        refresh(self.module)

    @classmethod
    def of(cls, modules: Sequence[ModuleT]) -> Stack[ModuleT]:
        """Stack modules of equal structure, and re-point their tensors to rows of the stack."""
        with torch.no_grad():
            flat = torch.stack([torch.cat([p.detach().reshape(-1) for p in m.parameters()]) for m in modules])
            named = [dict(m.named_buffers()) for m in modules]
            buffers = {name: torch.stack([own[name] for own in named]) for name in named[0]}
        stack = cls(modules[0], flat, buffers)
        for row, module in enumerate(modules):
            stack.lend(module, row)
        return stack

    def lend(self, module: nn.Module, row: int) -> None:
        """Make a member's parameters and buffers views of one row."""
        parts = views(self.flat[row], self.slots)
        for name, parameter in module.named_parameters():
            parameter.data = parts[name]
        for name, buffer in module.named_buffers():
            buffer.data = self.buffers[name][row]

    def take(self, rows: Tensor) -> Stack[ModuleT]:
        """Copy some rows into a stack of their own (no member is re-pointed)."""
        return Stack(self.template, self.flat[rows], {name: buffer[rows] for name, buffer in self.buffers.items()})

    def put(self, rows: Tensor, stack: Stack[ModuleT]) -> None:
        """Write a stack that was taken back into its rows."""
        self.flat[rows] = stack.flat
        for name, buffer in self.buffers.items():
            buffer[rows] = stack.buffers[name]

    def gradients(self, loss: Tensor) -> Tensor:
        """Differentiate a summed loss: `[P, N]`, zero where a parameter plays no part."""
        parts = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        count = self.flat.shape[0]
        return torch.cat(
            [
                torch.zeros_like(parameter).reshape(count, -1) if part is None else part.reshape(count, -1)
                for part, parameter in zip(parts, self.parameters, strict=True)
            ],
            dim=1,
        )
