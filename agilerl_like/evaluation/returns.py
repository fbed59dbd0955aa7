"""`evaluate`: the returns of agents on fresh episodes, all on the same seeds."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np

from agilerl_like.algorithms.evaluation import Episodes
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.envs.distinct_envs import num_episodes
from agilerl_like.errors import ConfigurationError, check_argument_names, is_count
from agilerl_like.evaluation.eval_envs import EvaluationEnv, evaluation_env_of
from agilerl_like.evaluation.policies import play
from agilerl_like.networks.sampling import Sampling
from agilerl_like.seeding import Purpose, fresh_seed, integers

EVALUATION_ENVS = 32
"""Most rows of an evaluation."""


@check_argument_names
def evaluate(
    agents: EvolvableAlgorithm | Iterable[EvolvableAlgorithm],
    env: EvaluationEnv,
    episodes: int = 100,
    seed: int | None = None,
    sampling: str | Sampling = "greedy",
    *,
    max_steps: int | None = None,
) -> Episodes:
    """Return P agents' results in `episodes` fresh episodes each, on the same seeds, which `seed` names.

    Of an env with instances, there are so many episodes on each of them: number i of K on instance i modulo I. Of a
    vector env whose rows differ, `episodes` is rounded up so that every kind of row plays equally many.
    The result has `returns` and `lengths` `[P, K]`, `mean` and `std` `[P]`, `infos` `[P, K]`: the info of each
    episode's last step, and `seeds` `[P, K]`, with which an episode can be repeated: `env.reset(seed=…)` begins it.
    `sampling` is "greedy", "sample", "temperature(t)", "top_k(k)" or "bottom_k(k)" (see `Sampling`). `env` is an
    env's id, a factory or an env; an env that can be made again is copied without its training wrappers, another
    one is reset and used itself. `max_steps` truncates longer episodes.

    Raises:
        ConfigurationError: `episodes` or `max_steps` is below 1, `seed` is below 0, `sampling` is unknown or does not
            suit the actions, or an agent was made for other spaces.
    """
    players, sampling = agents_of(agents), Sampling.parse(sampling)
    episodes = count_of("episodes", episodes)
    max_steps = None if max_steps is None else count_of("max_steps", max_steps)
    seed = seed_of(seed)
    with evaluation_env_of(env, min(episodes, EVALUATION_ENVS), players[0]) as adapter:
        count = num_episodes(episodes, adapter.env, adapter.num_envs)
        seeds = integers(count, seed, Purpose.CONFIRMATION_ENVS)
        played = [play(agent, adapter, seeds, sampling, max_steps=max_steps) for agent in players]
    returns, lengths, lost, infos, played_seeds = (
        np.concatenate(columns) for columns in zip(*((*one[:4], one.seeds) for one in played), strict=True)
    )
    names = played[0].returns_by_agent
    by_agent = {name: np.concatenate([one.returns_by_agent[name] for one in played]) for name in names}
    return Episodes(returns, lengths, lost, infos, by_agent, played_seeds)


def count_of(name: str, value: Any) -> int:
    """Return an argument that is a whole number from 1; ConfigurationError if it is something else."""
    if not is_count(value):
        raise ConfigurationError(f"{name}={value!r:.100} must be at least 1")
    return int(value)


def seed_of(seed: Any) -> int:
    """Return an argument `seed`, or a fresh one for None; ConfigurationError unless it is a whole number from 0."""
    if seed is None:
        return fresh_seed()
    if not isinstance(seed, Integral) or seed < 0:
        raise ConfigurationError(f"seed={seed!r:.100}; allowed are whole numbers from 0")
    return int(seed)


def agents_of(agents: EvolvableAlgorithm | Iterable[EvolvableAlgorithm]) -> list[EvolvableAlgorithm]:
    """Return one agent or several of equal spaces as a list; ConfigurationError if there is none."""
    found = [agents] if isinstance(agents, EvolvableAlgorithm) else list(agents) if isinstance(agents, Iterable) else []
    if not found or not all(isinstance(agent, EvolvableAlgorithm) for agent in found):
        raise ConfigurationError(f"agents={agents!r:.100}; allowed are an agent, a population, or a list of agents")
    first = found[0]
    for agent in found:
        if (agent.observation_space, agent.action_space) != (first.observation_space, first.action_space):
            raise ConfigurationError("all agents need the same observation_space and action_space")
    return found
