"""Env steps per second of `agilerl_like` with memory or images, without evolution.

The environments are those of the peers, each stepped by its library's own backend: CartPole without velocities is
gymnasium's native vector env here, seen through a wrapper that reads its rows. Of a recurrent network ours has its
dense layers before the LSTM, AgileRL's its own behind; no step of an episode is left out.
"""

from functools import partial
from typing import Any

import torch

from agilerl_like.envs import VecEnvConfig
from benchmarks import measurement as m
from benchmarks.agilerl_like_setup import EnvSource, build_population, collecting, net_config, train, train_spread
from benchmarks.envs import make


def networks(env_name: str) -> dict[str, Any]:
    """Return the arguments of `PPO` for the network."""
    if env_name == m.POSITIONS:
        memory = {"memory_config": {"hidden_state_size": m.WIDTH}}
        return {
            "recurrent": True,
            "max_seq_len": m.SEQUENCE,
            "net_config": {**net_config(latent=m.RECURRENT_LATENT), **memory},
        }
    convolutions = {
        "channel_size": list(m.CHANNELS),
        "kernel_size": [3] * len(m.CHANNELS),
        "stride_size": [1] * len(m.CHANNELS),
        "activation": "ReLU",
    }
    return {"net_config": {**net_config(latent=m.IMAGE_LATENT), "encoder_config": convolutions}}


def env_source_of(env_name: str) -> EnvSource:
    """Return what envs are made of, as a user would write it down."""
    if env_name == m.POSITIONS:
        places = {"name": "agilerl_like.envs.observation_wrappers:SelectEntries", "entries": [0, 2]}
        return VecEnvConfig("CartPole-v1", wrappers=(places,))
    return partial(make, env_name)


def main() -> None:
    work = m.parse_work(__doc__ or "", envs=m.NETWORK_ENVS, spreads=True)
    torch.set_num_threads(work.threads)
    env_source = env_source_of(work.env)
    population = build_population(env_source, work.members, work.seed, **networks(work.env))
    if work.processes > 1:
        seconds = train_spread(population, env_source, work)
    else:
        with collecting(population, env_source) as collector:
            train(collector, m.UPDATE_STEPS)
            seconds = train(collector, work.steps_per_member)
    network = [str(layer) for layer in population[0].network.modules() if not list(layer.children())]
    print(m.Measurement.of("agilerl_like", "agilerl-like", work, seconds, network).to_json())


if __name__ == "__main__":
    main()
