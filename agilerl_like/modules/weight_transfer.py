"""Transfer of weights and Adam moments from a parent network to its mutated child.

One rule serves every kind of layer: along each axis of a tensor, a unit either comes from a unit of the parent or is
new. New *outputs* get random weights as large as their neighbours', new *inputs* get zero, so a new unit computes
something that no other unit uses yet: growth changes no output. Removal cannot be exact: the units are removed that
cost least, and the layers that read them are refitted by ridge regression (closed form).

Weights are copied on the CPU with numpy, which takes half of torch's time; from an accelerator all weights are fetched
at once and written back at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from agilerl_like.modules.evolvable_module import EvolvableModule, UnitAxes, UnitChange, UnitMaps
from agilerl_like.modules.layers import LayerNorm, Linear
from agilerl_like.modules.param_stack import ParamSlot, bind_parameters_, slots_of, update_count_flags, views
from agilerl_like.modules.spec import Arguments

MODE_LOCK = threading.RLock()
"""Held while a network is in another mode than its own for a short time: the mode is shared by all threads."""


class WeightMap(NamedTuple):
    """Where each tensor of a child comes from; the same for weights and for optimizer moments."""

    sources: Mapping[str, str]
    """The parent's name of each of the child's tensors; a tensor without an entry is new."""
    unit_axes: UnitAxes
    """Unit groups on the axes of its tensors, empty if no group changed."""
    maps: UnitMaps

    def is_unchanged(self, name: str) -> bool:
        """Whether one of the child's tensors has exactly the units of its source."""
        return self.maps.keys().isdisjoint(self.unit_axes.get(name, ()))


class TransferResult(NamedTuple):
    """Results of a transfer besides the weights that it writes."""

    maps: UnitMaps
    """For every changed unit group, the parent's unit of each of the child's units."""
    moments: tuple[Tensor, ...]
    """As many rows `[N]` as the parent has."""


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
    """Write weights into a child, built from the mutated spec, so that it computes what its parent computes.

    After growth the outputs are equal. After a removal the layers that read the removed units are refitted on `states`,
    inputs of the parent, both networks in evaluation mode. The parent is not changed. `generator` draws the weights of
    new units. `moments` are Adam's first and second moments `[N]` of the parent's parameters in their order; the
    child's are returned. The child's parameters are views of one flat row. `unit_change` and `recorded` (one entry for
    each layer to refit) may be passed if they were computed before.
    """
    unit_change = parent.unit_change(operator, arguments) if unit_change is None else unit_change
    if recorded is None:
        recorded = {name: RecordedLinear.of(parent, name, states) for name, _ in unit_change.consumers}
    parameters, buffers = dict(child.named_parameters()), dict(child.named_buffers())
    parent_parameters, parent_buffers = dict(parent.named_parameters()), dict(parent.named_buffers())
    sources = child.source_names([*parameters, *buffers], operator, arguments)
    axes = parent.unit_axes() if unit_change.units or unit_change.fixed_maps else {}  # no operator renames these
    maps = _unit_maps(parent, axes, {**parent_parameters, **parent_buffers}, unit_change, recorded)
    weight_map = WeightMap(sources, axes, maps)

    parent_rows = torch.cat([*map(torch.ravel, parent_parameters.values()), *moments]).view(1 + len(moments), -1)
    slots, on_cpu = slots_of(parameters), _on_cpu(parent_rows)
    rows = on_cpu.new_empty(len(on_cpu), slots[-1].stop)
    child_arrays = _arrays(rows.numpy(), slots)
    parent_arrays = _arrays(on_cpu.numpy(), slots_of(parent_parameters))
    _copy_unchanged_(child_arrays, parameters, parent_arrays, on_cpu.numpy(), weight_map)
    changed = {name: array for name, array in child_arrays.items() if not weight_map.is_unchanged(name)}
    copy_units_(changed, parent_arrays, weight_map, generator=generator)
    rows = rows.to(parent_rows)
    bind_parameters_(rows[0], parameters.values())
    _copy_buffers_(buffers, parent_buffers, weight_map, generator)
    child.init_new_layer_(operator, arguments, generator)
    if unit_change.consumers:
        _refit_consumers_(child, parent, operator, arguments, weight_map, unit_change, recorded, states)
        tensors = views(rows[1:2], slots)
        for _, replacement in unit_change.consumers:  # the first moment of a refitted layer is of other weights
            for name in ("weight", "bias"):
                tensors[f"{replacement}.{name}"].zero_()
    else:
        update_count_flags(child)
    return TransferResult(maps, rows[1:].unbind())


