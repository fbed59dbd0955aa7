"""Weights and optimizer moments, carried from one shape to another so that what was learned is kept.

One rule serves every kind of layer: along each axis a unit either comes from a unit of the parent or is new. New
*outputs* get random weights as large as their neighbours', new *inputs* get zero, so that a newborn unit computes
something and says nothing: growth changes no output. Removal cannot be exact; `refit_` mends the layer that reads the
removed units by ridge regression (closed form).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agilerl_like.modules.base import Axes

UnitMaps = Mapping[str, Tensor]
"""Unit group -> for every unit of the child, the parent's unit that it comes from, or -1 if it is new.

A group that is not named is unchanged.
"""


def grown(width: int, added: int) -> Tensor:
    """Return the map of a group that keeps its `width` units and gets `added` new ones."""
    return torch.cat([torch.arange(width), torch.full((added,), -1)])


def carry(old: Tensor, maps: Sequence[Tensor | None], *, new_outputs: Tensor | float, new_inputs: float) -> Tensor:
    """Carry one tensor along its axes' unit maps; an axis without a map stays as it is.

    Entries of surviving units are the old ones; columns of new input units are `new_inputs`; rows of new output units
    are `new_outputs` (a number, or as many rows).
    """
    result = old
    for axis, unit_map in enumerate(maps):
        if unit_map is not None:
            result = result.index_select(axis, unit_map.clamp(min=0).to(old.device))
    for axis, unit_map in enumerate(maps):
        if unit_map is None or not (unit_map < 0).any():
            continue
        new = (unit_map < 0).nonzero().squeeze(1).to(old.device)
        if axis > 0:
            result.index_fill_(axis, new, new_inputs)
        elif isinstance(new_outputs, Tensor):
            result.index_copy_(0, new, new_outputs)
        else:
            result.index_fill_(0, new, new_outputs)
    return result


def transplant_(
    child: Mapping[str, Tensor],
    parent: Mapping[str, Tensor],
    *,
    sources: Mapping[str, str],
    axes: Axes,
    maps: UnitMaps,
    generator: torch.Generator,
) -> None:
    """Fill the child's weights and buffers from the parent's.

    `sources` names the parent's tensor for each of the child's; a tensor without a source stays as it is. Of a weight
    matrix, new outputs get rows drawn at random, as long as the median row; of anything else what stands in the child.
    """
    for name, tensor in child.items():
        source = parent.get(sources.get(name, ""))
        if source is None:
            continue
        unit_maps = [maps.get(group) for group in axes.get(name, ())]
        if all(unit_map is None for unit_map in unit_maps):
            tensor.copy_(source)
            continue
        newborn = 0.0
        if unit_maps[0] is not None and (unit_maps[0] < 0).any():
            newborn = _newborn(name, source, tensor[(unit_maps[0] < 0).to(tensor.device)], generator)
        tensor.copy_(carry(source, unit_maps, new_outputs=newborn, new_inputs=0.0))


def _newborn(name: str, old: Tensor, fresh: Tensor, generator: torch.Generator) -> Tensor:
    if name.endswith("counted"):  # no say in the spread by which the others are normalised
        return torch.zeros_like(fresh)
    if fresh.dim() < 2:
        return fresh
    rows = torch.randn(fresh.shape, generator=generator).to(fresh) if name.endswith(".weight") else fresh
    usual = old.norm(dim=1).median()
    return rows * torch.where(usual > 0, usual, 2**0.5) / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)


def transplant_moments_(
    child: Mapping[str, Tensor],
    parent: Mapping[str, Tensor],
    *,
    sources: Mapping[str, str],
    axes: Axes,
    maps: UnitMaps,
    new_is_mean: bool,
) -> None:
    """Fill the child's Adam moments from the parent's: new entries get the mean of their tensor's, or 0.

    The mean is for second moments: with 0 there, a newborn weight's first steps would be 3 to 6 learning rates.
    """
    for name, tensor in child.items():
        source = parent.get(sources.get(name, ""))
        if source is None:
            continue
        unit_maps = [maps.get(group) for group in axes.get(name, ())]
        fill = float(source.mean()) if new_is_mean else 0.0
        tensor.copy_(carry(source, unit_maps, new_outputs=fill, new_inputs=fill))


RIDGE = 1e-3
"""Strength of the pull towards the weights as they were, relative to the mean variance of the inputs."""


def least_missed(inputs: Tensor, weight: Tensor, removed: int) -> Tensor:
    """Return the map of a group that loses the `removed` units that the layer reading them can best do without.

    One unit after the other goes: the one whose loss, once `weight` `[out, in]` is refitted on `inputs` `[n, in]`,
    leaves the smallest squared error, w_j^2 / [G^-1]_jj with G the inputs' covariance (Hassibi and Stork 1993). So of
    two units that say the same, one stays.
    """
    _, gram = _covariance(inputs)
    inverse, weight = torch.linalg.inv(gram), weight.double()
    stays = torch.ones(weight.shape[1], dtype=torch.bool, device=weight.device)
    for _ in range(removed):
        spread = inverse.diagonal()
        error = torch.where(stays, weight.square().sum(0) / torch.where(stays, spread, 1.0), torch.inf)
        unit = int(error.argmin())
        stays[unit] = False
        row = inverse[unit] / spread[unit]
        weight = weight - torch.outer(weight[:, unit], row)
        inverse = inverse - torch.outer(inverse[:, unit], row)
    return stays.nonzero().squeeze(1).cpu()


def refit_(weight: Tensor, bias: Tensor, inputs: Tensor, targets: Tensor) -> None:
    """Move `weight` `[out, in]` and `bias` `[out]` to the ridge solution of `inputs @ weight.T + bias = targets`.

    `inputs` `[n, in]` and `targets` `[n, out]` come from the states of the last rollout. The penalty is on the change
    of the weights, so directions that the data do not show stay as they were. Solved in float64: milliseconds for 256
    units.
    """
    y, old = targets.double(), weight.double()
    centred, gram = _covariance(inputs)
    residual = y - y.mean(0) - centred @ old.T
    new = old + torch.linalg.solve(gram, centred.T @ residual / len(y)).T
    weight.copy_(new)
    bias.copy_(y.mean(0) - weight.double() @ inputs.double().mean(0))


def _covariance(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The inputs without their mean, and their covariance with the ridge on its diagonal, in float64."""
    centred = inputs.double() - inputs.double().mean(0)
    gram = centred.T @ centred / len(inputs)
    gram.diagonal().add_(RIDGE * gram.diagonal().mean().clamp(min=1e-12))
    return centred, gram
