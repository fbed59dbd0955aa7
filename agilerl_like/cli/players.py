"""The agents of a run that a command plays with, and the configuration of their environment."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm, load_agent
from agilerl_like.cli.output import write_note
from agilerl_like.config import Config, Draft
from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.evaluation.trajectories import UNKNOWN
from agilerl_like.reporting.files import METRICS
from agilerl_like.reporting.run_history import CONFIG
from agilerl_like.saved_runs import Run
from agilerl_like.saved_runs.run import environment_config
from agilerl_like.storage.checkpoint_folder import CHECKPOINTS, FOLDER, read_checkpoint
from agilerl_like.storage.run_lock import is_locked
from agilerl_like.storage.run_names import BEST, POPULATION
from agilerl_like.training.best_agent import BestAgent


class Player(NamedTuple):
    """An agent with its place in the run."""

    agent: EvolvableAlgorithm
    generation: int = UNKNOWN
    """The generation after which this agent was saved; of the best agent of a checkpoint: in which it was found."""
    share: float = 1.0
    """The share of the run's budget that had been used when it was saved."""


def players_of(
    run: Path, *, checkpoint: int | None = None, history: bool = False, population: bool = False
) -> list[Player]:
    """Return the best agent of a run, of a checkpoint, or a saved agent; of the history the fittest of each entry.

    With `population` all members are returned: of the last generation, or of each entry. Of the initial members, which
    have not been evaluated, the first counts as the fittest.

    Raises:
        ConfigurationError: two of these exclude each other; or the run has no such checkpoint or history.
        CheckpointError: what is needed is missing, because the run is still running or was killed; or is damaged.
    """
    if checkpoint is not None and (history or population):
        other = "history" if history else "all members"
        raise ConfigurationError(f"checkpoint={checkpoint!r} and {other} exclude each other; pass one of them")
    is_running = is_locked(run)
    if is_running:
        write_note(f"{run} is still running: this is what it has saved so far")
    if not history and checkpoint is None:
        _check_saved(run, POPULATION if population else BEST, is_running=is_running)
    if history:
        return [
            Player(agent, entry.generation, entry.share)
            for entry in Run.open(run).history()
            for members in [entry.population()]
            for agent in (members if population else [members.fittest])
        ]
    if population:
        opened = Run.open(run)
        return [Player(agent, opened.generations()) for agent in opened.population()]
    if checkpoint is not None:
        return [_best_of_checkpoint(checkpoint_of(run, checkpoint))]
    return [Player(load_agent(run))]


def _best_of_checkpoint(path: Path) -> Player:
    """Return a checkpoint's best agent, which an earlier generation may have found."""
    document = read_checkpoint(path).documents.get("run")
    best = document.get("best") if isinstance(document, dict) else None
    return Player(load_agent(path), BestAgent.from_json(best, None, f"path={str(path)!r}: run.best").record.generation)


def _check_saved(run: Path, name: str, *, is_running: bool) -> None:
    """Raise CheckpointError if a run's folder does not have what a run saves under a name."""
    is_run = (run / CONFIG).is_file() and (run / METRICS).is_file()
    if not is_run or (run / name).exists() or any(run.glob(f".{name}.old-*")):
        return
    when = "with its first checkpoint" if name == BEST else "at its end"
    state = "the run is still running" if is_running else "the run broke off before"
    raise CheckpointError(f"path={str(run)!r} has no {name}, which a run saves {when}: {state}; allowed is --history")


def best_generation(run: Path) -> int:
    """Return the generation of a run's saved best agent; -1 of a folder without readable metrics or checkpoints."""
    try:
        opened = Run.open(run)
        records, saved = opened.records, opened.saved_best
    except (CheckpointError, ConfigurationError):
        return UNKNOWN
    if saved is not None:
        return saved.record.generation
    return int(records.rows[records.best_row]["generation"])


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


def config_of(run: Path, env: str, agent: EvolvableAlgorithm, *, trust: bool) -> Config:
    """Return the configuration of a run, or of another env for the agent if one is given."""
    if env:
        environment = {"id": env, "num_envs": agent.num_envs}  # of which evolution strategies need several
        return Draft({"environment": environment, "algorithm": {"name": agent.algo}}).validate()
    file = config_file_of(run)
    if file is None:
        raise ConfigurationError(f"env is missing: {run} has no {CONFIG} that names it; allowed is --env ID")
    return environment_config(file, trust=trust)


def config_file_of(run: Path) -> Path | None:
    """Return config.yaml of a run's folder, or of an agent's in it; None without one.

    That of a folder which is no run belongs to something else, unless the agent is the best one of a Hub's folder.
    """
    is_in_run = run.name == BEST or (run.parent / METRICS).is_file()
    files = (folder / CONFIG for folder in ((run, run.parent) if is_in_run else (run,)))
    return next((file for file in files if file.is_file()), None)
