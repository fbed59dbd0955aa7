"""Weights and optimizer moments, carried from one shape to another so that what was learned is kept.

One rule serves every kind of layer: along each axis a unit either comes from a unit of the parent or is new. New *outputs* keep the
fresh initial weights, new *inputs* get zero, so that a newborn unit computes something and says nothing: growth changes no output.
Removal cannot be exact; `refit_` mends the layer that reads the removed units by ridge regression (closed form).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from agilerl_like.modules.base import Axes

UnitMaps = Mapping[str, Tensor]
"""Unit group -> for every unit of the child, the parent's unit that it comes from, or -1 if it is new. A group not named is unchanged."""


def grown(width: int, added: int) -> Tensor:
    """The map of a group that keeps its `width` units and gets `added` new ones."""
    return torch.cat([torch.arange(width), torch.full((added,), -1)])


def kept(scores: Tensor, removed: int) -> Tensor:
    """The map of a group that loses the `removed` units with the lowest scores."""
    return scores.argsort()[removed:].sort().values


def carry(old: Tensor, fresh: Tensor, maps: list[Tensor | None], *, new_outputs: Tensor | float, new_inputs: float) -> Tensor:
    """Carry one tensor along its axes' unit maps.

    Entries of surviving units are the old ones; columns of new input units are `new_inputs`; rows of new output units are
    `new_outputs` (a number, or a tensor of `fresh`'s shape).
    """
    result = fresh.clone()
    result.copy_(new_outputs) if isinstance(new_outputs, Tensor) else result.fill_(new_outputs)
    here: list[Tensor] = []
    there: list[Tensor] = []
    for axis, size in enumerate(fresh.shape):
        unit_map = maps[axis] if axis < len(maps) else None
        source = torch.arange(size) if unit_map is None else unit_map
        survivors = (source >= 0).nonzero().squeeze(1)
        if axis > 0 and len(survivors) < size:
            result.index_fill_(axis, (source < 0).nonzero().squeeze(1), new_inputs)
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
    moments: str = "",
) -> None:
    """Fill the child's tensors from the parent's.

    `sources` names the parent's tensor for each of the child's; a tensor without a source keeps its fresh value. `moments` is "" for
    weights and buffers, "first" or "second" for Adam's moments: new entries then get 0 and the mean of the surviving second moments,
    for with 0 there a newborn weight's first Adam steps would be 3 to 6 times the learning rate.
    """
    for name, tensor in child.items():
        source = parent.get(sources.get(name, ""))
        if source is None:
            continue
        unit_maps: list[Tensor | None] = [maps.get(group) for group in axes.get(name, ())]
        if moments:
            fill = float(source.mean()) if moments == "second" else 0.0
            carried = carry(source, tensor, unit_maps, new_outputs=fill, new_inputs=fill)
        else:
            fresh = torch.zeros_like(tensor) if name.endswith("counted") else tensor
            carried = carry(source, tensor, unit_maps, new_outputs=fresh, new_inputs=0.0)
        tensor.copy_(carried)


RIDGE = 1e-3
"""Strength of the pull towards the weights as they were, relative to the mean variance of the inputs."""


def refit_(weight: Tensor, bias: Tensor, inputs: Tensor, targets: Tensor) -> None:
    """Move `weight` `[out, in]` and `bias` `[out]` to the ridge solution of `inputs @ weight.T + bias = targets`.

    `inputs` `[n, in]` and `targets` `[n, out]` come from the states of the last rollout. The penalty is on the change of the weights, so
    directions that the data do not show stay as they were. Solved in float64; a few milliseconds for 256 units.
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
