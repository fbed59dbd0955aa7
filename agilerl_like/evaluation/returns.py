"""`evaluate`: the returns of agents on fresh episodes, all on the same seeds."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from agilerl_like.algorithms.evaluation import Episodes
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.errors import ConfigurationError
from agilerl_like.evaluation.eval_envs import EvaluationEnv, evaluation_env_of
from agilerl_like.evaluation.policies import play
from agilerl_like.networks.sampling import Sampling
from agilerl_like.seeding import Purpose, fresh_seed, integers

EVALUATION_ENVS = 32
"""Most rows of an evaluation."""


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

    The result has `returns` and `lengths` `[P, K]`, `mean` and `std` `[P]`, and `infos` `[P, K]`: the info of each
    episode's last step. `sampling` is "greedy", "sample", "temperature(t)", "top_k(k)" or "bottom_k(k)" (see
    `Sampling`). `env` is an env's id or an env; an env that can be made again is copied without its training wrappers,
    another one is reset and used itself. `max_steps` truncates longer episodes.

    Raises:
        ConfigurationError: `episodes` is below 1, `sampling` is unknown or does not suit the actions, or an agent was
            made for other spaces.
    """
    players, sampling = agents_of(agents), Sampling.parse(sampling)
    if not isinstance(episodes, int) or episodes < 1:
        raise ConfigurationError(f"episodes={episodes!r} must be at least 1")
    seeds = integers(episodes, fresh_seed() if seed is None else seed, Purpose.CONFIRMATION_ENVS)
    with evaluation_env_of(env, min(episodes, EVALUATION_ENVS), players[0]) as adapter:
        played = [play(agent, adapter, seeds, sampling, max_steps=max_steps) for agent in players]
    returns, lengths, lost, infos = (
        np.concatenate(columns) for columns in zip(*(one[:4] for one in played), strict=True)
    )
    names = played[0].returns_by_agent
    by_agent = {name: np.concatenate([one.returns_by_agent[name] for one in played]) for name in names}
    return Episodes(returns, lengths, lost, infos, by_agent)


def agents_of(agents: EvolvableAlgorithm | Iterable[EvolvableAlgorithm]) -> list[EvolvableAlgorithm]:
    """Return one agent or several of equal spaces as a list; ConfigurationError if there is none."""
    found = [agents] if isinstance(agents, EvolvableAlgorithm) else list(agents)
    if not found or not all(isinstance(agent, EvolvableAlgorithm) for agent in found):
        raise ConfigurationError(f"agents={agents!r:.100}; allowed are an agent, a population, or a list of agents")
    first = found[0]
    for agent in found:
        if (agent.observation_space, agent.action_space) != (first.observation_space, first.action_space):
            raise ConfigurationError("all agents need the same observation_space and action_space")
    return found
