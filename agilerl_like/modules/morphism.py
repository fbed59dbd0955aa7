"""Weights and optimizer moments, carried from one shape to another so that what was learned is kept.

One rule serves every kind of layer: along each axis a unit either comes from a unit of the parent or is new. New
*outputs* get fresh weights as large as their neighbours', new *inputs* get zero, so that a newborn unit computes
something and says nothing: growth changes no output. Removal cannot be exact; `refit_` mends the layer that reads the
removed units by ridge regression (closed form).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from agilerl_like.modules.base import Axes

UnitMaps = Mapping[str, Tensor]
"""Unit group -> for every unit of the child, the parent's unit that it comes from, or -1 if it is new.

A group that is not named is unchanged.
"""

Role = Literal["value", "first", "second"]
"""What a tensor is: a weight or buffer itself, or Adam's first or second moment of one."""


def grown(width: int, added: int) -> Tensor:
    """Return the map of a group that keeps its `width` units and gets `added` new ones."""
    return torch.cat([torch.arange(width), torch.full((added,), -1)])


def kept(scores: Tensor, removed: int) -> Tensor:
    """Return the map of a group that loses the `removed` units with the lowest scores."""
    return scores.argsort()[removed:].sort().values.cpu()


def carry(
    old: Tensor, fresh: Tensor, maps: Sequence[Tensor | None], *, new_outputs: Tensor | float, new_inputs: float
) -> Tensor:
    """Carry one tensor along its axes' unit maps into the shape of `fresh`.

    Entries of surviving units are the old ones; columns of new input units are `new_inputs`; rows of new output units
    are `new_outputs` (a number, or a tensor of `fresh`'s shape).
    """
    result = torch.empty_like(fresh)
    if isinstance(new_outputs, Tensor):
        result.copy_(new_outputs)
    else:
        result.fill_(new_outputs)
    here: list[Tensor] = []
    there: list[Tensor] = []
    for axis, size in enumerate(fresh.shape):
        unit_map = maps[axis] if axis < len(maps) else None
        source = torch.arange(size) if unit_map is None else unit_map
        survivors = (source >= 0).nonzero().squeeze(1)
        if axis > 0 and len(survivors) < size:
            result.index_fill_(axis, (source < 0).nonzero().squeeze(1).to(result.device), new_inputs)
        here.append(survivors)
        there.append(source[survivors])
    result[torch.meshgrid(*here, indexing="ij")] = old[torch.meshgrid(*there, indexing="ij")]
    return result


def transplant_(
    child: Mapping[str, Tensor],
    parent: Mapping[str, Tensor],
    *,
    sources: Mapping[str, str],
    axes: Axes,
    maps: UnitMaps,
    role: Role = "value",
) -> None:
    """Fill the child's tensors from the parent's.

    `sources` names the parent's tensor for each of the child's; a tensor without a source keeps its fresh value. New
    entries of Adam's moments get 0 and the mean of the tensor's second moments, for with 0 there a newborn weight's
    first Adam steps would be 3 to 6 times the learning rate.
    """
    for name, tensor in child.items():
        source = parent.get(sources.get(name, ""))
        if source is None:
            continue
        unit_maps = [maps.get(group) for group in axes.get(name, ())]
        if not any(unit_map is not None for unit_map in unit_maps):
            tensor.copy_(source)
        elif role == "value":
            tensor.copy_(carry(source, tensor, unit_maps, new_outputs=_newborn(name, source, tensor), new_inputs=0.0))
        else:
            fill = float(source.mean()) if role == "second" else 0.0
            tensor.copy_(carry(source, tensor, unit_maps, new_outputs=fill, new_inputs=fill))


def _newborn(name: str, old: Tensor, fresh: Tensor) -> Tensor:
    """What new units get: of a matrix, fresh rows as long as the median old one; no say in a normalisation's spread."""
    if name.endswith("counted"):
        return torch.zeros_like(fresh)
    if fresh.dim() < 2:
        return fresh
    usual, length = old.norm(dim=1).median(), fresh.norm(dim=1, keepdim=True)
    return fresh * torch.where((usual > 0) & (length > 0), usual / length, 1.0)


RIDGE = 1e-3
"""Strength of the pull towards the weights as they were, relative to the mean variance of the inputs."""


def refit_(weight: Tensor, bias: Tensor, inputs: Tensor, targets: Tensor) -> None:
    """Move `weight` `[out, in]` and `bias` `[out]` to the ridge solution of `inputs @ weight.T + bias = targets`.

    `inputs` `[n, in]` and `targets` `[n, out]` come from the states of the last rollout. The penalty is on the change
    of the weights, so directions that the data do not show stay as they were. Solved in float64: milliseconds for 256
    units.
    """
    x, y = inputs.double(), targets.double()
    centred = x - x.mean(0)
    residual = y - y.mean(0) - centred @ weight.double().T
    gram = centred.T @ centred / len(x)
    strength = RIDGE * gram.diagonal().mean().clamp(min=1e-12)
    gram.diagonal().add_(strength)
    change = torch.linalg.solve(gram, centred.T @ residual / len(x)).T
    weight.add_(change.to(weight.dtype))
    bias.copy_((y.mean(0) - weight.double() @ x.mean(0)).to(bias.dtype))
