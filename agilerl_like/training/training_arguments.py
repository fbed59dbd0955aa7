"""What a run is asked to do and where it writes: plain, validated data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from agilerl_like.errors import ConfigurationError, unknown_name

Fitness = Literal["return", "rating"]


@dataclass(frozen=True)
class TrainingArguments:
    """How long a run trains, and when it looks. Steps are env steps of one member."""

    max_steps: int = 1_000_000
    """Env steps of each member in the whole run."""
    evo_steps: int = 10_000
    """Env steps of each member between evaluations, and so in one generation."""
    eval_loop: int = 5
    """Evaluation episodes of each member at the end of a generation."""
    eval_steps: int | None = None
    """Longest evaluation episode; None: as long as the env lets it."""
    target: float | None = None
    """Stop when the best agent's mean return on fresh episodes reaches this."""
    fitness: Fitness = "return"
    """What selection goes by: the mean return of a member's evaluation, or for teams whose groups play against each
    other a "rating" from games against those who were best before; 1000 is the first of the founders."""
    checkpoint: int | None = None
    """Env steps of each member between checkpoints; None: ten in a run, at least five generations apart. Where one is
    due envs begin anew, and what was collected since the last update is lost."""

    def __post_init__(self) -> None:
        for name in ("max_steps", "evo_steps", "eval_loop", "eval_steps", "checkpoint"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigurationError(f"{name}={value!r} must be a positive integer")
        if self.fitness not in get_args(Fitness):
            raise unknown_name("fitness", self.fitness, get_args(Fitness))
        if self.target is not None and not math.isfinite(self.target):
            raise ConfigurationError(f"target={self.target!r} must be a finite number")

    @property
    def checkpoint_every(self) -> int:
        """Env steps of each member between checkpoints."""
        return self.checkpoint or max(-(-self.max_steps // 10), 5 * self.evo_steps)

    def vector_steps(self, num_envs: int) -> int:
        """Steps of each env in the whole run, of so many for each member."""
        return self.max_steps // num_envs


@dataclass(frozen=True)
class OutputPaths:
    """Where a run writes; None: not at all. Paths are made absolute, for environments may change the working folder."""

    run_dir: Path | None = None
    """metrics.csv, lineage.jsonl, `checkpoints/`, the last population (`population/`) and the best agent (`best/`)."""
    checkpoint_path: Path | None = None
    """Where populations are saved besides."""
    overwrite_checkpoints: bool = False
    """Keep only the newest of those."""
    elite_path: Path | None = None
    """Where the best agent of the run is saved as well."""
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
        """The one place that a person is told of."""
        path = self.run_dir or self.checkpoint_path or self.elite_path
        return path.relative_to(self.cwd) if path and path.is_relative_to(self.cwd) else path

    def populations(self, steps: int, *, last: bool) -> list[Path]:
        """Where the population is written after so many env steps of each member."""
        paths = [self.run_dir / "population"] if self.run_dir is not None and last else []
        if self.checkpoint_path is not None:
            suffix = "" if self.overwrite_checkpoints else f"-{steps}"
            paths.append(self.checkpoint_path.with_name(self.checkpoint_path.name + suffix))
        return paths

    def best_agent_paths(self) -> list[Path]:
        """Where the best agent of the run is written."""
        paths = [] if self.run_dir is None else [self.run_dir / "best"]
        return paths if self.elite_path is None else [*paths, self.elite_path]
