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

from agilerl_like.algorithms.population import Population
from agilerl_like.algorithms.ppo import PPO
from agilerl_like.envs.factory import make_vect_envs
from agilerl_like.envs.multi_agent.probe_envs import MultiAgentProbe
from agilerl_like.envs.probe_envs import ExpectedAction, ExpectedValue, Observation, Probe, as_observation, describe
from agilerl_like.envs.spaces import tree_map
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.training.collector import Collector, PhaseTimer

NUM_ENVS = 32
SETTINGS = {"lr": 5e-3, "learn_step": 512, "batch_size": 256}
"""Quick enough for seconds; everything else is as it is for everybody."""
EXPLORING = {"ent_coef": 1.0}
"""For categories: a choice that was given up too early is never tried again, and some probes want one changed late."""
REMEMBERING = {"recurrent": True, "max_seq_len": 8}
"""For probes that need memory; no episode of theirs is longer than such a sequence."""
CALM = 0.2
"""Share of the steps, the last ones, that are learned from at a tenth of the rate: who is asked at one moment must not
be caught at an unlucky one, and a policy that explores is near enough to indifference for that."""
VALUE_TOLERANCE = 0.1
"""Of the value, and of 1 where it is smaller: several times closer than the answers that the bugs would give."""


@dataclass(frozen=True)
class Answer:
    """What an agent said about one observation, and what is right."""

    what: Literal["value", "action"]
    asked: str
    known: tuple[float, ...]
    found: tuple[float, ...]
    tolerance: float
    who: str = ""
    """Which agent of a team."""

    @property
    def right(self) -> bool:
        """Whether every number is as close as it has to be."""
        return all(abs(found - known) <= self.tolerance for known, found in zip(self.known, self.found, strict=True))


@dataclass(frozen=True)
class ProbeRecord:
    """How an agent or a team did in one world."""

    probe: Probe | MultiAgentProbe
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
        given = {**SETTINGS, **({} if continuous else EXPLORING), **_needed(probe), "gamma": probe.gamma, **settings}
        agent = PPO(env.single_observation_space, env.single_action_space, seed=seed, **given)
        steps = _train(agent, VecEnvAdapter(env), probe.steps)
    return ProbeRecord(probe, tuple(ask(agent, probe.expectations)), steps, perf_counter() - start)


def _needed(probe: Probe) -> dict[str, Any]:
    memory = REMEMBERING if probe.needs == "memory" else {}
    return {**memory, "swap_channels": True} if probe.channels_last else dict(memory)


def _train(agent: PPO, env: VecEnvAdapter, steps: int) -> int:
    collector = Collector(Population([agent]), env, PhaseTimer(("env", "act", "learn")))
    collector.reset(range(len(collector.population)))
    vector_steps = -(-steps // env.num_envs)
    for tick in range(vector_steps):
        if tick == int(vector_steps * (1 - CALM)):
            agent.lr /= 10
        collector.tick()
        collector.learn()
    return vector_steps * env.num_envs


def ask(agent: PPO, expectations: Iterable[ExpectedValue | ExpectedAction]) -> Iterable[Answer]:
    """What an agent says to questions."""
    agent.set_training_mode(False)
    for known in expectations:
        asked = describe(known)
        if isinstance(known, ExpectedValue):
            _, value = _reply(agent, (*known.history, known.obs))
            tolerance = VALUE_TOLERANCE * max(1.0, abs(known.value))
            yield Answer("value", asked, (known.value,), _numbers(value), tolerance)
        else:
            action, _ = _reply(agent, (*known.history, known.obs), known.mask)
            yield Answer("action", asked, _numbers(known.action), _numbers(action), known.tolerance)


def _reply(agent: PPO, episode: Iterable[Observation], mask: tuple[bool, ...] = ()) -> tuple[Any, Any]:
    """Return what the agent does last in an episode that it sees from the start, and what it thinks that is worth."""
    reply: tuple[Any, ...] = ()
    for obs in episode:
        batch = tree_map(lambda leaf: np.asarray(leaf)[None], as_observation(obs))
        memory = reply[4:]  # nothing, if the agent has none
        reply = agent.get_action(batch, np.array([mask]) if mask else None, *memory)
    action, _, _, value = reply[:4]
    if isinstance(agent.action_space, gymnasium.spaces.Box):
        action = np.clip(action, agent.action_space.low, agent.action_space.high)
    return action[0], value[0]


def _numbers(action: Any) -> tuple[float, ...]:
    return tuple(float(number) for number in np.atleast_1d(action))
