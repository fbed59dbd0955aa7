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
HIGH_ENTROPY = {"ent_coef": 1.0}
"""For categories: a choice that was given up too early is never tried again, and some probes want one changed late."""
RECURRENT = {"recurrent": True, "max_seq_len": 8}
"""For probes that need memory; no episode of theirs is longer than such a sequence."""
FINAL_PHASE = 0.2
"""Share of the steps, the last ones, that are learned from at a tenth of the rate: who is asked at one moment must not
be caught at an unlucky one, and a policy that explores is near enough to indifference for that."""
VALUE_TOLERANCE = 0.1
"""Of the value, and of 1 where it is smaller: several times closer than the answers that the bugs would give."""


@dataclass(frozen=True)
class Answer:
    """What an agent said about one observation, and what is right."""

    what: Literal["value", "action"]
    question: str
    expected: tuple[float, ...]
    found: tuple[float, ...]
    tolerance: float
    agent: str = ""
    """Which agent of a team."""

    @property
    def is_correct(self) -> bool:
        """Whether every number is as close as it has to be."""
        return all(
            abs(found - expected) <= self.tolerance for expected, found in zip(self.expected, self.found, strict=True)
        )


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
        return all(answer.is_correct for answer in self.answers)


def solve(probe: Probe, *, seed: int = 0, **settings: Any) -> ProbeRecord:
    """Train a PPO agent in a world for as long as it should need, and ask it; `settings` are arguments of `PPO`."""
    start = perf_counter()
    with closing(make_vect_envs(probe.make, num_envs=NUM_ENVS)) as env:
        continuous = isinstance(env.single_action_space, gymnasium.spaces.Box)
        given = {
            **SETTINGS,
            **({} if continuous else HIGH_ENTROPY),
            **_probe_settings(probe),
            "gamma": probe.gamma,
            **settings,
        }
        agent = PPO(env.single_observation_space, env.single_action_space, seed=seed, **given)
        steps = _train(agent, VecEnvAdapter(env), probe.steps)
    return ProbeRecord(probe, tuple(check_expectations(agent, probe.expectations)), steps, perf_counter() - start)


def _probe_settings(probe: Probe) -> dict[str, Any]:
    memory = RECURRENT if probe.needs == "memory" else {}
    return {**memory, "swap_channels": True} if probe.channels_last else dict(memory)


def _train(agent: PPO, env: VecEnvAdapter, steps: int) -> int:
    collector = Collector(Population([agent]), env, PhaseTimer(("env", "act", "learn")))
    collector.reset(range(len(collector.population)))
    vector_steps = -(-steps // env.num_envs)
    for vector_step in range(vector_steps):
        if vector_step == int(vector_steps * (1 - FINAL_PHASE)):
            agent.lr /= 10
        collector.collect(1)
        collector.learn()
    return vector_steps * env.num_envs


def check_expectations(agent: PPO, expectations: Iterable[ExpectedValue | ExpectedAction]) -> Iterable[Answer]:
    """What an agent says to questions."""
    agent.set_training_mode(False)
    for expected in expectations:
        question = describe(expected)
        if isinstance(expected, ExpectedValue):
            _, value = _act_and_value(agent, (*expected.history, expected.obs))
            tolerance = VALUE_TOLERANCE * max(1.0, abs(expected.value))
            yield Answer("value", question, (expected.value,), _floats(value), tolerance)
        else:
            action, _ = _act_and_value(agent, (*expected.history, expected.obs), expected.mask)
            yield Answer("action", question, _floats(expected.action), _floats(action), expected.tolerance)


def _act_and_value(agent: PPO, episode: Iterable[Observation], mask: tuple[bool, ...] = ()) -> tuple[Any, Any]:
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


def _floats(action: Any) -> tuple[float, ...]:
    return tuple(float(number) for number in np.atleast_1d(action))
