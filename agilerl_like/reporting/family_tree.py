"""The family tree of a run: one line for each member, coloured by fitness, from its birth at its parent's line.

The lines of a generation are as many as its members: a member keeps its line, and new ones take the lines of replaced
members in the order of their parents, so that few edges cross. Branches without a member in the last generation are
faint.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape

import numpy as np

from agilerl_like.reporting import formatting
from agilerl_like.reporting.records import OffspringRecord
from agilerl_like.reporting.run_history import FITNESS, RunHistory
from agilerl_like.reporting.svg import DARK, GREY, RAMP, RED, canvas, path, ramp_index, segments, text

TITLED = 3_000
"""Most members of all generations together whose points have a tooltip; with more only those of the best lineage."""
LABELLED = 24
"""Most births of the best lineage whose mutations are labels; the others have tooltips."""
FAINT = 'stroke-opacity="0.3"'
LEFT, RIGHT, TOP, BOTTOM = 40, 140, 40, 30


def family_tree(history: RunHistory) -> str:
    """Return the tree as SVG."""
    places, count = lines_of(history), max(stop - start for start, stop in history.generations)
    generations = len(history.generations)
    row_height = min(26.0, max(9.0, 520 / count))
    step = min(90.0, max(7.0, 900 / generations))
    width, height = LEFT + step * generations + RIGHT, TOP + row_height * count + BOTTOM
    number = {start: n for n, (start, _) in enumerate(history.generations)}
    of_row = np.repeat(list(number.values()), [stop - start for start, stop in history.generations])
    x = LEFT + step * (of_row + 0.15)
    y = TOP + row_height * (np.array(places) + 0.5)
    fitness = history.column(FITNESS)
    low, high = fitness_range(fitness)
    groups: dict[tuple[int, bool], list[tuple[float, ...]]] = {}
    edges: dict[bool, list[tuple[float, ...]]] = {True: [], False: []}
    for row, before in enumerate(history.before):
        kept = history.surviving[row]
        groups.setdefault((ramp_index(fitness[row], low, high), kept), []).append(
            (x[row], y[row], x[row] + 0.7 * step, y[row])
        )
        if before >= 0:
            edges[kept].append((x[before] + 0.7 * step, y[before], x[row], y[row]))
    thick = max(2.5, 0.45 * row_height)
    marks = [segments(edges[False], colour=GREY, extra=FAINT), segments(edges[True], colour=GREY)]
    line = [(p, q) for row in history.lineage for p, q in ((x[row], y[row]), (x[row] + 0.7 * step, y[row]))]
    marks.append(path(line, colour=DARK, width=thick + 3, extra='stroke-linejoin="round"'))
    for (colour, kept), lines in sorted(groups.items(), key=lambda item: item[0][1]):
        marks.append(
            segments(lines, colour=RED if colour < 0 else RAMP[colour], width=thick, extra="" if kept else FAINT)
        )
    marks += _tooltips(history, x, y, 0.7 * step, max(thick, 6.0), fitness)
    marks += _labels(history, x, y, row_height)
    for n in range(0, generations, max(1, round(60 / step))):
        label = f"{history.rows[history.generations[n][0]]['generation']:.0f}"
        marks.append(text(LEFT + step * (n + 0.5), height - 12, label, anchor="middle"))
    marks.append(text(width - RIGHT + 20, height - 12, "generation"))
    return canvas(width, height, *marks, label=f"family tree of {history.name}") + _legend(low, high, fitness)


def lines_of(history: RunHistory) -> list[int]:
    """Return the line of each row of metrics.csv, from 0."""
    places: list[int] = [0] * len(history.rows)
    for start, stop in history.generations:
        rows = range(start, stop)
        kept = {
            row: places[history.before[row]]
            for row in rows
            if history.before[row] >= 0 and history.rows[history.before[row]]["uid"] == history.rows[row]["uid"]
        }
        new = [row for row in rows if row not in kept]
        new.sort(key=lambda row: (places[history.before[row]] if history.before[row] >= 0 else math.inf, row))
        taken = set(kept.values())
        free = [place for place in range(stop - start + len(taken)) if place not in taken]
        for row, place in (*kept.items(), *zip(new, free, strict=False)):
            places[row] = place
    return places


def fitness_range(fitness: np.ndarray) -> tuple[float, float]:
    """Return the fitnesses at the ends of the colours; a member that failed badly does not use up the range."""
    finite = fitness[np.isfinite(fitness)]
    low, high = np.quantile(finite, [0.1, 1.0]) if finite.size else (0.0, 1.0)
    return float(low), float(high)


def births_by_uid(births: Sequence[OffspringRecord]) -> dict[int, OffspringRecord]:
    """Return the record of each member's birth."""
    return {birth.uid: birth for birth in births if not birth.survives}


