"""What modules with AgileRL's constructors have in common.

The constructor takes AgileRL's arguments; what a mutation builds is this package's own module, for which the spec is
the whole description. Mutations by hand keep AgileRL's names of arguments.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
import torch

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.errors import ConfigurationError
from agilerl_like.modules import EvolvableModule, Spec
from agilerl_like.modules.inplace_mutation import mutate_
from agilerl_like.seeding import fresh_seed

__all__ = ["EvolvableModule"]

__getattr__ = absent_from(__name__)

SIZES = {"mlp_nodes": "hidden_size", "channel_size": "channel_size"}
"""Names in limits (`min_mlp_nodes`) -> the sizes that they limit."""

SpecT = TypeVar("SpecT", bound=Spec)
NAMES = {"layer": "hidden_layer", "nodes": "numb_new_nodes", "channels": "numb_new_channels"}
"""Arguments of mutations here, and in AgileRL."""

ModuleT = TypeVar("ModuleT", bound="ModuleMethods")


class ModuleMethods(EvolvableModule[Any]):
    """Methods of AgileRL's modules that those of this package lack."""

    def clone(self: ModuleT) -> ModuleT:
        """A copy with the same architecture and weights, on the same device."""
        return copy.deepcopy(self)

    @property
    def init_dict(self) -> dict[str, Any]:
        """Arguments of the constructor for a module of this architecture, which draws other weights."""
        known = {**self.spec.to_config(), "num_inputs": self.inputs, "input_shape": self.inputs}
        known["num_outputs"] = self.num_outputs
        return {name: known[name] for name in inspect.signature(type(self)).parameters if name in known}

    @property
    def mutation_methods(self) -> list[str]:
        """Names of the mutations of layers and of nodes."""
        return [name for name, kind in self.spec.operator_kinds.items() if kind != "activation"]

    def sample_mutation_method(self, new_layer_prob: float, rng: np.random.Generator | None = None) -> str:
        """Draw the name of a mutation that is legal now: of layers with probability `new_layer_prob`, else of nodes.

        Where no mutation of one kind is legal, the other kind is drawn.

        Raises:
            ConfigurationError: `new_layer_prob` is not between 0 and 1, or no mutation is legal.
        """
        if not 0 <= new_layer_prob <= 1:
            raise ConfigurationError(f"new_layer_prob={new_layer_prob!r}; allowed are 0 to 1")
        rng = rng or np.random.default_rng(fresh_seed())
        spec = self.spec.without_fading()
        layers, nodes = spec.operators("layer"), spec.operators("node")
        names = layers if layers and (rng.random() < new_layer_prob or not nodes) else nodes
        if not names:
            raise ConfigurationError(f"no mutation is legal for {spec}; allowed are wider limits")
        return names[rng.integers(len(names))]


def spec_from(kind: type[SpecT], arguments: Mapping[str, Any]) -> SpecT:
    """Return the spec with those of a constructor's `locals()` that are its fields.

    Lists become tuples, no output activation is the identity, and initial sizes outside their limits widen them.
    """
    named = {known.name: arguments[known.name] for known in fields(kind) if known.name in arguments}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in named.items()}
    if "output_activation" in given:
        given["output_activation"] = given["output_activation"] or "Identity"
    for limit, size in SIZES.items():
        if f"min_{limit}" in given:
            sizes = np.ravel(given[size]).tolist()
            given[f"min_{limit}"] = min([given[f"min_{limit}"], *sizes])
            given[f"max_{limit}"] = max([given[f"max_{limit}"], *sizes])
    return kind(**given)


def begin(module: EvolvableModule, device: Any, random_seed: int | None) -> None:
    """Draw a new module's weights and put it on its device."""
    generator = torch.Generator().manual_seed(fresh_seed() % 2**63 if random_seed is None else random_seed)
    module.reset_(generator, output_gain=1.0)
    module.to(device)


def arguments(**given: Any) -> dict[str, Any]:
    """The arguments of a mutation by this package's names; those that are None are drawn."""
    ours = {theirs: mine for mine, theirs in NAMES.items()}
    return {ours.get(name, name): value for name, value in given.items() if value is not None}


def change_activation(module: Any, activation: str | None, output: bool) -> dict[str, Any]:
    """Let a module fade to another activation, which is drawn if it is None; return it by name, nothing if it has it.

    Raises:
        ConfigurationError: `output` is True, or the activation is unknown.
    """
    if output:
        raise ConfigurationError(
            "output=True is not available; allowed is False: the activation of the outputs changes where it is that of "
            "the hidden layers"
        )
    if activation == module.spec.activation:
        return {}
    return dict(mutate_(module, "change_activation", **arguments(activation=activation)))


def by_their_names(done: Mapping[str, Any]) -> dict[str, Any]:
    """What a mutation did, by AgileRL's names."""
    return {NAMES.get(name, name): value for name, value in done.items()}
