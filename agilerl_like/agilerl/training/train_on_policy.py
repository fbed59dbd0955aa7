"""`train_on_policy` with AgileRL's signature, for lists of agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agilerl_like import training
from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.rollouts.on_policy import collect_rollouts
from agilerl_like.agilerl.training import train_list
from agilerl_like.agilerl.vector.dummy_vec_env import vector_of_one
from agilerl_like.errors import ConfigurationError

__getattr__ = absent_from(__name__)


def train_on_policy(
    env: Any,
    env_name: str | None = None,
    algo: str | None = None,
    pop: Sequence[Any] = (),
    init_hp: Any = None,
    mut_p: Any = None,
    max_steps: int = 1_000_000,
    evo_steps: int = 10_000,
    eval_steps: int | None = None,
    eval_loop: int = 1,
    target: float | None = None,
    selection_strategy: Any = None,
    tournament: Any = None,
    mutation: Any = None,
    collect_rollouts_fn: Callable[..., Any] | None = None,
    **options: Any,
) -> tuple[list[Any], list[float]]:
    """Train a list of agents and return it with the fitness of each.

    `collect_rollouts_fn` may be `agilerl_like.agilerl`'s `collect_rollouts`, because the training loop collects by
    itself. `options` are the keywords of `agilerl_like.train_on_policy`.
    """
    if collect_rollouts_fn not in (None, collect_rollouts):
        raise ConfigurationError(
            f"collect_rollouts_fn={collect_rollouts_fn!r}; allowed are None and collect_rollouts: the engine collects "
            "by itself, and a loop by hand may collect otherwise"
        )
    arguments = {name: value for name, value in locals().items() if name != "collect_rollouts_fn"}
    return train_list(training.train_on_policy, arguments, env=vector_of_one(env))