@contextmanager
def in_eval_mode(network: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode, and back at the end; of the networks in training mode, one at a time."""
    with MODE_LOCK:
        if network.training:
            network.eval()
            try:
                yield
            finally:
                network.train()
            return
    yield


def _on_cpu(tensor: Tensor) -> Tensor:
    """A tensor that numpy can read: the same one where possible."""
    tensor = tensor.detach().cpu()
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


def _arrays(rows: np.ndarray, slots: Sequence[ParamSlot]) -> dict[str, np.ndarray]:
    """The tensors in rows `[R, N]` by name, as views `[R, *shape]`."""
    return {slot.name: rows[:, slot.start : slot.stop].reshape(len(rows), *slot.shape) for slot in slots}


def _copy_unchanged_(
    child: Mapping[str, np.ndarray],
    built: Mapping[str, Tensor],
    parent: Mapping[str, np.ndarray],
    parent_rows: np.ndarray,
    weight_map: WeightMap,
) -> None:
    """Copy all of a child's tensors `[R, …]` (weights and moments) whose units did not change.

    New tensors, and those with new units, get the values that the child was built with. The second moment of a new
    tensor is the mean over all of the parent's: with 0 its first steps would be long.
    """
    for name, tensor in child.items():
        source = parent.get(weight_map.sources.get(name, ""))
        if source is not None and weight_map.is_unchanged(name):
            tensor[...] = source
            continue
        tensor[0] = _on_cpu(built[name]).numpy()
        if source is None:
            tensor[1:2], tensor[2:] = 0.0, _column(parent_rows[2:].mean(1), tensor.ndim)


def _copy_buffers_(
    child: Mapping[str, Tensor], parent: Mapping[str, Tensor], weight_map: WeightMap, generator: torch.Generator
) -> None:
    """Copy buffers, which have no moments."""
    for name, buffer in child.items():
        source = weight_map.sources.get(name, "")
        if source not in parent:
            continue
        if weight_map.is_unchanged(name):
            buffer.copy_(parent[source])
            continue
        new, old = _on_cpu(buffer), _on_cpu(parent[source]).numpy()
        copy_units_({name: new.numpy()[None]}, {source: old[None]}, weight_map, generator=generator)
        buffer.copy_(new)


# -- which units stay


class RecordedLinear(NamedTuple):
    """Inputs, weights and outputs of one of the parent's linear maps on given states."""

    inputs: Tensor  # [n, columns]
    matrix: Tensor  # [out, columns]
    outputs: Tensor  # [n, out]

    @classmethod
    def of(cls, parent: EvolvableModule, name: str, states: Any) -> RecordedLinear:
        """Record the linear map of this name while the parent reads `states`."""
        linear, inputs = cast(Linear, parent.get_submodule(name)), parent.layer_input(name, states)
        matrix = linear.matrix()
        return cls(inputs, matrix, torch.addmm(linear.bias.flatten(), inputs, matrix.T))


def append_units(width: int, added: int) -> Tensor:
    """Return the unit map of a group that keeps its `width` units and gets `added` new ones."""
    return torch.cat([torch.arange(width), torch.full((added,), -1)])


def _unit_maps(
    parent: EvolvableModule,
    axes: UnitAxes,
    tensors: Mapping[str, Tensor],
    unit_change: UnitChange,
    recorded: Mapping[str, RecordedLinear],
) -> dict[str, Tensor]:
    """The unit map of every group whose width changes."""
    widths, maps = dict[str, int](), dict(unit_change.fixed_maps)
    for name, tensor in tensors.items() if axes else ():
        widths.update(zip(axes.get(name, ()), tensor.shape, strict=False))
    for group, change in unit_change.units.items():
        if change > 0:
            maps[group] = append_units(widths[group], change)
        elif change < 0:
            maps[group] = _surviving_units(parent, axes, group, widths[group], -change, recorded)
    return {**maps, **parent.expand_maps(maps)} if maps else {}


def _surviving_units(
    parent: EvolvableModule,
    axes: UnitAxes,
    group: str,
    width: int,
    removed: int,
    recorded: Mapping[str, RecordedLinear],
) -> Tensor:
    """The unit map of a group that loses the units which cost its consumers least.

    All consumers of one group have the same inputs: the two heads of a shared encoder.
    """
    found: list[tuple[RecordedLinear, Tensor]] = []
    for name, linear in recorded.items():
        columns = _columns(parent, group, width, axes[f"{name}.weight"], linear.inputs.shape[1])
        if columns is not None:
            found.append((linear, columns))
    if not found:  # the output of a module that is not part of a network
        return torch.arange(width - removed)
    (first, columns), matrices = found[0], [linear.matrix for linear, _ in found]
    if columns.shape[1] == 1 and all(matrix.shape[1] == width for matrix in matrices):
        return prune_by_refit_error(first.inputs, torch.cat(matrices), removed)
    return prune_by_output_variance([(linear.inputs, linear.matrix, columns) for linear, columns in found], removed)


def _columns(parent: EvolvableModule, group: str, width: int, groups: tuple[str, ...], count: int) -> Tensor | None:
    """The columns `[width, block]` of a consumer that belong to each unit of a group; None if it reads another group.

    They are neighbours (a kernel's positions), or follow from the unit (the pixels of a flattened channel).
    """
    inputs = [name for name in groups if name][1:]
    if group in inputs:
        return torch.arange(count).view(width, -1)
    no_units = parent.expand_maps({group: torch.zeros(0, dtype=torch.int64)})
    expanded = next((name for name in inputs if name in no_units), None)
    if expanded is None:
        return None
    others = no_units[expanded]  # columns of other groups' units
    each = (parent.expand_maps({group: torch.tensor([unit])})[expanded] for unit in range(width))
    return torch.stack([columns[~torch.isin(columns, others)] for columns in each])


def prune_by_refit_error(inputs: Tensor, weight: Tensor, removed: int) -> Tensor:
    """Return the unit map of a group without the `removed` units that its consumer can best do without.

    Units are removed one by one: the one whose removal, once `weight` `[out, in]` is refitted on `inputs` `[n, in]`,
    leaves the smallest squared error, w_j^2 / [G^-1]_jj with G the inputs' covariance (Optimal Brain Surgeon, Hassibi
    and Stork 1993). So of two redundant units one stays.
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
    """Return the unit map of a group, of several columns a unit, without those that move the outputs least.

    Consumers are `(inputs [n, in], weight [out, in], columns [units, block])`. A unit's share of one consumer is the
    mean square of `weight @ inputs` over its own columns, relative to the sum over all units. Whether other units could
    replace it is not considered: that takes the inverse of a matrix of all columns.
    """
    shares = []
    for inputs, weight, columns in consumers:
        centred = (inputs - inputs.mean(0)).T[columns].double()  # [units, block, n]
        own = weight.T[columns].double()  # [units, block, out]
        moved = torch.bmm(centred.transpose(1, 2), own).square().sum((1, 2)) / len(inputs)
        shares.append(moved / moved.sum().clamp(min=1e-300))
    total = torch.stack(shares).sum(0)
    return total.argsort(descending=True)[: len(total) - removed].sort().values.cpu()


# -- copying along unit maps

DRAWN = ("weight", "conv")
"""Endings of the names of weights: their rows of new outputs are drawn, since `skip_init` builds a child with zeros."""


def copy_along_axes_(
    child: np.ndarray,
    parent: np.ndarray,
    maps: Sequence[np.ndarray | None],
    *,
    new_outputs: np.ndarray | None,
    new_inputs: np.ndarray,
) -> None:
    """Copy a tensor `[R, …]` (weights, and perhaps moments) along the unit maps of its axes; None leaves an axis as is.

    The first axis after R is that of the outputs. Entries of surviving units are the parent's; columns of new inputs
    are `new_inputs` `[R]`; rows of new outputs are `new_outputs` `[R, new, …]`.
    """
    for axis, unit_map in enumerate(maps, 1):
        if unit_map is not None:
            parent = parent.take(unit_map.clip(0), axis)
    child[...] = parent
    for axis, unit_map in enumerate(maps, 1):
        if unit_map is not None and (unit_map < 0).any():
            index = *(slice(None),) * axis, unit_map < 0
            child[index] = new_outputs if axis == 1 else _column(new_inputs, child.ndim)


def _column(values: np.ndarray, ndim: int) -> np.ndarray:
    """One value for each row: `[R, 1, …]`."""
    return values.reshape(-1, *(1,) * (ndim - 1))


def copy_units_(
    child: Mapping[str, np.ndarray],
    parent: Mapping[str, np.ndarray],
    weight_map: WeightMap,
    *,
    generator: torch.Generator,
) -> None:
    """Fill the child's weights or buffers `[1, …]`, or weights and their moments `[3, …]`, from the parent's.

    A tensor without a source stays as it is. New outputs of the tensors `DRAWN` get random rows as long as the median
    row; new outputs of other tensors keep the child's values. The moments of new entries are 0 and the mean of the
    tensor's second moment: with 0 their first steps would be 3 to 6 learning rates long.
    """
    arrays = {group: unit_map.numpy() for group, unit_map in weight_map.maps.items()}
    for name, tensor in child.items():
        source = parent.get(weight_map.sources.get(name, ""))
        if source is None:
            continue
        groups = weight_map.unit_axes[name]
        axis = next((axis for axis, group in enumerate(groups) if group), 0)  # that of the outputs
        maps = [arrays.get(group) if group else None for group in groups]
        maps.insert(0, maps.pop(axis))
        new, old = np.moveaxis(tensor, axis + 1, 1), np.moveaxis(source, axis + 1, 1)
        mean = np.zeros(len(source), source.dtype)
        mean[2:] = source[2:].mean(tuple(range(1, source.ndim)))
        new_outputs = None
        if maps[0] is not None and (maps[0] < 0).any():
            new_outputs = new[:, maps[0] < 0]
            new_outputs[0] = _new_unit_values(name, old[0], new_outputs[0], generator)
            new_outputs[1:] = _column(mean[1:], new_outputs.ndim)
        copy_along_axes_(new, old, maps, new_outputs=new_outputs, new_inputs=mean)


def _new_unit_values(name: str, old: np.ndarray, built: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """Rows of new outputs, given the parent's rows and those that the child was built with."""
    if name.endswith("counted"):  # a new unit does not enter the statistics that normalise the others
        return np.zeros_like(built)
    if built.ndim < 2 or name.endswith("bias"):
        return built
    rows = torch.randn(built.shape, generator=generator).numpy() if name.endswith(DRAWN) else built
    lengths = np.sort(_lengths(old), axis=None)
    median = lengths[(len(lengths) - 1) // 2]
    return rows * ((median if median > 0 else 2**0.5) / np.maximum(_lengths(rows), 1e-12))


def _lengths(rows: np.ndarray) -> np.ndarray:
    """The length of each row `[n, …]`, without overflow for large values: `[n, 1, …]`."""
    return np.sqrt(np.square(rows, dtype=np.float64).sum(tuple(range(1, rows.ndim)), keepdims=True))


# -- refitting after a removal

RIDGE = 1e-3
"""Strength of the penalty on changes of the weights, relative to the mean variance of the inputs."""


def _refit_consumers_(
    child: EvolvableModule,
    parent: EvolvableModule,
    operator: str,
    arguments: Arguments,
    weight_map: WeightMap,
    unit_change: UnitChange,
    recorded: Mapping[str, RecordedLinear],
    states: Any,
) -> None:
    """Refit the child's layers that read removed units, so that their outputs are the parent's."""
    child.eval()
    for layer in child.modules():
        if isinstance(layer, LayerNorm):
            layer.count_all_if_few_()
    child.merge_removed_layer_(parent, operator, arguments)
    for name, replacement in unit_change.consumers:
        bias_shape = parent.get_parameter(f"{name}.bias").shape
        targets = _surviving_outputs(recorded[name].outputs, bias_shape, weight_map, replacement)
        _refit_replacement_(child, replacement, targets, states)


def _surviving_outputs(outputs: Tensor, bias_shape: torch.Size, weight_map: WeightMap, replacement: str) -> Tensor:
    """The outputs `[n, out]` of one of the parent's linear maps that its replacement still has."""
    outputs = outputs.unflatten(1, bias_shape)
    for axis, group in enumerate(weight_map.unit_axes.get(f"{replacement}.bias", ())):
        if group in weight_map.maps:
            outputs = outputs.index_select(axis + 1, weight_map.maps[group].to(outputs.device))
    return outputs.flatten(1)


def _refit_replacement_(child: EvolvableModule, name: str, targets: Tensor, states: Any) -> None:
    """Refit a linear map to `targets` `[n, out]`, unless that makes its layer's output, after its activation, worse.

    Without a refit, the removal of an identity layer with ReLU is exact: relu(W x) for relu(I relu(W x)).
    """
    linear, inputs = cast(Linear, child.get_submodule(name)), child.layer_input(name, states)
    matrix, bias = linear.matrix(), linear.bias.view(-1)
    goal = child.layer_output(name, targets, inputs)

    def error() -> float:
        outputs = torch.addmm(bias, inputs, matrix.T)
        return float((child.layer_output(name, outputs, inputs) - goal).square().sum())

    merged, merged_error = (matrix.clone(), bias.clone()), error()
    refit_(matrix, bias, inputs, targets)
    if merged_error < error():
        matrix.copy_(merged[0])
        bias.copy_(merged[1])


def refit_(weight: Tensor, bias: Tensor, inputs: Tensor, targets: Tensor) -> None:
    """Move `weight` `[out, in]` and `bias` `[out]` to the ridge solution of `inputs @ weight.T + bias = targets`.

    `inputs` are `[n, in]`, `targets` `[n, out]`. The penalty is on the change of the weights, so directions in which
    the inputs do not vary stay as they were. Solved in float64, over inputs or over states, whichever are fewer:
    milliseconds for 256.
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
