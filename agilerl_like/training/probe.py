"""Trains an agent or a team in a probe environment, and compares its values and actions with the known answers.

The answers are checked once, after the whole step budget, because an untrained policy gives the right one of two
choices half of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal, cast

import gymnasium
import numpy as np

from agilerl_like.algorithms.evolution_strategy import EvolutionStrategy
from agilerl_like.algorithms.ippo import IPPO
from agilerl_like.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from agilerl_like.algorithms.ppo import PPO
from agilerl_like.algorithms.ppo_learner import PPOLearner
from agilerl_like.algorithms.pqn import PQN
from agilerl_like.algorithms.q_learning import QLearning
from agilerl_like.envs.factory import make_vect_envs
from agilerl_like.envs.multi_agent.pettingzoo import make_multi_agent_vect_envs
from agilerl_like.envs.multi_agent.probe_envs import MultiAgentProbe
from agilerl_like.envs.probe_envs import (
    ExpectedAction,
    ExpectedValue,
    Observation,
    Probe,
    as_observation,
    describe,
    numbered_probe,
)
from agilerl_like.envs.spaces import tree_map
from agilerl_like.registry import registered
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.env_setup import EnvSetup, SingleAgentEnvSetup
from agilerl_like.training.multi_agent_env_setup import MultiAgentEnvSetup

NUM_ENVS = 32
SETTINGS = {"lr": 5e-3, "learn_step": 512, "batch_size": 256}
"""Chosen to train within seconds; all other settings are the defaults."""
ROLLOUT_VALUES: dict[str, Any] = {"lr": 1e-2, "learn_step": 8 * NUM_ENVS, "batch_size": NUM_ENVS, "eps_end": 1.0}
"""Settings of PQN, whose actions are all random."""
OFF_POLICY: dict[str, Any] = {
    "lr": 1e-2,
    "learn_step": NUM_ENVS,
    "gradient_steps": 8,
    "batch_size": 64,
    "tau": 0.05,
    "learning_starts": 256,
}
"""Settings of algorithms that learn from a replay."""
NOISY: dict[str, Any] = {"lr": 2e-3, "learning_starts": 1_000, "expl_noise": 0.5}
TABULAR: dict[str, Any] = {"lr": 0.1, "eps_end": 1.0}
"""Settings of Q-learning, whose actions are all random."""
OWN_SETTINGS: dict[str, dict[str, Any]] = {
    "DQN": {"eps_end": 1.0},  # all actions are random; their values are those of the best policy all the same
    "TD3": NOISY,  # with a larger learning rate the tanh of its actions saturates
    "DDPG": NOISY,
    "SAC": {"lr": 2e-3, "learning_starts": 1_000, "target_entropy_scale": 3.0},  # little entropy at the end
}
"""What differs from `OFF_POLICY` for one algorithm."""
EVOLUTION: dict[str, dict[str, Any]] = {
    "OpenAIES": {"sigma": 0.1, "lr": 0.02, "episodes": 4},
    "CMAES": {"sigma": 0.3, "episodes": 4},
}
"""The settings of evolution strategies, which have no values: only their actions are checked."""
EVOLUTION_STEPS = 10
"""Factor on the steps of other algorithms: returns of whole episodes hold less information than gradients."""
HIGH_ENTROPY = {"ent_coef": 1.0}
"""Setting for discrete actions: without entropy, an action that is abandoned too early is never tried again."""
RECURRENT = {"recurrent": True, "max_seq_len": 8}
"""Settings for probes that need memory, whose episodes are at most as long as a sequence."""
FINAL_PHASE = 0.2
"""Final share of the steps, with a tenth of the learning rate, so that the check is not affected by late oscillation of
a policy that is close to indifferent."""
VALUE_TOLERANCE = 0.1
"""Relative to max(1, |value|); several times smaller than the error that a bug would cause."""


@dataclass(frozen=True)
class Answer:
    """An agent's value or action for one observation, and the correct one."""

    what: Literal["value", "action"]
    question: str
    expected: tuple[float, ...]
    found: tuple[float, ...]
    tolerance: float
    agent: str = ""
    """Agent id; "" for a single agent."""

    @property
    def is_correct(self) -> bool:
        """Whether every component is within the tolerance."""
        return all(
            abs(found - expected) <= self.tolerance for expected, found in zip(self.expected, self.found, strict=True)
        )


@dataclass(frozen=True)
class ProbeRecord:
    """Result of one probe."""

    probe: Probe | MultiAgentProbe
    answers: tuple[Answer, ...]
    env_steps: int
    seconds: float

    @property
    def solved(self) -> bool:
        """Whether every answer is correct."""
        return all(answer.is_correct for answer in self.answers)


def suits(probe: Probe, algorithm: str) -> bool:
    """Return whether an algorithm can solve a probe: it supports the actions, and has values or memory if needed."""
    kind: Any = registered("algorithm").find("algorithm", algorithm)
    if not issubclass(kind, OffPolicyAlgorithm | PQN | QLearning | EvolutionStrategy):
        return True
    has_answers = bool(probe.actions) or not issubclass(kind, EvolutionStrategy)
    return has_answers and probe.needs == "" and kind.supports(probe.make().action_space)


