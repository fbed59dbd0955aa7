"""Notes on settings that are legal, but probably not what was meant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from agilerl_like.algorithms.presets import preset_values
from agilerl_like.algorithms.settings import DEFAULT_PRESET
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
    yield from _preset_notes(config)
    yield from _range_notes(config)


def _preset_notes(config: Config) -> Iterator[str]:
    """Yield a note for a preset of which no value is among the settings, as over a file that has all settings."""
    section = config.algorithm
    preset = getattr(section, "preset", DEFAULT_PRESET)
    values = preset_values(preset, {}, algorithm=section.name)
    special = {its.name for its in fields(section) if its.name in values and values[its.name] != its.default}
    if special and all(getattr(section, name) != values[name] for name in special):
        yield f"algorithm.preset: {preset} has no effect, because each setting that it would fill in is given"


def _range_notes(config: Config) -> Iterator[str]:
    """Yield a note for each range that is a choice of two numbers."""
    for name, its in ((name, its.parameter) for name, its in config.hyperparameters.items()):
        if isinstance(its, Choice) and its.is_numeric and len(its.values) == 2:
            low, high = sorted(its.values)
            yield (
                f"hyperparameters.{name}={list(its.values)} is a choice of two values; a range between them is "
                f"{{min: {low}, max: {high}}}"
            )
