"""Recurrent layers: gates decide what a layer keeps of its memory, step after step.

What all of them have in common, and the GRU (Cho et al. 2014); the LSTM is in `lstm_cell`. Everything that is read or
said has a member axis `P` in front, which is 1 for one member alone, whose parameters lack it.

The one subtlety: memory is emptied in the middle of a sequence where an episode begins. So what the gates read of the
input is one product for all steps, and a step is one more and a few functions of few numbers, of all members at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from agilerl_like.modules.layers import affine, default_weights

Memory = tuple[Tensor, ...]
"""What a layer remembers, each `[P, S, H]`; the first is also what it says."""


class Resets:
    """Where episodes begin within sequences; a step at which none does costs nothing."""

    def __init__(self, starts: Tensor) -> None:
        begins = starts != 0
        self.at = begins.transpose(1, 2).unsqueeze(-1)  # [P, L, S, 1]
        # elsewhere than on a CPU, looking takes longer than resetting
        self.looks = starts.device.type == "cpu" and not torch.compiler.is_compiling()
        self.any = begins.flatten(0, 1).any(0).tolist() if self.looks else [True] * starts.shape[-1]

    def empty(self, t: int, vector: Tensor) -> Tensor:
        """A vector `[P, S, …]` with zeros where an episode begins at step `t`."""
        return vector.masked_fill(self.at[:, t], 0.0) if self.any[t] else vector


class GateMap(nn.Module):
    """What a layer's gates read of its input: `[P, B, in] -> [P, B, gates * H]`."""

    def __init__(self, gates: int, num_inputs: int, num_units: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(default_weights(gates, num_units, num_inputs, fan_in=num_inputs))
        self.bias = nn.Parameter(torch.zeros(gates, num_units))

    def matrix(self) -> Tensor:
        """The weights `[gates * H, in]` (of one member): a view."""
        return self.weight.flatten(0, 1)

    @property
    def matrices(self) -> Tensor:
        """The weights `[P, gates * H, in]`."""
        gates, units, inputs = self.weight.shape[-3:]
        return self.weight.reshape(-1, gates * units, inputs)

    def forward(self, x: Tensor) -> Tensor:
        matrices = self.matrices
        return affine(x, matrices, self.bias.reshape(-1, matrices.shape[1]))


class Cell(nn.Module):
    """One recurrent layer."""

    GATES: ClassVar[int]
    VECTORS: ClassVar[int]
    """How many vectors of H numbers are its memory."""

    def __init__(self, num_inputs: int, num_units: int) -> None:
        super().__init__()
        self.recurrent_weight = nn.Parameter(default_weights(self.GATES, num_units, num_units, fan_in=num_units))
        self.gates = GateMap(self.GATES, num_inputs, num_units)
        self.reset_bias_()

    @torch.no_grad()
    def reset_(self, generator: torch.Generator, *, orthogonal: bool) -> None:
        """Draw an orthogonal matrix for each gate (Saxe et al. 2014), or else uniformly in +-1/sqrt(units)."""
        bound = self.recurrent_weight.shape[-1] ** -0.5
        for matrix in (*self.gates.weight, *self.recurrent_weight):
            if orthogonal:
                nn.init.orthogonal_(matrix, generator=generator)
            else:
                nn.init.uniform_(matrix, -bound, bound, generator=generator)
        self.reset_bias_()

    @torch.no_grad()
    def reset_bias_(self) -> None:
        """Start with biases of 0."""
        self.gates.bias.zero_()

    @property
    def recurrent(self) -> Tensor:
        """The recurrent weights `[P, gates * H, H]`."""
        gates, units, _ = self.recurrent_weight.shape[-3:]
        return self.recurrent_weight.reshape(-1, gates * units, units)

    def advance(self, z: Tensor, memory: Memory, recurrent: Tensor) -> Any:
        """One step, from what was read of the input `[P, S, gates * H]`: a record that begins with the next memory."""
        raise NotImplementedError

    def step(self, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """What it says after one more input `[P, S, in]`, and its memory then."""
        memory = self.advance(self.gates(x), memory, self.recurrent)[: self.VECTORS]
        return memory[0], memory

    def walk(self, x: Tensor, resets: Resets, memory: Memory) -> Iterator[Any]:
        """What `advance` gives at every step of `[P, L, S, in]`."""
        z, recurrent = self.gates(x.flatten(1, 2)).unflatten(1, x.shape[1:3]), self.recurrent
        for t, read in enumerate(z.unbind(1)):
            record = self.advance(read, tuple(resets.empty(t, vector) for vector in memory), recurrent)
            memory = record[: self.VECTORS]
            yield record

    def unroll(self, x: Tensor, resets: Resets, memory: Memory) -> Memory:
        """Its memory after every step of `[P, L, S, in]`, each `[P, L, S, H]`."""
        steps = (record[: self.VECTORS] for record in self.walk(x, resets, memory))
        return tuple(torch.stack(vectors, 1) for vectors in zip(*steps, strict=True))


class GRUMoment(NamedTuple):
    """What a GRU says `[P, S, H]`, which is all that it remembers."""

    said: Tensor


class GRUCell(Cell):
    """`h' = (1 - z) n + z h` with `n = tanh(W x + b + r U h)`, and the gates in the order r, z, n."""

    GATES, VECTORS = 3, 1

    def advance(self, z: Tensor, memory: Memory, recurrent: Tensor) -> GRUMoment:
        (before,) = memory
        units = before.shape[-1]
        heard = torch.bmm(before, recurrent.transpose(1, 2))
        reset, keep = torch.sigmoid(z[..., : 2 * units] + heard[..., : 2 * units]).chunk(2, -1)
        new = torch.tanh(torch.addcmul(z[..., 2 * units :], reset, heard[..., 2 * units :]))
        return GRUMoment(torch.lerp(new, before, keep))
