"""`Patience`: the end of a run that finds no better agent any more."""

from __future__ import annotations

from agilerl_like.errors import ConfigurationError, is_count
from agilerl_like.registry import registered
from agilerl_like.reporting.callback import Callback, RunContext
from agilerl_like.reporting.records import GenerationRecord


class Patience(Callback):
    """Stops a run whose best agent has not changed for some generations.

    An agent replaces the best one only if its fitness on fresh episodes is higher by more than the standard error, or
    is the first to reach the run's `target`. In YAML: `run: {callbacks: [{name: patience, generations: 10}]}`.

    Raises:
        ConfigurationError: `generations` is no whole number of at least 1.
    """

    def __init__(self, generations: int = 10) -> None:
        if not is_count(generations):
            raise ConfigurationError(f"generations={generations!r} of patience must be a whole number of at least 1")
        self.generations = int(generations)

    def on_generation(self, run: RunContext, record: GenerationRecord) -> None:
        if record.generation - record.best.generation >= self.generations:
            run.stop(f"no better agent for {self.generations} generations")


registered("callback", {"patience": Patience})
