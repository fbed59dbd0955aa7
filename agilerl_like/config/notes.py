"""Notes on settings that are legal, but probably not what was meant."""

from __future__ import annotations

from collections.abc import Iterator

from agilerl_like.config.run_config import Config
from agilerl_like.config.schema import SelectionConfig
from agilerl_like.hpo import Choice


def config_notes(config: Config) -> Iterator[str]:
    """Yield a note for each setting that is legal, but probably not what was meant."""
    unused = [name for name, its in config.selection if its != getattr(SelectionConfig(), name, None)]
    if config.mutation is None and unused:
        yield f"mutation: null switches evolution off, so selection.{unused[0]} has no effect"
    if config.environment.aggregate != "mean" and not config.environment.instances:
        yield f"environment.aggregate: {config.environment.aggregate} has no effect without environment.instances"
    yield from _range_notes(config)


def _range_notes(config: Config) -> Iterator[str]:
    """Yield a note for each range that is a choice of two numbers."""
    for name, its in ((name, its.parameter) for name, its in config.hyperparameters.items()):
        if isinstance(its, Choice) and its.is_numeric and len(its.values) == 2:
            low, high = sorted(its.values)
            yield (
                f"hyperparameters.{name}={list(its.values)} is a choice of two values; a range between them is "
                f"{{min: {low}, max: {high}}}"
            )
