"""The arguments of a run and its output paths, validated."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from numbers import Real
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from agilerl_like.errors import ConfigurationError, unknown_name
from agilerl_like.hpo import Selection
from agilerl_like.storage.run_names import BEST, POPULATION

Fitness = Literal["return", "rating"]
LogEvery = Literal["generation", "update"]
Opponents = Literal["self", "past", "population", "team", "scripted"]
OF_SCRIPTS = ("team", "scripted")
"""Opponents that a script passes, and no file can describe."""
INFO = "info."
"""Prefix of a fitness that is a mean over the infos of the episodes' last steps."""
MAX_HISTORY = 10_000
"""Most entries of a run's history."""


@dataclass(frozen=True)
class TrainingArguments:
    """How long a run trains, and how it evaluates.

    Steps are env steps of one member. A selection that removes members (`evolution="auto"`) gives theirs to the others.
    """

    max_steps: int = 1_000_000
    """Env steps of each member in the whole run, in addition to those that it has made before."""
    evo_steps: int = 10_000
    """Env steps of each member in one generation."""
    eval_loop: int = 5
    """Evaluation episodes of each member after a generation."""
    eval_steps: int | None = None
    """Maximum length of an evaluation episode; None: the env's own limit."""
    target: float | None = None
    """Stop when the best agent's fitness on fresh episodes reaches this."""
    fitness: str = "return"
    """What selection compares: the mean return; info.NAME: the mean of an entry of the environment's `info_keys`; or
    for teams whose groups play against each other a "rating" from games against the best teams of earlier generations;
    the first initial team has 1000."""
    checkpoint: int | None = None
    """Env steps of each member between checkpoints; None: ten in `max_steps`, at least five generations and the longest
    rollout of a member apart. At a checkpoint the envs are reset, and incomplete rollouts are discarded."""

    eval_share: float = 0.1
    """Members whose selection is in doubt play further evaluation episodes (gated selections), while a generation's
    evaluation takes no more than this share of its env steps; 0: none."""
    history: int = 10
    """How often the weights of all members are saved and kept, evenly over `max_steps`, besides the initial members; at
    the end of a generation, so a run of fewer generations has one for each. A run that another limit ends saves its
    last generation too. 0: never."""
    opponents: Opponents = "self"
    """Opponents of a team's sides in training: each other (self), the best of earlier generations (past), other members
    (population), a given team (team), or functions (scripted). See `training/opponents.py`."""

    max_updates: int | None = None
    """Updates of a member after which the run ends, at the end of a generation; None: no limit."""
    max_seconds: float | None = None
    """Seconds after which the run ends, at the end of a generation; None: no limit."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if isinstance(value := getattr(self, each.name), np.generic):  # such as a mean of scores; YAML has none
                object.__setattr__(self, each.name, value.item())
        for name in ("max_steps", "evo_steps", "eval_loop", "eval_steps", "checkpoint", "max_updates"):
            value, is_optional = getattr(self, name), getattr(type(self), name) is None
            if value is None and is_optional:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(f"{name}={value!r} must be a positive integer")
        if not isinstance(self.history, int) or isinstance(self.history, bool) or not 0 <= self.history <= MAX_HISTORY:
            raise ConfigurationError(f"history={self.history!r} must be an integer from 0 to {MAX_HISTORY}")
        is_info = isinstance(self.fitness, str) and self.fitness.startswith(INFO) and self.fitness != INFO
        if self.fitness not in get_args(Fitness) and not is_info:
            error = unknown_name("fitness", self.fitness, (*get_args(Fitness), "info.NAME"))
            raise ConfigurationError(
                f"{error} (rating: of multi-agent runs; info.NAME: the mean of an entry of info_keys, such as one "
                "that a wrapper puts into infos; for the worst case of several envs, aggregate='min' of an env with "
                "instances)"
            )
        if not isinstance(self.opponents, str):
            raise ConfigurationError(
                f"opponents={self.opponents!r:.100}; allowed is 'self', and in train_multi_agent_on_policy others"
            )
        if self.opponents not in get_args(Opponents):
            raise ConfigurationError(
                f"opponents={self.opponents!r} is unknown; allowed are 'self', 'past', 'population', a team and "
                "functions"
            )
        seconds = self.max_seconds
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and 0 < seconds < math.inf):
            raise ConfigurationError(f"max_seconds={seconds!r} must be positive and finite")
        if (
            isinstance(self.eval_share, bool)
            or not isinstance(self.eval_share, Real)
            or not 0 <= self.eval_share < math.inf
        ):
            raise ConfigurationError(f"eval_share={self.eval_share!r} must be finite and not negative")
        is_number = isinstance(self.target, Real) and not isinstance(self.target, bool)
        if self.target is not None and not (is_number and -math.inf < self.target < math.inf):
            raise ConfigurationError(f"target={self.target!r} must be a finite number")

    def checkpoint_every(self, rollout: int) -> int:
        """Return the env steps of each member between checkpoints; `rollout` is the longest of a member, in env steps.

        The default is not below that, since a member whose rollouts are always discarded would never learn.
        """
        return self.checkpoint or max(-(-self.max_steps // 10), 5 * self.evo_steps, rollout)

    def generations(self, num_envs: int) -> int:
        """Return the number of generations of the whole run; the last may be shorter."""
        return -(-self.vector_steps(num_envs) // (self.generation_steps(num_envs) // num_envs))

    def generation_steps(self, num_envs: int) -> int:
        """Return the env steps of each member in a generation of all members: whole steps of its envs."""
        return -(-self.evo_steps // num_envs) * num_envs

    def check_budget(self, selection: Selection, num_envs: int) -> None:
        """Raise ConfigurationError if the run has fewer generations than its selection needs."""
        generations = self.generations(num_envs)
        where = f"max_steps={self.max_steps} with evo_steps={self.evo_steps} gives {generations} generation"
        selection.check_budget(generations, where if generations == 1 else f"{where}s")

    def is_weights_entry_due(self, before: int, now: int, num_envs: int) -> bool:
        """Whether an entry of the history is due between two counts of vector steps."""
        total = max(1, self.vector_steps(num_envs))
        return before * self.history // total < now * self.history // total

    def vector_steps(self, num_envs: int) -> int:
        """Return the vector steps of the whole run."""
        return self.max_steps // num_envs


@dataclass(frozen=True)
class OutputPaths:
    """The files that a run writes; None: none. Paths are made absolute, because an env may change the directory."""

    run_dir: Path | None = None
    """metrics.csv, lineage.jsonl, `checkpoints/`, `history/`, the last population (`population/`) and the best agent
    (`best/`)."""
    checkpoint_path: Path | None = None
    """Folder in which populations are saved as well."""
    overwrite_checkpoints: bool = False
    """Keep only the newest population in `checkpoint_path`."""
    elite_path: Path | None = None
    """Folder in which the best agent of the run is saved as well."""
    overwrite: bool = False
    """Remove the files of an earlier run in `run_dir` first."""
    cwd: Path = field(default_factory=Path.cwd)
    """The working directory in which relative paths were given."""

    def __post_init__(self) -> None:
        for name in ("run_dir", "checkpoint_path", "elite_path"):
            path = getattr(self, name)
            if path is not None:
                object.__setattr__(self, name, self.cwd / path)

    @property
    def display_path(self) -> Path | None:
        """The path to show to the user."""
        return self._relative(self.run_dir or self.checkpoint_path or self.elite_path)

    def saved_to(self, steps: int) -> Path | None:
        """Return the path to show at the end: without a run's folder, that of the population after `steps`."""
        path = self.run_dir or (self.populations(steps, last=True) or [self.elite_path])[0]
        return self._relative(path)

    def _relative(self, path: Path | None) -> Path | None:
        return path.relative_to(self.cwd) if path and path.is_relative_to(self.cwd) else path

    def populations(self, steps: int, *, last: bool) -> list[Path]:
        """Return the folders of the population after `steps` env steps of each member."""
        paths = [self.run_dir / POPULATION] if self.run_dir is not None and last else []
        if self.checkpoint_path is not None:
            suffix = "" if self.overwrite_checkpoints else f"-{steps}"
            paths.append(self.checkpoint_path.with_name(self.checkpoint_path.name + suffix))
        return paths

    def best_agent_paths(self) -> list[Path]:
        """Return the folders of the best agent."""
        paths = [] if self.run_dir is None else [self.run_dir / BEST]
        return paths if self.elite_path is None else [*paths, self.elite_path]
