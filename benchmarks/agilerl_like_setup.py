"""Populations of `agilerl_like` for the work of `measurement.py`: how they are made, trained, evolved and counted."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple, cast

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv

from agilerl_like import PPO, HyperparameterConfig, Mutations, Population, RLParameter, TournamentSelection, evaluate
from agilerl_like.algorithms.rl_algorithm import RLAlgorithm
from agilerl_like.config import build
from agilerl_like.config.bundled import find_config
from agilerl_like.envs import VecEnvAdapter, VecEnvConfig
from agilerl_like.hpo import PopulationView, next_generation
from agilerl_like.modules.mlp import MLPSpec
from agilerl_like.reporting import GenerationRecord, Reporter
from agilerl_like.reporting.callback import CallbackList
from agilerl_like.training import train_on_policy
from agilerl_like.training.collector import Collector, PhaseTimer
from agilerl_like.training.loop import RunResult
from agilerl_like.training.session import train_population
from agilerl_like.training.training_arguments import OutputPaths
from benchmarks import measurement as m

EnvSource = str | Callable[..., Any] | VecEnvConfig
"""What envs are made of: an id, a factory, or either with wrappers around it."""
CARTPOLE = m.ENVS[0]

RANGES = HyperparameterConfig(
    lr=RLParameter(min=1e-4, max=1e-2),
    ent_coef=RLParameter(min=1e-4, max=1e-1),
    batch_size=RLParameter(min=64, max=256, dtype=int, scale="power_of_two"),
    update_epochs=RLParameter(min=2, max=6, dtype=int),
)
"""What evolves here beside architectures: two values, and two numbers that decide shapes and counts."""


class Ear(Reporter):
    """Keeps the records of all generations."""

    def __init__(self) -> None:
        self.heard: list[GenerationRecord] = []

    def generation(self, record: GenerationRecord) -> None:
        self.heard.append(record)

    def after_first(self) -> tuple[int, float]:
        """Return env steps of all members and seconds of what follows the first generation, when processes run."""
        first, *_, last = self.heard
        return last.env_steps - first.env_steps, last.seconds - first.seconds


def net_config(
    encoder: Sequence[int] = (m.WIDTH,),
    latent: int = m.WIDTH,
    head: Sequence[int] = (m.WIDTH,),
    limits: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return the networks of the common work, or others in their manner, within limits for what mutations make."""
    mlp = {"activation": "ReLU", "layer_norm": False, **(limits or {})}
    return {
        "latent_dim": latent,
        "encoder_config": {**mlp, "hidden_size": list(encoder)},
        "head_config": {**mlp, "hidden_size": list(head)},
    }


def settings(**changes: Any) -> dict[str, Any]:
    """Return PPO's arguments for the common work but for `changes`."""
    return {
        "net_config": net_config(),
        "num_envs": m.ENVS_PER_MEMBER,
        "learn_step": m.UPDATE_STEPS,
        "batch_size": m.MINIBATCH,
        "update_epochs": m.EPOCHS,
        "lr": m.LEARNING_RATE,
        "gamma": m.GAMMA,
        "gae_lambda": m.GAE_LAMBDA,
        "clip_coef": m.CLIP,
        "ent_coef": m.ENTROPY,
        "vf_coef": m.VALUE,
        "max_grad_norm": m.GRADIENT_NORM,
        "share_encoders": True,
        **changes,
    }


def make_envs(env_source: EnvSource, num_envs: int) -> VectorEnv:
    """Make a vector env with the fastest backend."""
    return (env_source if isinstance(env_source, VecEnvConfig) else VecEnvConfig(env_source)).make(num_envs)


def build_population(
    env_source: EnvSource, members: int, seed: int, *, networks: Sequence[Mapping[str, Any]] = (), **changes: Any
) -> Population:
    """Make members of the common work but for `changes`; `networks` gives each a `net_config` of its own."""
    env = make_envs(env_source, m.ENVS_PER_MEMBER)
    spaces = env.single_observation_space, env.single_action_space
    env.close()
    if not networks:
        return PPO.population(members, *spaces, **settings(seed=seed, **changes))
    return Population(
        PPO(*spaces, index=i, **settings(seed=seed, net_config=networks[i], **changes)) for i in range(members)
    )


