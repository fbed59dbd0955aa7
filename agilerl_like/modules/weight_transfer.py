"""Weights and optimizer moments, carried from one shape to another so that what was learned is kept.

One rule serves every kind of layer: along each axis a unit either comes from a unit of the parent or is new. New
*outputs* get random weights as large as their neighbours', new *inputs* get zero, so that a newborn unit computes
something and says nothing: growth changes no output. Removal cannot be exact: the units go that are missed least, and
what reads them is refitted by ridge regression (closed form).

Weights are carried on the host, by numpy, which cuts and writes them in half of torch's time; of a device all of
them are fetched at once, and brought back so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from agilerl_like.modules.base import Arguments, EvolvableModule, UnitAxes, UnitChange, UnitMaps
from agilerl_like.modules.layers import LayerNorm, Linear
from agilerl_like.modules.module_utils import Walk, switch, walk
from agilerl_like.modules.param_stack import ParamSlot, bind_parameters_, layout, update_count_flags, views


class WeightMap(NamedTuple):
    """How a child's tensors come from its parent's: what weights and optimizer moments have in common."""

    sources: Mapping[str, str]
    """The parent's name of each of the child's tensors; one that is not named is newborn."""
    unit_axes: UnitAxes
    """The child's, where any group has other units."""
    maps: UnitMaps

    def leaves_whole(self, name: str) -> bool:
        """Whether one of the child's tensors has the units that it came from, no more and no fewer."""
        return self.maps.keys().isdisjoint(self.unit_axes.get(name, ()))


class TransferResult(NamedTuple):
    """What a child has from its parent besides its weights."""

    maps: UnitMaps
    """Which unit of the parent each unit of the child was, in every group that changed."""
    moments: tuple[Tensor, ...]
    """As many rows `[N]` of moments as the parent has."""


@torch.no_grad()
def transfer_weights_(
    child: EvolvableModule,
    parent: EvolvableModule,
    operator: str,
    arguments: Arguments,
    *,
    states: Any,
    generator: torch.Generator,
    moments: Sequence[Tensor] = (),
    unit_change: UnitChange | None = None,
    recorded: Mapping[str, RecordedLinear] | None = None,
) -> TransferResult:
    """Make a child, built from the mutated spec, as like its parent as can be; the parent keeps every bit.

    Growth changes nothing that the parent says. After a removal what read the lost units is refitted on `states`,
    something that the parent reads, both in evaluation mode. `generator` draws what newborn units compute. `moments`
    are Adam's first and second ones `[N]` of the parent's parameters in their order; the child gets its own. They and
    its parameters lie in one flat row each. `unit_change` is what the parent says of this, if it was asked already;
    `recorded` is what its readers read and give of `states`, if that was computed already.
    """
    unit_change = parent.unit_change(operator, arguments) if unit_change is None else unit_change
    if recorded is None:
        recorded = {reader: RecordedLinear.of(parent, reader, states) for reader, _ in unit_change.consumers}
    ours, theirs = walk(child), walk(parent)
    sources = child.source_names(ours.tensors, operator, arguments)
    before = parent.unit_axes() if unit_change.units or unit_change.fixed_maps else {}
    maps = _unit_maps(parent, before, theirs.tensors, unit_change, recorded)
    as_before = sources.keys() == theirs.tensors.keys() and all(name == source for name, source in sources.items())
    heritage = WeightMap(sources, before if as_before or not maps else child.unit_axes(), maps)
    rows, slots, old = _flat(theirs, moments), layout(ours), layout(theirs)
    host, its_host = (held := _on_cpu(rows)).numpy(), held.new_empty(len(rows), slots[-1].stop)
    _settle_(its_host.numpy(), ours, slots, host, old, heritage)
    changed = [slot for slot in slots if slot.name in sources and not heritage.leaves_whole(slot.name)]
    were = {sources[slot.name] for slot in changed}
    its_parents = _parts(host, [slot for slot in old if slot.name in were])
    copy_units_(_parts(its_host.numpy(), changed), its_parents, heritage, generator=generator)
    its_rows = its_host.to(rows)
    bind_parameters_(its_rows[0], ours.parameters.values())
    _carry_buffers_(ours.buffers, theirs.buffers, heritage, generator)
    child.init_new_layer_(operator, arguments, generator)
    inherited = TransferResult(heritage.maps, its_rows[1:].unbind())
    if not unit_change.consumers:
        update_count_flags(ours)
        return inherited
    switch(child, False)
    for layer in ours.modules.values():
        if isinstance(layer, LayerNorm):
            layer.count_all_if_few_()
    child.merge_removed_layer_(parent, operator, arguments)
    numbers = views(its_rows, slots)
    for reader, replacement in unit_change.consumers:
        wanted = _surviving_outputs(
            recorded[reader].outputs, parent.get_parameter(f"{reader}.bias"), heritage, replacement
        )
        _refit_replacement_(child, replacement, wanted, states)
        for name in ("weight", "bias"):
            numbers[f"{replacement}.{name}"][1:2] = 0.0  # it does not go on where it went
    return inherited


