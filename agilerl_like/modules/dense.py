"""Dense layers of a stack there and back, written out: autograd takes twice as long.

Minibatch follows minibatch, all of one shape, and on small networks to find fresh memory or to make a view takes as
long as a product: products sweep the code that does it out of the cache (a view that takes 3 us in a loop takes 15
between them). So layers have room for what they compute, and keep the views that they made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from agilerl_like.modules.base import Pull
from agilerl_like.modules.layers import Activation, ActiveBlock, Linear, WeightViews, pull_bias, reads_few

View = Callable[[Tensor], Tensor]

MOST_NUMBERS = 2**20
"""In a layer's outputs for which room is kept: to find memory for more is a small part of what they take, and it would
be held as long as the stack is."""


class Kept:
    """A view of a tensor, made once for as long as it is asked of the same one."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._of: Tensor | None = None
        self._made: Tensor | None = None

    def __call__(self, tensor: Tensor) -> Tensor:
        if self._made is None or tensor is not self._of:
            self._of, self._made = tensor, self._view(tensor)
        return self._made


def turned(matrices: Tensor) -> Tensor:
    """View matrices `[…, a, b]` as `[…, b, a]`."""
    return matrices.transpose(-2, -1)


def matrices_product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """The product of two matrices, or of as many as there are."""
    return torch.mm(a, b, out=out) if a.dim() == 2 else torch.bmm(a, b, out=out)


class Room:
    """Where layers find memory and views: their own, which they keep, or fresh ones."""

    def __init__(self, like: Tensor, *, kept: bool) -> None:
        self._like, self.is_kept = like, kept

    def of(self, *shape: int) -> Tensor | None:
        """Memory that is kept; None means that torch finds some whenever it is needed."""
        return self._like.new_empty(shape) if self.is_kept else None

    def view(self, view: View) -> View:
        """The same view, kept if that is what is done here."""
        return Kept(view) if self.is_kept else view


class Dense:
    """A layer that all members of a stack have, on samples `[P, B, in]`."""

    def __init__(self, linear: Linear, activation: Activation, samples: int, room: Room, *, is_last: bool) -> None:
        self._factors = linear.of_its_owners
        self._function, self._slope = activation.written_out()
        members, outputs, inputs = self._factors.weight.shape
        self._at_once, self._reads_few = members == 1 and room.is_kept, reads_few(inputs, outputs)
        self._outputs = None if is_last else room.of(members, samples, outputs)  # the last ones are the caller's
        self._of_input = room.of(members, samples, inputs)
        self._of_weight = room.of(members, *((inputs, outputs) if self._reads_few else (outputs, inputs)))
        self._input_turned, self._slope_turned, self._weight_turned = (room.view(turned) for _ in range(3))

    def ahead(self, x: Tensor) -> Tensor:
        """The outputs `[P, B, out]` alone."""
        bias, across, _ = self._factors
        return self._function(torch.baddbmm(bias, x, across, out=self._outputs))

    def forward(self, x: Tensor, *, to_input: bool) -> tuple[Tensor, Pull]:
        """The outputs, and the way back."""
        bias, across, weight = self._factors
        y = torch.bmm(x, across, out=self._outputs).add_(bias)  # from 8 members on up to a fifth faster than as one
        y = self._function(y)

        def pull(gradient: Tensor, into: Sequence[Tensor]) -> Tensor | None:
            at_sum = self._slope(gradient.to(y.dtype), y)
            self._pull_weight(x, at_sum, into[0])
            pull_bias(at_sum, into[1])
            return torch.bmm(at_sum, weight, out=self._of_input) if to_input else None

        return y, pull

    def _pull_weight(self, x: Tensor, at_sum: Tensor, into: Tensor) -> None:
        if self._reads_few:
            into.copy_(self._weight_turned(torch.bmm(self._input_turned(x), at_sum, out=self._of_weight)))
        elif self._at_once:
            torch.bmm(self._slope_turned(at_sum), x, out=into)
        else:
            into.copy_(torch.bmm(self._slope_turned(at_sum), x, out=self._of_weight))


def pass_by_(linear: Linear, activation: Activation, x: Tensor, active_block: ActiveBlock) -> None:
    """Compute a layer that some members of a stack lack, where its input `[P, B, W]` is.

    That is behind the first layer only: what passes by stays where the layer before put it, and what the owners read is
    written over, for nobody else was given it.
    """
    _write_over_(active_block.of(x), linear.of_its_owners, activation.apply_, activation.gaps)


def _write_over_(
    part: Tensor, factors: WeightViews, function: View, gaps: Tensor | None, room: Tensor | None = None
) -> None:
    y = function((torch.addmm if part.dim() == 2 else torch.baddbmm)(factors.bias, part, factors.across, out=room))
    part.copy_(y if gaps is None else torch.where(gaps, y, part))


