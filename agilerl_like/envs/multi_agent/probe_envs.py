"""Multi-agent probe environments: tiny envs with known answers that expose mixed-up agents, episodes or ends.

Each agent has an env of its own, often one of `probe_envs.py`, and all agents step together. So an agent's answers are
those of its own env, and any leak between agents makes them wrong. The agents are `speaker_0`, `listener_0` and
`listener_1`: the listeners are one group, so their answers are equal wherever their observations are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from agilerl_like.envs.multi_agent.packed_env import MASK, OBSERVATION
from agilerl_like.envs.multi_agent.pettingzoo import ParallelEnv
from agilerl_like.envs.probe_envs import (
    PROBES,
    ExpectedAction,
    ExpectedValue,
    Observation,
    RewardFn,
    ScriptedEnv,
    reward_by_place,
    reward_by_row,
)

Expectations = tuple[ExpectedValue | ExpectedAction, ...]
Step = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class AgentRole:
    """One agent's env, and the steps in which the agent is absent."""

    env_fn: Callable[[], gym.Env]
    absent_steps: frozenset[int] = frozenset()
    """Steps of the joint episode in which the agent is absent; its env is not stepped then."""
    mask_in_obs: bool = False
    """Whether its action mask is part of its observation instead of its info."""


class MultiAgentProbeEnv(ParallelEnv[str, Any, Any]):
    """A parallel env whose agents each step an env of their own, until that env's episode ends."""

    def __init__(self, roles: Mapping[str, AgentRole]) -> None:
        self.metadata = {"name": "team", "render_modes": []}
        self.render_mode = None
        self.possible_agents = list(roles)
        self.agents = []
        self._roles = roles
        self._envs = {agent: role.env_fn() for agent, role in roles.items()}
        # copies of an env share its spaces; copied here so that sampling in one does not affect another
        self._actions = {agent: deepcopy(env.action_space) for agent, env in self._envs.items()}
        self._observations = {agent: self._observation_space(agent) for agent in roles}
        self.state_space = Box(0, np.inf, (1 + len(roles),))

    def observation_space(self, agent: str) -> gym.Space:
        return self._observations[agent]

    def action_space(self, agent: str) -> gym.Space:
        return self._actions[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Reset every agent's env, each with its own seed."""
        count = len(self.possible_agents)
        seeds = [None] * count if seed is None else np.random.SeedSequence(seed).generate_state(count).tolist()
        self._step_count = 0
        self._ended: set[str] = set()
        self._last = {
            agent: self._observation(agent, *self._envs[agent].reset(seed=one))
            for agent, one in zip(self.possible_agents, seeds, strict=True)
        }
        self.agents = self._present_agents()
        return {agent: self._last[agent][0] for agent in self.agents}, {a: self._last[a][1] for a in self.agents}

    def step(self, actions: dict[str, Any]) -> Step:
        """Step the envs of the agents that are present; agents that appear get their first observation."""
        rewards, terminations, truncations = {}, {}, {}
        for agent in self.agents:
            obs, reward, terminations[agent], truncations[agent], info = self._envs[agent].step(actions[agent])
            rewards[agent] = float(reward)
            self._last[agent] = self._observation(agent, obs, info)
            if terminations[agent] or truncations[agent]:
                self._ended.add(agent)
        self._step_count += 1
        self.agents = self._present_agents()
        for agent in self.agents:  # that have just appeared
            rewards.setdefault(agent, 0.0)
            terminations.setdefault(agent, False)
            truncations.setdefault(agent, False)
        observations, infos = ({agent: self._last[agent][part] for agent in rewards} for part in (0, 1))
        return observations, rewards, terminations, truncations, infos

    def state(self) -> np.ndarray:
        """Return the step count and a flag for each agent that is present."""
        present = [float(agent in self.agents) for agent in self.possible_agents]
        return np.array([self._step_count, *present], dtype=np.float32)

    def _present_agents(self) -> list[str]:
        return [
            agent
            for agent, role in self._roles.items()
            if agent not in self._ended and self._step_count not in role.absent_steps
        ]

    def _observation_space(self, agent: str) -> gym.Space:
        space, acts = deepcopy(self._envs[agent].observation_space), self._actions[agent]
        if not self._roles[agent].mask_in_obs or not isinstance(acts, Discrete):
            return space
        return Dict({OBSERVATION: space, MASK: Box(0, 1, (int(acts.n),), np.int8)})

    def _observation(self, agent: str, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if MASK not in info:
            return observation, info
        mask = info[MASK].astype(np.int8)  # the dtype that `Discrete.sample` takes
        if not self._roles[agent].mask_in_obs:
            return observation, {**info, MASK: mask}
        return {OBSERVATION: observation, MASK: mask}, {}


@dataclass(frozen=True)
class MultiAgentProbe:
    """A multi-agent probe env with each agent's correct answers; `steps` is the training budget in env steps."""

    name: str
    roles: Mapping[str, AgentRole]
    question: str
    gamma: float
    expectations: Mapping[str, Expectations]
    steps: int = 10_000

    def make(self) -> MultiAgentProbeEnv:
        """Make a new copy of the env."""
        return MultiAgentProbeEnv(self.roles)


def _scripted_role(*rows: tuple[Observation, ...], reward_fn: RewardFn, **more: Any) -> AgentRole:
    """A role with a single possible action."""
    return AgentRole(partial(ScriptedEnv, rows, Discrete(1), reward_fn, **more))


def _roles(speaker: AgentRole, listener: AgentRole, other_listener: AgentRole | None = None) -> Mapping[str, AgentRole]:
    return {"speaker_0": speaker, "listener_0": listener, "listener_1": other_listener or listener}


def _expectations(
    speaker: Expectations, listener: Expectations, other_listener: Expectations | None = None
) -> Mapping[str, Expectations]:
    others = listener if other_listener is None else other_listener
    return {"speaker_0": speaker, "listener_0": listener, "listener_1": others}


def _from_single_agent_probes(
    name: str, speaker: str, listener: str, question: str, steps: int, **more: Any
) -> MultiAgentProbe:
    """A probe whose agents' envs are taken from `PROBES`; `more` are arguments of the listeners' roles."""
    one, other = PROBES[speaker], PROBES[listener]
    roles = _roles(AgentRole(one.make), AgentRole(other.make, **more))
    return MultiAgentProbe(name, roles, question, one.gamma, _expectations(one.expectations, other.expectations), steps)


_CONSTANT, _HIGH_GAMMA = ((0.0,),), 0.9
_HALVES = tuple((place / 4, 0.0) for place in range(6))
_LISTENERS = Box(-1.0, 2.0, (2,))
_SHORT_EPISODE = _scripted_role(((1.0,), (2.0,), (3.0,)), reward_fn=partial(reward_by_place, (0.0, 1.0)))
_ENDLESS = _scripted_role(_CONSTANT * 5, reward_fn=partial(reward_by_row, (0.1,)), truncates=True)

_ALL = (
    MultiAgentProbe(
        # V = 1 and V = -2: one reward, then the end. Rewards that are summed or swapped give other values.
        "OwnReward",
        _roles(
            _scripted_role(((0.0,), (0.0,)), reward_fn=partial(reward_by_row, (1.0,))),
            _scripted_role(((0.0,), (0.0,)), reward_fn=partial(reward_by_row, (-2.0,))),
        ),
        "does each group's critic learn its own agents' reward?",
        gamma=0.5,
        expectations=_expectations((ExpectedValue((0.0,), 1.0),), (ExpectedValue((0.0,), -2.0),)),
        steps=4_000,
    ),
    MultiAgentProbe(
        # V(o) = o for the speaker and -2 o for listeners, whose observations are independent.
        "OwnObservation",
        _roles(
            AgentRole(PROBES["ObservationReward"].make),
            _scripted_role(((-1.0,), (-1.0,)), ((1.0,), (1.0,)), reward_fn=partial(reward_by_row, (2.0, -2.0))),
        ),
        "does each agent's value depend on its own observation only?",
        gamma=0.5,
        expectations=_expectations(
            PROBES["ObservationReward"].values, (ExpectedValue((-1.0,), 2.0), ExpectedValue((1.0,), -2.0))
        ),
        steps=6_000,
    ),
    MultiAgentProbe(
        # V(1) = 1 and V(0) = gamma = 0.5 for the speaker, four times that for listeners.
        "DiscountedReward",
        _roles(
            AgentRole(PROBES["DiscountedReward"].make),
            _scripted_role(((0.0,), (1.0,), (2.0,)), reward_fn=partial(reward_by_place, (0.0, 4.0))),
        ),
        "is a later reward discounted once, for each agent, and does the episode end for all of them?",
        gamma=0.5,
        expectations=_expectations(
            PROBES["DiscountedReward"].values, (ExpectedValue((0.0,), 2.0), ExpectedValue((1.0,), 4.0))
        ),
        steps=8_000,
    ),
    _from_single_agent_probes(
        "ActionByObservation",
        "ActionByObservation",
        "ContinuousByObservation",
        "do a discrete and a continuous group each act on their own observation?",
        steps=20_000,
    ),
    _from_single_agent_probes(
        "SeveralChoices",
        "MultiDiscreteByObservation",
        "MultiBinaryByObservation",
        "are several choices at once made independently, in groups with different action spaces?",
        steps=8_000,
    ),
    _from_single_agent_probes(
        "SightAndTouch",
        "ImagePosition",
        "SightAndTouch",
        "can one group use an image, and the other an image and a number?",
        steps=9_000,
    ),
    _from_single_agent_probes(
        "ActionMask",
        "ActionMask",
        "ActionMask",
        "do masks apply in acting and in learning, whether given as info or with the observation?",
        steps=8_000,
        mask_in_obs=True,
    ),
    MultiAgentProbe(
        # The speaker terminates in its first step: V = 1, or 1 / (1 - gamma) = 10 if that is missed. One listener's
        # episode has five steps and a final reward of 1: V = gamma^4 … 1. The other one earns 0.2 for ever, with a time
        # limit of two steps: V = 0.2 / (1 - gamma) = 2, and less if truncation is taken for termination.
        "EarlyDeath",
        _roles(
            AgentRole(PROBES["ConstantReward"].make),
            _scripted_role(_HALVES, reward_fn=partial(reward_by_place, (0.0, 0.0, 0.0, 0.0, 1.0)), space=_LISTENERS),
            _scripted_role(
                ((0.0, 1.0),) * 3, reward_fn=partial(reward_by_row, (0.2,)), space=_LISTENERS, truncates=True
            ),
        ),
        "does an agent's end cut its own return, and no other agent's?",
        gamma=_HIGH_GAMMA,
        expectations=_expectations(
            (ExpectedValue((0.0,), 1.0),),
            tuple(ExpectedValue(obs, _HIGH_GAMMA ** (4 - place)) for place, obs in enumerate(_HALVES[:-1])),
            (ExpectedValue((0.0, 1.0), 2.0),),
        ),
        steps=20_000,
    ),
    MultiAgentProbe(
        # A listener's episode has two steps, the second with reward 1: V = gamma, 1. One listener appears two steps
        # late, while the speaker earns -1 for ever, with a time limit of four steps: V = -2.
        "LateAppearance",
        _roles(
            _scripted_role(_CONSTANT * 5, reward_fn=partial(reward_by_row, (-1.0,)), truncates=True),
            _SHORT_EPISODE,
            replace(_SHORT_EPISODE, absent_steps=frozenset({0, 1})),
        ),
        "does the return of an agent that appears late start when it appears?",
        gamma=0.5,
        expectations=_expectations(
            (ExpectedValue((0.0,), -2.0),), (ExpectedValue((1.0,), 0.5), ExpectedValue((2.0,), 1.0))
        ),
        steps=10_000,
    ),
    MultiAgentProbe(
        # Listeners earn 0.1 for ever, with a time limit of four steps of their own: V = 0.1 / (1 - gamma) = 1. After
        # one or two steps they are absent for a while; if that is taken for termination, V = 0.3.
        "SittingOut",
        _roles(
            _scripted_role(_CONSTANT * 7, reward_fn=partial(reward_by_row, (-0.1,)), truncates=True),
            replace(_ENDLESS, absent_steps=frozenset({1, 2})),
            replace(_ENDLESS, absent_steps=frozenset({2, 3})),
        ),
        "does an agent's return continue after an absence, which takes no time of its own?",
        gamma=_HIGH_GAMMA,
        expectations=_expectations((ExpectedValue((0.0,), -1.0),), (ExpectedValue((0.0,), 1.0),)),
        steps=24_000,
    ),
)

MULTI_AGENT_PROBES: Mapping[str, MultiAgentProbe] = MappingProxyType({probe.name: probe for probe in _ALL})
