"""The SimBa network with AgileRL's constructor."""

from __future__ import annotations

from typing import Any

from agilerl_like import modules
from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.modules.base import ModuleMethods, arguments, begin, by_their_names, spec_from

__getattr__ = absent_from(__name__)


class EvolvableSimBa(ModuleMethods, modules.EvolvableSimBa):
    """AgileRL's arguments; `name` and the like have nothing to do, and `random_seed` draws the weights."""

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        hidden_size: int,
        num_blocks: int,
        output_activation: str | None = None,
        scale_factor: int = 4,
        min_blocks: int = 1,
        max_blocks: int = 4,
        min_mlp_nodes: int = 16,
        max_mlp_nodes: int = 500,
        device: Any = "cpu",
        name: str = "simba",
        random_seed: int | None = None,
    ) -> None:
        super().__init__(spec_from(modules.SimBaSpec, locals()), num_inputs, num_outputs)
        begin(self, device, random_seed)

    def rebuild(self, spec: Any) -> Any:
        """A module of this package's own, built from another spec."""
        return modules.EvolvableSimBa(spec, self.inputs, self.num_outputs)

    def add_node(  # pyright: ignore[reportIncompatibleVariableOverride]  # AgileRL's arguments
        self, numb_new_nodes: int | None = None
    ) -> dict[str, Any]:
        """Add nodes to every block, which changes no output."""
        given = arguments(numb_new_nodes=numb_new_nodes)
        return by_their_names(super().add_node(**given))

    def remove_node(  # pyright: ignore[reportIncompatibleVariableOverride]  # likewise
        self, numb_new_nodes: int | None = None
    ) -> dict[str, Any]:
        """Remove the least important nodes of every block."""
        given = arguments(numb_new_nodes=numb_new_nodes)
        return by_their_names(super().remove_node(**given))