class Detour:
    """A layer as in `pass_by_`, and its way back.

    There, what was written over is put back, for the layer that gave it is asked for its slope next.
    """

    def __init__(
        self, linear: Linear, activation: Activation, active_block: ActiveBlock, samples: int, room: Room
    ) -> None:
        self._factors, self._gaps = linear.of_its_owners, activation.gaps
        self._function, self._slope = activation.written_out()
        self._at_once = active_block.rows == 1 and room.is_kept
        *members, _, units = self._factors.weight.shape
        self._input, self._of_input = room.of(*members, samples, units), room.of(*members, samples, units)
        self._part, self._part_of_gradient, self._part_of_bias = (room.view(active_block.of) for _ in range(3))
        self._part_of_weight, self._slope_turned = room.view(active_block.of_weight), room.view(turned)

    def ahead(self, x: Tensor) -> Tensor:
        """The outputs `[P, B, W]` alone, where the input was."""
        _write_over_(self._part(x), self._factors, self._function, self._gaps, self._input)
        return x

    def forward(self, x: Tensor, *, to_input: bool) -> tuple[Tensor, Pull]:
        """The outputs, and the way back."""
        del to_input  # which belongs to the layer before, and that wants its gradient
        part, gaps, (bias, across, weight) = self._part(x), self._gaps, self._factors
        its_input = part.clone() if self._input is None else self._input.copy_(part)
        if self._at_once:
            torch.addmm(bias, its_input, across, out=part)
        else:
            part.copy_(matrices_product(its_input, across).add_(bias))
        self._function(part)
        if gaps is not None:
            part.copy_(torch.where(gaps, part, its_input))

        def pull(gradient: Tensor, into: Sequence[Tensor]) -> Tensor:
            its_gradient, of_weight = self._part_of_gradient(gradient), self._part_of_weight(into[0])
            inner = its_gradient.to(part.dtype)
            at_sum = self._slope(inner if gaps is None else inner * gaps, part)
            if self._at_once:
                torch.mm(self._slope_turned(at_sum), its_input, out=of_weight)
            else:
                of_weight.copy_(matrices_product(self._slope_turned(at_sum), its_input))  # the rest is 0 for ever
            pull_bias(at_sum, self._part_of_bias(into[1]))
            of_input = matrices_product(at_sum, weight, self._of_input)
            if gaps is not None:
                of_input = torch.where(gaps, of_input, inner)
            part.copy_(its_input)
            its_gradient.copy_(of_input)
            return gradient

        return x, pull


def can_keep(x: Tensor, weight: Tensor, widest: int) -> bool:
    """Whether room for samples `[P, B, in]` may be kept: on a CPU, without autograd and autocast.

    Memory that was found in inference mode may not be written outside of it.
    """
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype
        and x.shape[:2].numel() * widest <= MOST_NUMBERS
        and not torch.is_grad_enabled()
        and not torch.is_inference_mode_enabled()
        and not torch.is_autocast_enabled("cpu")
    )


class DenseLayers:
    """Layers behind each other, on samples `[P, B, in]` like these."""

    def __init__(self, layers: Sequence[tuple[Linear, Activation]], x: Tensor, *, kept: bool) -> None:
        self.weight, room, samples = layers[0][0].weight, Room(x, kept=kept), x.shape[1]
        self._layers: list[Dense | Detour] = [
            Dense(linear, activation, samples, room, is_last=i == len(layers) - 1)
            if linear.active_block is None
            else Detour(linear, activation, linear.active_block, samples, room)
            for i, (linear, activation) in enumerate(layers)
        ]
        self._calls = 0

    def ahead(self, x: Tensor) -> Tensor:
        """The outputs `[P, B, out]` alone."""
        self._calls += 1
        for layer in self._layers:
            x = layer.ahead(x)
        return x

    def forward(self, x: Tensor, *, to_input: bool) -> tuple[Tensor, Pull]:
        """The outputs, and the way back, which lasts until the next call; so does the gradient that it gives."""
        self._calls += 1
        call = self._calls
        pulls: list[Pull] = []
        for layer in self._layers:
            x, pull_layer = layer.forward(x, to_input=to_input or bool(pulls))
            pulls.append(pull_layer)

        def pull(gradient: Tensor, into: Sequence[Tensor]) -> Tensor | None:
            if call != self._calls:
                raise RuntimeError("the way back of an earlier minibatch was asked for; allowed is that of the last")
            for i in reversed(range(len(pulls))):  # each layer has a weight and a bias
                pulled = pulls[i](gradient, into[2 * i : 2 * i + 2])
                if pulled is not None:
                    gradient = pulled
            return gradient if to_input else None

        return x, pull
