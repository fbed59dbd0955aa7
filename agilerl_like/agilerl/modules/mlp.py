"""The multi-layer perceptron with AgileRL's constructor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

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

__getattr__ = absent_from(__name__)


class EvolvableMLP(ModuleMethods, modules.EvolvableMLP):
    """`num_inputs -> hidden_size -> num_outputs`; `random_seed` draws the weights.

    `name` and `output_vanish` have no effect: the weights of the output layer are not scaled down.
    """

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        hidden_size: Sequence[int],
        activation: str = "ReLU",
        output_activation: str | None = None,
        min_hidden_layers: int = 1,
        max_hidden_layers: int = 3,
        min_mlp_nodes: int = 32,
        max_mlp_nodes: int = 500,
        layer_norm: bool = True,
        output_layernorm: bool = False,
        output_vanish: bool = True,
        init_layers: bool = True,
        noisy: bool = False,
        noise_std: float = 0.5,
        device: Any = "cpu",
        name: str = "mlp",
        random_seed: int | None = None,
    ) -> None:
        super().__init__(spec_from(modules.MLPSpec, locals()), num_inputs, num_outputs)
        begin(self, device, random_seed)

    @property
    def num_inputs(self) -> int:
        """Inputs."""
        return self.inputs

    @property
    def hidden_size(self) -> list[int]:
        """Nodes of each hidden layer."""
        return list(self.spec.hidden_size)

    @property
    def activation(self) -> str:
        """The activation of hidden layers."""
        return self.spec.activation

    def rebuild(self, spec: Any) -> Any:
        """A module of this package's own, built from another spec."""
        return modules.EvolvableMLP(spec, self.inputs, self.num_outputs)

    def get_output_dense(self) -> nn.Module:
        """The last linear layer."""
        return self.linears[len(self.linears) - 1]

    def add_layer(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]  # AgileRL's arguments
        """Add a hidden layer, which changes no output (with ReLU and the like; others fade in)."""
        return by_their_names(super().add_layer())

    def remove_layer(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]  # likewise
        """Remove a hidden layer."""
        return by_their_names(super().remove_layer())

    def add_node(  # pyright: ignore[reportIncompatibleVariableOverride]  # likewise
        self, hidden_layer: int | None = None, numb_new_nodes: int | None = None
    ) -> dict[str, Any]:
        """Add nodes to a hidden layer, which changes no output."""
        return by_their_names(super().add_node(**arguments(hidden_layer=hidden_layer, numb_new_nodes=numb_new_nodes)))

    def change_activation(  # pyright: ignore[reportIncompatibleVariableOverride]  # likewise
        self, activation: str | None = None, output: bool = False
    ) -> dict[str, Any]:
        """Fade to another activation, which is drawn if it is left out; `output` may be False alone."""
        return change_activation(self, activation, output)

    def remove_node(  # pyright: ignore[reportIncompatibleVariableOverride]  # likewise
        self, hidden_layer: int | None = None, numb_new_nodes: int | None = None
    ) -> dict[str, Any]:
        """Remove the least important nodes of a hidden layer."""
        given = arguments(hidden_layer=hidden_layer, numb_new_nodes=numb_new_nodes)
        return by_their_names(super().remove_node(**given))
