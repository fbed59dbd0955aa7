"""`Run`: read-only access to the folder of a run, finished or not."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm, load_agent
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.config import Config, Draft, check_trust
from agilerl_like.config.run_config import config_class
from agilerl_like.errors import ConfigurationError, is_count
from agilerl_like.reporting.files import LINEAGE, METRICS, read_lineage, read_updates
from agilerl_like.reporting.records import OffspringRecord
from agilerl_like.reporting.run_history import BROKEN_OFF, CONFIG, RunHistory, read_history
from agilerl_like.storage import safe_folder
from agilerl_like.storage.checkpoint_folder import HISTORY, HISTORY_ENTRY
from agilerl_like.storage.run_lock import is_locked
from agilerl_like.storage.run_names import BEST, BEST_DOCUMENT, POPULATION
from agilerl_like.storage.validation import NonNegativeInt, validate_record
from agilerl_like.training.best_agent import BestAgent
from agilerl_like.training.checkpoint_manager import load_opponents, newest_checkpoint
from agilerl_like.training.evaluator import Opponent
from agilerl_like.training.lineage import Lineage
from agilerl_like.training.sharding import deserialize
from agilerl_like.training.training_arguments import OutputPaths

ENVIRONMENT_DEPENDS_ON = ("name", "critic_observation")
"""Settings of the algorithm without which its environment cannot be made."""


@dataclass(frozen=True)
class Moment:
    """When in its run an entry of the history was saved; the fields are keys of its document."""

    generation: NonNegativeInt
    env_steps: NonNegativeInt
    """Of each member."""
    max_steps: NonNegativeInt
    """The budget of each member at the beginning; what removed members had left of it went to the others."""
    members: NonNegativeInt = 1
    """Earlier versions did not write this number and the next two."""
    removed: NonNegativeInt = 0
    """Members that selection had removed from the population."""
    steps_of_removed: NonNegativeInt = 0
    """Their env steps."""


@dataclass(frozen=True)
class HistoryEntry:
    """The members of a run at one moment; they are loaded by `population`."""

    path: Path
    moment: Moment
    population_class: type[BasePopulation]

    @property
    def generation(self) -> int:
        """The generation after which it was saved; 0: the initial members."""
        return self.moment.generation

    @property
    def env_steps(self) -> int:
        """Env steps of each member before."""
        return self.moment.env_steps

    @property
    def share(self) -> float:
        """Env steps of all members, removed ones too, as a share of the budget at that time."""
        its = self.moment
        budget = its.max_steps * (its.members + its.removed)
        return (its.env_steps * its.members + its.steps_of_removed) / max(1, budget)

    def population(self) -> BasePopulation:
        """Load the members, which can act; the state of learning is not in the history."""
        return self.population_class.load(self.path)


class Run:
    """The folder of a run; nothing is written to it, and files are read on first access."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).absolute()
        """Where it is, whatever directory the process or an env of the run changes to."""
        self.display_path = Path(folder)
        """The path to show to the user."""
        if not any((self.folder / name).is_file() for name in (CONFIG, METRICS)):
            raise ConfigurationError(
                f"run={str(folder)!r} is no folder of a run, which has {CONFIG} and {METRICS}; allowed is a folder "
                "that `agilerl-like train` or train_on_policy(run_dir=…) has written"
            )

    @classmethod
    def open(cls, folder: Path | str) -> Run:
        """Open the folder of a run.

        Raises:
            ConfigurationError: it has no files of a run.
        """
        return cls(folder)

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.resolve().name

    @property
    def is_running(self) -> bool:
        """Whether a process is writing to the folder now."""
        return is_locked(self.folder)

    @cached_property
    def records(self) -> RunHistory:
        """Its records as reports use them; what is missing is in their `notes`."""
        return read_history(self.folder, is_running=self.is_running)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings in config.yaml, by section; not validated, because a script's may need its own classes."""
        return _draft(self.folder / CONFIG).data

    def validated_config(self, *, trust: bool = False) -> Config:
        """Return the validated configuration.

        With `trust`, import paths of environments, wrappers and `reward_transform` may belong to unknown packages.
        """
        config = _draft(self.folder / CONFIG).validate()
        if not trust:
            check_trust(config, self.folder / CONFIG)
        return config

    def env(self, num_envs: int = 1, *, trust: bool = False) -> Any:
        """Make the vector env of the run with `num_envs` copies; with `trust` as in `validated_config`.

        Raises:
            ConfigurationError: config.yaml does not name the environment, because a script made it by a local function.
        """
        return environment_config(self.folder / CONFIG, trust=trust).env_setup(num_envs=num_envs).env

    @property
    def eval_steps(self) -> int | None:
        """Steps after which evaluations of the run cut an episode; None: they do not."""
        return eval_steps_of(self.folder / CONFIG)

    @property
    def fitness_is_mean_return(self) -> bool:
        """Whether fitness is the mean return of episodes, and no rating, entry of infos or worst instance."""
        training, environment = (self.config.get(name) or {} for name in ("training", "environment"))
        return (training.get("fitness", "return"), environment.get("aggregate", "mean")) == ("return", "mean")

    @property
    def provenance(self) -> dict[str, Any]:
        """The content of run.json: command, date, versions, git state, machine, outcome; empty without the file."""
        return self.records.document

    def metrics(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.csv, one for each member and generation."""
        return self.records.rows

    def updates(self) -> list[dict[str, Any]]:
        """Return the rows of updates.csv, one for each member and update; ConfigurationError without the file."""
        return read_updates(self.folder)

    def lineage(self) -> tuple[OffspringRecord, ...]:
        """Return the records of lineage.jsonl, oldest first."""
        return read_lineage(self.folder)

    def generations(self) -> int:
        """Return the number of generations that have ended."""
        return int(self.metrics()[-1]["generation"])

    def members_in_generation(self, generation: int) -> list[dict[str, Any]]:
        """Return the rows of one generation, by slot.

        Raises:
            ConfigurationError: the run has no such generation.
        """
        found = [row for row in self.metrics() if row["generation"] == generation]
        if not found:
            raise ConfigurationError(f"generation={generation!r}; allowed are 1 to {self.generations()}")
        return found

    def ancestry(self) -> tuple[OffspringRecord, ...]:
        """Return the records that led to the best agent, oldest first, without unchanged survivors."""
        best = self.records.rows[self.records.best_row]
        lineage, uid = Lineage(), int(best["uid"])
        its_generation = best["generation"]  # a member that replaced a diverged one was born in it
        lineage.add([one for one in self.lineage() if not one.survives or one.generation < its_generation], [uid])
        return lineage.ancestry(uid)

    @property
    def num_changes(self) -> int:
        """How many records of the best agent's lineage after the first change hyperparameters or architecture."""
        return changes_in(self.ancestry())

    def best(self) -> EvolvableAlgorithm:
        """Load the best agent."""
        return load_agent(self.folder / BEST)

    @cached_property
    def saved_best(self) -> BestAgent | None:
        """The record and ancestry of `best()` where the run is running, was killed or broke off, from its checkpoint.

        metrics.csv and lineage.jsonl may then be of later generations, and of another best agent, than `best/`. None
        where they describe the agent: the run has ended, has no checkpoint, or has saved a later best agent in `best/`
        when an error ended it.

        Raises:
            CheckpointError: no checkpoint is intact, or `best/` is not.
        """
        if self.records.outcome not in ("running", "killed", BROKEN_OFF):
            return None
        checkpoint = newest_checkpoint(OutputPaths(self.folder), warnings.warn)
        if checkpoint is None:
            return None
        documents, _ = safe_folder.read_folder(self.folder / BEST, "agent")
        in_folder, in_checkpoint = documents["agent"], checkpoint.documents[BEST_DOCUMENT]
        if json.dumps(in_folder) != json.dumps(in_checkpoint):  # as text, because nan != nan
            return None
        return BestAgent.from_json(checkpoint.documents["run"]["best"], None)

    @property
    def _population_class(self) -> type[BasePopulation]:
        algorithm = self.config.get("algorithm", {}).get("name", "PPO")
        return config_class(algorithm).env_setup_class.population

    def population(self) -> BasePopulation:
        """Load the members of the last generation, which a run saves at its end."""
        return self._population_class.load(self.folder / POPULATION)

    def history(self) -> tuple[HistoryEntry, ...]:
        """Return the entries of the history, oldest first; the first are the initial members.

        Raises:
            ConfigurationError: the run has no history.
            CheckpointError: an entry is damaged.
        """
        folder = self.folder / HISTORY
        found = [path for path in folder.iterdir() if HISTORY_ENTRY.fullmatch(path.name)] if folder.is_dir() else []
        paths = sorted(filter(safe_folder.is_real_folder, found))
        if not paths:
            reason = "it is running and has not begun" if self.is_running else "an older version wrote it"
            raise ConfigurationError(
                f"run={str(self.display_path)!r} has no {HISTORY}: {reason}, or training.history is 0; allowed is a "
                "run of training.history of at least 1"
            )
        return tuple(HistoryEntry(path, _moment_of(path), self._population_class) for path in paths)

    def opponent_pool(self) -> tuple[Opponent, ...]:
        """Load the best agents of earlier generations, which members were rated or trained against, with their ratings.

        The first is the untrained first member; the best of the last generation is not among them. One fit to all games
        between them gives the ratings, so these compare, while each generation's fitness was measured against the
        opponents of its time, and is the highest of several uncertain ratings. With another fitness than "rating" they
        have played no such games, and their ratings are nan; `rate_players` rates them.

        Raises:
            ConfigurationError: the run has no opponents, or no checkpoint.
            CheckpointError: no checkpoint is intact.
        """
        checkpoint = newest_checkpoint(OutputPaths(self.folder), warnings.warn)
        if checkpoint is None or not (agents := load_opponents(checkpoint)):
            raise ConfigurationError(
                f"run={str(self.display_path)!r} has no opponents of earlier generations: allowed is a run with "
                "fitness='rating' or opponents='past' that has written a checkpoint"
            )
        players = [deserialize(agent, torch.device("cpu"), None) for agent in agents]
        rated = checkpoint.documents["run"]["rivals"]
        pool = tuple(Opponent(player, *rating) for player, rating in zip(players, rated, strict=True))
        fitness = (self.config.get("training") or {}).get("fitness", "return")
        if fitness != "rating" and not any(opponent.games for opponent in pool):
            return tuple(opponent._replace(rating=math.nan) for opponent in pool)
        return pool

    def __repr__(self) -> str:
        state = " (running)" if self.is_running else ""
        return f"Run({str(self.display_path)!r}){state}"


def changes_in(ancestry: Sequence[OffspringRecord]) -> int:
    """Return how many records of a lineage after the first change hyperparameters or architecture."""
    kinds = {"rl_hp", "architecture", "activation"}
    return sum(any(change["kind"] in kinds for change in birth.mutations) for birth in ancestry[1:])


def environment_config(file: Path, *, trust: bool = False) -> Config:
    """Return the section `environment` of a run's file, and of `algorithm` what it depends on.

    Other settings may need names of the run's script.

    Raises:
        ConfigurationError: there is no environment.id, because the run's script made its env by a local function; or
            it belongs to an unknown package, and `trust` is false.
    """
    draft = _draft(file)
    environment = draft.data.get("environment")
    if not isinstance(environment, dict) or "id" not in environment:
        raise ConfigurationError(
            f"env is missing: {file} names no environment.id, because the run's script made its environment by a "
            "function that no import path leads to; allowed is --env ID, or an import path (package.module:function), "
            "and in Python make_vect_envs(…) in place of this env"
        )
    algorithm = draft.data.get("algorithm", {})
    if isinstance(algorithm, dict):  # other settings may be valid with the ranges of hyperparameters alone
        algorithm = {name: its for name, its in algorithm.items() if name in ENVIRONMENT_DEPENDS_ON}
    config = replace(draft, data={"environment": environment, "algorithm": algorithm}).validate()
    if not trust:
        check_trust(config, file)
    return config


def eval_steps_of(file: Path) -> int | None:
    """Return `training.eval_steps` of a run's file, without which episodes of an env without an end would not end.

    Raises:
        ConfigurationError: it is not a whole number of at least 1.
    """
    training = _draft(file).data.get("training")
    steps = training.get("eval_steps") if isinstance(training, dict) else None
    if steps is not None and not is_count(steps):
        raise ConfigurationError(f"training.eval_steps={steps!r} in {file}; allowed are whole numbers of at least 1")
    return steps


def _draft(file: Path) -> Draft:
    return Draft.read(file, follow_links=False)


def _moment_of(path: Path) -> Moment:
    documents, _ = safe_folder.read_folder(path, "population")
    return validate_record(Moment, documents.get(HISTORY), f"path={str(path / f'{HISTORY}.json')!r}")


def load_history(run: Run | Path | str) -> Iterator[BasePopulation]:
    """Return the populations of a run's history, oldest first, each loaded when it is reached.

    Raises:
        ConfigurationError: the run has no history.
    """
    entries = (run if isinstance(run, Run) else Run.open(run)).history()
    return (entry.population() for entry in entries)


def find_runs(folder: Path | str) -> Iterable[Run]:
    """Yield the runs in a folder and below it, by path; folders inside of a run are not searched.

    Raises:
        ConfigurationError: the folder does not exist.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigurationError(f"folder={str(folder)!r} does not exist; allowed is a folder with runs in it")
    if (folder / METRICS).is_file() or ((folder / CONFIG).is_file() and (folder / LINEAGE).is_file()):
        yield Run(folder)
        return
    for inner in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        yield from find_runs(inner)
