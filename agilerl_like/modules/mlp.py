"""The evolvable multi-layer perceptron: linear layers, optional layer normalisation, activations.

A mutation that cannot be exact at once (a new activation, a new layer in front of an activation that is not idempotent)
fades in: `fading` in the spec names what each layer comes from, and the layer blends from there (see `Activation`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.evolvable_module import EvolvableModule, UnitAxes, UnitChange
from agilerl_like.modules.inplace_mutation import mutation_method
from agilerl_like.modules.layers import (
    SKIP,
    Activation,
    LayerNorm,
    Linear,
    NoisyLinear,
    apply_to_subset,
)
from agilerl_like.modules.spec import (
    Arguments,
    FadingSpec,
    OperatorKind,
    check_input_output_sizes,
    check_limits,
    check_range,
    num_floats,
    size_steps,
)

NODE_STEPS = (16, 32, 64)
"""How many nodes a mutation adds or removes (AgileRL's choice)."""

IDEMPOTENT = frozenset({"ReLU", "Identity"})
"""Activations with f(f(x)) = f(x): an identity layer in front of one changes nothing (Net2Net, Chen et al. 2016)."""


@dataclass(frozen=True)
class MLPSpec(FadingSpec):
    """The architecture of an `EvolvableMLP`; sizes are in units."""

    hidden_size: tuple[int, ...] = (64,)
    """Width of each hidden layer; mutations add none to a network without hidden layers."""
    activation: str = "ReLU"
    """Activation of the hidden layers."""
    output_activation: str = "Identity"
    """Activation of the output layer."""
    min_hidden_layers: int = 1
    """Fewest hidden layers that a mutation may leave."""
    max_hidden_layers: int = 3
    """Most hidden layers that a mutation may make."""
    min_mlp_nodes: int = 16
    """Narrowest hidden layer that a mutation may leave."""
    max_mlp_nodes: int = 500
    """Widest hidden layer that a mutation may make."""
    layer_norm: bool = False
    """Normalise each hidden layer before its activation."""
    output_layernorm: bool = False
    """Normalise the output layer before its activation."""
    output_vanish: bool = True
    """Start a policy's output layer with small weights, so that a new policy is near uniform; this has no effect in an
    encoder, nor in the heads of DQN, whose outputs are values."""
    init_layers: bool = True
    """Orthogonal initial weights; otherwise uniform in +-1/sqrt(inputs)."""
    noisy: bool = False
    """Learned noise on the weights for exploration."""
    noise_std: float = 0.5
    """Initial scale of that noise."""
    fading: tuple[str, ...] = ()
    """Previous activation of each hidden layer and the output while they fade in; otherwise empty."""

    OPERATORS: ClassVar[Mapping[str, OperatorKind]] = {
        "add_layer": "layer",
        "remove_layer": "layer",
        "add_node": "node",
        "remove_node": "node",
        "change_activation": "activation",
    }

    STACK_FIELDS = ("layer_norm", "output_layernorm", "noisy")

    def __post_init__(self) -> None:
        super().__post_init__()
        for low, high in (("min_hidden_layers", "max_hidden_layers"), ("min_mlp_nodes", "max_mlp_nodes")):
            check_limits(self, low, high)
        if self.hidden_size:
            layers = len(self.hidden_size)
            check_range(self, "number of layers in hidden_size", layers, "min_hidden_layers", "max_hidden_layers")
        for nodes in self.hidden_size:
            check_range(self, "hidden_size entry", nodes, "min_mlp_nodes", "max_mlp_nodes")
        if self.layer_norm and self.min_mlp_nodes < 2:
            raise ConfigurationError("min_mlp_nodes=1 is too few for layer_norm=True: one normalised node is constant")
        self._check_activations()
        for layer, before in enumerate(self.fading):
            if before == SKIP and (layer == 0 or len({*self.hidden_size[layer - 1 : layer + 1]}) > 1):
                raise ConfigurationError(
                    f"fading={self.fading!r}: only a layer as wide as the one before can be skipped"
                )
        if not 0 < self.noise_std < inf:
            raise ConfigurationError(f"noise_std={self.noise_std!r} must be positive and finite")

    @property
    def num_activations(self) -> int:
        return len(self.hidden_size)

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        if self.fading:  # one change at a time
            return ()
        layers = range(len(self.hidden_size))
        if operator == "add_layer":
            return tuple({"layer": i} for i in layers) if len(layers) < self.max_hidden_layers else ()
        if operator == "remove_layer":
            return tuple({"layer": i} for i in layers) if len(layers) > self.min_hidden_layers else ()
        if operator == "change_activation":
            return self.activation_choices()
        return tuple(
            {"layer": i, "nodes": nodes}
            for i in layers
            for nodes in size_steps(operator, self.hidden_size[i], self.min_mlp_nodes, self.max_mlp_nodes, NODE_STEPS)
        )

    def apply(self, operator: str, **arguments: int | float | str) -> MLPSpec:
        if operator == "change_activation":
            changed = self.with_activation(str(arguments["activation"]))
            return changed if any(changed.fading) else changed.evolve(fading=())
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

    @property
    def depth(self) -> int:
        return len(self.hidden_size)

    @property
    def shown_activations(self) -> tuple[str, ...]:
        """Without hidden layers, the output's, unless that is linear too."""
        if self.hidden_size:
            return super().shown_activations
        return () if self.output_activation == "Identity" else (self.output_activation,)

    def describe(self) -> str:
        return "-".join(map(str, self.hidden_size))

    # -- in a stack

    def stack_key(self) -> Hashable:
        """Members without hidden layers are stacked apart: the output layer is as wide as the input that it reads."""
        return super().stack_key(), bool(self.hidden_size)

    @classmethod
    def padded_union(cls, specs: Sequence[MLPSpec]) -> MLPSpec:
        """As many layers as the deepest, each as wide as the widest; layers next to a skipped one have its width."""
        depth = max(len(spec.hidden_size) for spec in specs)
        sizes = [max((*spec.hidden_size, *(0,) * depth)[i] for spec in specs) for i in range(depth)]
        skips = [any(spec._skips(i) for spec in specs) for i in range(depth)]
        for i in range(1, depth):  # forwards then backwards: a chain of skipped layers has one width
            sizes[i] = max(sizes[i - 1 : i + 1]) if skips[i] else sizes[i]
        for i in reversed(range(1, depth)):
            sizes[i - 1] = sizes[i] if skips[i] else sizes[i - 1]
        fading = [next((name for spec in specs if (name := spec._fades_from(i))), "") for i in range(depth)]
        fading.append(next((spec.fading[-1] for spec in specs if spec.fading and spec.fading[-1]), ""))
        return specs[0].evolve(
            hidden_size=tuple(sizes),
            fading=tuple(fading) if any(fading) else (),
            max_hidden_layers=max(spec.max_hidden_layers for spec in specs),
            max_mlp_nodes=max(spec.max_mlp_nodes for spec in specs),
        )

    def _fades_from(self, layer: int) -> str:
        return self.fading[layer] if self.fading and layer < len(self.hidden_size) else ""

    def _skips(self, layer: int) -> bool:
        """Whether the layer's input is passed on as its output, wholly or while it fades in."""
        return layer >= len(self.hidden_size) or self._fades_from(layer) == SKIP

    def multiply_adds(self, padded: MLPSpec, inputs: Any, num_outputs: int) -> int:
        """Each member has its own number of layers, as wide as the padded ones."""
        sizes = (num_floats(inputs), *padded.hidden_size[: len(self.hidden_size)], num_outputs)
        return sum(i * o for i, o in pairwise(sizes))


class EvolvableMLP(EvolvableModule[MLPSpec]):
    """Linear layers of `spec.hidden_size` units and an output layer: `[..., num_inputs] -> [..., num_outputs]`.

    Raises:
        ConfigurationError: there are no inputs or no outputs, or `output_layernorm` is set for a single output.
    """

    add_layer = mutation_method("add_layer")
    remove_layer = mutation_method("remove_layer")
    add_node = mutation_method("add_node")
    remove_node = mutation_method("remove_node")
    change_activation = mutation_method("change_activation")

    def __init__(self, spec: MLPSpec, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        check_input_output_sizes(num_inputs, num_outputs)
        if spec.output_layernorm and num_outputs < 2:
            raise ConfigurationError("output_layernorm=True needs at least 2 outputs, but there is 1")
        self.spec, self.inputs, self.num_outputs = spec, num_inputs, num_outputs
        sizes = (num_inputs, *spec.hidden_size, num_outputs)
        fading = spec.fading or ("",) * (len(sizes) - 1)
        names = (spec.activation,) * len(spec.hidden_size) + (spec.output_activation,)
        normed = (spec.layer_norm,) * len(spec.hidden_size) + (spec.output_layernorm,)
        self.linears = nn.ModuleList(
            NoisyLinear(i, o, spec.noise_std) if spec.noisy else Linear(i, o) for i, o in pairwise(sizes)
        )
        none = nn.Identity()  # shared by all layers
        self.norms = nn.ModuleList(
            LayerNorm(size) if norm else none for size, norm in zip(sizes[1:], normed, strict=True)
        )
        self.activations = nn.ModuleList(
            Activation(size, name, before) for size, name, before in zip(sizes[1:], names, fading, strict=True)
        )

    def reset_(self, generator: torch.Generator, *, output_gain: float) -> None:
        last = len(self.linears) - 1
        for i in range(last + 1):
            gain = output_gain if i == last else 2**0.5
            self.linear(i).reset_(gain, generator, orthogonal=self.spec.init_layers)

    def linear(self, i: int) -> Linear:
        """Return the linear map of layer `i`; the last one is the output layer's."""
        return cast(Linear, self.linears[i])

    def forward(self, x: Tensor) -> Tensor:
        layers = zip(cast(Any, self.linears), self.norms, cast(Any, self.activations), strict=True)
        for linear, norm, activation in layers:
            if linear.active_block is not None and isinstance(norm, nn.Identity) and activation.is_uniform:
                x = apply_to_subset(linear, activation, x)
                continue
            y = linear(x)
            if not isinstance(norm, nn.Identity):
                y = norm(y)
            x = activation(y, x)
        return x

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.linear(0).weight.dtype

    def name_in_padded(self, padded: EvolvableModule) -> dict[str, str]:
        """The output layer is the last one in both."""
        here, there = len(self.linears) - 1, len(cast(EvolvableMLP, padded).linears) - 1
        return {f"{kind}.{here}": f"{kind}.{there}" for kind in ("linears", "norms", "activations")}

    # -- mutations

    LAYER_LISTS, INSERT_OFFSET = ("linears", "norms", "activations"), 1
    input_consumers = ("linears.0",)

    def unit_axes(self) -> UnitAxes:
        axes: UnitAxes = {}
        groups = ["in", *(str(i) for i in range(len(self.linears) - 1)), "out"]
        for i, (before, after) in enumerate(pairwise(groups)):
            axes |= {f"linears.{i}.weight": (after, before), f"linears.{i}.bias": (after,)}
            if self.spec.noisy:
                axes |= {f"linears.{i}.{name}": (after,) for name in ("bias_sigma", "output_noise")}
                axes |= {f"linears.{i}.weight_sigma": (after, before), f"linears.{i}.input_noise": (before,)}
            if isinstance(self.norms[i], LayerNorm):
                axes |= {f"norms.{i}.{name}": (after,) for name in ("weight", "bias", "counted")}
        return axes

    def unit_change(self, operator: str, arguments: Arguments) -> UnitChange:
        layer, nodes = int(arguments.get("layer", 0)), int(arguments.get("nodes", 0))
        behind = f"linears.{layer + 1}"
        if operator == "add_node":
            return UnitChange({str(layer): nodes})
        if operator == "remove_node":
            return UnitChange({str(layer): -nodes}, consumers=((behind, behind),))
        return UnitChange(consumers=((behind, f"linears.{layer}"),) if operator == "remove_layer" else ())

    def source_name(self, name: str, operator: str, arguments: Arguments) -> str:
        source = super().source_name(name, operator, arguments)
        if operator == "remove_layer" and name.startswith(f"linears.{arguments['layer']}."):
            reads_units = name.endswith(("weight", "weight_sigma", "input_noise"))  # of the removed layer
            return "" if reads_units else source
        return source

    def init_new_layer_(self, operator: str, arguments: Arguments, generator: torch.Generator) -> None:
        """A new layer is the identity, without noise."""
        if operator != "add_layer":
            return
        linear = self.linear(int(arguments["layer"]) + 1)
        nn.init.eye_(linear.weight)
        linear.bias.zero_()
        if isinstance(linear, NoisyLinear):
            linear.weight_sigma.zero_()
            linear.bias_sigma.zero_()

    def merge_removed_layer_(self, parent: EvolvableModule, operator: str, arguments: Arguments) -> None:
        """Multiply the removed layer into the next one, without the activation between them."""
        if operator != "remove_layer":
            return
        layer, before = int(arguments["layer"]), cast(EvolvableMLP, parent)
        removed, reader, replacement = before.linear(layer), before.linear(layer + 1), self.linear(layer)
        replacement.weight.copy_(reader.weight @ removed.weight)
        replacement.bias.copy_(reader.bias + reader.weight @ removed.bias)
        if isinstance(replacement, NoisyLinear) and isinstance(reader, NoisyLinear):
            replacement.weight_sigma.fill_(float(reader.weight_sigma.abs().mean()))

    def layer_input(self, name: str, x: Tensor) -> Tensor:
        for i in range(_place(name)):
            x = self.activations[i](self.norms[i](self.linears[i](x)), x)
        return x

    def layer_output(self, name: str, outputs: Tensor, inputs: Tensor) -> Tensor:
        i = _place(name)
        return self.activations[i](self.norms[i](outputs.clone()), inputs)


def _place(name: str) -> int:
    return int(name.rpartition(".")[2])
