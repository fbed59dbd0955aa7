"""Recurrent layers: LSTM (Hochreiter and Schmidhuber 1997, forget gates: Gers et al. 2000), GRU and minGRU.

All inputs and outputs have a leading member axis `P`, which is 1 for a single member, whose parameters lack it.

The hidden state is reset within a sequence where an episode begins. The gates' products with the inputs are computed
for all steps at once, so that a step is one product with the hidden state and a few elementwise functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from agilerl_like.modules.layers import affine, default_weights, draw_

HiddenState = tuple[Tensor, ...]
"""The state of a layer, vectors `[P, S, H]`; the first is also the layer's output."""


class EpisodeStarts:
    """Steps of sequences at which episodes begin; a step at which none does costs nothing."""

    def __init__(self, starts: Tensor) -> None:
        begins = starts != 0
        self.mask = begins.transpose(1, 2).unsqueeze(-1)  # [P, L, S, 1]
        # on an accelerator, reading the mask back takes longer than resetting
        reads = starts.device.type == "cpu" and not torch.compiler.is_compiling()
        self.any = begins.flatten(0, 1).any(0).tolist() if reads else [True] * starts.shape[-1]

    def reset(self, t: int, vector: Tensor) -> Tensor:
        """Return a vector `[P, S, …]` with zeros where an episode begins at step `t`."""
        return vector.masked_fill(self.mask[:, t], 0.0) if self.any[t] else vector


