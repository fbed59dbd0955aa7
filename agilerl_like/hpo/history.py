"""What a run has tried: one row per member and generation, for search methods that learn from earlier results.

PB2 (Parker-Holder et al. 2020), for example, fits a model of the gain in fitness to such rows. Every process of a run
holds the same rows, and a checkpoint stores them, so a resumed search continues as if it had not been interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Annotated, Any

from pydantic import Field

from agilerl_like.errors import CheckpointError, short_repr
from agilerl_like.storage.validation import (
    HyperparameterValue,
    NonNegativeInt,
    Score,
    Text,
    validate_record,
)

MAX_TRIALS, KEPT_GENERATIONS = 1024, 8
"""Rows that are kept: this number, and those of so many generations where these are more."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One member during one generation: what it trained with, and its fitness before and after."""

    generation: NonNegativeInt
    uid: NonNegativeInt
    parent_uid: Annotated[int, Field(strict=True, ge=-1, lt=2**63)]
    """The member that this one was cloned from; -1 for an initial or fresh member."""
    hyperparameters: Mapping[str, HyperparameterValue]
    """Values of the hyperparameters that have a range or a choice."""
    architecture: Text
    mutation: Text
    """Label of the last mutation, "None" without one."""
    fitness_before: Score
    """Fitness of the weights that the generation started from; nan in the first generation."""
    fitness: Score
    """Fitness at the end of this generation; nan if the member diverged, or has not been trained yet."""
    env_steps: NonNegativeInt
    """Env steps in this generation."""
    operators: Text = ""
    """Kinds and operators of the mutations that this generation started with: "rl_hp.gaussian, architecture.add_node";
    "" for a member that was not changed."""
    standard_error: Score = math.nan
    """Standard error of `fitness`; nan if it is not known, as with a single episode."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        return asdict(self) | {"hyperparameters": dict(self.hyperparameters)}


@dataclass(frozen=True)
class History:
    """All trials of a run, oldest first, and those that are about to start."""

    trials: tuple[Trial, ...] = ()
    pending: tuple[Trial, ...] = ()
    """Proposals made earlier in the same generation, whose fitness is not known yet."""

    def extended(self, trials: Iterable[Trial]) -> History:
        """Return the history with a generation's trials added, and none pending."""
        found = History((*self.trials, *trials))
        return History(found.trials[-found.most_trials :])

    def with_pending(self, trial: Trial) -> History:
        """Return the history with one more proposal pending."""
        return replace(self, pending=(*self.pending, trial))

    def of(self, uid: int) -> tuple[Trial, ...]:
        """Return one member's trials, oldest first."""
        return tuple(trial for trial in self.trials if trial.uid == uid)

    def parent_of(self, uid: int) -> int:
        """Return the uid of a member's parent; -1 for an initial or fresh member."""
        return next((trial.parent_uid for trial in reversed(self.trials) if trial.uid == uid), -1)

    @property
    def population_size(self) -> int:
        """The number of members in the last generation; 0 without trials."""
        newest = takewhile(lambda trial: trial.generation == self.trials[-1].generation, reversed(self.trials))
        return sum(1 for _ in newest)

    @property
    def most_trials(self) -> int:
        """Number of trials beyond which the oldest are dropped."""
        return max(MAX_TRIALS, KEPT_GENERATIONS * self.population_size)

    @property
    def first_known_start(self) -> int:
        """The first generation in which a member without earlier rows has begun; before, they may have been dropped."""
        if not self.trials or (self.trials[0].generation <= 1 and len(self.trials) < self.most_trials):
            return 0
        return self.trials[0].generation + 2  # rows of the oldest generation may be missing

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain data that `from_json` reads; pending trials are left out."""
        return [trial.to_json() for trial in self.trials]

    @classmethod
    def from_json(cls, data: Any, where: str = "history") -> History:
        """Read what `to_json` wrote; raise `CheckpointError` if it is of another form."""
        if not isinstance(data, list):
            raise CheckpointError(f"{where}={short_repr(data)}; allowed is a list of trials")
        return cls(tuple(validate_record(Trial, trial, f"{where}.{number}") for number, trial in enumerate(data)))
