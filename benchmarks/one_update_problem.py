"""Weights and a rollout from which every side of `benchmarks.one_update` makes one update; torch and numpy alone.

A problem is arrays by name: "actor.0.weight" … "critic.2.bias" and "log_std", and "observations" `[T + 1, E, 3]`,
"actions" `[T, E, 2]`, "rewards", "starts" (1 where a step begins an episode, `[T + 1, E]`), "log_probs" and "values".
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal

OBSERVATIONS, ACTIONS, HIDDEN = 3, 2, (16, 16)
STEPS, ENVS = 32, 4
PARTS = ("actor", "critic")

CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "sb3": (
        {"n_steps": STEPS, "batch_size": 32, "n_epochs": 4},
        {
            "n_steps": STEPS, "batch_size": 16, "n_epochs": 6, "learning_rate": 2e-3, "gamma": 0.97, "gae_lambda": 0.9,
            "clip_range": 0.1, "clip_range_vf": 0.15, "ent_coef": 0.02, "vf_coef": 0.7, "max_grad_norm": 0.3,
            "target_kl": 0.004,
        },
        {"n_steps": STEPS, "batch_size": 64, "n_epochs": 3, "normalize_advantage": False, "ent_coef": 0.01},
    ),
    "cleanrl": (
        {"num_steps": STEPS, "num_minibatches": 4},
        {
            "num_steps": STEPS, "num_minibatches": 8, "update_epochs": 6, "learning_rate": 2e-3, "gamma": 0.97,
            "gae_lambda": 0.9, "clip_coef": 0.1, "ent_coef": 0.03, "vf_coef": 0.7, "max_grad_norm": 0.3,
        },
        {"num_steps": STEPS, "num_minibatches": 2, "clip_vloss": False, "norm_adv": False, "anneal_lr": False},
    ),
    "skrl": (
        {"rollouts": STEPS},
        {
            "rollouts": STEPS, "mini_batches": 8, "learning_epochs": 6, "learning_rate": 2e-3, "discount_factor": 0.97,
            "gae_lambda": 0.9, "ratio_clip": 0.1, "value_clip": 0.15, "entropy_loss_scale": 0.02,
            "value_loss_scale": 1.3, "grad_norm_clip": 0.3, "kl_threshold": 0.004,
        },
        {"rollouts": STEPS, "value_clip": 0.0, "grad_norm_clip": 0.0, "entropy_loss_scale": 0.01},
    ),
}  # fmt: skip
"""The settings of each case, by the names of the system: its defaults, many changed ones, and options turned off."""


def make_problem(seed: int = 0) -> dict[str, np.ndarray]:
    """Return a problem: networks after some noise, and a rollout of their policy in which episodes end."""
    torch.manual_seed(seed)
    networks = {"actor": network(ACTIONS), "critic": network(1)}
    log_std = torch.linspace(-0.5, 0.2, ACTIONS)
    observations = torch.randn(STEPS + 1, ENVS, OBSERVATIONS)
    with torch.no_grad():
        policy = Normal(networks["actor"](observations[:-1]), log_std.exp())
        actions = policy.sample()
        log_probs = policy.log_prob(actions).sum(-1)
        values = networks["critic"](observations[:-1]).squeeze(-1)
    starts = (torch.rand(STEPS + 1, ENVS) < 0.1).float()
    starts[0] = 1.0
    rewards = torch.randn(STEPS, ENVS) + observations[:-1, :, 0]
    rollout = {"observations": observations, "actions": actions, "rewards": rewards, "starts": starts}
    rollout |= {"log_probs": log_probs, "values": values, "log_std": log_std}
    return as_arrays(networks) | {name: x.numpy() for name, x in rollout.items()}


def network(outputs: int) -> nn.Sequential:
    """Return a network with tanh between its linear layers."""
    sizes = (OBSERVATIONS, *HIDDEN, outputs)
    layers: list[nn.Module] = []
    for inputs, units in pairwise(sizes):
        layers += [nn.Linear(inputs, units), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def linears(module: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of a network, from its inputs to its outputs."""
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


def parameters(networks: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    """Return the parameters of actor and critic by the names of a problem."""
    return {
        f"{part}.{number}.{kind}": getattr(layer, kind)
        for part, module in networks.items()
        for number, layer in enumerate(linears(module))
        for kind in ("weight", "bias")
    }


def as_arrays(networks: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the weights of networks as arrays."""
    return {name: parameter.detach().numpy().copy() for name, parameter in parameters(networks).items()}


@torch.no_grad()
def load_weights(named: dict[str, nn.Parameter], problem: dict[str, np.ndarray]) -> None:
    """Set parameters to those of a problem."""
    for name, parameter in named.items():
        parameter.copy_(torch.from_numpy(problem[name]).view_as(parameter))


def outcome(
    named: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, orders: list[np.ndarray]
) -> dict[str, np.ndarray]:
    """Return parameters, Adam's moments, and the order of the samples in each epoch."""
    found = {name: parameter.detach().numpy() for name, parameter in named.items()}
    for name, parameter in named.items():
        state = optimizer.state[parameter]
        found |= {f"{moment}.{name}": state[moment].numpy() for moment in ("exp_avg", "exp_avg_sq")}
    return {**found, "orders": np.stack(orders)}


def tensors(problem: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Return the arrays of a problem as tensors."""
    return {name: torch.from_numpy(x) for name, x in problem.items()}