def changes_of(birth: OffspringRecord | None, fallback: str = "") -> str:
    """Return the mutations of a birth as text; without its record, their names."""
    if birth is None:
        return "" if fallback == "None" else fallback
    return ", ".join(filter(None, map(formatting.mutation, birth.mutations)))


def _tooltips(
    history: RunHistory, x: np.ndarray, y: np.ndarray, length: float, thick: float, fitness: np.ndarray
) -> list[str]:
    rows = range(len(history.rows)) if len(history.rows) <= TITLED else history.lineage
    births = births_by_uid(history.births)
    marks = []
    for row in rows:
        own = history.rows[row]
        uid, before = int(own["uid"]), history.before[row]
        lines = [f"member {uid}, generation {own['generation']:.0f}: fitness {formatting.fitness(fitness[row])}"]
        if before >= 0 and history.rows[before]["uid"] != own["uid"]:
            changed = changes_of(births.get(uid), own["mutation"]) or "unchanged"
            lines.append(f"clone of member {history.rows[before]['uid']:.0f}: {changed}")
        box = f'x="{x[row]:.1f}" y="{y[row] - thick / 2:.1f}" width="{length:.1f}" height="{thick:.1f}"'
        marks.append(
            f"<rect {box} fill='none' pointer-events='all'><title>{escape(chr(10).join(lines))}</title></rect>"
        )
    return marks


def _labels(history: RunHistory, x: np.ndarray, y: np.ndarray, row_height: float) -> list[str]:
    """The mutations of the best lineage, above the edges of its births."""
    births, marks, last = births_by_uid(history.births), [], (-math.inf, 0)
    for row in [row for row in history.lineage if is_birth(history, row)][-LABELLED:]:
        own = history.rows[row]
        label = changes_of(births.get(int(own["uid"])), own["mutation"])
        if not label:
            continue
        short = re.sub(r" \([^)]*\)", "", label)  # an operator's details are in the tooltip
        short = short if len(short) <= 26 else f"{short[:25]}…"
        # neighbouring labels take different heights
        level = (last[1] + 1) % 3 if x[row] - last[0] < 150 else 0
        last = (x[row], level)
        marks.append(
            f'<text x="{x[row]:.1f}" y="{y[row] - row_height * 0.35 - 11 * level:.1f}" font-size="10" fill="{DARK}" '
            f'stroke="#fff" stroke-width="3" paint-order="stroke">{escape(short)}<title>{escape(label)}</title></text>'
        )
    return marks


def is_birth(history: RunHistory, row: int) -> bool:
    """Whether a row is the first of a member that has a parent."""
    before = history.before[row]
    return before >= 0 and history.rows[before]["uid"] != history.rows[row]["uid"]


def _legend(low: float, high: float, fitness: np.ndarray) -> str:
    squares = "".join(f'<i style="background:{colour}"></i>' for colour in RAMP)
    missing = f' <i style="background:{RED}"></i> not finite' if not np.isfinite(fitness).all() else ""
    ends = f"{escape(formatting.fitness(low))} {squares} {escape(formatting.fitness(high))}"
    return (
        f'<p class="legend">fitness {ends}{missing} · dark outline: the best agent\'s lineage · '
        "faint: no descendant in the last generation</p>"
    )
