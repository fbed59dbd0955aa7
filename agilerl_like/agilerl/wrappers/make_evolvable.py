"""`MakeEvolvable`: a network of linear layers as an evolvable one with the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.modules import EvolvableMLP, MLPSpec

__getattr__ = absent_from(__name__)

LIMITS = ("min_hidden_layers", "max_hidden_layers", "min_mlp_nodes", "max_mlp_nodes")
IGNORED = frozenset(
    {"secondary_input_tensor", "num_atoms", "min_cnn_hidden_layers", "max_cnn_hidden_layers", "min_channel_size"}
    | {"max_channel_size", "output_vanish", "init_layers", "support", "rainbow", "accelerator"}
)
"""Arguments of AgileRL's wrapper for networks of other kinds, which are not taken, and for initial weights."""


def MakeEvolvable(  # noqa: N802  # AgileRL's name
    network: nn.Module,
    input_tensor: Tensor,
    min_hidden_layers: int = 1,
    max_hidden_layers: int = 3,
    min_mlp_nodes: int = 64,
    max_mlp_nodes: int = 1024,
    device: Any = "cpu",
    **more: Any,
) -> EvolvableMLP:
    """An `EvolvableMLP` that computes what `network` computes: linear layers with one activation between them.

    AgileRL's other arguments (`IGNORED`) have no effect.

    Raises:
        ConfigurationError: an argument is unknown; the network has other layers; whole networks of any kind go into
            `PPO(actor_network=…, critic_network=…)`, where all but their architecture evolves.
    """
    for name in more.keys() - IGNORED:
        raise unknown_name("argument", name, [*IGNORED, "device", *LIMITS])
    layers = [layer for layer in network.modules() if not [*layer.children()]]
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    between = [type(layer).__name__ for layer in layers[:-1] if not isinstance(layer, nn.Linear)]
    alternating = all(isinstance(layer, nn.Linear) is (place % 2 == 0) for place, layer in enumerate(layers))
    if len(linears) < 2 or not alternating or len(set(between)) != 1:
        raise ConfigurationError(
            f"network has layers {[type(layer).__name__ for layer in layers]}; allowed are linear layers with one "
            "activation between them"
        )
    sizes = [layer.out_features for layer in linears[:-1]]
    spec = MLPSpec(
        tuple(sizes),
        between[0],
        output_activation=type(layers[-1]).__name__ if len(layers) % 2 == 0 else "Identity",
        min_hidden_layers=min(min_hidden_layers, len(sizes)),
        max_hidden_layers=max(max_hidden_layers, len(sizes)),
        min_mlp_nodes=min(min_mlp_nodes, *sizes),
        max_mlp_nodes=max(max_mlp_nodes, *sizes),
    )
    evolvable = EvolvableMLP(spec, linears[0].in_features, linears[-1].out_features).to(device)
    _copy_(evolvable, linears)
    with torch.no_grad():
        same = torch.allclose(evolvable(input_tensor.to(device)), network(input_tensor).to(device), atol=1e-5)
    if not same:
        raise ConfigurationError("network does more than its layers in their order; it cannot be made evolvable")
    return evolvable


@torch.no_grad()
def _copy_(evolvable: EvolvableMLP, linears: Sequence[nn.Linear]) -> None:
    for place, linear in enumerate(linears):
        mine = evolvable.linear(place)
        mine.weight.copy_(linear.weight)
        mine.bias.copy_(linear.bias if linear.bias is not None else torch.zeros(linear.out_features))
