"""A linear map whose outputs are added to what is there already, so that with zeros for weights it changes nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from agilerl_like.modules.layers import Linear, affine


class Residual(Linear):
    """`[..., in] -> [..., out]`, or `[P, B, in] -> [P, B, out]` when stacked; zeros at birth.

    `present` is 0 for a member of a stack that lacks the layer, so that its bias stays 0 although its gradient is not.
    """

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__(num_inputs, num_outputs)
        nn.init.zeros_(self.weight)
        self.register_buffer("present", torch.ones(1))
        self.present: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return affine(x, self.weight, self.bias * self.present)
