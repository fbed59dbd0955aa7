"""Networks to mutate: random ones of any spec, and ones fitted to a nontrivial policy and value."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.modules.param_stack import layout, views
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.network_mutation import (
    MutatedNetwork,
    MutationSource,
    policy_and_values,
    policy_value_shift,
)

INPUTS = 4
OBSERVATIONS = gymnasium.spaces.Box(-np.inf, np.inf, (INPUTS,))
DISCRETE = gymnasium.spaces.Discrete(3)
BOX = gymnasium.spaces.Box(-2.0, 2.0, (2,))

Builder = Callable[[NetworkSpec], ActorCritic]


def blank(
    spec: NetworkSpec, action_space: gymnasium.Space = DISCRETE, *, share: bool = False, inputs: int = INPUTS
) -> ActorCritic:
    return ActorCritic(
        spec,
        ObservationEncoder(gymnasium.spaces.Box(-np.inf, np.inf, (inputs,))),
        action_space,
        share_encoders=share,
        normalize_observation=True,
        normalize_value=True,
    )


def builder(
    action_space: gymnasium.Space = DISCRETE, dtype: torch.dtype = torch.float64, *, share: bool = False, inputs=INPUTS
) -> Builder:
    return lambda spec: blank(spec, action_space, share=share, inputs=inputs).to(dtype)


def stream(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def states(count: int, dtype: torch.dtype = torch.float64, *, inputs: int = INPUTS, seed: int = 0) -> Tensor:
    return torch.randn(count, inputs, generator=torch.Generator().manual_seed(seed)).to(dtype)


def in_rows(first: dict[str, Tensor], second: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Moments by name, in the order of a network's parameters, `[N]` each."""
    return tuple(torch.cat([m.reshape(-1) for m in moments.values()]) for moments in (first, second))


def first_of(one: MutationSource | MutatedNetwork) -> dict[str, Tensor]:
    """Adam's first moments by the parameter's name."""
    return views(one.moments[0], layout(one.network))


def second_of(one: MutationSource | MutatedNetwork) -> dict[str, Tensor]:
    """Adam's second moments by the parameter's name."""
    return views(one.moments[1], layout(one.network))


def random_parent(build: Builder, spec: NetworkSpec, *, inputs: int = INPUTS) -> MutationSource:
    """A network with random parameters, as after some training, and random moments."""
    network = build(spec)
    network.reset_(stream())
    dtype = next(network.parameters()).dtype
    generator = stream(7)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            scale = 0.3 if parameter.dim() < 2 else parameter.shape[1] ** -0.5
            centre = 1.0 if "norms" in name and name.endswith("weight") else 0.0
            parameter.copy_(centre + scale * torch.randn(parameter.shape, generator=generator))
    for module in network.modules():
        if hasattr(module, "resample_"):
            module.resample_(generator)
    named = dict(network.named_parameters())
    first = {name: torch.randn(p.shape, generator=generator).to(dtype) for name, p in named.items()}
    second = {name: torch.rand(p.shape, generator=generator).to(dtype) + 0.1 for name, p in named.items()}
    return MutationSource(network, in_rows(first, second), lambda: states(128, dtype, inputs=inputs))


def wanted(x: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
    """A policy and a value that are neither linear nor constant."""
    mixed = x @ torch.randn(x.shape[1], outputs + 1, generator=torch.Generator().manual_seed(3)).to(x)
    bent = 1.5 * torch.sin(1.5 * mixed) + 0.3 * mixed.square() - 0.4 * x[:, :1] * x[:, 1:2]
    return bent[:, :-1], bent[:, -1]


@functools.cache
def _fitted(spec: NetworkSpec, discrete: bool, share: bool) -> MutationSource:
    action_space = DISCRETE if discrete else BOX
    network = blank(spec, action_space, share=share)
    network.reset_(stream())
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(11)
    for _ in range(250):
        x = torch.randn(128, INPUTS, generator=generator)
        policy, value = wanted(x, network.actor.distribution.num_outputs)
        outputs, guess = network.evaluate(x)
        policy_loss = F.kl_div(outputs.log_softmax(-1), policy.log_softmax(-1), reduction="batchmean", log_target=True)
        loss = (policy_loss if discrete else (outputs - policy).square().mean()) + (guess - value).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    state = {name: optimizer.state[p] for name, p in network.named_parameters() if p in optimizer.state}
    first, second = (
        {name: state[name][key] if name in state else torch.zeros_like(p) for name, p in network.named_parameters()}
        for key in ("exp_avg", "exp_avg_sq")
    )
    return MutationSource(network, in_rows(first, second), lambda: states(512, torch.float32, seed=5))


def fitted_parent(spec: NetworkSpec | None = None, *, discrete: bool = True, share: bool = False) -> MutationSource:
    """A copy of a parent, fitted with Adam for 250 steps."""
    return copy.deepcopy(_fitted(spec or fitted_spec(), discrete, share))


def fitted_spec(**encoder: object) -> NetworkSpec:
    """Two layers of 64 on each side of a latent layer of 64."""
    config = {"hidden_size": [64, 64], "activation": "Tanh", **encoder}
    head = {key: value for key, value in config.items() if key != "output_layernorm"}
    return NetworkSpec.from_net_config({"encoder_config": config, "head_config": head})


def tensors(network: ActorCritic) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in (*network.named_parameters(), *network.named_buffers())}


def outputs_of(network: ActorCritic, x: Tensor) -> Tensor:
    """The policy's outputs and the value, concatenated."""
    with torch.no_grad():
        outputs, value = network.evaluate(x)
    return torch.cat([outputs, value.unsqueeze(-1)], -1)


def shift_of(parent: MutationSource, child: ActorCritic) -> tuple[float, float]:
    """KL of the policy, and error of the value, on the parent's observations."""
    before = policy_and_values(parent.network, parent.observations)
    return policy_value_shift(parent.network, before, child, parent.observations)
