"""Does an agent learn what it must? It trains in a tiny world, and its answers are compared with the known ones.

It is asked once, after the world's whole budget, and not as soon as it happens to be right: an untrained policy is
right about one choice in two.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

import gymnasium
import numpy as np
import torch

from agilerl_like.algorithms.population import Population
from agilerl_like.algorithms.ppo import PPO
from agilerl_like.envs.probes import KnownAction, KnownValue, Probe
from agilerl_like.envs.transitions import TransitionEnv
from agilerl_like.envs.vector import make_vect_envs
from agilerl_like.training.collector import Clock, Collector

NUM_ENVS = 32
SETTINGS = {"lr": 5e-3, "learn_step": 512, "batch_size": 256}
"""Quick enough for seconds; everything else is as it is for everybody."""
EXPLORING = {"ent_coef": 0.3}
"""For categories: a choice that was given up too early is never tried again, and some probes want one changed late."""
VALUE_TOLERANCE = 0.1
"""Of the value, and of 1 where it is smaller: several times closer than the answers that the bugs would give."""


@dataclass(frozen=True)
class Answer:
    """What an agent said about one observation, and what is right."""

    what: Literal["value", "action"]
    obs: tuple[float, ...]
    known: tuple[float, ...]
    found: tuple[float, ...]
    tolerance: float

    @property
    def right(self) -> bool:
        """Whether every number is as close as it has to be."""
        return all(abs(found - known) <= self.tolerance for known, found in zip(self.known, self.found, strict=True))


@dataclass(frozen=True)
class ProbeRecord:
    """How an agent did in one world."""

    probe: Probe
    answers: tuple[Answer, ...]
    env_steps: int
    seconds: float

    @property
    def solved(self) -> bool:
        """Whether every answer is right."""
        return all(answer.right for answer in self.answers)


def solve(probe: Probe, *, seed: int = 0, **settings: Any) -> ProbeRecord:
    """Train a PPO agent in a world for as long as it should need, and ask it; `settings` are arguments of `PPO`."""
    start = perf_counter()
    with closing(make_vect_envs(probe.make, num_envs=NUM_ENVS)) as env:
        continuous = isinstance(env.single_action_space, gymnasium.spaces.Box)
        given = {**SETTINGS, **({} if continuous else EXPLORING), "gamma": probe.gamma, **settings}
        agent = PPO(env.single_observation_space, env.single_action_space, seed=seed, **given)
        steps = _train(Population([agent]), TransitionEnv(env), probe.steps)
    return ProbeRecord(probe, tuple(_ask(agent, (*probe.values, *probe.actions))), steps, perf_counter() - start)


def _train(population: Population, env: TransitionEnv, steps: int) -> int:
    collector = Collector(population, env, Clock(("env", "act", "learn")))
    collector.reset()
    ticks = -(-steps // env.num_envs)
    for _ in range(ticks):
        collector.tick()
        collector.learn()
    return ticks * env.num_envs


def _ask(agent: PPO, questions: Iterable[KnownValue | KnownAction]) -> Iterable[Answer]:
    agent.set_training_mode(False)
    for known in questions:
        obs = np.array([known.obs], dtype=np.float32)
        if isinstance(known, KnownValue):
            value = float(agent.get_action(obs)[3][0])
            yield Answer("value", known.obs, (known.value,), (value,), VALUE_TOLERANCE * max(1.0, abs(known.value)))
        else:
            mask = torch.tensor([known.mask]) if known.mask else None
            action = agent.best_actions(agent.encode(obs), mask)[0]
            yield Answer("action", known.obs, _numbers(known.action), _numbers(action), known.tolerance)


def _numbers(action: Any) -> tuple[float, ...]:
    return tuple(float(number) for number in np.atleast_1d(action))
