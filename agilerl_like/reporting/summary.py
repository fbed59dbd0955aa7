"""The summary at the end of a run: fitness, genome, lineage and path of the best agent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from agilerl_like.reporting import formatting
from agilerl_like.reporting.records import NO_PARENT, OffspringRecord, SummaryRecord

_ANCESTORS = 12
_STYLES = {"target reached": "green", "interrupted": "yellow", "disk full": "red"}


def summary_facts(summary: SummaryRecord, unconfirmed: str = "") -> dict[str, list[str]]:
    """Return the lines of the summary by label, without markup; `unconfirmed` is a note on the best fitness."""
    best = summary.best
    values = [f"{name} {formatting.hyperparameter(value)}" for name, value in best.hyperparameters.items()]
    scheduled = formatting.scheduled(best.hyperparameters, best.losses)
    note = f"by a schedule, in generation {best.generation}: {scheduled}"
    speed = summary.env_steps / summary.seconds if summary.seconds > 0 else math.nan
    facts = {
        "best fitness": [_fitness(summary), *([f"({unconfirmed})"] if unconfirmed else [])],
        **({"hyperparameters": [", ".join(values), *([note] if scheduled else [])]} if values else {}),
        "architecture": [f"{best.architecture}  ({best.parameters:,} weights)"],
        "lineage": _lineage(summary.ancestry) or [f"member {best.uid} is an initial member"],
        "steps": [
            f"{formatting.count(summary.env_steps)} of training, "
            f"{formatting.count(summary.evaluation_steps)} of evaluation, {formatting.count(speed)} steps/s"
        ],
        "time": [" · ".join([formatting.duration(summary.seconds), *formatting.shares(summary.seconds_by_part)])],
    }
    if summary.saved_to is not None:
        facts["saved to"] = [str(summary.saved_to)]
    return {**facts, "to resume": [summary.resume]} if summary.resume else facts


def summary_panel(summary: SummaryRecord, unconfirmed: str = "") -> RenderableType:
    """Return the summary in a frame; colour and title show why the run ended."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, lines in summary_facts(summary, unconfirmed).items():
        body = _lineage_grid(summary.ancestry) if label == "lineage" and summary.ancestry else Text("\n".join(lines))
        if label == "best fitness" and isinstance(body, Text):
            body.stylize("bold")
        grid.add_row(label, body)
    style = _STYLES.get(summary.reason, "cyan")
    return Panel(
        grid,
        title=Text(formatting.outcome(summary.reason), style="bold"),
        title_align="left",
        border_style=style,
        padding=(1, 2),
    )


def _fitness(summary: SummaryRecord) -> str:
    best = summary.best
    text = formatting.with_named_error(best.fitness, best.standard_error)
    if best.episodes > 1:
        text += f" over {best.episodes} {'fresh ' if best.is_confirmed else ''}episodes"
    return f"{text}  (member {best.uid}, generation {best.generation})"


class _LineageRow(NamedTuple):
    """One ancestor of the best agent: generation, uid, fitness of the parent, changes."""

    generation: str
    uid: str
    fitness: str
    changes: str


def _lineage(ancestry: Sequence[OffspringRecord]) -> list[str]:
    rows = _lineage_rows(ancestry)
    uid, fitness = (max((len(getattr(row, field)) for row in rows), default=0) for field in ("uid", "fitness"))
    return [f"{row.generation}  {row.uid:<{uid}}  {row.fitness:>{fitness}}  {row.changes}" for row in rows]


def _lineage_grid(ancestry: Sequence[OffspringRecord]) -> Table:
    grid = Table.grid(
        Column(style="dim", no_wrap=True),
        Column(style="cyan", no_wrap=True),
        Column(justify="right", no_wrap=True),
        Column(overflow="fold"),
        padding=(0, 2),
    )
    for row in _lineage_rows(ancestry):
        grid.add_row(*row)
    return grid


def _lineage_rows(ancestry: Sequence[OffspringRecord]) -> list[_LineageRow]:
    fitness = formatting.returns([birth.parent_fitness for birth in ancestry])
    rows = [
        _LineageRow(f"gen {birth.generation:>3}", _uids(birth), f"at {text}" if text else "", _changes(birth))
        for birth, text in zip(ancestry, fitness, strict=True)
    ]
    if len(rows) <= _ANCESTORS:
        return rows
    left_out = len(rows) - _ANCESTORS + 1
    return [rows[0], _LineageRow("  …", "", "", f"{left_out} births more, in lineage.jsonl"), *rows[left_out + 1 :]]


def _uids(birth: OffspringRecord) -> str:
    has_parent = not birth.survives and birth.parent_uid != NO_PARENT
    return f"member {birth.uid}{f' ← {birth.parent_uid}' if has_parent else ''}"


def _changes(birth: OffspringRecord) -> str:
    changes = "; ".join(filter(None, map(formatting.mutation, birth.mutations)))
    if birth.parent_uid != NO_PARENT:
        return changes or "copied unchanged"
    kind = "fresh member" if birth.generation else "initial member"
    return f"{kind}: {changes}" if changes else kind
