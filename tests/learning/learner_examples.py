"""Members, rollouts and numbers to try cohorts with."""

import math

import gymnasium
import numpy as np
import torch

from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.learning.optimizer import Adam
from agilerl_like.learning.ppo_update import HYPERPARAM_NAMES, Hyperparams
from agilerl_like.learning.rollout_buffer import FinalObservations, Rollout
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.architecture import NetworkSpec

OBSERVATIONS = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
DISCRETE = gymnasium.spaces.Discrete(3)
BOX = gymnasium.spaces.Box(-1.0, 1.0, (2,))
STEPS, ENVS = 12, 4
STATE = (2, 0, 0)  # of those who remember nothing
SPEC = NetworkSpec.from_net_config(
    {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 16}
)


def builder(action_space, *, share):
    def build(spec):
        return ActorCritic(
            spec,
            ObservationEncoder(OBSERVATIONS),
            action_space,
            share_encoders=share,
            normalize_observation=True,
            normalize_value=True,
        )

    return build


def member(seed, action_space=DISCRETE, dtype=torch.float64, *, share=False, spec=SPEC):
    network = builder(action_space, share=share)(spec)
    network.reset_(torch.Generator().manual_seed(seed))
    network = network.to(dtype)
    size = sum(p.numel() for p in network.parameters())
    return network, Adam.fresh(torch.zeros(1, size, dtype=dtype))


def rollout_of(members, action_space=DISCRETE, dtype=torch.float64, seed=0, *, invalid=False):
    """Random experience in which episodes end in both ways, some with a true last observation of their own."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    shape = (STEPS, members, ENVS)
    ends = torch.rand(*shape, generator=generator)
    terminated, truncated = (ends < 0.1).to(dtype), (ends > 0.9).to(dtype)
    if isinstance(action_space, gymnasium.spaces.Discrete):
        actions = torch.randint(3, (*shape, 1), generator=generator)
    elif isinstance(action_space, gymnasium.spaces.MultiDiscrete | gymnasium.spaces.MultiBinary):
        actions = torch.randint(2, (*shape, 2), generator=generator)
        actions = actions if isinstance(action_space, gymnasium.spaces.MultiDiscrete) else actions.to(dtype)
    else:
        actions = normal(*shape, 2)
    at = truncated.nonzero()
    valid = (torch.rand(*shape, generator=generator) > 0.2).to(dtype) if invalid else torch.ones(*shape, dtype=dtype)
    return Rollout.from_steps(
        3 * normal(*shape, 3) + 1,
        actions,
        5 * normal(*shape),
        terminated,
        terminated + truncated,
        valid,
        normal(members, ENVS, 3),
        FinalObservations.of(*at.unbind(1), normal(len(at), 3), members=members),
        None,
        torch.zeros(members, ENVS, *STATE, dtype=dtype),
    )


def only(rollout, i):
    """Member i's part of a rollout, whose final observations are not padded to another member's number."""
    last = rollout.final_observations
    time, env, observations = last.time[i], last.env[i], last.observations[i]
    mine = time >= 0
    its_own = FinalObservations.of(time[mine], torch.zeros_like(time[mine]), env[mine], observations[mine], members=1)
    return rollout[i : i + 1].replace(final_observations=its_own)


def values_of(members, dtype=torch.float64, **changed):
    defaults = {
        "lr": 1e-2,
        "gamma": 0.9,
        "gae_lambda": 0.8,
        "clip_coef": 0.2,
        "clip_coef_vf": math.inf,
        "ent_coef": 0.01,
        "vf_coef": 0.5,
        "max_grad_norm": 0.5,
        "target_kl": math.inf,
        "update_epochs": 3,
        "n_step": math.inf,
        "bootstrap": 1.0,
        "kl_threshold": math.inf,
        "kl_factor": 2.0,
        "lr_factor": 1.5,
        "lr_min": 1e-6,
        "lr_max": 1.0,
        "beta1": 0.9,
        "beta2": 0.999,
        "adam_eps": 1e-5,
        "weight_decay": 0.0,
    }
    changed.setdefault("lr_critic", changed.get("lr", [defaults["lr"]] * members))
    columns = {name: [value] * members for name, value in defaults.items()} | changed
    tensors = {name: torch.tensor(columns[name], dtype=dtype) for name in HYPERPARAM_NAMES}
    return Hyperparams(**tensors, batch_size=[len(tensors["lr"])])


def pick(values, i):
    return values[i : i + 1]


def shuffle_of(rows, seed=0):
    def shuffle(epoch, samples):
        return torch.stack(
            [
                torch.randperm(samples, generator=torch.Generator().manual_seed(1000 * seed + 100 * row + epoch))
                for row in rows
            ]
        )

    return shuffle


DIFFERENT = {
    "lr": [1e-2, 3e-3, 1e-3],
    "gamma": [0.9, 0.99, 0.5],
    "gae_lambda": [1.0, 0.5, 0.9],
    "clip_coef": [0.1, 0.2, 0.3],
    "clip_coef_vf": [0.2, math.inf, 1.0],
    "ent_coef": [0.0, 0.1, 0.01],
    "vf_coef": [1.0, 0.5, 0.1],
    "max_grad_norm": [0.1, 0.5, 10.0],
    "target_kl": [math.inf, 1e-6, 0.02],
    "update_epochs": [3.0, 4.0, 2.0],
}
