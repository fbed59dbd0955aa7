"""Recurrent layers: gates decide what a layer keeps of its memory, step after step.

LSTM (Hochreiter and Schmidhuber 1997, with forget gates: Gers et al. 2000) and GRU (Cho et al. 2014). Everything that
is read or said has a member axis `P` in front, which is 1 for one member alone, whose parameters lack it.

The one subtlety: memory is emptied in the middle of a sequence where an episode begins. So what the gates read of the
input is one product for all steps, and a step is one more and a few functions of few numbers, of all members at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from agilerl_like.modules.base import Pull, vjp
from agilerl_like.modules.layers import affine, as_built, pull_affine

Memory = tuple[Tensor, ...]
"""What a layer remembers, each `[P, S, H]`; the first is also what it says."""


class Resets:
    """Where episodes begin within sequences; a step at which none does costs nothing."""

    def __init__(self, starts: Tensor) -> None:
        self.at = starts.transpose(1, 2).unsqueeze(-1) != 0  # [P, L, S, 1]
        # elsewhere than on a CPU, looking takes longer than resetting
        self.looks = starts.device.type == "cpu" and not torch.compiler.is_compiling()
        self.any = self.at.any(2).any(0).flatten().tolist() if self.looks else [True] * starts.shape[-1]

    def empty(self, t: int, vector: Tensor) -> Tensor:
        """A vector `[P, S, …]` with zeros where an episode begins at step `t`."""
        return vector.masked_fill(self.at[:, t], 0.0) if self.any[t] else vector


class GateMap(nn.Module):
    """What a layer's gates read of its input: `[P, B, in] -> [P, B, gates * H]`."""

    def __init__(self, gates: int, num_inputs: int, num_units: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(as_built(gates, num_units, num_inputs, fan_in=num_inputs))
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
        self.recurrent_weight = nn.Parameter(as_built(self.GATES, num_units, num_units, fan_in=num_units))
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

    def pullback(self, x: Tensor, resets: Resets, memory: Memory, *, to_input: bool) -> tuple[Memory, Pull]:
        """As `unroll`, and the way back from what it says; nothing flows back into the memory at the beginning."""
        with torch.enable_grad():
            x = x.detach().requires_grad_(to_input)
            after = self.unroll(x, resets, memory)

        def pull(gradient: Tensor, into: Sequence[Tensor]) -> Tensor | None:
            wanted = [*self.parameters(), *([x] if to_input else [])]
            found = vjp(after[:1], wanted, (gradient,))
            for whole, part in zip(into, found, strict=False):  # behind them stands the input's
                whole.copy_(part)
            return found[-1] if to_input else None

        return tuple(vector.detach() for vector in after), pull


class LSTMTrace(NamedTuple):
    """What an LSTM computed along sequences, `[P, L, S, H]` unless another shape is said."""

    gates: Tensor  # [P, L, S, 4, H], the next four side by side
    output: Tensor  # how far the gates are open
    write: Tensor
    keep: Tensor  # 0 where an episode begins
    rest: Tensor  # what is new, as the sigmoid of minus twice its sum: tanh(z) = 1 - 2 sigmoid(-2 z)
    kept: Tensor  # [P, 1 + L, S, H], before the first step and after each
    bent: Tensor  # tanh of what is kept then
    said: Tensor  # [P, 1 + L, S, H], likewise
    goes_on: Tensor  # [P, L, S, 1], 0 where an episode begins and else 1


class LSTMCell(Cell):
    """`c' = f c + i g` and `h' = o tanh(c')`, with the gates in the order o, i, f, g: one sigmoid for three of them."""

    GATES, VECTORS = 4, 2

    @torch.no_grad()
    def reset_bias_(self) -> None:
        """Start with open forget gates, so that memory lasts (Jozefowicz et al. 2015)."""
        self.gates.bias.zero_()[2] = 1.0

    def advance(self, z: Tensor, memory: Memory, recurrent: Tensor) -> Memory:
        heard, before = memory
        units = heard.shape[-1]
        z = torch.baddbmm(z, heard, recurrent.transpose(1, 2))
        output, write, keep = torch.sigmoid(z[..., : 3 * units]).chunk(3, -1)
        kept = torch.addcmul(write * _tanh(z[..., 3 * units :]), keep, before)
        return output * _tanh(kept), kept

    def unroll(self, x: Tensor, resets: Resets, memory: Memory) -> Memory:
        if torch.is_grad_enabled():
            return super().unroll(x, resets, memory)
        trace = self._trace(x, resets, memory)
        return trace.said[:, 1:], trace.kept[:, 1:]

    @torch.no_grad()
    def pullback(self, x: Tensor, resets: Resets, memory: Memory, *, to_input: bool) -> tuple[Memory, Pull]:
        """As for every cell; written out, so that only what one step needs of the one before is done step by step.

        Torch's fused kernel, which serves one member, knows of no resets, and needs sequences cut where episodes begin,
        takes twice as long for four members; for one it saves an eighth at best.
        """
        trace, rows = self._trace(x, resets, memory), x.flatten(1, 2)

        @torch.no_grad()
        def pull(gradient: Tensor, into: Sequence[Tensor]) -> Tensor | None:
            slopes = self._pull_gates(trace, gradient, resets).flatten(3).flatten(1, 2)  # [P, L * S, 4 H]
            heard = trace.said[:, :-1] * trace.goes_on
            of_recurrent, of_bias = pull_affine(heard.flatten(1, 2), self.recurrent, slopes)
            of_weight, _ = pull_affine(rows, self.gates.matrices, slopes)
            for whole, part in zip(into, (of_recurrent, of_weight, of_bias), strict=True):
                whole.copy_(part.reshape(whole.shape))
            return torch.bmm(slopes, self.gates.matrices).view(x.shape) if to_input else None

        return (trace.said[:, 1:], trace.kept[:, 1:]), pull

    def _trace(self, x: Tensor, resets: Resets, memory: Memory) -> LSTMTrace:
        """Go along `[P, L, S, in]`: six kernels a step, for on a CPU their number decides."""
        members, length, sequences, _ = x.shape
        units = self.recurrent_weight.shape[-1]
        of_memory = self.recurrent.transpose(1, 2).contiguous()  # as long as there are few sequences, a quarter faster
        z = affine(x.flatten(1, 2), self.gates.matrices, self.gates.bias.reshape(members, -1))
        gates = z.view(members, length, sequences, 4, units)
        for sums in (of_memory[..., 3 * units :], gates[..., 3, :]):  # of what is new
            sums.mul_(-2.0)
        output, write, keep, rest = gates.unbind(-2)
        begins = resets.at.to(z.dtype)
        keep.sub_(begins, alpha=torch.finfo(z.dtype).max)  # so that nothing is kept, for which no kernel is needed then
        kept, said = (z.new_empty(members, 1 + length, sequences, units) for _ in memory)
        said[:, 0], kept[:, 0] = (resets.empty(0, vector) for vector in memory)
        trace = LSTMTrace(gates, output, write, keep, rest, kept, torch.empty_like(kept[:, 1:]), said, 1 - begins)
        heard, before = said[:, 0], kept[:, 0]
        steps = (gates.flatten(3), output, write, keep, rest, kept[:, 1:], trace.bent, said[:, 1:], trace.goes_on)
        by_time = zip(*(numbers.unbind(1) for numbers in steps), strict=True)
        for t, (sums, output, write, keep, rest, kept, bent, said, goes_on) in enumerate(by_time):
            if t > 0 and resets.any[t]:
                heard = heard * goes_on
            sums.baddbmm_(heard, of_memory).sigmoid_()
            torch.addcmul(write, keep, before, out=kept)
            kept.addcmul_(write, rest, value=-2.0)
            torch.tanh(kept, out=bent)
            torch.mul(output, bent, out=said)
            heard, before = said, kept
        return trace

    def _pull_gates(self, trace: LSTMTrace, gradient: Tensor, resets: Resets) -> Tensor:
        """From the gradient of what was said to that of what the gates read, `[P, L, S, 4, H]`: five kernels a step."""
        gates, output, write, keep, rest, kept, bent, _, goes_on = trace
        bend = torch.addcmul(gates, gates, gates, value=-1.0)  # of a sigmoid z: z (1 - z)
        by_said = bent * bend[..., 0, :]  # of the output gate's sum
        to_kept = torch.addcmul(output, output, bent.square(), value=-1.0)
        by_kept = torch.empty_like(bend[..., 1:, :], memory_format=torch.contiguous_format)
        of_write, of_keep, of_rest = by_kept.unbind(-2)
        torch.addcmul(bend[..., 1, :], bend[..., 1, :], rest, value=-2.0, out=of_write)
        torch.mul(bend[..., 2, :], kept[:, :-1], out=of_keep)
        torch.mul(bend[..., 3, :], write, out=of_rest).mul_(4.0)
        slopes, recurrent = torch.empty_like(gates), self.recurrent
        steps = (to_kept, by_said, by_kept, keep, goes_on, slopes[..., 0, :], slopes[..., 1:, :], slopes.flatten(3))
        by_time = list(zip(*(numbers.unbind(1) for numbers in steps), strict=True))
        gradients = gradient.unbind(1)
        of_said, of_kept = gradients[-1], torch.zeros_like(kept[:, 0])
        for t in reversed(range(len(by_time))):
            to_kept, by_said, by_kept, keep, goes_on, of_output, of_others, of_all = by_time[t]
            of_kept.addcmul_(of_said, to_kept)
            torch.mul(of_said, by_said, out=of_output)
            torch.mul(of_kept.unsqueeze(-2), by_kept, out=of_others)
            if t > 0 and resets.any[t]:
                of_said = torch.addcmul(gradients[t - 1], torch.bmm(of_all, recurrent), goes_on)
            elif t > 0:
                of_said = torch.baddbmm(gradients[t - 1], of_all, recurrent)
            of_kept.mul_(keep)
        return slopes


def _tanh(x: Tensor) -> Tensor:
    """The same as torch's, which takes four times as long as a sigmoid on a CPU."""
    return torch.sigmoid(-2 * x).mul(-2).add_(1) if x.device.type == "cpu" else torch.tanh(x)


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
        new = _tanh(torch.addcmul(z[..., 2 * units :], reset, heard[..., 2 * units :]))
        return GRUMoment(torch.lerp(new, before, keep))


CELLS: dict[str, type[Cell]] = {"LSTM": LSTMCell, "GRU": GRUCell}
