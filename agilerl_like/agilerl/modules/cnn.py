"""The convolutional network with AgileRL's constructor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agilerl_like import modules
from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.modules.base import begin, spec_from

__getattr__ = absent_from(__name__)


class EvolvableCNN(modules.EvolvableCNN):
    """AgileRL's arguments; `name` and the like have nothing to do, and `random_seed` draws the weights."""

    def __init__(
        self,
        input_shape: Sequence[int],
        num_outputs: int,
        channel_size: Sequence[int],
        kernel_size: Sequence[Any],
        stride_size: Sequence[Any],
        sample_input: Any = None,
        block_type: str = "Conv2d",
        activation: str = "ReLU",
        output_activation: str | None = None,
        min_hidden_layers: int = 1,
        max_hidden_layers: int = 6,
        min_channel_size: int = 16,
        max_channel_size: int = 256,
        layer_norm: bool = False,
        init_layers: bool = True,
        device: Any = "cpu",
        name: str = "cnn",
        random_seed: int | None = None,
    ) -> None:
        super().__init__(spec_from(modules.CNNSpec, locals()), tuple(input_shape), num_outputs)
        begin(self, device, random_seed)

    def rebuild(self, spec: Any) -> Any:
        """A module of this package's own, built from another spec."""
        return modules.EvolvableCNN(spec, self.inputs, self.num_outputs)
