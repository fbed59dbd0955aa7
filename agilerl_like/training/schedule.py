"""What a run is asked to do and where it writes: plain, validated data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from agilerl_like.errors import ConfigurationError


@dataclass(frozen=True)
class Schedule:
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
    """Stop when the best member's mean return reaches this, on its evaluation and then on fresh episodes."""
    checkpoint: int | None = None
    """Env steps of each member between checkpoints; None: only at the end."""

    def __post_init__(self) -> None:
        for name in ("max_steps", "evo_steps", "eval_loop", "eval_steps", "checkpoint"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigurationError(f"{name}={value!r} must be a positive integer")
        if self.target is not None and not math.isfinite(self.target):
            raise ConfigurationError(f"target={self.target!r} must be a finite number")


@dataclass(frozen=True)
class Places:
    """Where a run writes; None: not at all."""

    run_dir: Path | None = None
    """metrics.csv, lineage.jsonl, the last population (`population/`) and the best agent ever (`best/`)."""
    checkpoint_path: Path | None = None
    """Where populations are saved besides."""
    overwrite_checkpoints: bool = False
    """Keep only the newest of those."""
    elite_path: Path | None = None
    """Where the best agent ever is saved besides."""

    @property
    def shown(self) -> Path | None:
        """The one place that a person is told of."""
        return self.run_dir or self.checkpoint_path or self.elite_path

    def populations(self, steps: int) -> list[Path]:
        """Where the population is written after so many env steps of each member."""
        paths = [] if self.run_dir is None else [self.run_dir / "population"]
        if self.checkpoint_path is not None:
            suffix = "" if self.overwrite_checkpoints else f"-{steps}"
            paths.append(self.checkpoint_path.with_name(self.checkpoint_path.name + suffix))
        return paths

    def champions(self) -> list[Path]:
        """Where the best agent ever is written."""
        paths = [] if self.run_dir is None else [self.run_dir / "best"]
        return paths if self.elite_path is None else [*paths, self.elite_path]