def _flat(module: Walk, moments: Sequence[Tensor]) -> Tensor:
    """A module's parameters in a row, and its moments `[N]` in others: `[R, N]`."""
    parameters = (parameter.ravel() for parameter in module.parameters.values())
    return torch.cat([*parameters, *moments]).view(1 + len(moments), -1)


def _on_cpu(tensor: Tensor) -> Tensor:
    """Numbers as numpy can read them: the tensor itself, if they are."""
    tensor = tensor.detach().cpu()
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


def _parts(rows: np.ndarray, slots: Sequence[ParamSlot]) -> dict[str, np.ndarray]:
    """Name the parts of rows `[R, N]`, as views with each parameter's shape."""
    return {slot.name: rows[:, slot.start : slot.stop].reshape(len(rows), *slot.shape) for slot in slots}


def _settle_(
    its_rows: np.ndarray,
    ours: Walk,
    slots: Sequence[ParamSlot],
    rows: np.ndarray,
    old: Sequence[ParamSlot],
    heritage: WeightMap,
) -> None:
    """Fill a child's rows `[R, N]` of weights and moments with whatever it has whole from its parent's.

    What is newborn, or has newborn units, is as it was built; a newborn tensor's moments are 0 and the mean of all, for
    with second ones of 0 its first steps would be long.
    """
    places = {slot.name: slot for slot in old}
    runs: list[tuple[int, int, int]] = []  # neighbours, copied at once: from where to where, how far off in the parent
    newborn: list[ParamSlot] = []
    for slot, parameter in zip(slots, ours.parameters.values(), strict=True):
        source = places.get(heritage.sources.get(slot.name, ""))
        if source is not None and heritage.leaves_whole(slot.name):
            away = source.start - slot.start
            begins = runs.pop()[0] if runs and runs[-1][1:] == (slot.start, away) else slot.start
            runs.append((begins, slot.stop, away))
            continue
        if source is None:
            newborn.append(slot)
        if source is None or not _is_random(slot.name, parameter.dim()):
            its_rows[0, slot.start : slot.stop] = _on_cpu(parameter).reshape(-1).numpy()
    for start, stop, away in runs:
        its_rows[:, start:stop] = rows[:, start + away : stop + away]
    if newborn:
        usual = rows[2:].mean(1, keepdims=True)
        for _, start, stop, _ in newborn:
            its_rows[1:2, start:stop], its_rows[2:, start:stop] = 0.0, usual


def _carry_buffers_(
    child: Mapping[str, Tensor], parent: Mapping[str, Tensor], heritage: WeightMap, generator: torch.Generator
) -> None:
    """The same for buffers, which have no moments."""
    for name, buffer in child.items():
        source = heritage.sources.get(name, "")
        if source not in parent:
            continue
        if heritage.leaves_whole(name):
            buffer.copy_(parent[source])
            continue
        ours, theirs = _on_cpu(buffer), _on_cpu(parent[source])
        its, where = {name: ours.numpy()[None]}, {source: theirs.numpy()[None]}
        copy_units_(its, where, heritage, generator=generator)
        buffer.copy_(ours)


class RecordedLinear(NamedTuple):
    """What a linear map of the parent's reads and gives."""

    inputs: Tensor  # [n, columns]
    matrix: Tensor  # [out, columns]
    outputs: Tensor  # [n, out]

    @classmethod
    def of(cls, parent: EvolvableModule, reader: str, states: Any) -> RecordedLinear:
        """What the linear map of this name reads and gives of `states`."""
        linear, inputs = cast(Linear, parent.get_submodule(reader)), parent.layer_input(reader, states)
        return cls(inputs, linear.matrix(), torch.addmm(linear.bias.flatten(), inputs, linear.matrix().T))


