"""`train_multi_agent_on_policy` with AgileRL's signature, for lists of teams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agilerl_like import training
from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.vector.dummy_vec_env import PzDummyVecEnv
from agilerl_like.agilerl.wrappers.agent import AgentWrapper, bare
from agilerl_like.envs.multi_agent.pettingzoo import MultiAgentVectorEnv

__getattr__ = absent_from(__name__)


def train_multi_agent_on_policy(
    env: Any,
    env_name: str | None = None,
    algo: str | None = None,
    pop: Sequence[Any] = (),
    sum_scores: bool = True,
    init_hp: Any = None,
    mut_p: Any = None,
    max_steps: int = 50_000,
    evo_steps: int = 25,
    eval_steps: int | None = None,
    eval_loop: int = 1,
    target: float | None = None,
    selection_strategy: Any = None,
    tournament: Any = None,
    mutation: Any = None,
    **options: Any,
) -> tuple[list[Any], list[float]]:
    """Train a list of teams and return it with the fitness of each.

    `sum_scores` is accepted: a team's fitness is the sum of what its agents earn, also where it is False. `options`
    are the keywords of `agilerl_like.train_multi_agent_on_policy`.
    """
    vector = env if isinstance(env, MultiAgentVectorEnv) else PzDummyVecEnv(env)
    wrapper = pop[0] if isinstance(pop[0], AgentWrapper) else None
    trained, fitness = training.train_multi_agent_on_policy(
        vector,
        env_name,
        algo,
        [bare(agent) for agent in pop],
        init_hp=init_hp,
        mut_p=mut_p,
        max_steps=max_steps,
        evo_steps=evo_steps,
        eval_steps=eval_steps,
        eval_loop=eval_loop,
        target=target,
        selection_strategy=selection_strategy,
        tournament=tournament,
        mutation=mutation,
        **options,
    )
    return [agent if wrapper is None else wrapper.around(agent) for agent in trained], fitness
