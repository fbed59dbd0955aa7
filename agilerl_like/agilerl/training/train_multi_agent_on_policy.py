"""`train_multi_agent_on_policy` with AgileRL's signature, for lists of teams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agilerl_like import training
from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.training import train_list
from agilerl_like.agilerl.vector.dummy_vec_env import team_vector_of_one

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
    arguments = {name: value for name, value in locals().items() if name != "sum_scores"}
    return train_list(training.train_multi_agent_on_policy, arguments, env=team_vector_of_one(env))