def _unit_maps(
    parent: EvolvableModule,
    unit_axes: UnitAxes,
    tensors: Mapping[str, Tensor],
    unit_change: UnitChange,
    recorded: Mapping[str, RecordedLinear],
) -> dict[str, Tensor]:
    """Which unit of the parent each unit of the child is, in every group that gets wider or narrower."""
    maps, widths = dict(unit_change.fixed_maps), dict[str, int]()
    for name, tensor in tensors.items() if unit_change.units else ():
        widths.update(zip(unit_axes.get(name, ()), tensor.shape, strict=False))
    for group, change in unit_change.units.items():
        if change > 0:
            maps[group] = append_units(widths[group], change)
        elif change < 0:
            maps[group] = _surviving_units(parent, unit_axes, group, widths[group], -change, recorded)
    return {**maps, **parent.expand_maps(maps)} if maps else {}


def _surviving_units(
    parent: EvolvableModule,
    unit_axes: UnitAxes,
    group: str,
    width: int,
    removed: int,
    recorded: Mapping[str, RecordedLinear],
) -> Tensor:
    """The map of a group that loses the units which its readers miss least.

    Several readers of one group read the same numbers: the two heads on a shared encoder.
    """
    found: list[tuple[RecordedLinear, Tensor]] = []
    for name, its in recorded.items():
        columns = _columns(parent, group, width, unit_axes[f"{name}.weight"], its.inputs.shape[1])
        if columns is not None:
            found.append((its, columns))
    if not found:  # a module by itself, of which nobody reads
        return torch.arange(width - removed)
    (first, columns), matrices = found[0], [its.matrix for its, _ in found]
    alike = all(matrix.shape[1] == width for matrix in matrices)
    if alike and columns.shape[1] == 1:
        return prune_by_refit_error(first.inputs, torch.cat(matrices), removed)
    return prune_by_output_variance([(its.inputs, its.matrix, columns) for its, columns in found], removed)


def _columns(parent: EvolvableModule, group: str, width: int, groups: tuple[str, ...], count: int) -> Tensor | None:
    """Which of a reader's columns `[width, block]` each unit of a group stands in; None if it reads another group.

    A unit's columns are neighbours (a kernel's taps), or follow from it (the pixels of a flattened channel).
    """
    read = [name for name in groups if name][1:]
    if group in read:
        return torch.arange(count).view(width, -1)
    none = parent.expand_maps({group: torch.zeros(0, dtype=torch.int64)})
    follows = [name for name in read if name in none]
    if not follows:
        return None
    always = none[follows[0]]  # other groups' units among them
    alone = (parent.expand_maps({group: torch.tensor([unit])})[follows[0]] for unit in range(width))
    return torch.stack([columns[~torch.isin(columns, always)] for columns in alone])


def _surviving_outputs(outputs: Tensor, bias: Tensor, heritage: WeightMap, replacement: str) -> Tensor:
    """What a linear map of the parent's gives `[n, out]`, where its heir gives fewer numbers."""
    outputs = outputs.unflatten(1, bias.shape)
    for axis, group in enumerate(heritage.unit_axes.get(f"{replacement}.bias", ())):
        if group in heritage.maps:
            outputs = outputs.index_select(axis + 1, heritage.maps[group].to(outputs.device))
    return outputs.flatten(1)


def _refit_replacement_(child: EvolvableModule, replacement: str, wanted: Tensor, states: Any) -> None:
    """Refit a linear map to give what is `wanted` `[n, out]`, unless its layer says that better as it is.

    It does where the activation stands in for a removed one: relu(W x) for relu(I relu(W x)).
    """
    linear, inputs = cast(Linear, child.get_submodule(replacement)), child.layer_input(replacement, states)
    matrix, bias = linear.matrix(), linear.bias.view(-1)
    goal = child.layer_output(replacement, wanted, inputs)

    def error() -> float:
        return float(
            (child.layer_output(replacement, torch.addmm(bias, inputs, matrix.T), inputs) - goal).square().sum()
        )

    merged, bridged_error = (matrix.clone(), bias.clone()), error()
    refit_(matrix, bias, inputs, wanted)
    if bridged_error < error():
        matrix.copy_(merged[0])
        bias.copy_(merged[1])


def append_units(width: int, added: int) -> Tensor:
    """Return the map of a group that keeps its `width` units and gets `added` new ones."""
    return torch.cat([torch.arange(width), torch.full((added,), -1)])


class AxisMap(NamedTuple):
    """Where the units on an axis come from."""

    take: np.ndarray
    """The parent's unit of each; any for a new one."""
    new: np.ndarray | slice | None
    """Those that are new, if any are: a slice where the parent's first ones stay where they are, in front of them."""

    @classmethod
    def along(cls, unit_map: Tensor) -> AxisMap:
        """The way of a unit map."""
        take = unit_map.numpy()
        new = np.flatnonzero(take < 0)
        old = len(take) - len(new)
        if len(new) and np.array_equal(take[:old], np.arange(old)):
            return cls(take, slice(old, len(take)))
        return cls(take.clip(0), new if len(new) else None)