def solve(probe: Probe | MultiAgentProbe, *, seed: int = 0, algorithm: str = PPO.algo, **settings: Any) -> ProbeRecord:
    """Train an algorithm, or IPPO in a multi-agent probe, for the probe's step budget and check the answers.

    `settings` are arguments of the algorithm. For a table the probe's observations are numbered.
    """
    start = perf_counter()
    kind: Any = registered("algorithm").find("algorithm", algorithm) if isinstance(probe, Probe) else IPPO
    if isinstance(probe, Probe) and issubclass(kind, QLearning):
        probe = numbered_probe(probe)
    env_setup = _env_setup(probe)
    with closing(env_setup.env) as env:
        if issubclass(kind, EvolutionStrategy):
            probe = replace(cast(Probe, probe), steps=EVOLUTION_STEPS * probe.steps)
            defaults = {**EVOLUTION[kind.algo], **_image_settings(probe)}
        elif issubclass(kind, QLearning):
            defaults = TABULAR
        elif issubclass(kind, PQN):
            defaults = {**ROLLOUT_VALUES, **_image_settings(probe)}
        elif issubclass(kind, OffPolicyAlgorithm):
            defaults = {**OFF_POLICY, **OWN_SETTINGS.get(kind.algo, {}), **_image_settings(probe)}
        else:
            defaults = {**SETTINGS, **_probe_settings(probe, env_setup.spaces[1])}
        discount = {} if issubclass(kind, EvolutionStrategy) else {"gamma": probe.gamma}
        given = {**defaults, **discount, **settings}
        agent = cast(Any, kind)(*env_setup.spaces, num_envs=NUM_ENVS, seed=seed, **given)
        timer = PhaseTimer(("env", "act", "learn"))
        collector = env_setup.make_collector(env_setup.population([agent]), env_setup.adapt(env), timer)
        collector.reset([0])
        vector_steps = -(-probe.steps // NUM_ENVS)
        for vector_step in range(vector_steps):
            if vector_step == int(vector_steps * (1 - FINAL_PHASE)) and hasattr(agent, "lr"):
                agent.lr /= 10
            collector.collect(1)
            collector.learn()
    return ProbeRecord(probe, tuple(_answers(probe, agent)), vector_steps * NUM_ENVS, perf_counter() - start)


def _env_setup(probe: Probe | MultiAgentProbe) -> EnvSetup:
    if isinstance(probe, Probe):
        return SingleAgentEnvSetup(make_vect_envs(probe.make, num_envs=NUM_ENVS))
    return MultiAgentEnvSetup(make_multi_agent_vect_envs(probe.make, NUM_ENVS, backend="sync"))


def _probe_settings(probe: Probe | MultiAgentProbe, action_space: Any) -> dict[str, Any]:
    spaces = action_space.values() if isinstance(action_space, dict) else [action_space]
    settings = {} if any(isinstance(space, gymnasium.spaces.Box) for space in spaces) else dict(HIGH_ENTROPY)
    if isinstance(probe, Probe):
        settings |= RECURRENT if probe.needs == "memory" else {}
        settings |= {"critic_observation": probe.critic_observation}
    return settings | _image_settings(probe)


def _image_settings(probe: Probe | MultiAgentProbe) -> dict[str, Any]:
    return {"swap_channels": True} if isinstance(probe, Probe) and probe.channels_last else {}


def _answers(probe: Probe | MultiAgentProbe, agent: Any) -> Iterator[Answer]:
    agent.set_training_mode(False)
    by_agent = {"": probe.expectations} if isinstance(probe, Probe) else probe.expectations
    if isinstance(probe, Probe) and isinstance(agent, EvolutionStrategy):
        by_agent = {"": probe.actions}
    for name, expectations in by_agent.items():
        learner = agent.learner_of(name) if isinstance(agent, IPPO) else agent
        yield from (replace(answer, agent=name) for answer in check_expectations(learner, expectations))


def check_expectations(
    agent: PPO | PPOLearner | PQN | OffPolicyAlgorithm[Any] | QLearning | EvolutionStrategy[Any],
    expectations: Iterable[ExpectedValue | ExpectedAction],
) -> Iterable[Answer]:
    """Yield an agent's answer for each expectation."""
    for expected in expectations:
        question = describe(expected)
        if isinstance(expected, ExpectedValue):
            _, value = _act_and_value(agent, (*expected.history, expected.obs))
            tolerance = VALUE_TOLERANCE * max(1.0, abs(expected.value))
            yield Answer("value", question, (expected.value,), _floats(value), tolerance)
        else:
            action, _ = _act_and_value(agent, (*expected.history, expected.obs), expected.mask)
            yield Answer("action", question, _floats(expected.action), _floats(action), expected.tolerance)


def _act_and_value(
    agent: PPO | PPOLearner | PQN | OffPolicyAlgorithm[Any] | QLearning | EvolutionStrategy[Any],
    episode: Iterable[Observation],
    mask: tuple[bool, ...] = (),
) -> tuple[Any, Any]:
    """Return the agent's action and value after the last observation of an episode."""
    if isinstance(agent, OffPolicyAlgorithm | PQN | QLearning | EvolutionStrategy):
        *_, last = episode
        batch = tree_map(lambda leaf: np.asarray(leaf)[None], as_observation(last))
        masks = np.array([mask]) if mask else None
        action, _ = agent.predict(batch, deterministic=True, action_masks=masks)
        return action[0], None if isinstance(agent, EvolutionStrategy) else agent.value(batch, masks)[0]
    reply: tuple[Any, ...] = ()
    for obs in episode:
        batch = tree_map(lambda leaf: np.asarray(leaf)[None], as_observation(obs))
        memory = reply[4:]  # empty, if the agent is not recurrent
        reply = agent.get_action(batch, np.array([mask]) if mask else None, *memory)
    action, _, _, value = reply[:4]
    if isinstance(agent.action_space, gymnasium.spaces.Box):
        action = np.clip(action, agent.action_space.low, agent.action_space.high)
    return action[0], value[0]


def _floats(action: Any) -> tuple[float, ...]:
    return tuple(float(number) for number in np.atleast_1d(action))
