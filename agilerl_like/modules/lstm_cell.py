"""The LSTM's layer (Hochreiter and Schmidhuber 1997, with forget gates: Gers et al. 2000), and its way back by hand.

On a CPU its steps are so short that the number of kernels decides, and what there is around them. So only what one step
needs of the one before is done step by step, in room that is kept from one minibatch to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from agilerl_like.modules.base import Pull
from agilerl_like.modules.cells import Cell, Memory, Resets
from agilerl_like.modules.layers import pull_bias, pull_weight

KEPT_TAPES, KEPT_NUMBERS = 2, 2**22
"""How many tapes a layer keeps, for minibatches differ by one sequence; and how many numbers one may hold for that."""


class Tape:
    """Room for what an LSTM computes along L steps of P members' S sequences, and views of every step in it.

    Whoever runs along it next writes over what it holds. To make it anew would take up to a quarter of the time.
    """

    def __init__(self, owner: Tensor, shape: tuple[int, int, int, int], inputs: int) -> None:
        self.owner, self.shape, self.inputs = owner, shape, inputs
        members, length, sequences, units = shape

        def room(*shape: int) -> Tensor:
            return owner.new_empty(shape)

        by_step = (length, members, sequences)
        self.rows = room(members, length, sequences, inputs)
        self.columns = room(members, length * sequences, 4 * units)
        """What is the same for every step in one product: what gates read of the inputs, or the gradient of that."""
        self.gates = room(*by_step, 4, units)
        self.output, self.write, self.keep, self.rest = self.gates.unbind(-2)
        """How far the gates are open; `rest` is what is new, as `tanh(z) = 1 - 2 sigmoid(-2 z)` tells it."""
        self.kept, self.said = (room(1 + length, members, sequences, units) for _ in range(2))
        """What is kept and said before the first step and after each."""
        self.bent = room(*by_step, units)
        """tanh of what is kept."""
        self.goes_on = room(*by_step, 1)
        """0 where an episode begins and else 1."""
        kept, said = self.kept.unbind(), self.said.unbind()
        self.by_step = self.columns.view(members, length, sequences, 4, units).transpose(0, 1)
        self.resets = self.goes_on.unbind()
        gates = (self.gates.flatten(3), self.output, self.write, self.keep, self.rest, self.bent)
        self.forth = [
            *zip(*(numbers.unbind() for numbers in gates), kept[:-1], kept[1:], said[:-1], said[1:], strict=True)
        ]

    @property
    def memory(self) -> Memory:
        """What is said and kept after every step, `[P, L, S, H]`."""
        return self.said[1:].transpose(0, 1), self.kept[1:].transpose(0, 1)


class TwoWayTape(Tape):
    """A tape with room for the way back."""

    def __init__(self, owner: Tensor, shape: tuple[int, int, int, int], inputs: int) -> None:
        super().__init__(owner, shape, inputs)
        self.slopes = torch.empty_like(self.gates)
        """What the gradient of a gate's sum is times that of what it does; then that gradient."""
        self.to_kept = torch.empty_like(self.bent)
        """Likewise, from what is said to what is kept."""
        self.gradient = torch.empty_like(self.bent)
        self.heard = self.bent.new_empty(*self.rows.shape[:3], shape[-1])
        slopes = (self.slopes.flatten(3), self.slopes[..., 0, :], self.slopes[..., 1:, :])
        back = (self.gradient, self.to_kept, self.keep, *slopes)
        self.back = [*zip(*(numbers.unbind() for numbers in back), strict=True)]

    @property
    def size(self) -> int:
        """Numbers in it, nearly."""
        members, length, sequences, units = self.shape
        return members * length * sequences * (18 * units + self.inputs)

    def serves(self, owner: Tensor, shape: tuple[int, int, int, int], inputs: int) -> bool:
        """Whether it is this layer's (copies of a layer share what they keep), of this shape, and in its place."""
        alike = (self.shape, self.inputs, self.rows.dtype, self.rows.device) == (
            shape,
            inputs,
            owner.dtype,
            owner.device,
        )
        return self.owner is owner and alike


