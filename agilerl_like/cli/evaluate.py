"""`agilerl-like eval`: run fresh episodes with a saved agent."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from tyro.conf import FlagCreatePairsOff, Positional

from agilerl_like.algorithms.evaluation import Episodes
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm, class_by_name
from agilerl_like.algorithms.ippo import IPPO
from agilerl_like.algorithms.serialization import read_agent
from agilerl_like.cli.output import checked_seed, write_line
from agilerl_like.cli.train import CONFIG
from agilerl_like.config import Config, Draft, check_trust
from agilerl_like.errors import ConfigurationError, ExitCode
from agilerl_like.evaluation.eval_envs import check_spaces
from agilerl_like.evaluation.returns import evaluate as evaluate_agents
from agilerl_like.networks.sampling import Sampling
from agilerl_like.resources import check_memory
from agilerl_like.saved_runs import Run
from agilerl_like.seeding import fresh_seed
from agilerl_like.storage.checkpoint_folder import FOLDER
from agilerl_like.training.run_folder import CHECKPOINTS

EPISODE = 64
"""Least memory of an episode in bytes: seed, return and length, and their copies."""


def evaluate(
    run: Positional[Path],
    /,
    episodes: int = 100,
    seed: int | None = None,
    env: str = "",
    sampling: str = "greedy",
    checkpoint: int | None = None,
    history: FlagCreatePairsOff[bool] = False,
    trust: FlagCreatePairsOff[bool] = False,
) -> int:
    """Run fresh episodes with the best agent of a run.

    The return of a multi-agent episode is the sum over its agents; the returns of each agent are printed below it.

    Args:
        run: Folder of a run or of a saved agent.
        episodes: Number of episodes.
        seed: Seed of the episodes; none: a random one.
        env: Another env than the run's, as in `environment.id`.
        sampling: How actions are drawn: greedy (no exploration), sample (the policy), temperature(t), top_k(k) or
            bottom_k(k), the policy among the k most or least likely actions.
        checkpoint: Evaluate the best agent of the checkpoint of this generation.
        history: Evaluate the fittest member of each entry of the run's history; of the initial members the first.
        trust: Import the `environment.id` and `wrappers` of the run although they belong to no known package.
    """
    if episodes < 1:
        raise ConfigurationError(f"episodes={episodes!r} must be at least 1")
    check_memory(f"episodes={episodes}", episodes, EPISODE, "episodes")
    rule = Sampling.parse(sampling)
    seed = fresh_seed() if seed is None else checked_seed(seed)
    if history:
        if checkpoint is not None:
            raise ConfigurationError(f"checkpoint={checkpoint!r} and history exclude each other; pass one of them")
        players = {
            f"{entry.share:>4.0%}  generation {entry.generation:>4}  member {{}}  ": entry.population().fittest
            for entry in Run.open(run).history()
        }
    else:
        players = {"": saved_agent(run if checkpoint is None else checkpoint_of(run, checkpoint))}
    agent = next(iter(players.values()))
    config = _config_of(run, env, agent.algo, trust=trust)
    env_setup = config.env_setup(num_envs=1)
    with contextlib.closing(env_setup.env):
        check_spaces(env_setup, agent, name=config.environment.id)
        for label, player in players.items():
            played = evaluate_agents(player, env_setup, episodes, seed, rule)
            _write_result(label.format(player.index), played, episodes, seed)
            if isinstance(agent, IPPO):
                write_line(", ".join(f"{name}: {its.mean():.2f}" for name, its in played.returns_by_agent.items()))
    return ExitCode.DONE


def _write_result(label: str, played: Episodes, episodes: int, seed: int) -> None:
    scores = played.returns[0]
    write_line(
        f"{label}mean return {scores.mean():.2f} ± {scores.std():.2f} over {episodes} episodes "
        f"(from {scores.min():.2f} to {scores.max():.2f}, {played.lengths.mean():.0f} steps on average, seed {seed})"
    )


def checkpoint_of(run: Path, generation: int) -> Path:
    """Return the folder of a run's checkpoint.

    Raises:
        ConfigurationError: the run has no checkpoint of this generation.
    """
    path = run / CHECKPOINTS / f"gen-{generation:06d}"
    if not path.is_dir():
        found = sorted(its.name for its in (run / CHECKPOINTS).glob("gen-*") if FOLDER.fullmatch(its.name))
        there = ", ".join(str(int(name.removeprefix("gen-"))) for name in found) or "none: the run has no checkpoint"
        raise ConfigurationError(f"checkpoint={generation!r} is not in {run}; allowed are {there}")
    return path


def saved_agent(path: Path) -> EvolvableAlgorithm:
    """Load an agent of the class that its file names."""
    document, _ = read_agent(path)
    algorithm = document.get("algorithm") if isinstance(document, dict) else None
    return class_by_name(algorithm, str(path)).load(path)


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
