"""`agilerl-like eval`: run fresh episodes with a saved agent."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
from tyro.conf import FlagCreatePairsOff, Positional

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm, class_by_name
from agilerl_like.algorithms.ippo import IPPO
from agilerl_like.algorithms.serialization import read_agent
from agilerl_like.cli.output import checked_seed, write_line
from agilerl_like.cli.train import CONFIG
from agilerl_like.config import Config, Draft, check_trust
from agilerl_like.errors import ConfigurationError, ExitCode
from agilerl_like.resources import check_memory
from agilerl_like.seeding import Purpose, fresh_seed, integers

EVALUATION_ENVS = 32
EPISODE = 64
"""Least memory of an episode in bytes: seed, return and length, and their copies."""


def evaluate(
    run: Positional[Path],
    /,
    episodes: int = 100,
    seed: int | None = None,
    env: str = "",
    trust: FlagCreatePairsOff[bool] = False,
) -> int:
    """Run fresh episodes with the best agent of a run, without exploration.

    The return of a multi-agent episode is the sum over its agents; the returns of each agent are printed below it.

    Args:
        run: Folder of a run or of a saved agent.
        episodes: Number of episodes.
        seed: Seed of the episodes; none: a random one.
        env: Another env than the run's, as in `environment.id`.
        trust: Import the `environment.id` and `wrappers` of the run although they belong to no known package.
    """
    if episodes < 1:
        raise ConfigurationError(f"episodes={episodes!r} must be at least 1")
    check_memory(f"episodes={episodes}", episodes, EPISODE, "episodes")
    seed = fresh_seed() if seed is None else checked_seed(seed)
    agent = saved_agent(run)
    config = _config_of(run, env, agent.algo, trust=trust)
    env_setup = config.env_setup(num_envs=1)
    with contextlib.closing(env_setup.env):
        spaces = tuple(map(_as_one, env_setup.spaces))
        if spaces != (agent.observation_space, agent.action_space):
            raise ConfigurationError(
                f"env={config.environment.id!r} has {spaces[0]} and {spaces[1]}; "
                f"the agent was made for {agent.observation_space} and {agent.action_space}"
            )
        with contextlib.closing(env_setup.make_eval_env(min(episodes, EVALUATION_ENVS))) as eval_setup:
            env_and_seeds = env_setup.adapt(eval_setup), integers(episodes, seed, Purpose.CONFIRMATION_ENVS)
            played = agent.run_episodes(*env_and_seeds)
    scores = played.returns[0]
    write_line(
        f"mean return {scores.mean():.2f} ± {scores.std():.2f} over {episodes} episodes "
        f"(from {scores.min():.2f} to {scores.max():.2f}, {played.lengths.mean():.0f} steps on average, seed {seed})"
    )
    if isinstance(agent, IPPO):
        write_line(", ".join(f"{name}: {returns.mean():.2f}" for name, returns in played.returns_by_agent.items()))
    return ExitCode.DONE


def saved_agent(path: Path) -> EvolvableAlgorithm:
    """Load an agent of the class that its file names."""
    document, _ = read_agent(path)
    algorithm = document.get("algorithm") if isinstance(document, dict) else None
    return class_by_name(algorithm, str(path)).load(path)


def _as_one(space: Any) -> gymnasium.Space:
    """A space, or the dictionary of a multi-agent env's spaces as one."""
    return gymnasium.spaces.Dict(space) if isinstance(space, dict) else space


def _config_of(run: Path, env: str, algorithm: str, *, trust: bool) -> Config:
    """The configuration of a run, or of another env if one is given."""
    if env:
        return Draft({"environment": {"id": env}, "algorithm": {"name": algorithm}}).validate()
    for folder in (run, run.parent):
        if (folder / CONFIG).is_file():
            config = _environment_in(folder / CONFIG)
            if not trust:
                check_trust(config, folder / CONFIG)
            return config
    raise ConfigurationError(f"env is missing: {run} has no {CONFIG} that names it; allowed is --env ID")


def _environment_in(file: Path) -> Config:
    """The sections `environment` and `algorithm` of a run's file; others may need the script that registered names.

    Raises:
        ConfigurationError: there is no environment.id, because the run's script made its env by a local function.
    """
    draft = Draft.read(file)
    environment = draft.data.get("environment")
    if not isinstance(environment, dict) or "id" not in environment:
        raise ConfigurationError(
            f"env is missing: {file} names no environment.id, because the run's script made its environment by a "
            "function that no import path leads to; allowed is --env ID, or an import path (package.module:function)"
        )
    sections = {name: section for name, section in draft.data.items() if name in ("environment", "algorithm")}
    return replace(draft, data=sections).validate()