class GateLinear(nn.Module):
    """The product of a layer's gates with its input: `[P, B, in] -> [P, B, gates * H]`."""

    def __init__(self, gates: int, num_inputs: int, num_units: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(default_weights(gates, num_units, num_inputs, fan_in=num_inputs))
        self.bias = nn.Parameter(torch.zeros(gates, num_units))

    def matrix(self) -> Tensor:
        """Return the weights `[gates * H, in]` of one member as a view."""
        return self.weight.flatten(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        gates, units, inputs = self.weight.shape[-3:]
        return affine(x, self.weight.reshape(-1, gates * units, inputs), self.bias.reshape(-1, gates * units))

    def extra_repr(self) -> str:
        """Return the sizes, for `print`."""
        gates, units, inputs = self.weight.shape[-3:]
        return f"{gates=}, num_inputs={inputs}, num_units={units}"


class Cell(nn.Module):
    """One recurrent layer: gates that read its input, and a hidden state."""

    GATES: ClassVar[int]
    VECTORS: ClassVar[int]
    """Number of vectors in its hidden state."""

    def __init__(self, num_inputs: int, num_units: int) -> None:
        super().__init__()
        self.gates = GateLinear(self.GATES, num_inputs, num_units)
        self.reset_bias_()

    @classmethod
    def multiply_adds(cls, inputs: int, units: int) -> int:
        """Return the multiplications of one step of one sequence."""
        return cls.GATES * units * inputs

    @torch.no_grad()
    def reset_(self, generator: torch.Generator, *, orthogonal: bool) -> None:
        """Draw an orthogonal matrix for each gate (Saxe et al. 2014), or else uniformly in +-1/sqrt(units)."""
        bound = self.gates.bias.shape[-1] ** -0.5
        for matrix in self.matrices():
            if orthogonal:
                draw_(matrix, nn.init.orthogonal_, generator=generator)
            else:
                draw_(matrix, nn.init.uniform_, -bound, bound, generator=generator)
        self.reset_bias_()

    def matrices(self) -> tuple[Tensor, ...]:
        """Return the matrices of all gates, for one member."""
        return tuple(self.gates.weight)

    @torch.no_grad()
    def reset_bias_(self) -> None:
        """Set the biases to zero."""
        self.gates.bias.zero_()

    def step(self, x: Tensor, state: HiddenState) -> HiddenState:
        """Return the hidden state after one more input `[P, S, in]`."""
        raise NotImplementedError

    def unroll(self, x: Tensor, starts: EpisodeStarts, state: HiddenState) -> HiddenState:
        """Return the hidden state after every step of `[P, L, S, in]`, each vector `[P, L, S, H]`."""
        raise NotImplementedError


class SequentialCell(Cell):
    """A layer whose gates read the hidden state, too, so that its steps depend on each other."""

    def __init__(self, num_inputs: int, num_units: int) -> None:
        super().__init__(num_inputs, num_units)
        self.recurrent_weight = nn.Parameter(default_weights(self.GATES, num_units, num_units, fan_in=num_units))

    @classmethod
    def multiply_adds(cls, inputs: int, units: int) -> int:
        return cls.GATES * units * (inputs + units)

    def matrices(self) -> tuple[Tensor, ...]:
        return *super().matrices(), *self.recurrent_weight

    @property
    def recurrent(self) -> Tensor:
        """The recurrent weights `[P, gates * H, H]`."""
        gates, units, _ = self.recurrent_weight.shape[-3:]
        return self.recurrent_weight.reshape(-1, gates * units, units)

    def advance(self, z: Tensor, state: HiddenState, recurrent: Tensor) -> HiddenState:
        """Return the hidden state after one step, given the gates' products with the input `[P, S, gates * H]`."""
        raise NotImplementedError

    def step(self, x: Tensor, state: HiddenState) -> HiddenState:
        return self.advance(self.gates(x), state, self.recurrent)

    def unroll(self, x: Tensor, starts: EpisodeStarts, state: HiddenState) -> HiddenState:
        z, recurrent = self.gates(x.flatten(1, 2)).unflatten(1, x.shape[1:3]), self.recurrent
        states = []
        for t, z_t in enumerate(z.unbind(1)):
            state = self.advance(z_t, tuple(starts.reset(t, vector) for vector in state), recurrent)
            states.append(state)
        return tuple(torch.stack(vectors, 1) for vectors in zip(*states, strict=True))


class MinGRUCell(Cell):
    """`h' = (1 - z) h + z n` with gates z, n that read the inputs alone (minGRU, Feng et al. 2024, arXiv:2410.01201).

    A state is a linear function of the one before, so a sequence of L steps takes about log2(L) operations on all of
    its steps at once (`linear_scan`) instead of L operations that wait for each other. Since the gates cannot count
    steps, a candidate n is a weighted sum of the last `WIDTH` steps' (a causal depthwise convolution, as in the
    authors' blocks and behind the input's projection as in Mamba, Gu and Dao 2023).
    """

    WIDTH: ClassVar[int] = 4
    """Steps of an episode that a candidate depends on."""
    GATES, VECTORS = 2, WIDTH

    def __init__(self, num_inputs: int, num_units: int) -> None:
        super().__init__(num_inputs, num_units)
        self.conv = nn.Parameter(default_weights(self.WIDTH, num_units, fan_in=self.WIDTH))

    @classmethod
    def multiply_adds(cls, inputs: int, units: int) -> int:
        return super().multiply_adds(inputs, units) + cls.WIDTH * units

    @torch.no_grad()
    def reset_(self, generator: torch.Generator, *, orthogonal: bool) -> None:
        super().reset_(generator, orthogonal=orthogonal)
        draw_(self.conv, nn.init.uniform_, -(self.WIDTH**-0.5), self.WIDTH**-0.5, generator=generator)

    @torch.no_grad()
    def reset_bias_(self) -> None:
        """Start with small update gates, so that the hidden state lasts (as LSTMs with open forget gates)."""
        self.gates.bias.zero_()[0] = -1.0

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the update gate and the projected input `[P, B, H]` for inputs `[P, B, in]`."""
        update_gate, projected = self.gates(x).chunk(2, -1)
        return torch.sigmoid(update_gate), projected

    def _candidate(self, recent: Sequence[Tensor]) -> Tensor:
        """Return the weighted sum of the last steps' projected inputs `[P, …, H]`, the last step first."""
        conv = self.conv.reshape(-1, *self.conv.shape[-2:])  # [P, WIDTH, H]
        weights = conv.view(len(conv), self.WIDTH, *(1,) * (recent[0].dim() - 2), -1).unbind(1)
        total = weights[0] * recent[0]
        for weight, projected in zip(weights[1:], recent[1:], strict=True):
            total = torch.addcmul(total, weight, projected)
        return total

    def step(self, x: Tensor, state: HiddenState) -> HiddenState:
        update_gate, projected = self._gates(x)
        hidden, *past = state
        recent = (projected, *past)
        return torch.lerp(hidden, self._candidate(recent), update_gate), *recent[:-1]

    def unroll(self, x: Tensor, starts: EpisodeStarts, state: HiddenState) -> HiddenState:
        update_gate, projected = (gate.unflatten(1, x.shape[1:3]) for gate in self._gates(x.flatten(1, 2)))
        hidden, *past = state
        recent = [projected]
        for before in past:  # one step later each, and zero where an episode begins
            earlier = torch.cat([before.unsqueeze(1), recent[-1][:, :-1]], 1)
            recent.append(earlier.masked_fill(starts.mask, 0.0))
        retained = (1 - update_gate).masked_fill(starts.mask, 0.0)
        terms = update_gate * self._candidate(recent)
        return linear_scan(retained, terms, hidden), *recent[:-1]


def linear_scan(factors: Tensor, terms: Tensor, state: Tensor) -> Tensor:
    """Return `h[t] = factors[t] * h[t - 1] + terms[t]` `[P, L, S, H]` for all t, with `h[-1] = state` `[P, S, H]`.

    Each round combines every step with the one `span` before it (Hillis and Steele 1986), so there are log2(L) rounds.
    """
    terms = torch.cat([torch.addcmul(terms[:, :1], factors[:, :1], state.unsqueeze(1)), terms[:, 1:]], 1)
    length, span = terms.shape[1], 1
    while span < length:
        earlier = terms[:, :-span]
        terms = torch.cat([terms[:, :span], torch.addcmul(terms[:, span:], factors[:, span:], earlier)], 1)
        if 2 * span < length:
            factors = torch.cat([factors[:, :span], factors[:, span:] * factors[:, :-span]], 1)
        span *= 2
    return terms


class GRUCell(SequentialCell):
    """`h' = (1 - z) n + z h` with `n = tanh(W x + b + r U h)`, gates in the order r, z, n.

    This is the variant of cuDNN and PyTorch, in which r scales the product `U h`; in Cho et al. (2014) it scales `h`.
    PyTorch adds a bias to `U h`, too.
    """

    GATES, VECTORS = 3, 1

    def advance(self, z: Tensor, state: HiddenState, recurrent: Tensor) -> HiddenState:
        (hidden,) = state
        units = hidden.shape[-1]
        products = torch.bmm(hidden, recurrent.transpose(1, 2))
        reset_gate, update_gate = torch.sigmoid(z[..., : 2 * units] + products[..., : 2 * units]).chunk(2, -1)
        candidate = torch.tanh(torch.addcmul(z[..., 2 * units :], reset_gate, products[..., 2 * units :]))
        return (torch.lerp(candidate, hidden, update_gate),)


class LSTMCell(SequentialCell):
    """`c' = f c + i g` and `h' = o tanh(c')`, with the gates in the order o, i, f, g."""

    GATES, VECTORS = 4, 2

    @torch.no_grad()
    def reset_bias_(self) -> None:
        """Start with open forget gates, so that the cell state lasts (Jozefowicz et al. 2015)."""
        self.gates.bias.zero_()[2] = 1.0

    def advance(self, z: Tensor, state: HiddenState, recurrent: Tensor) -> HiddenState:
        hidden, cell = state
        units = hidden.shape[-1]
        z = torch.baddbmm(z, hidden, recurrent.transpose(1, 2))
        output_gate, input_gate, forget_gate = torch.sigmoid(z[..., : 3 * units]).chunk(3, -1)
        cell = torch.addcmul(input_gate * torch.tanh(z[..., 3 * units :]), forget_gate, cell)
        return output_gate * torch.tanh(cell), cell

    def unroll(self, x: Tensor, starts: EpisodeStarts, state: HiddenState) -> HiddenState:
        if torch.compiler.is_compiling():
            return super().unroll(x, starts, state)
        z = self.gates(x.flatten(1, 2)).unflatten(1, x.shape[1:3])
        return _FusedLSTM.apply(z, self.recurrent, starts, *state)


class _FusedLSTM(torch.autograd.Function):
    """From the gates' products with the inputs `[P, L, S, 4 H]` to hidden and cell states `[P, L, S, H]` of all steps.

    A step is a few short kernels, so its time is that of the calls around them. Here only what needs the previous step
    is computed step by step, forward and backward; autograd would record nine functions a step (1.19x of a recurrent
    run). No gradient flows into the first state, nor from the cell states, which only the next step uses.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, recurrent: Tensor, starts: EpisodeStarts, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor]:
        members, length, sequences, units = *z.shape[:3], hidden.shape[-1]
        by_step = (length, members, sequences, units)
        gates = z.transpose(0, 1).clone(memory_format=torch.contiguous_format)  # [L, P, S, 4 H]
        hiddens, cells = z.new_empty(1 + length, *by_step[1:]), z.new_empty(1 + length, *by_step[1:])
        tanh_cells = z.new_empty(by_step)
        hiddens[0], cells[0] = hidden, cell
        recurrent_t = recurrent.transpose(1, 2).contiguous()  # with few sequences a quarter faster than transposed
        steps = zip(
            gates.unbind(),
            gates[..., : 3 * units].unbind(),
            *(gate.unbind() for gate in gates.split(units, -1)),
            hiddens.unbind()[1:],
            cells.unbind()[1:],
            tanh_cells.unbind(),
            strict=True,
        )
        hidden, cell = hiddens[0], cells[0]
        for t, (all_gates, three, output_gate, input_gate, forget_gate, candidate, *after) in enumerate(steps):
            all_gates.baddbmm_(starts.reset(t, hidden), recurrent_t)
            three.sigmoid_()
            candidate.tanh_()
            before = starts.reset(t, cell)
            hidden, cell, tanh_cell = after
            torch.mul(forget_gate, before, out=cell).addcmul_(input_gate, candidate)
            torch.tanh(cell, out=tanh_cell)
            torch.mul(output_gate, tanh_cell, out=hidden)
        ctx.starts = starts
        ctx.save_for_backward(gates, hiddens, cells, tanh_cells, recurrent)
        hidden, cell = hiddens[1:].transpose(0, 1), cells[1:].transpose(0, 1)
        ctx.mark_non_differentiable(cell)
        return hidden, cell

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # torch passes ctx by position
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        gradient, _ = gradients  # of the hidden states; the cell states are not differentiable
        gates, hiddens, cells, tanh_cells, recurrent = ctx.saved_tensors
        starts: EpisodeStarts = ctx.starts
        length, members, _, units = tanh_cells.shape
        continues = ~starts.mask.transpose(0, 1)  # [L, P, S, 1]
        output_gate, input_gate, forget_gate, candidate = gates.split(units, -1)
        # z's gradient: its first H columns are these factors times the hidden state's gradient, the others the cell's
        z_grad = torch.empty_like(gates)
        factors = z_grad.split(units, -1)
        torch.mul(tanh_cells, output_gate * (1 - output_gate), out=factors[0])
        torch.mul(candidate, input_gate * (1 - input_gate), out=factors[1])
        torch.mul(cells[:-1] * continues, forget_gate * (1 - forget_gate), out=factors[2])
        torch.mul(input_gate, 1 - candidate.square(), out=factors[3])
        to_cell = output_gate * (1 - tanh_cells.square())
        kept = forget_gate * continues
        steps = [
            *zip(
                gradient.transpose(0, 1).unbind(),
                to_cell.unbind(),
                kept.unbind(),
                z_grad.unbind(),
                factors[0].unbind(),
                z_grad[..., units:].unflatten(-1, (3, units)).unbind(),
                strict=True,
            )
        ]
        cell_grad = torch.zeros_like(tanh_cells[0])
        of_cell = cell_grad.unsqueeze(-2)
        hidden_grad = steps[-1][0]
        for t in reversed(range(length)):
            _, to_cell_t, kept_t, z_grad_t, by_hidden, by_cell = steps[t]
            cell_grad.addcmul_(hidden_grad, to_cell_t)
            by_hidden.mul_(hidden_grad)
            by_cell.mul_(of_cell)
            if t > 0:
                through_time = starts.reset(t, torch.bmm(z_grad_t, recurrent))
                hidden_grad = steps[t - 1][0] + through_time
                cell_grad.mul_(kept_t)
        z_grad = z_grad.transpose(0, 1)  # [P, L, S, 4 H]
        before = (hiddens[:-1] * continues).transpose(0, 1).reshape(members, -1, units)
        recurrent_grad = torch.bmm(z_grad.reshape(members, -1, 4 * units).transpose(1, 2), before)
        return z_grad, recurrent_grad, None, None, None
