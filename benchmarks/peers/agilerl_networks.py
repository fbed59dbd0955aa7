"""Env steps per second of AgileRL's loop with a recurrent network, or with one for images.

As ``agilerl_throughput``, with the rollouts that AgileRL takes for such agents. Its recurrent encoder is an LSTM that
reads the observation, then a linear map to the latent layer; batch_size counts sequences there, so it is as many of
them as have the common minibatch's steps. Tails of episodes shorter than a sequence are left out by AgileRL.
"""

import time
from typing import Any

import torch
from agilerl.algorithms import PPO
from agilerl.utils.mutation_utils import set_global_seed
from gymnasium.vector import SyncVectorEnv, VectorEnv

from benchmarks import measurement as m
from benchmarks.envs import make
from benchmarks.peers.agilerl_throughput import layers, train_one_turn


def networks(env_name: str) -> dict[str, Any]:
    """Return the arguments of ``PPO`` that say what the network is."""
    head = {"hidden_size": [m.WIDTH], "activation": "ReLU", "layer_norm": False}
    if env_name == m.POSITIONS:
        return {
            "recurrent": True,
            "max_seq_len": m.SEQUENCE,
            "batch_size": m.MINIBATCH // m.SEQUENCE,
            "net_config": {
                "latent_dim": m.WIDTH,
                "encoder_config": {"hidden_state_size": m.WIDTH, "num_layers": 1},
                "head_config": head,
            },
        }
    encoder = {
        "channel_size": list(m.CHANNELS),
        "kernel_size": [3] * len(m.CHANNELS),
        "stride_size": [1] * len(m.CHANNELS),
        "min_channel_size": min(m.CHANNELS),
        "activation": "ReLU",
        "output_activation": "ReLU",
        "layer_norm": False,
    }
    return {
        "batch_size": m.MINIBATCH,
        "net_config": {
            "latent_dim": m.IMAGE_LATENT,
            "max_latent_dim": 2 * m.IMAGE_LATENT,
            "encoder_config": encoder,
            "head_config": head,
        },
    }


def build_population(env: VectorEnv, env_name: str, members: int) -> list[PPO]:
    return PPO.population(
        size=members,
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
        num_envs=m.ENVS_PER_MEMBER,
        learn_step=m.UPDATE_STEPS,
        update_epochs=m.EPOCHS,
        lr=m.LEARNING_RATE,
        gamma=m.GAMMA,
        gae_lambda=m.GAE_LAMBDA,
        clip_coef=m.CLIP,
        ent_coef=m.ENTROPY,
        vf_coef=m.VALUE,
        max_grad_norm=m.GRADIENT_NORM,
        share_encoders=True,
        **networks(env_name),
    )


def main() -> None:
    work = m.parse_work((__doc__ or "").splitlines()[0], envs=m.NETWORK_ENVS)
    torch.set_num_threads(work.threads)
    set_global_seed(work.seed)
    env = SyncVectorEnv([lambda: make(work.env)] * m.ENVS_PER_MEMBER)
    env.reset(seed=work.seed)
    population = build_population(env, work.env, work.members)

    for agent in population:
        train_one_turn(agent, env, updates=1)

    start = time.perf_counter()
    for updates in work.turns:
        for agent in population:
            train_one_turn(agent, env, updates)
    seconds = time.perf_counter() - start

    env.close()
    print(m.Measurement.of("AgileRL", "agilerl", work, seconds, layers(population[0])).to_json())


if __name__ == "__main__":
    main()
