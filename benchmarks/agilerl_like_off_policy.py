"""Gradient steps per CPU second of `agilerl_like` from a full replay, of all members of a population."""

import time
from typing import Any, cast

import torch

from agilerl_like import DQN, TD3, Population
from agilerl_like.training.collector import Collector
from benchmarks import off_policy_work as w
from benchmarks.agilerl_like_setup import collecting, make_envs, net_config

ENVS = 8
KINDS = {"DQN": (DQN, {"double": False}), "TD3": (TD3, {"policy_delay": w.POLICY_DELAY})}


def learn(collector: Collector, calls: int) -> float:
    """Let all members learn from the replay; return the CPU seconds."""
    population = cast(Population, collector.population)
    replay, places = cast(Any, population.learners).replay, range(len(population))
    start = time.process_time()
    for _ in range(calls):
        population.learn(places, replay)
    return time.process_time() - start


def main() -> None:
    options = w.parse_options(__doc__ or "")
    torch.set_num_threads(options.threads)
    kind, settings = KINDS[options.algorithm]
    env_name = w.ENVS[options.algorithm]
    env = make_envs(env_name, ENVS)
    population = kind.population(
        options.members,
        env.single_observation_space,
        env.single_action_space,
        net_config=net_config(),
        seed=options.seed,
        num_envs=ENVS,
        batch_size=w.BATCH,
        gradient_steps=options.at_once,
        lr=w.LEARNING_RATE,
        gamma=w.GAMMA,
        tau=w.TAU,
        memory_size=w.STORED,
        learning_starts=1,
        **settings,
    )
    env.close()
    with collecting(population, env_name, ENVS) as collector:
        collector.collect(w.STORED // ENVS)
        learn(collector, 20)
        seconds = learn(collector, options.updates // options.at_once)
    network = [str(layer) for layer in population[0].network.modules() if not list(layer.children())]
    print(w.Updates.of("agilerl_like", "agilerl-like", options, seconds, network).to_json())


if __name__ == "__main__":
    main()
