"""The LSTM's layer (Hochreiter and Schmidhuber 1997, with forget gates: Gers et al. 2000).

A step consists of a few short kernels, so the calls around them decide how long it takes. `_FusedLSTM` therefore does
step by step only what needs the step before, forward and backward; autograd would record nine functions a step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from agilerl_like.modules.cells import Cell, Memory, Resets


class LSTMCell(Cell):
    """`c' = f c + i g` and `h' = o tanh(c')`, with the gates in the order o, i, f, g."""

    GATES, VECTORS = 4, 2

    @torch.no_grad()
    def reset_bias_(self) -> None:
        """Start with open forget gates, so that memory lasts (Jozefowicz et al. 2015)."""
        self.gates.bias.zero_()[2] = 1.0

    def advance(self, z: Tensor, memory: Memory, recurrent: Tensor) -> Memory:
        hidden, cell = memory
        units = hidden.shape[-1]
        z = torch.baddbmm(z, hidden, recurrent.transpose(1, 2))
        output_gate, input_gate, forget_gate = torch.sigmoid(z[..., : 3 * units]).chunk(3, -1)
        cell = torch.addcmul(input_gate * torch.tanh(z[..., 3 * units :]), forget_gate, cell)
        return output_gate * torch.tanh(cell), cell

    def unroll(self, x: Tensor, resets: Resets, memory: Memory) -> Memory:
        if torch.compiler.is_compiling():
            return super().unroll(x, resets, memory)
        z = self.gates(x.flatten(1, 2)).unflatten(1, x.shape[1:3])
        return _FusedLSTM.apply(z, self.recurrent, resets, *memory)


class _FusedLSTM(torch.autograd.Function):
    """From `[P, L, S, 4 H]`, read of the inputs, to hidden and cell state after every step, `[P, L, S, H]` each.

    No gradient flows into the state before the first step, nor from the cell states, of which only the step that
    follows makes use.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, recurrent: Tensor, resets: Resets, hidden: Tensor, cell: Tensor
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
            all_gates.baddbmm_(resets.empty(t, hidden), recurrent_t)
            three.sigmoid_()
            candidate.tanh_()
            before = resets.empty(t, cell)
            hidden, cell, tanh_cell = after
            torch.mul(forget_gate, before, out=cell).addcmul_(input_gate, candidate)
            torch.tanh(cell, out=tanh_cell)
            torch.mul(output_gate, tanh_cell, out=hidden)
        ctx.resets = resets
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
        resets: Resets = ctx.resets
        length, members, sequences, units = tanh_cells.shape
        continues = ~resets.at.transpose(0, 1)  # [L, P, S, 1]
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
                through_time = resets.empty(t, torch.bmm(z_grad_t, recurrent))
                hidden_grad = steps[t - 1][0] + through_time
                cell_grad.mul_(kept_t)
        z_grad = z_grad.transpose(0, 1)  # [P, L, S, 4 H]
        before = (hiddens[:-1] * continues).transpose(0, 1).reshape(members, -1, units)
        recurrent_grad = torch.bmm(z_grad.reshape(members, -1, 4 * units).transpose(1, 2), before)
        return z_grad, recurrent_grad, None, None, None
