"""`train_off_policy`: AgileRL's call, with its names, on the loop of `train_on_policy`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from numbers import Real
from pathlib import Path
from typing import Any, Unpack, cast

import gymnasium

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from agilerl_like.algorithms.population import Population
from agilerl_like.algorithms.q_learning import QLearning
from agilerl_like.envs.factory import can_be_made_again
from agilerl_like.errors import ConfigurationError, is_count
from agilerl_like.training.checkpoint_manager import load_identity, newest_checkpoint
from agilerl_like.training.env_setup import EnvSetup
from agilerl_like.training.on_policy import train_on_policy
from agilerl_like.training.train_options import TrainOptions, with_options_of
from agilerl_like.training.training_arguments import OutputPaths, TrainingArguments


@with_options_of(train_on_policy)
def train_off_policy(
    env: gymnasium.vector.VectorEnv | EnvSetup,
    env_name: str | None = None,
    algo: str | None = None,
    pop: Population | Iterable[OffPolicyAlgorithm[Any]] | OffPolicyAlgorithm[Any] | None = None,
    memory: Any = None,
    *,
    learning_delay: int | None = None,
    eps_start: float | None = None,
    eps_end: float | None = None,
    eps_decay: float | None = None,
    n_step_memory: Any = None,
    **options: Unpack[TrainOptions],
) -> tuple[Population, list[float]]:
    """Train a population that learns from a replay; return it and the fitness of its members.

    The names are AgileRL's. `options` are the keywords of `train_on_policy`, of which this is the same loop: steps,
    evaluation, evolution, checkpoints, resume and reports are described there.

    `memory` is "own" or "shared" (the members' setting of that name), or how many env steps of all members a shared one
    holds: a number, or an empty `ReplayBuffer` of AgileRL with its `max_size`, in whose place the run fills a replay of
    its own. Left out, the members' settings count. `learning_delay` sets their `learning_starts`, `eps_start` and
    `eps_end` their settings of these names. `eps_decay` is AgileRL's factor for each step of all envs: epsilon falls in
    a straight line and reaches `eps_end` after as many steps as it would there, or at the end of the run if that comes
    first. `n_step_memory`, an object with an `n_step`, sets the members' `n_step`. A run that is resumed without `pop`
    keeps its settings, so all of these are left out. With `pop`, too, a resumed run keeps the share of the run in which
    epsilon falls, so that a larger `max_steps` makes it fall more slowly.

    Raises:
        ConfigurationError: before anything is trained; or a member does not learn from a replay.
        EnvStepError: the env returned a number that is not finite.
        PopulationDivergedError: all members have diverged, and the run has no checkpoint of its own to restart from, or
            has restarted already.
        CallbackError: a callback raised an exception; the run was saved before.
    """
    members = [pop] if isinstance(pop, EvolvableAlgorithm) else pop
    if members is None:
        _refuse_settings(
            memory=memory,
            learning_delay=learning_delay,
            eps_start=eps_start,
            eps_end=eps_end,
            eps_decay=eps_decay,
            n_step_memory=n_step_memory,
        )
        return train_on_policy(env, env_name, algo, **options)
    if not isinstance(members, Iterable) or isinstance(members, str):
        raise ConfigurationError(f"pop={members!r:.100}; allowed are a population, an agent, and a list of agents")
    members = members if isinstance(members, Population) else list(members)
    for agent in members:
        if not isinstance(agent, OffPolicyAlgorithm | QLearning):
            raise ConfigurationError(
                f"pop holds {type(agent).__name__}, which does not learn from a replay; train_on_policy trains it"
            )
    settings: dict[str, Any] = {**_memory_settings(memory, len(members)), "learning_starts": learning_delay}
    if n_step_memory is not None and not hasattr(n_step_memory, "n_step"):
        raise ConfigurationError(f"n_step_memory={n_step_memory!r:.100}; allowed are None and an object with an n_step")
    settings |= {"eps_start": eps_start, "eps_end": eps_end, "n_step": getattr(n_step_memory, "n_step", None)}
    settings = {name: value for name, value in settings.items() if value is not None}
    agents = cast("list[OffPolicyAlgorithm[Any]]", members)
    before = [agent.settings() for agent in agents]
    try:
        for agent in agents:
            _set_settings(agent, settings)
        if eps_decay is not None:
            max_steps = TrainingArguments(max_steps=options.get("max_steps", TrainingArguments.max_steps)).max_steps
            envs = _envs_of_each(env, len(agents))
            for agent, saved in zip(agents, _saved_eps_shares(options.get("resume"), len(agents)), strict=True):
                if "eps_share" not in agent.config.__dataclass_fields__:
                    raise ConfigurationError(f"eps_decay={eps_decay!r} is no setting of {agent.algo}; leave it out")
                steps = _decay_steps(eps_decay, cast(Any, agent).eps_start, cast(Any, agent).eps_end)
                _set_settings(agent, {"eps_share": min(1.0, steps * envs / max_steps) if saved is None else saved})
    except ConfigurationError:
        for agent, its in zip(agents, before, strict=True):
            for name, value in its.items():
                if name in (*settings, "eps_share"):
                    setattr(agent, name, value)
        raise
    return train_on_policy(env, env_name, algo, members, **options)


def _envs_of_each(env: Any, members: int) -> int:
    """Return the envs of each member: all of the env's, or its rows divided if it cannot be made again."""
    vector = env.vec_env if isinstance(env, EnvSetup) else env
    count = getattr(vector, "num_envs", 1)
    is_vector = isinstance(vector, gymnasium.vector.VectorEnv)
    return count // members if is_vector and members > 1 and not can_be_made_again(vector) else count


def _saved_eps_shares(resume: Any, members: int) -> list[float | None]:
    """Return each member's share of the run that is resumed, which a run keeps; None where there is none."""
    checkpoint = None
    if isinstance(resume, str | os.PathLike):
        checkpoint = newest_checkpoint(OutputPaths(run_dir=Path(resume)))
    section = {} if checkpoint is None else load_identity(checkpoint).get("algorithm", {})
    shares = section.get("eps_share")
    if isinstance(shares, list):  # members had different values
        return shares if len(shares) == members else [None] * members
    return [shares] * members


def _refuse_settings(**settings: Any) -> None:
    """Raise ConfigurationError if a setting of the members is given."""
    for name, value in settings.items():
        if value is not None:
            raise ConfigurationError(
                f"{name}={value!r:.100} is a setting of members, and pop is missing; allowed with resume alone is "
                "None, because the run keeps its settings"
            )


def _memory_settings(memory: Any, members: int) -> dict[str, Any]:
    """Return the settings that the argument `memory` stands for."""
    if memory is None:
        return {}
    if isinstance(memory, str):
        return {"memory": memory}
    size = getattr(memory, "max_size", memory)
    if not is_count(size):
        raise ConfigurationError(
            f"memory={memory!r:.100}; allowed are None, 'own', 'shared', a positive number of env steps, and an object "
            "with such a max_size"
        )
    if memory is not size and (filled := len(memory) if hasattr(memory, "__len__") else 0):
        raise ConfigurationError(
            f"memory={type(memory).__name__} holds {filled} transitions, which a run does not read, because it fills a "
            "replay of its own; allowed is an empty one, whose max_size counts"
        )
    return {"memory": "shared", "memory_size": -(-int(size) // max(1, members))}


def _set_settings(agent: OffPolicyAlgorithm[Any], settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        if name not in agent.config.__dataclass_fields__:
            raise ConfigurationError(f"{name}={value!r} is no setting of {agent.algo}; leave it out")
        setattr(agent, name, value)
    agent.check()


def _decay_steps(decay: float, start: float, end: float) -> float:
    """Return after how many factors `decay` a probability has fallen from `start` to `end`."""
    if not isinstance(decay, Real) or not 0 < decay < 1:
        raise ConfigurationError(f"eps_decay={decay!r}; allowed are numbers between 0 and 1, both excluded")
    return math.log(max(end, 1e-3) / max(start, 1e-3)) / math.log(decay) if start > end else 0.0
