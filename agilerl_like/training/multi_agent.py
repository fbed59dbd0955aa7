"""`train_multi_agent_on_policy`: AgileRL's function for multi-agent envs, with the loop of `train_on_policy`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Unpack, cast

from agilerl_like.algorithms.ippo import IPPO, MultiAgentPopulation
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv
from agilerl_like.errors import ConfigurationError
from agilerl_like.training.multi_agent_env_setup import MultiAgentEnvSetup
from agilerl_like.training.on_policy import train_on_policy
from agilerl_like.training.opponents import Scripts, opponents_error
from agilerl_like.training.train_options import SharedOptions, with_options_of
from agilerl_like.training.training_arguments import Opponents


@with_options_of(train_on_policy)
def train_multi_agent_on_policy(
    env: MultiAgentVectorEnv,
    env_name: str | None = None,
    algo: str | None = None,
    pop: MultiAgentPopulation | Iterable[IPPO] | IPPO | None = None,
    *,
    eval_env: MultiAgentVectorEnv | None = None,
    opponents: Opponents | IPPO | Scripts = "self",
    sum_scores: bool = True,
    **options: Unpack[SharedOptions],
) -> tuple[MultiAgentPopulation, list[float]]:
    """Train and evolve a population of teams; return it and the fitness of its members.

    A team's fitness is the mean episode return summed over agents; with `fitness="rating"` it is an Elo-like rating
    from games against the best teams of earlier generations, for zero-sum envs (`elo_evaluator.py`). `options` are the
    other keywords of `train_on_policy`. `sum_scores` is AgileRL's and ignored: fitness is always the sum.

    `opponents` are the opponents of a team's sides in training: each other ("self"), frozen copies of the best of
    earlier generations ("past") or of other members ("population"), or a team, which does not learn. A function of an
    agent's observation, its action mask and a numpy generator, which returns the agent's action, is an opponent as
    well; functions by group act for these groups in all envs, and the groups have to be among the `frozen_groups`.
    Against functions the return is that of the members' own agents (`opponents.py`).

    Raises:
        ConfigurationError: before anything is trained; `env` is not one of `make_multi_agent_vect_envs`.
        EnvStepError: the env violated its contract, for example by returning NaN.
        PopulationDivergedError: no team has finite loss, weights and fitness.
    """
    eval_setup = None if eval_env is None else MultiAgentEnvSetup(eval_env, name="eval_env")
    kind: Opponents
    if isinstance(opponents, str):
        given, kind = None, cast(Opponents, opponents)
    else:
        is_scripted = not isinstance(opponents, IPPO) and (callable(opponents) or isinstance(opponents, Mapping))
        if isinstance(opponents, type) or not (is_scripted or isinstance(opponents, IPPO)):
            raise opponents_error(opponents)
        given, kind = opponents, "scripted" if is_scripted else "team"
    processes = options.get("processes", 1)
    if given is not None and processes != 1:
        what = "a team" if kind == "team" else "functions"
        raise ConfigurationError(f"processes={processes!r} with {what} as opponents; allowed is 1")
    setup = MultiAgentEnvSetup(env, cast(Any, given))
    return train_on_policy(setup, env_name, algo, pop, eval_env=eval_setup, opponents=kind, **options)