@contextmanager
def collecting(population: Population, env_source: EnvSource, envs: int = m.ENVS_PER_MEMBER) -> Iterator[Collector]:
    """Give a population its envs, `envs` of each member, reset, for as long as the `with` block lasts."""
    env = make_envs(env_source, envs * len(population))
    try:
        collector = Collector(population, VecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
        collector.reset(range(len(collector.population)))
        yield collector
    finally:
        env.close()


def train(collector: Collector, steps_per_member: int) -> float:
    """Train without evolution; return the seconds it took."""
    start, ticks = time.perf_counter(), steps_per_member // m.ENVS_PER_MEMBER
    while ticks > 0:
        ticks -= collector.collect(min(ticks, collector.vector_steps_until_update))
        collector.learn()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def train_spread(population: Population, env_source: EnvSource, work: m.Work) -> float:
    """Train in many processes; return the seconds of what follows a first generation, in which they start."""
    env, ear = make_envs(env_source, m.ENVS_PER_MEMBER), Ear()
    generation_steps = min(m.GENERATION_STEPS, work.steps_per_member)
    train_on_policy(
        env,
        pop=population,
        max_steps=generation_steps + work.steps_per_member,
        evo_steps=generation_steps,
        eval_loop=1,
        eval_steps=1,
        processes=work.processes,
        verbose=False,
        reporters=[ear],
    )
    env.close()
    steps, seconds = ear.after_first()
    if steps != work.members * work.steps_per_member:
        raise RuntimeError(f"{steps:,} steps were timed, not {work.members} x {work.steps_per_member:,}")
    return seconds


def evolve(
    population: Population, fitness: Sequence[float], generation: int, next_uid: int, mutations: Mutations
) -> int:
    """Select, clone and mutate as a run does between two generations; return the next free uid."""
    population.finish_blends()
    births = population.evolve(
        next_generation(
            PopulationView(
                np.array(fitness),
                [agent.index for agent in population],
                [agent.genome for agent in population],
                generation,
            ),
            [agent.hp_config for agent in population],
            selection=TournamentSelection(tournament_size=2, elitism=True),
            explorer=mutations,
            seed=population.seed,
            next_uid=next_uid,
            repair=population.repair,
        )
    )
    return max(next_uid, *(birth.uid + 1 for birth in births))


def linear_layers(agent: RLAlgorithm) -> list[tuple[int, int]]:
    """Return inputs and outputs of every linear layer: encoder, actor's head, critic's head."""
    spec = agent.architecture
    encoder_mlp, head_mlp = cast(MLPSpec, spec.encoder), cast(MLPSpec, spec.head)
    encoder = (gymnasium.spaces.flatdim(agent.observation_space), *encoder_mlp.hidden_size, spec.latent_dim)
    heads = [
        (spec.latent_dim, *head_mlp.hidden_size, outputs) for outputs in (agent.learner.distribution.num_outputs, 1)
    ]
    encoders = [encoder] if agent.share_encoders else [encoder, encoder]
    return [layer for sizes in (*encoders, *heads) for layer in pairwise(sizes)]


def weights(agent: RLAlgorithm) -> int:
    """Return how many weights and biases a member has."""
    return sum((inputs + 1) * outputs for inputs, outputs in linear_layers(agent))


def flop_per_step(agent: RLAlgorithm) -> int:
    """Return the floating-point operations that one env step of a member costs at least.

    A forward pass multiplies and adds once for each weight. A step needs one when it is acted and valued, and in each
    epoch one that is followed by a backward pass, which costs two more.
    """
    forward = sum(2 * inputs * outputs for inputs, outputs in linear_layers(agent))
    return forward * (1 + 3 * int(agent.genome.hyperparameters["update_epochs"]))


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of those that it started and that have ended, such as env workers."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


class TimedRun(NamedTuple):
    """What a run returned, how long it took, and the returns of its best agent in fresh episodes after it.

    `cpu_seconds` includes those of env workers.
    """

    result: RunResult
    seconds: float
    cpu_seconds: float
    fresh_returns: Sequence[float] = ()


def train_bundled(name: str, options: Sequence[str], *, episodes: int = 0) -> TimedRun:
    """Train a bundled configuration with command-line options for values of it, without a run folder.

    The best agent then plays `episodes` fresh episodes without exploration.
    """
    experiment = build(find_config(name).override(options).validate())
    start, cpu = time.perf_counter(), cpu_seconds()
    result = train_population(
        experiment.env_setup,
        experiment.population,
        experiment.plan(),
        output_paths=OutputPaths(),
        callbacks=CallbackList([]),
    )
    seconds = time.perf_counter() - start
    experiment.env.close()  # its workers end, and their seconds count from then on
    used = cpu_seconds() - cpu
    best, seed = result.population.best, experiment.population.seed
    played = evaluate(best, experiment.env_setup, episodes, seed=seed) if episodes else None
    return TimedRun(result, seconds, used, () if played is None else played.returns[0].tolist())
