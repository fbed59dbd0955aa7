"""The evolvable recurrent network: single steps while acting, sequences while learning.

Layers are residual: the output is the first layer's hidden state plus a linear map of each later layer's. The map is
zero at first, so a new layer changes nothing, and neither does one that a member of a stack lacks.

Where an episode begins, within a sequence too, the hidden state is zero. A state `[..., K, H]` holds the K vectors of
all layers, the first layer's first, so that the state of a shallower or narrower member is a leading block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.modules.evolvable_module import UnitAxes, UnitChange, UnitMaps
from agilerl_like.modules.inplace_mutation import mutation_method
from agilerl_like.modules.layers import Residual
from agilerl_like.modules.memory_module import (
    MemoryModule,
    MemorySpec,
    StoredStates,
    UnrolledStates,
    no_autocast,
    with_members,
)
from agilerl_like.modules.recurrent_cells import Cell, EpisodeStarts, GRUCell, HiddenState, LSTMCell, MinGRUCell
from agilerl_like.modules.spec import Arguments, OperatorKind, check_limits, check_range, size_steps

CELLS: dict[str, type[Cell]] = {"LSTM": LSTMCell, "GRU": GRUCell, "minGRU": MinGRUCell}
UNIT_STEPS = (16, 32, 64)
"""How many units a mutation adds or removes (AgileRL's choice)."""


@dataclass(frozen=True)
class LSTMSpec(MemorySpec):
    """The architecture of an `EvolvableLSTM`; sizes are in units."""

    cell: str = "LSTM"
    """"LSTM", "GRU" or "minGRU"; the last is the fastest for long sequences."""
    hidden_state_size: int = 64
    """Units of each layer, and number of outputs."""
    num_layers: int = 1
    """Number of recurrent layers."""
    dropout: float = 0.0
    """Share of the outputs that is dropped while training; redrawn between updates."""
    min_hidden_state_size: int = 16
    """Fewest units that a mutation may leave."""
    max_hidden_state_size: int = 500
    """Most units that a mutation may make."""
    min_layers: int = 1
    """Fewest layers that a mutation may leave."""
    max_layers: int = 3
    """Most layers that a mutation may make."""
    init_layers: bool = True
    """Orthogonal initial weights; otherwise uniform in +-1/sqrt(units)."""

    OPERATORS: ClassVar[Mapping[str, OperatorKind]] = {
        "add_layer": "layer",
        "remove_layer": "layer",
        "add_node": "node",
        "remove_node": "node",
    }

    STACK_FIELDS = ("cell", "dropout")
    UNION_FIELDS = ("hidden_state_size", "num_layers", "max_hidden_state_size", "max_layers")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cell not in CELLS:
            raise unknown_name("cell", self.cell, CELLS)
        for field, low, high in (
            ("hidden_state_size", "min_hidden_state_size", "max_hidden_state_size"),
            ("num_layers", "min_layers", "max_layers"),
        ):
            check_limits(self, low, high)
            check_range(self, field, getattr(self, field), low, high)
        if not 0 <= self.dropout < 1:
            raise ConfigurationError(f"dropout={self.dropout!r} must be at least 0 and less than 1")

    @property
    def state_shape(self) -> tuple[int, int]:
        """Vectors K and units H of the hidden state."""
        return self.num_layers * CELLS[self.cell].VECTORS, self.hidden_state_size

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        if operator == "add_layer":
            return ({"layer": self.num_layers},) if self.num_layers < self.max_layers else ()
        if operator == "remove_layer":
            return ({"layer": self.num_layers - 1},) if self.num_layers > self.min_layers else ()
        low, high = self.min_hidden_state_size, self.max_hidden_state_size
        return tuple({"nodes": nodes} for nodes in size_steps(operator, self.hidden_state_size, low, high, UNIT_STEPS))

    def apply(self, operator: str, **arguments: int | float | str) -> LSTMSpec:
        if operator not in self.OPERATORS:
            raise unknown_name("operator", operator, self.OPERATORS)
        sign = 1 if operator.startswith("add") else -1
        if operator.endswith("layer"):
            return self.evolve(num_layers=self.num_layers + sign)
        return self.evolve(hidden_state_size=self.hidden_state_size + sign * int(arguments["nodes"]))

    # -- in a stack

    def multiply_adds(self, padded: LSTMSpec, inputs: int, num_outputs: int) -> int:
        """Of one step; members without a layer compute it too."""
        units, cell = padded.hidden_state_size, CELLS[self.cell]
        later = cell.multiply_adds(units, units) + units * units
        return cell.multiply_adds(inputs, units) + (padded.num_layers - 1) * later

    @property
    def depth(self) -> int:
        return self.num_layers

    def describe(self) -> str:
        times = f"{self.num_layers}x" if self.num_layers > 1 else ""
        return f"{self.cell} {times}{self.hidden_state_size}"


class Sequences(NamedTuple):
    """Inputs over time; all tensors have a leading member axis in a stack."""

    x: Tensor  # [S, L, in]
    starts: Tensor  # [S, L], 1 where an episode begins
    state: Tensor  # [S, K, H], before the first step


class EvolvableLSTM(MemoryModule[LSTMSpec]):
    """Recurrent layers of `spec.hidden_state_size` units each.

    It computes in the dtype of its weights, under autocast too, since rounding errors would add up over the steps.
    """

    add_layer = mutation_method("add_layer")
    remove_layer = mutation_method("remove_layer")
    add_node = mutation_method("add_node")
    remove_node = mutation_method("remove_node")

    def __init__(self, spec: LSTMSpec, inputs: int) -> None:
        super().__init__(spec, inputs)
        units, cell = spec.hidden_state_size, CELLS[spec.cell]
        self.cells = nn.ModuleList(cell(units if layer else inputs, units) for layer in range(spec.num_layers))
        self.residuals = nn.ModuleDict({str(layer): Residual(units, units) for layer in range(1, spec.num_layers)})
        if spec.dropout:
            self.register_buffer("kept", torch.ones(units))
            self.kept: Tensor

    def reset_(self, generator: torch.Generator, *, output_gain: float) -> None:
        """Draw initial weights; the outputs are a hidden state, so `output_gain` has no effect."""
        for cell in self._cells:
            cell.reset_(generator, orthogonal=self.spec.init_layers)
        for parameter in self.residuals.parameters():
            nn.init.zeros_(parameter)

    def resample_(self, generator: torch.Generator) -> None:
        """Draw which outputs are dropped, for one member (the rows of a stack are drawn through its members).

        They stay dropped until the next call, so that a rollout and its update use one policy.
        """
        if self.spec.dropout:
            draw = torch.rand(self.kept.shape, generator=generator, device=generator.device)
            self.kept.copy_((draw >= self.spec.dropout) / (1 - self.spec.dropout))

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        with no_autocast(x):
            inputs = x.reshape(self._members, -1, self.inputs).to(state.dtype)
            layers = self._run_layers(inputs, state, lambda cell, x, state: cell.step(x, state))
            outputs = self._dropped(layers.outputs)
            return outputs.view(*x.shape[:-1], outputs.shape[-1]), layers.state.view(state.shape)

    def unroll(self, x: Tensor, starts: Tensor, state: Tensor) -> tuple[Tensor, UnrolledStates]:
        with no_autocast(x):
            layers = self._unrolled(x, starts, state)
            states = layers.state.transpose(1, 2).reshape(*x.shape[:-1], *self.state_shape)
            outputs = self._dropped(layers.outputs).transpose(1, 2).clone(memory_format=torch.contiguous_format)
            return outputs.view(*x.shape[:-1], outputs.shape[-1]), StoredStates(states)

    # -- layer by layer

    @property
    def _cells(self) -> tuple[Cell, ...]:
        return tuple(cast(Cell, cell) for cell in self.cells)

    def _residual(self, layer: int) -> Residual:
        return cast(Residual, self.residuals[str(layer)])

    @property
    def _members(self) -> int:
        bias = self._cells[0].gates.bias
        return len(bias) if bias.dim() > 2 else 1

    def _run_layers(
        self, x: Tensor, state: Tensor, run: Callable[[Cell, Tensor, HiddenState], HiddenState]
    ) -> _LayerStates:
        """Run all layers on `[P, …, in]` from a state."""
        vectors = state.reshape(len(x), -1, *state.shape[-2:]).unbind(2)
        hidden, after, count = [], [], CELLS[self.spec.cell].VECTORS
        for layer, cell in enumerate(self._cells):
            state_after = run(cell, x, vectors[layer * count : (layer + 1) * count])
            hidden.append(state_after[0])
            x = x + self._residual(layer)(hidden[-1].flatten(1, -2)).view(x.shape) if layer else hidden[-1]
            after.extend(state_after)
        return _LayerStates(x, after, hidden)

    def _unrolled(self, x: Tensor, starts: Tensor, state: Tensor) -> _LayerStates:
        episode_starts = EpisodeStarts(with_members(starts, 2))
        by_time = with_members(x, 3).transpose(1, 2).to(state.dtype)  # [P, L, S, in]
        return self._run_layers(by_time, state, lambda cell, x, state: cell.unroll(x, episode_starts, state))

    def _dropped(self, y: Tensor) -> Tensor:
        """Apply dropout to outputs `[P, …, H]`."""
        if not (self.spec.dropout and self.training):
            return y
        return y * self.kept.view(self._members, *(1,) * (y.dim() - 2), -1)

    # -- mutations

    def unit_axes(self) -> UnitAxes:
        axes: UnitAxes = {"kept": ("out",)}
        for layer in range(self.spec.num_layers):
            own, read = (str(layer), "out") if layer else ("out", "in")
            axes[f"cells.{layer}.gates.weight"] = ("", own, read)
            axes[f"cells.{layer}.gates.bias"] = ("", own)
            axes[f"cells.{layer}.recurrent_weight"] = ("", own, own)
            axes[f"cells.{layer}.conv"] = ("", own)
            axes[f"residuals.{layer}.weight"] = ("out", own)
            axes[f"residuals.{layer}.bias"] = ("out",)
        return axes

    LAYER_LISTS = ("cells", "residuals")
    input_consumers = ("cells.0.gates",)

    def unit_change(self, operator: str, arguments: Arguments) -> UnitChange:
        """All layers widen or narrow together; a later layer keeps the units that its residual map needs."""
        if operator.endswith("layer"):
            return UnitChange(refits_output=operator == "remove_layer")
        nodes = int(arguments["nodes"]) * (1 if operator == "add_node" else -1)
        units = {"out": nodes, **dict.fromkeys(self.residuals, nodes)}
        residuals = (f"residuals.{layer}" for layer in self.residuals)
        return UnitChange(units, consumers=tuple((name, name) for name in residuals) if nodes < 0 else ())

    def init_new_layer_(self, operator: str, arguments: Arguments, generator: torch.Generator) -> None:
        """A new layer has a hidden state, and its residual map is zero."""
        if operator == "add_layer":
            self._cells[int(arguments["layer"])].reset_(generator, orthogonal=self.spec.init_layers)

    def layer_input(self, name: str, x: Tensor | Sequences) -> Tensor:
        """`x` are `Sequences`, sequences `[S, L, in]` that each begin an episode, or first steps `[n, in]`."""
        sequences = x if isinstance(x, Sequences) else self._episodes(x)
        if name == "cells.0.gates":
            return sequences.x.flatten(0, 1)
        hidden = self._unrolled(*sequences).hidden[int(name.rpartition(".")[2])]
        return hidden.transpose(1, 2).flatten(0, 2)

    @staticmethod
    def transfer_state(state: Tensor, old: LSTMSpec, new: LSTMSpec, maps: UnitMaps) -> Tensor:
        """Return the hidden states; new units and layers start at zero, and a group without a map keeps its units."""
        result = state.new_zeros(*state.shape[:-2], *new.state_shape)
        vectors = CELLS[new.cell].VECTORS
        for layer in range(min(old.num_layers, new.num_layers)):
            here = slice(layer * vectors, (layer + 1) * vectors)
            unit_map = maps.get(str(layer) if layer else "out", torch.arange(old.hidden_state_size)).to(state.device)
            result[..., here, :] = state[..., here, :][..., unit_map.clamp(min=0)] * (unit_map >= 0)
        return result

    def _episodes(self, x: Tensor) -> Sequences:
        x = x if x.dim() == 3 else x.unsqueeze(1)
        return Sequences(x, x.new_zeros(x.shape[:2]), x.new_zeros(len(x), *self.state_shape))


class _LayerStates(NamedTuple):
    """Results of all layers, by time `[P, L, S, …]` or of one step `[P, B, …]`."""

    outputs: Tensor
    vectors: Sequence[Tensor]  # of the hidden state
    hidden: Sequence[Tensor]  # output of each layer

    @property
    def state(self) -> Tensor:
        """The hidden state `[P, …, K, H]`."""
        return torch.stack(list(self.vectors), -2)
