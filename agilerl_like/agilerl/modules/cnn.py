"""The convolutional network with AgileRL's constructor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agilerl_like import modules
from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.modules.base import (
    ModuleMethods,
    arguments,
    begin,
    by_their_names,
    change_activation,
    spec_from,
)
from agilerl_like.errors import ConfigurationError

__getattr__ = absent_from(__name__)


class EvolvableCNN(ModuleMethods, modules.EvolvableCNN):
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

    def add_channel(  # pyright: ignore[reportIncompatibleVariableOverride]  # AgileRL's arguments
        self, hidden_layer: int | None = None, numb_new_channels: int | None = None
    ) -> dict[str, Any]:
        """Add channels to a hidden layer, which changes no output."""
        given = arguments(hidden_layer=hidden_layer, numb_new_channels=numb_new_channels)
        return by_their_names(super().add_channel(**given))

    def change_activation(  # pyright: ignore[reportIncompatibleVariableOverride]  # likewise
        self, activation: str | None = None, output: bool = False
    ) -> dict[str, Any]:
        """Fade to another activation, which is drawn if it is left out; `output` may be False alone."""
        return change_activation(self, activation, output)

    def remove_channel(  # pyright: ignore[reportIncompatibleVariableOverride]  # likewise
        self, hidden_layer: int | None = None, numb_new_channels: int | None = None
    ) -> dict[str, Any]:
        """Remove the least important channels of a hidden layer."""
        given = arguments(hidden_layer=hidden_layer, numb_new_channels=numb_new_channels)
        return by_their_names(super().remove_channel(**given))

    def add_layer(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]  # likewise
        """Add a hidden layer, which changes no output (with ReLU and the like; others fade in)."""
        return by_their_names(super().add_layer())

    def remove_layer(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]  # likewise
        """Remove a hidden layer."""
        return by_their_names(super().remove_layer())

    def change_kernel(  # pyright: ignore[reportIncompatibleVariableOverride]  # likewise
        self, kernel_size: Any = None, hidden_layer: int | None = None
    ) -> dict[str, Any]:
        """Change the kernel of a hidden layer to a size, or both to drawn ones.

        With `hidden_layer` alone the size is drawn; with `kernel_size` alone it is the first layer that may have it.

        Raises:
            ConfigurationError: no layer may get a kernel of this size.
        """
        given: dict[str, Any] = arguments(hidden_layer=hidden_layer)
        if kernel_size is not None:
            sizes = {}
            for choice in self.spec.choices("change_kernel"):
                layer = int(choice["layer"])
                sizes[layer, self.spec.apply("change_kernel", **choice).kernel_size[layer]] = choice
            legal = [its for (at, size), its in sizes.items() if size == kernel_size and hidden_layer in (None, at)]
            if not legal:
                raise ConfigurationError(
                    f"kernel_size={kernel_size!r} with hidden_layer={hidden_layer!r} is not legal; allowed are layer "
                    f"and size of {[*sizes]}"
                )
            given = dict(legal[0])
        layer = int(super().change_kernel(**given)["layer"])
        return {"hidden_layer": layer, "kernel_size": self.spec.kernel_size[layer]}
