"""The residual network with AgileRL's constructor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agilerl_like import modules
from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.modules.base import ModuleMethods, arguments, begin, by_their_names, spec_from

__getattr__ = absent_from(__name__)


class EvolvableResNet(ModuleMethods, modules.EvolvableResNet):
    """AgileRL's arguments; `name` and the like have nothing to do, and `random_seed` draws the weights."""

    def __init__(
        self,
        input_shape: Sequence[int],
        num_outputs: int,
        channel_size: int,
        kernel_size: int,
        stride_size: int,
        num_blocks: int,
        output_activation: str | None = None,
        scale_factor: int = 4,
        min_blocks: int = 1,
        max_blocks: int = 4,
        min_channel_size: int = 32,
        max_channel_size: int = 256,
        device: Any = "cpu",
        name: str = "resnet",
        random_seed: int | None = None,
    ) -> None:
        super().__init__(spec_from(modules.ResNetSpec, locals()), tuple(input_shape), num_outputs)
        begin(self, device, random_seed)

    def rebuild(self, spec: Any) -> Any:
        """A module of this package's own, built from another spec."""
        return modules.EvolvableResNet(spec, self.inputs, self.num_outputs)

    def add_channel(  # pyright: ignore[reportIncompatibleVariableOverride]  # AgileRL's arguments
        self, numb_new_channels: int | None = None
    ) -> dict[str, Any]:
        """Add channels to every block, which changes no output."""
        given = arguments(numb_new_channels=numb_new_channels)
        return by_their_names(super().add_channel(**given))

    def remove_channel(  # pyright: ignore[reportIncompatibleVariableOverride]  # likewise
        self, numb_new_channels: int | None = None
    ) -> dict[str, Any]:
        """Remove the least important channels of every block."""
        given = arguments(numb_new_channels=numb_new_channels)
        return by_their_names(super().remove_channel(**given))