def copy_along_axes_(
    child: np.ndarray,
    old: np.ndarray,
    ways: Sequence[AxisMap | None],
    *,
    new_outputs: np.ndarray | None,
    new_inputs: np.ndarray,
) -> None:
    """Carry weights, and perhaps their moments, `[R, …]` along their axes' ways; an axis without one stays as it is.

    The first of these axes is that of the outputs. Entries of surviving units are the old ones; columns of new input
    units are `new_inputs` `[R]`; rows of new output units are `new_outputs` `[R, new, …]`.
    """
    taken = old
    for axis, way in enumerate(ways, 1):
        if way is not None and isinstance(way.new, slice):  # to pick one by one what stays in its place takes long
            taken = taken[_along(axis, slice(way.new.start))]
        elif way is not None:
            taken = taken.take(way.take, axis)
    child[tuple(map(slice, taken.shape))] = taken
    for axis, way in enumerate(ways, 1):
        if way is not None and way.new is not None:
            child[_along(axis, way.new)] = new_outputs if axis == 1 else _column(new_inputs, child.ndim)


def _along(axis: int, where: slice | np.ndarray) -> tuple[slice | np.ndarray, ...]:
    """The index of some places on one axis."""
    return *(slice(None),) * axis, where


def _column(numbers: np.ndarray, ndim: int) -> np.ndarray:
    """One number for each row: `[R, 1, …]`."""
    return numbers.reshape(-1, *(1,) * (ndim - 1))


def copy_units_(
    child: Mapping[str, np.ndarray],
    parent: Mapping[str, np.ndarray],
    heritage: WeightMap,
    *,
    generator: torch.Generator,
) -> None:
    """Fill the child's weights or buffers `[1, …]`, or weights and their moments `[3, …]`, from the parent's.

    A tensor without a source stays as it is. Of a weight matrix, new outputs get rows drawn at random, as long as the
    median row; of anything else what stands in the child. New entries get a first moment of 0, and as their second one
    the mean of their tensor's: with 0 there, a newborn weight's first steps would be 3 to 6 learning rates.
    """
    ways: dict[str, AxisMap] = {}
    for name, its in child.items():
        source = parent.get(heritage.sources.get(name, ""))
        if source is None:
            continue
        for group in heritage.unit_axes[name]:
            if group in heritage.maps and group not in ways:
                ways[group] = AxisMap.along(heritage.maps[group])
        ours, theirs, its_ways = _outputs_first(heritage.unit_axes[name], ways, its, source)
        usual = np.zeros(len(source), source.dtype)
        usual[2:] = source[2:].mean(tuple(range(1, source.ndim)))
        newborn = None
        if its_ways[0] is not None and its_ways[0].new is not None:
            newborn = ours[:, its_ways[0].new]
            newborn[0] = _new_unit_values(name, theirs[0], newborn[0], generator)
            newborn[1:] = _column(usual[1:], newborn.ndim)
        copy_along_axes_(ours, theirs, its_ways, new_outputs=newborn, new_inputs=usual)


def _outputs_first(
    groups: Sequence[str], ways: Mapping[str, AxisMap], child: np.ndarray, parent: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[AxisMap | None]]:
    """Both tensors `[R, …]` as views with the axis of their outputs in front of the others, and all axes' ways then."""
    axis = next((axis for axis, group in enumerate(groups) if group), 0)
    its_ways = [ways.get(group) if group else None for group in groups]
    if axis == 0:
        return child, parent, its_ways
    its_ways.insert(0, its_ways.pop(axis))
    return np.moveaxis(child, axis + 1, 1), np.moveaxis(parent, axis + 1, 1), its_ways


def _is_random(name: str, ndim: int) -> bool:
    """Whether what newborn outputs of a tensor compute is drawn."""
    return ndim > 1 and name.endswith("weight")


