"""The summary of a run: how good its best agent is, what it is made of, how it came to be, where it was saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agilerl_like.reporting import formatting
from agilerl_like.reporting.records import NO_PARENT, OffspringRecord, SummaryRecord

_ANCESTORS = 12
_STYLES = {"target reached": "green", "interrupted": "yellow", "disk full": "red"}


def summary_facts(summary: SummaryRecord) -> dict[str, list[str]]:
    """Return the lines of the summary under their labels, without any markup."""
    best = summary.best
    values = [f"{name} {formatting.hyperparameter(value)}" for name, value in best.hyperparameters.items()]
    speed = summary.env_steps / summary.seconds if summary.seconds > 0 else math.nan
    facts = {
        "best fitness": [_fitness(summary)],
        "hyperparameters": [", ".join(values) or "-"],
        "architecture": [f"{best.architecture}  ({best.parameters:,} weights)"],
        "lineage": _lineage(summary.ancestry) or [f"member {best.uid} is a founder"],
        "steps": [
            f"{formatting.count(summary.env_steps)} of training, {formatting.count(summary.evaluation_steps)} of evaluation"
            f", {formatting.count(speed)} steps/s"
        ],
        "time": [" · ".join([formatting.duration(summary.seconds), *formatting.shares(summary.seconds_by_part)])],
    }
    if summary.saved_to is not None:
        facts["saved to"] = [str(summary.saved_to)]
    return {**facts, "to go on": [summary.resume]} if summary.resume else facts


def summary_panel(summary: SummaryRecord) -> RenderableType:
    """Return the summary in a frame whose colour and title say why the run ended."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, lines in summary_facts(summary).items():
        body = _lineage_grid(summary.ancestry) if label == "lineage" and summary.ancestry else Text("\n".join(lines))
        if label == "best fitness" and isinstance(body, Text):
            body.stylize("bold")
        grid.add_row(label, body)
    style = _STYLES.get(summary.reason, "cyan")
    return Panel(grid, title=Text(summary.reason, style="bold"), title_align="left", border_style=style, padding=(1, 2))


def _fitness(summary: SummaryRecord) -> str:
    best = summary.best
    mean, std = formatting.returns([best.fitness, best.fitness_std])
    text = mean or "nan"
    if best.episodes > 1:
        text += f" ± {std} over {best.episodes} {'fresh ' if best.is_confirmed else ''}episodes"
    return f"{text}  (member {best.uid}, generation {best.generation})"


class _Chapter(NamedTuple):
    """One line of the lineage: when, who, at which fitness of the parent, what changed."""

    when: str
    who: str
    fitness: str
    what: str


def _lineage(ancestry: Sequence[OffspringRecord]) -> list[str]:
    story = _story(ancestry)
    who, fitness = (max((len(getattr(line, part)) for line in story), default=0) for part in ("who", "fitness"))
    return [f"{line.when}  {line.who:<{who}}  {line.fitness:>{fitness}}  {line.what}" for line in story]


def _lineage_grid(ancestry: Sequence[OffspringRecord]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for line in _story(ancestry):
        grid.add_row(*line)
    return grid


def _story(ancestry: Sequence[OffspringRecord]) -> list[_Chapter]:
    fitness = formatting.returns([birth.parent_fitness for birth in ancestry])
    lines = [
        _Chapter(f"gen {birth.generation:>3}", _who(birth), f"at {text}" if text else "", _what(birth))
        for birth, text in zip(ancestry, fitness, strict=True)
    ]
    if len(lines) <= _ANCESTORS:
        return lines
    left_out = len(lines) - _ANCESTORS + 1
    return [lines[0], _Chapter("  …", "", "", f"{left_out} births more, in lineage.jsonl"), *lines[left_out + 1 :]]


def _who(birth: OffspringRecord) -> str:
    if birth.survives or birth.parent_uid == NO_PARENT:
        return str(birth.uid)
    return f"{birth.uid} ← {birth.parent_uid}"


def _what(birth: OffspringRecord) -> str:
    changes = "; ".join(filter(None, map(formatting.mutation, birth.mutations)))
    return changes or ("founder" if birth.parent_uid == NO_PARENT else "copied unchanged")
