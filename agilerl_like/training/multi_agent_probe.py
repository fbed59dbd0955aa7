"""Does a team learn what each of its agents must? As `probe`, for teams."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from time import perf_counter
from typing import Any

import gymnasium

from agilerl_like.algorithms.ippo import IPPO, MultiAgentPopulation
from agilerl_like.envs.multi_agent.pettingzoo import make_multi_agent_vect_envs
from agilerl_like.envs.multi_agent.probe_envs import MultiAgentProbe
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.training.collector import PhaseTimer
from agilerl_like.training.multi_agent_env_setup import MultiAgentCollector
from agilerl_like.training.probe import HIGH_ENTROPY, NUM_ENVS, SETTINGS, ProbeRecord, check_expectations


def solve_multi_agent(probe: MultiAgentProbe, *, seed: int = 0, **settings: Any) -> ProbeRecord:
    """Train a team in a world for as long as it should need, and ask each of its agents."""
    start = perf_counter()
    with closing(make_multi_agent_vect_envs(probe.make, NUM_ENVS, backend="sync")) as env:
        choices = not any(isinstance(space, gymnasium.spaces.Box) for space in env.single_action_spaces.values())
        given = {**SETTINGS, **(HIGH_ENTROPY if choices else {}), "gamma": probe.gamma, **settings}
        team = IPPO(env.single_observation_spaces, env.single_action_spaces, num_envs=NUM_ENVS, seed=seed, **given)
        collector = MultiAgentCollector(
            MultiAgentPopulation([team]), MultiAgentVecEnvAdapter(env), PhaseTimer(("env", "act", "learn"))
        )
        collector.reset([0])
        rounds = -(-probe.steps // NUM_ENVS)
        for _ in range(rounds):
            collector.collect(1)
            collector.learn()
    answers = [
        replace(answer, agent=agent)
        for agent, expected in probe.answers.items()
        for answer in check_expectations(team.learner_of(agent), expected)
    ]
    return ProbeRecord(probe, tuple(answers), rounds * NUM_ENVS, perf_counter() - start)