def _new_unit_values(name: str, old: np.ndarray, fresh: np.ndarray, generator: torch.Generator) -> np.ndarray:
    if name.endswith("counted"):  # no say in the spread by which the others are normalised
        return np.zeros_like(fresh)
    if fresh.ndim < 2 or name.endswith("bias"):
        return fresh
    rows = torch.randn(fresh.shape, generator=generator).numpy() if _is_random(name, fresh.ndim) else fresh
    lengths = np.sort(_lengths(old), axis=None)
    usual = lengths[(len(lengths) - 1) // 2]
    return rows * ((usual if usual > 0 else 2**0.5) / np.maximum(_lengths(rows), 1e-12))


def _lengths(rows: np.ndarray) -> np.ndarray:
    """The length of each row `[n, …]`, however large its numbers are: `[n, 1, …]`."""
    return np.sqrt(np.square(rows, dtype=np.float64).sum(tuple(range(1, rows.ndim)), keepdims=True))


RIDGE = 1e-3
"""Strength of the pull towards the weights as they were, relative to the mean variance of the inputs."""


def prune_by_refit_error(inputs: Tensor, weight: Tensor, removed: int) -> Tensor:
    """Return the map of a group that loses the `removed` units that the layer reading them can best do without.

    One unit after the other goes: the one whose loss, once `weight` `[out, in]` is refitted on `inputs` `[n, in]`,
    leaves the smallest squared error, w_j^2 / [G^-1]_jj with G the inputs' covariance (Hassibi and Stork 1993). So of
    two units that say the same, one stays.
    """
    inverse, weight = torch.linalg.inv(_covariance(_centred(inputs)[0])), weight.to(torch.float64, copy=True)
    stays = torch.ones(weight.shape[1], dtype=torch.bool, device=weight.device)
    for _ in range(removed):
        spread = inverse.diagonal()
        error = torch.where(stays, weight.square().sum(0) / torch.where(stays, spread, 1.0), torch.inf)
        unit = int(error.argmin())
        stays[unit] = False
        row = inverse[unit] / spread[unit]
        for matrix in (weight, inverse):
            matrix.addr_(matrix[:, unit].clone(), row, alpha=-1.0)
    return stays.nonzero().squeeze(1).cpu()


def prune_by_output_variance(consumers: Sequence[tuple[Tensor, Tensor, Tensor]], removed: int) -> Tensor:
    """The same for units with several columns each: those go that move the outputs of their readers least.

    Readers are `(inputs [n, in], weight [out, in], columns [units, block])`. How much a unit moves one is the mean
    square of `weight @ inputs` over its own columns, as a share of all units'; how well others could stand in for it is
    not asked, for that takes the inverse of a matrix of all columns.
    """
    shares = []
    for inputs, weight, columns in consumers:
        centred = (inputs - inputs.mean(0)).T[columns].double()  # [units, block, n]
        own = weight.T[columns].double()  # [units, block, out]
        moved = torch.bmm(centred.transpose(1, 2), own).square().sum((1, 2)) / len(inputs)
        shares.append(moved / moved.sum().clamp(min=1e-300))
    recorded = torch.stack(shares).sum(0)
    return recorded.argsort(descending=True)[: len(recorded) - removed].sort().values.cpu()


def refit_(weight: Tensor, bias: Tensor, inputs: Tensor, targets: Tensor) -> None:
    """Move `weight` `[out, in]` and `bias` `[out]` to the ridge solution of `inputs @ weight.T + bias = targets`.

    `inputs` `[n, in]` and `targets` `[n, out]` come from the states of the last rollout. The penalty is on the change
    of the weights, so directions that the data do not show stay as they were. Solved in float64, over inputs or over
    states, whichever are fewer: milliseconds for 256.
    """
    (centred, mean), (wanted, level), old = _centred(inputs), _centred(targets), weight.double()
    residual = wanted.addmm_(centred, old.T, alpha=-1.0)
    if inputs.shape[1] <= len(inputs):
        change = torch.linalg.solve(_covariance(centred), centred.T @ residual / len(inputs))
    else:
        kernel = centred @ centred.T / len(inputs)
        kernel.diagonal().add_(_ridge(centred.square().mean()))
        change = centred.T @ torch.linalg.solve(kernel, residual / len(inputs))
    weight.copy_(old + change.T)
    bias.copy_(level - weight.double() @ mean)


def _centred(x: Tensor) -> tuple[Tensor, Tensor]:
    """Columns without their means, and the means, in float64."""
    x = x.double()
    mean = x.mean(0)
    return x - mean, mean


def _covariance(centred: Tensor) -> Tensor:
    """The covariance of centred columns, with the ridge on its diagonal."""
    gram = centred.T @ centred / len(centred)
    gram.diagonal().add_(_ridge(gram.diagonal().mean()))
    return gram


def _ridge(variance: Tensor) -> Tensor:
    return RIDGE * variance.clamp(min=1e-12)
