"""The evolvable multi-layer perceptron: linear layers, optional layer normalisation, activations.

The one subtlety: a mutation that cannot be exact at once (a new activation, a new layer in front of an activation that is not
idempotent) fades in. Its spec carries in `fading` what each layer comes from, and the layer blends from there (see `FadingActivation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.base import Arguments, Axes, EvolvableModule, OperatorKind, Spec, check_range
from agilerl_like.modules.layers import ACTIVATIONS, SKIP, FadingActivation, LayerNorm, Linear, NoisyLinear, check_activation

NODE_STEPS = (16, 32, 64)
"""How many nodes a mutation adds or removes (AgileRL's choice)."""

IDEMPOTENT = frozenset({"ReLU", "Identity"})
"""Activations with f(f(x)) = f(x): an identity layer in front of one changes nothing (Net2Net, Chen et al. 2016)."""


@dataclass(frozen=True)
class MLPSpec(Spec):
    """The architecture of an `EvolvableMLP`; sizes are in units."""

    hidden_size: tuple[int, ...] = (64,)
    """Width of each hidden layer."""
    activation: str = "ReLU"
    """Activation of the hidden layers."""
    output_activation: str = "Identity"
    """Activation of the output layer."""
    min_hidden_layers: int = 1
    max_hidden_layers: int = 3
    min_mlp_nodes: int = 16
    max_mlp_nodes: int = 500
    layer_norm: bool = False
    """Normalise each hidden layer before its activation."""
    output_layernorm: bool = False
    """Normalise the output layer before its activation."""
    output_vanish: bool = True
    """Start the output layer with small weights, so that a new policy is near uniform."""
    init_layers: bool = True
    """Orthogonal initial weights; otherwise uniform in +-1/sqrt(inputs)."""
    noisy: bool = False
    """Learned noise on the weights for exploration."""
    noise_std: float = 0.5
    """Initial scale of that noise."""
    fading: tuple[str, ...] = ()
    """What each hidden layer and the output fade from; empty where nothing fades."""

    OPERATORS: ClassVar[Mapping[str, OperatorKind]] = {
        "add_layer": "layer",
        "remove_layer": "layer",
        "add_node": "node",
        "remove_node": "node",
        "change_activation": "activation",
    }

    def __post_init__(self) -> None:
        if not self.hidden_size or not all(isinstance(n, int) and n > 0 for n in self.hidden_size):
            raise ConfigurationError(f"hidden_size={self.hidden_size!r} must hold at least one positive integer")
        for low, high in (("min_hidden_layers", "max_hidden_layers"), ("min_mlp_nodes", "max_mlp_nodes")):
            if not 1 <= getattr(self, low) <= getattr(self, high):
                raise ConfigurationError(
                    f"{low}={getattr(self, low)!r} must be at least 1 and at most {high}={getattr(self, high)!r}"
                )
        check_range("number of layers in hidden_size", len(self.hidden_size), self.min_hidden_layers, self.max_hidden_layers)
        for nodes in self.hidden_size:
            check_range("hidden_size entry", nodes, self.min_mlp_nodes, self.max_mlp_nodes)
        check_activation("activation", self.activation)
        check_activation("output_activation", self.output_activation)
        for before in self.fading:
            if before not in ("", SKIP):
                check_activation("fading", before)
        if self.noise_std <= 0:
            raise ConfigurationError(f"noise_std={self.noise_std!r} must be positive")

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        if self.fading:  # one change at a time: a layer that is still a blend has no single shape to mutate
            return ()
        layers = range(len(self.hidden_size))
        if operator == "add_layer":
            return tuple({"layer": i} for i in layers) if len(layers) < self.max_hidden_layers else ()
        if operator == "remove_layer":
            return tuple({"layer": i} for i in layers) if len(layers) > self.min_hidden_layers else ()
        if operator == "change_activation":
            return tuple({"activation": name} for name in ACTIVATIONS if name not in (self.activation, "Identity"))
        sign, limit = (1, self.max_mlp_nodes) if operator == "add_node" else (-1, self.min_mlp_nodes)
        return tuple(
            {"layer": i, "nodes": nodes}
            for i in layers
            for nodes in sorted({min(step, sign * (limit - self.hidden_size[i])) for step in NODE_STEPS})
            if nodes > 0
        )

    def apply(self, operator: str, **arguments: int | float | str) -> MLPSpec:
        if operator == "change_activation":
            return self._with_activation(str(arguments["activation"]))
        layer, sizes = int(arguments["layer"]), list(self.hidden_size)
        if operator == "add_layer":
            sizes.insert(layer + 1, sizes[layer])
            exact = self.activation in IDEMPOTENT and not self.layer_norm
            fading = ["" for _ in range(len(sizes) + 1)]
            fading[layer + 1] = SKIP
            return self.evolve(hidden_size=tuple(sizes), fading=() if exact else tuple(fading))
        if operator == "remove_layer":
            del sizes[layer]
        elif operator == "add_node":
            sizes[layer] += int(arguments["nodes"])
        elif operator == "remove_node":
            sizes[layer] -= int(arguments["nodes"])
        else:
            raise ConfigurationError(f"operator={operator!r} is unknown; allowed are {', '.join(self.OPERATORS)}")
        return self.evolve(hidden_size=tuple(sizes))

    def _with_activation(self, activation: str) -> MLPSpec:
        output_follows = self.output_activation == self.activation
        fading = (self.activation,) * len(self.hidden_size) + (self.activation if output_follows else "",)
        output = activation if output_follows else self.output_activation
        return self.evolve(activation=activation, output_activation=output, fading=fading)

    def settled(self) -> MLPSpec:
        """The spec once nothing fades any more."""
        return self.evolve(fading=())


class EvolvableMLP(EvolvableModule):
    """Linear layers of `spec.hidden_size` units and an output layer: `[..., num_inputs] -> [..., num_outputs]`."""

    def __init__(self, spec: MLPSpec, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.spec: MLPSpec = spec
        sizes = (num_inputs, *spec.hidden_size, num_outputs)
        fading = spec.fading or ("",) * (len(sizes) - 1)
        names = (spec.activation,) * len(spec.hidden_size) + (spec.output_activation,)
        normed = (spec.layer_norm,) * len(spec.hidden_size) + (spec.output_layernorm,)
        self.linears = nn.ModuleList(
            NoisyLinear(i, o, spec.noise_std) if spec.noisy else Linear(i, o) for i, o in zip(sizes, sizes[1:], strict=False)
        )
        self.norms = nn.ModuleList(
            LayerNorm(size) if norm else nn.Identity() for size, norm in zip(sizes[1:], normed, strict=True)
        )
        self.activations = nn.ModuleList(
            FadingActivation(name, before) for name, before in zip(names, fading, strict=True)
        )

    def reset_(self, generator: torch.Generator, *, output_gain: float) -> None:
        for i, linear in enumerate(self.linears):
            if not self.spec.init_layers:
                bound = linear.weight.shape[-1] ** -0.5
                nn.init.uniform_(linear.weight, -bound, bound, generator=generator)
            else:
                linear.reset_(output_gain if i == len(self.linears) - 1 else 2**0.5, generator)

    def forward(self, x: Tensor) -> Tensor:
        for linear, norm, activation in zip(self.linears, self.norms, self.activations, strict=True):
            x = activation(norm(linear(x)), x)
        return x

    def trace(self, x: Tensor) -> list[Tensor]:
        """The input of every linear layer, and last the module's output."""
        inputs = [x]
        for linear, norm, activation in zip(self.linears, self.norms, self.activations, strict=True):
            inputs.append(activation(norm(linear(inputs[-1])), inputs[-1]))
        return inputs

    def axes(self) -> Axes:
        axes: Axes = {}
        groups = ["in", *(str(i) for i in range(len(self.linears) - 1)), "out"]
        for i, (before, after) in enumerate(zip(groups, groups[1:], strict=False)):
            for name in ("weight", "weight_sigma"):
                axes[f"linears.{i}.{name}"] = (after, before)
            for name in ("linears.{}.bias", "linears.{}.bias_sigma", "linears.{}.output_noise", "norms.{}.weight", "norms.{}.bias", "norms.{}.counted"):
                axes[name.format(i)] = (after,)
            axes[f"linears.{i}.input_noise"] = (before,)
        return axes
