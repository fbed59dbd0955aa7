"""`train_multi_agent_on_policy`: AgileRL's call for teams; the loop is that of everybody."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agilerl_like.algorithms.ippo import IPPO, MultiAgentPopulation
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv
from agilerl_like.training.multi_agent_env_setup import MultiAgentEnvSetup
from agilerl_like.training.on_policy import train_on_policy


def train_multi_agent_on_policy(
    env: MultiAgentVectorEnv,
    env_name: str | None = None,
    algo: str | None = None,
    pop: MultiAgentPopulation | Iterable[IPPO] | IPPO | None = None,
    *,
    eval_env: MultiAgentVectorEnv | None = None,
    **options: Any,
) -> tuple[MultiAgentPopulation, list[float]]:
    """Train a population of teams, and evolve it; return it and the fitness of its members.

    A team's fitness is what its agents earn together in an episode; with `fitness="rating"` it is an Elo-like rating
    from games against those who were best before, for worlds where one group wins what another loses (`contest.py`).
    `options` are the keywords of `train_on_policy`, and mean the same: steps are env steps, in each of which every
    agent of a team acts.

    Raises:
        ConfigurationError: before anything is trained; `env` is not one of `make_multi_agent_vect_envs`.
        EnvStepError: the world broke a promise, for example by returning NaN.
        PopulationDivergedError: no team is left whose loss, weights and fitness are finite.
    """
    eval_setup = None if eval_env is None else MultiAgentEnvSetup(eval_env)
    return train_on_policy(MultiAgentEnvSetup(env), env_name, algo, pop, eval_env=eval_setup, **options)