class LSTMCell(Cell):
    """`c' = f c + i g` and `h' = o tanh(c')`, with the gates in the order o, i, f, g: one sigmoid for three of them."""

    GATES, VECTORS = 4, 2
    _tapes: ClassVar[tuple[TwoWayTape, ...]] = ()  # each object's own, once it has some; replaced, never changed

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_tapes"}

    @torch.no_grad()
    def reset_bias_(self) -> None:
        """Start with open forget gates, so that memory lasts (Jozefowicz et al. 2015)."""
        self.gates.bias.zero_()[2] = 1.0

    def advance(self, z: Tensor, memory: Memory, recurrent: Tensor) -> Memory:
        heard, before = memory
        units = heard.shape[-1]
        z = torch.baddbmm(z, heard, recurrent.transpose(1, 2))
        output, write, keep = torch.sigmoid(z[..., : 3 * units]).chunk(3, -1)
        kept = torch.addcmul(write * torch.tanh(z[..., 3 * units :]), keep, before)
        return output * torch.tanh(kept), kept

    def unroll(self, x: Tensor, resets: Resets, memory: Memory) -> Memory:
        if torch.is_grad_enabled():
            return super().unroll(x, resets, memory)
        tape = Tape(*self._tape_of(x))
        self._go_along(tape, x, resets, memory)
        return tape.memory

    def pullback(self, x: Tensor, resets: Resets, memory: Memory, *, to_input: bool) -> tuple[Memory, Pull]:
        """As for every cell, written out; both memory and way back are good until the next call.

        Torch's fused kernel, which serves one member, knows of no resets, and needs sequences cut where episodes begin,
        takes twice as long for four members; for one it saves an eighth at best. Called where no gradient is recorded.
        """
        tape, matrices, recurrent = self._tape(x), self.gates.matrices, self.recurrent
        self._go_along(tape, x, resets, memory)

        def pull(gradient: Tensor, into: Sequence[Tensor]) -> Tensor | None:
            _go_back(tape, gradient, resets, recurrent)
            torch.mul(tape.said[:-1], tape.goes_on, out=tape.heard.transpose(0, 1))
            slopes = tape.columns
            of_recurrent, of_matrices, of_bias = into
            pull_weight(tape.heard.flatten(1, 2), slopes, of_recurrent.view(recurrent.shape))
            pull_weight(tape.rows.flatten(1, 2), slopes, of_matrices.view(matrices.shape))
            pull_bias(slopes, of_bias.view(recurrent.shape[:2]))
            return torch.bmm(slopes, matrices).view(x.shape) if to_input else None

        return tape.memory, pull

    def _tape_of(self, x: Tensor) -> tuple[Tensor, tuple[int, int, int, int], int]:
        """What a tape for `[P, L, S, in]` is made for."""
        members, length, sequences, inputs = x.shape
        return self.recurrent_weight, (members, length, sequences, self.recurrent_weight.shape[-1]), inputs

    def _tape(self, x: Tensor) -> TwoWayTape:
        """One that is kept, or a new one."""
        wanted = self._tape_of(x)
        mine = tuple(tape for tape in self._tapes if tape.owner is self.recurrent_weight)
        found = next((tape for tape in mine if tape.serves(*wanted)), None)
        if found is None:
            found = TwoWayTape(*wanted)
            if found.size <= KEPT_NUMBERS:
                self._tapes = (found, *mine[: KEPT_TAPES - 1])  # pyright: ignore[reportAttributeAccessIssue]
        return found

    def _go_along(self, tape: Tape, x: Tensor, resets: Resets, memory: Memory) -> None:
        """Go along `[P, L, S, in]`: six kernels a step."""
        units = self.recurrent_weight.shape[-1]
        of_memory = self.recurrent.transpose(1, 2).contiguous()  # as long as there are few sequences, a quarter faster
        of_memory[..., 3 * units :].mul_(-2.0)  # of what is new
        tape.rows.copy_(x)
        bias, of_input = self.gates.bias.reshape(len(x), 1, -1), self.gates.matrices.transpose(1, 2)
        torch.baddbmm(bias, tape.rows.flatten(1, 2), of_input, out=tape.columns)
        tape.gates.copy_(tape.by_step)
        tape.rest.mul_(-2.0)
        begins = resets.at.transpose(0, 1)
        tape.keep.masked_fill_(
            begins, torch.finfo(tape.keep.dtype).min
        )  # nothing is kept, for which no kernel is needed then
        torch.logical_not(begins, out=tape.goes_on)
        tape.said[0], tape.kept[0] = (resets.empty(0, vector) for vector in memory)
        for t, (sums, output, write, keep, rest, bent, before, kept, heard, said) in enumerate(tape.forth):
            if t > 0 and resets.any[t]:
                heard = heard * tape.resets[t]
            sums.baddbmm_(heard, of_memory).sigmoid_()
            torch.addcmul(write, keep, before, out=kept).addcmul_(write, rest, value=-2.0)
            torch.tanh(kept, out=bent)
            torch.mul(output, bent, out=said)


def _go_back(tape: TwoWayTape, gradient: Tensor, resets: Resets, recurrent: Tensor) -> None:
    """From the gradient of what was said to that of what the gates read: five kernels a step."""
    torch.addcmul(tape.gates, tape.gates, tape.gates, value=-1.0, out=tape.slopes)  # of a sigmoid z: z (1 - z)
    of_output, of_write, of_keep, of_rest = tape.slopes.unbind(-2)
    of_output.mul_(tape.bent)
    of_write.addcmul_(of_write, tape.rest, value=-2.0)
    of_keep.mul_(tape.kept[:-1])
    of_rest.mul_(tape.write).mul_(4.0)
    torch.addcmul(tape.output, tape.output, tape.bent.square(), value=-1.0, out=tape.to_kept)
    tape.gradient.copy_(gradient.transpose(0, 1))
    of_said = tape.back[-1][0]
    of_kept = torch.zeros_like(of_said)
    for_others = of_kept.unsqueeze(-2)
    for t in reversed(range(len(tape.back))):
        _, to_kept, keep, of_all, of_output, of_others = tape.back[t]
        of_kept.addcmul_(of_said, to_kept)
        of_output.mul_(of_said)
        of_others.mul_(for_others)
        if t == 0:
            break
        of_said = tape.back[t - 1][0]
        if resets.any[t]:
            of_said.addcmul_(torch.bmm(of_all, recurrent), tape.resets[t])
        else:
            of_said.baddbmm_(of_all, recurrent)
        of_kept.mul_(keep)
    tape.by_step.copy_(tape.slopes)
