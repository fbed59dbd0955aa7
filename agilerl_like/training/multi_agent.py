"""`train_multi_agent_on_policy`: AgileRL's function for multi-agent envs, with the loop of `train_on_policy`."""

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
    """Train and evolve a population of teams; return it and the fitness of its members.

    A team's fitness is the mean episode return summed over agents; with `fitness="rating"` it is an Elo-like rating
    from games against the best teams of earlier generations, for zero-sum envs (`elo_evaluator.py`). `options` are
    keywords of `train_on_policy`. In each env step all agents act.

    Raises:
        ConfigurationError: before anything is trained; `env` is not one of `make_multi_agent_vect_envs`.
        EnvStepError: the env violated its contract, for example by returning NaN.
        PopulationDivergedError: no team has finite loss, weights and fitness.
    """
    eval_setup = None if eval_env is None else MultiAgentEnvSetup(eval_env)
    return train_on_policy(MultiAgentEnvSetup(env), env_name, algo, pop, eval_env=eval_setup, **options)
