"""`train_off_policy` with AgileRL's signature, for lists of agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agilerl_like import training
from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.training import train_list
from agilerl_like.agilerl.vector.dummy_vec_env import vector_of_one
from agilerl_like.errors import ConfigurationError

__getattr__ = absent_from(__name__)


def train_off_policy(
    env: Any,
    env_name: str | None = None,
    algo: str | None = None,
    pop: Sequence[Any] = (),
    memory: Any = None,
    init_hp: Any = None,
    mut_p: Any = None,
    max_steps: int = 1_000_000,
    evo_steps: int = 10_000,
    eval_steps: int | None = None,
    eval_loop: int = 1,
    learning_delay: int | None = None,
    eps_start: float | None = None,
    eps_end: float | None = None,
    eps_decay: float | None = None,
    target: float | None = None,
    n_step_memory: Any = None,
    selection_strategy: Any = None,
    tournament: Any = None,
    mutation: Any = None,
    **options: Any,
) -> tuple[list[Any], list[float]]:
    """Train a list of agents and return it with the fitness of each.

    `memory` is a `ReplayBuffer`, whose `max_size` is shared among the members. Epsilon is that of the agents unless
    given here, and so is `learning_delay` (0, unless an agent has `learning_starts`). `options` are the keywords of
    `agilerl_like.train_off_policy`; `n_step` and `per`, of older releases, may be False.

    Raises:
        ConfigurationError: `n_step` or `per` is true.
    """
    arguments = dict(locals())
    for name, instead in (("n_step", "DQN(n_step=…)"), ("per", "a replay without priorities")):
        if options.pop(name, False):
            raise ConfigurationError(f"{name}=True is not available; allowed is False, or {instead}")
    return train_list(training.train_off_policy, arguments, env=vector_of_one(env))
