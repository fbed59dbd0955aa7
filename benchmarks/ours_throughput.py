"""Env steps per second of `agilerl_like` at the work of `measurement.py`, without evolution."""

import time

import torch

from agilerl_like import PPO, Population, make_vect_envs
from agilerl_like.envs.transitions import TransitionEnv
from agilerl_like.training.collector import Clock, Collector
from benchmarks import measurement as m


def build_population(env_name: str, members: int, seed: int) -> Population:
    env = make_vect_envs(env_name, num_envs=m.ENVS_PER_MEMBER)
    mlp = {"activation": "ReLU", "layer_norm": False, "hidden_size": [m.WIDTH]}
    return PPO.population(
        members,
        env.single_observation_space,
        env.single_action_space,
        net_config={"latent_dim": m.WIDTH, "encoder_config": mlp, "head_config": mlp},
        num_envs=m.ENVS_PER_MEMBER,
        learn_step=m.UPDATE_STEPS,
        batch_size=m.MINIBATCH,
        update_epochs=m.EPOCHS,
        lr=m.LEARNING_RATE,
        gamma=m.GAMMA,
        gae_lambda=m.GAE_LAMBDA,
        clip_coef=m.CLIP,
        ent_coef=m.ENTROPY,
        vf_coef=m.VALUE,
        max_grad_norm=m.GRADIENT_NORM,
        share_encoders=True,
        seed=seed,
    )


def train(collector: Collector, updates: int) -> None:
    for _ in range(updates * (m.UPDATE_STEPS // m.ENVS_PER_MEMBER)):
        collector.tick()
        collector.learn()


def main() -> None:
    work = m.parse_work(__doc__)
    torch.set_num_threads(work.threads)
    population = build_population(work.env, work.members, work.seed)
    env = make_vect_envs(work.env, num_envs=m.ENVS_PER_MEMBER * work.members)
    collector = Collector(population, TransitionEnv(env), Clock(("env", "act", "learn")))
    collector.reset()
    train(collector, updates=1)
    start = time.perf_counter()
    train(collector, work.updates_per_member)
    seconds = time.perf_counter() - start
    env.close()
    network = [str(layer) for layer in population[0].network.modules() if not list(layer.children())]
    print(m.Measurement.of("agilerl_like", "agilerl-like", work, seconds, network).to_json())


if __name__ == "__main__":
    main()
