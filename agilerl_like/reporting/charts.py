"""The charts of a report as Vega-Lite specifications: dictionaries that become JSON, without any plotting package.

All charts of a run draw the rows of one table, `table_of`, which the page holds once under the name "rows". Its fields
have names of ours, so that users' names are only values and titles, and no expression holds them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.reporting import formatting
from agilerl_like.reporting.estimates import Estimate, Pooled, best_so_far
from agilerl_like.reporting.run_history import FITNESS, RunHistory

Spec: TypeAlias = dict[str, Any]
DARK, BLUE, GREY, RED = "#14213d", "#2a6f97", "#9aa5b1", "#d1495b"
COLOURS = ("#2a6f97", "#d1495b", "#3c887e", "#edae49", "#7b5ea7", "#8d6346", "#52606d", "#c2699b")
LOG_RANGE = 20.0
"""An axis of positive values that spans a larger factor is logarithmic."""
LARGEST = 1e100
"""Larger numbers are left out, because axis arithmetic would overflow; in plots those below its inverse, too."""
PANELS = 48
"""Most hyperparameters, each of which has its own panel."""
ROWS: Spec = {"data": {"name": "rows"}}
"""The table of the run, which the page's script fills in."""
TICKS = 20
"""Most ticks of an axis of generations; equal steps of 1, 2 or 5 times a power of ten."""
ROW = 22
"""Pixels of a named row."""
LABELLED = 24
"""Most births of the best lineage whose mutations are labels; the others have tooltips."""


def table_of(run: RunHistory) -> dict[str, list[Any]]:
    """Return the columns of a run's rows: one row for each member and generation, in the order of metrics.csv."""
    lines, lineage = lines_of(run), set(run.lineage)
    generation = numbers(run.column("generation"))
    columns = {
        "generation": generation,
        "member": [int(row["uid"]) for row in run.rows],
        "fitness": numbers(run.column(FITNESS)),
        "best": numbers(run.column("population/best_ever")),
        "line": lines,
        "since": [generation[before] if before >= 0 else None for before in run.before],
        "origin": [lines[before] if before >= 0 else None for before in run.before],
        "kept": [int(kept) for kept in run.surviving],
        "lineage": [int(row in lineage) for row in range(len(run.rows))],
        "birth": [_birth(run, row) for row in range(len(run.rows))],
        "weights": numbers(run.column("parameters")),
    }
    for n, name in enumerate((*run.hyperparameters, *run.scheduled)):
        values = [row.get(name, math.nan) for row in run.rows]
        is_choice = bool(run.categories(name))
        columns[f"h{n}"] = [*map(_choice, values)] if is_choice else numbers(values)
    return columns


def numbers(values: Iterable[float]) -> list[float | None]:
    """Return numbers as JSON has them, in six digits; None if they cannot be drawn."""
    return [float(f"{value:.6g}") if abs(value) < LARGEST else None for value in values]


def _choice(value: Any) -> str | None:
    return formatting.hyperparameter(value) if isinstance(value, str) or math.isfinite(value) else None


def _birth(run: RunHistory, row: int) -> str:
    if not run.is_birth(row):
        return ""
    return f"clone of member {run.rows[run.before[row]]['uid']:.0f}: {run.mutations_of(row) or 'unchanged'}"


def lines_of(run: RunHistory) -> list[int]:
    """Return the line of the family tree that each row has, from 0.

    A member keeps its line, and new ones take the lines of replaced members in the order of their parents, so that few
    edges cross.
    """
    places: list[int] = [0] * len(run.rows)
    for start, stop in run.generations:
        rows = range(start, stop)
        kept = {row: places[run.before[row]] for row in rows if run.before[row] >= 0 and not run.is_birth(row)}
        new = [row for row in rows if row not in kept]
        new.sort(key=lambda row: (places[run.before[row]] if run.before[row] >= 0 else math.inf, row))
        taken = set(kept.values())
        free = [place for place in range(stop - start + len(taken)) if place not in taken]
        for row, place in (*kept.items(), *zip(new, free, strict=False)):
            places[row] = place
    return places


def family_tree(run: RunHistory) -> Spec:
    """One line for each member, coloured by fitness, from its birth at its parent's line."""
    count = max(stop - start for start, stop in run.generations)
    row_height = min(26.0, max(9.0, 520 / count))
    thick = max(2.5, 0.45 * row_height)
    faint = {"condition": {"test": "datum.kept", "value": 1}, "value": 0.3}
    outline = {"color": DARK, "strokeWidth": thick + 3, "strokeCap": "round"}
    best = {"filter": "datum.lineage"}
    layers = [
        _rule("from", "start", "origin", {"color": GREY}, opacity=faint),
        _rule("from", "start", "origin", outline, transform=[best]),
        _rule("start", "end", "line", outline, transform=[best]),
        _rule(
            "start",
            "end",
            "line",
            {"strokeWidth": thick, "invalid": "show"},
            opacity=faint,
            color=_fitness_colour(run, {"title": "fitness", "gradientLength": 150}),
            tooltip=_tooltip({"member": "member", "generation": "generation", "shown": "fitness", "birth": "birth"}),
        ),
    ]
    for mark in ({"stroke": "#fff", "strokeWidth": 3}, {"fill": DARK}):  # text with a halo
        text = {"type": "text", "align": {"expr": "datum.align"}, "fontSize": 10, "baseline": "bottom", **mark}
        encoding = {
            "x": {"field": "x", "type": "quantitative"},
            "y": {"field": "y", "type": "quantitative"},
            "text": {"field": "label"},
            "tooltip": {"field": "birth"},
        }
        layers.append({"data": {"values": _labels(run, row_height)}, "mark": text, "encoding": encoding})
    return {
        **ROWS,
        "height": row_height * (count + 0.8),
        "transform": [
            {"calculate": "datum.generation - 0.35", "as": "start"},
            {"calculate": "datum.generation + 0.35", "as": "end"},
            {"calculate": "datum.since + 0.35", "as": "from"},
            {"calculate": "isValid(datum.fitness) ? format(datum.fitness, '.4~g') : 'not finite'", "as": "shown"},
        ],
        "encoding": {
            "x": _generations(run),
            "y": {"type": "quantitative", "axis": None, "scale": {"domain": [count - 0.4, -1.2], "nice": False}},
        },
        "layer": layers,
    }


def _rule(x: str, x2: str, y: str, mark: Spec, *, transform: Sequence[Spec] = (), **encoding: Any) -> Spec:
    """Lines of the tree that end on a member's own line."""
    places = {"x": {"field": x}, "x2": {"field": x2}, "y": {"field": y}, "y2": {"field": "line"}}
    valid = {"filter": f"isValid(datum.{y})"}
    return {"transform": [valid, *transform], "mark": {"type": "rule", **mark}, "encoding": {**places, **encoding}}


def _labels(run: RunHistory, row_height: float) -> list[Spec]:
    """The mutations of the best lineage, above the edges of its births; neighbours take different heights."""
    lines, labels = lines_of(run), []
    first, last = (run.rows[row]["generation"] for row in (0, -1))
    near, previous, level = 0.15 * (last - first + 1), -math.inf, 0
    for row in [row for row in run.lineage if run.is_birth(row) and run.mutations_of(row)][-LABELLED:]:
        generation = run.rows[row]["generation"]
        level = (level + 1) % 3 if generation - previous < near else 0
        previous = generation
        short = re.sub(r" \([^)]*\)", "", run.mutations_of(row))  # an operator's details are in the tooltip
        labels.append(
            {
                "x": generation - 0.35,
                "y": lines[row] - 0.35 - 11 * level / row_height,
                "label": short if len(short) <= 26 else f"{short[:25]}…",
                "align": "right" if generation > last - near else "left",
                "birth": _birth(run, row),
            }
        )
    return labels


def fitness_fan(run: RunHistory) -> Spec:
    """Best, median and worst fitness of each generation, the best agent so far, and the target."""
    colours = {"best": DARK, "median, with the middle half": BLUE, "worst": GREY, "best agent so far": "#edae49"}
    names = list(colours)

    def area(low: str, high: str) -> Spec:
        ends = {"y": {"aggregate": low, "field": "fitness"}, "y2": {"aggregate": high, "field": "fitness"}}
        return {"mark": {"type": "area", "color": BLUE, "opacity": 0.18}, "encoding": ends}

    def line(name: str, how: str, field: str = "fitness", **mark: Any) -> Spec:
        encoding = {"y": {"aggregate": how, "field": field}, "color": {"datum": name}}
        return {"mark": {"type": "line", **mark}, "encoding": encoding}

    layers = [
        area("min", "max"),
        area("q1", "q3"),
        line(names[2], "min", strokeWidth=1),
        line(names[1], "median"),
        line(names[0], "max"),
        line(names[3], "max", "best", strokeDash=[4, 2]),
    ]
    target = run.per_generation("population/target")[-1]
    if abs(target) < LARGEST:
        names.append(name := f"target {formatting.fitness(target)}")
        colours[name] = RED
        rule = {"type": "rule", "strokeDash": [6, 4]}
        layers.append({"mark": rule, "encoding": {"x": None, "y": {"datum": target}, "color": {"datum": name}}})
    colour = {"type": "nominal", "scale": {"domain": names, "range": list(colours.values())}, "legend": _legend(2)}
    return {
        **ROWS,
        "height": 280,
        "encoding": {"x": _generations(run), "y": _of_values(), "color": colour},
        "layer": layers,
    }


def schedule(run: RunHistory, name: str, field: str, title: str) -> Spec:
    """A column of metrics.csv by generation: every member, coloured by fitness, and the best agent's lineage."""
    y = {"field": field, **_of_values(_axis(run.column(name)))}
    if categories := run.categories(name):
        y = {"field": field, "type": "nominal", "title": None, "axis": {"labelLimit": 70}}
        y["sort"] = [*map(_choice, categories)]
    points = {"type": "circle", "size": 16, "opacity": 1, "invalid": "show"}
    line = {"type": "line", "color": DARK, "orient": "vertical"}
    details = {"member": "member", "generation": "generation", field: "value", "fitness": "fitness"}
    return {
        **ROWS,
        "title": {"text": title, "anchor": "start", "fontSize": 13, "limit": 280},
        "height": 170,
        "encoding": {"x": _generations(run), "y": y},
        "layer": [
            {
                "transform": [{"filter": f"isValid(datum.{field})"}],
                "mark": points,
                "encoding": {"color": _fitness_colour(run, None), "tooltip": _tooltip(details)},
            },
            {"transform": [{"filter": "datum.lineage"}], "mark": line, "encoding": {"order": {"field": "generation"}}},
        ],
    }


def intervals(estimates: Mapping[str, Estimate]) -> Spec:
    """Each estimate as a point with its interval, by name."""
    values = [
        {"name": name, **dict(zip(("value", "low", "high"), numbers(its[:3]), strict=True))}
        for name, its in estimates.items()
    ]
    y = {"field": "name", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 150}}
    ends = [0.0, *(its[end] for its in values for end in ("value", "low", "high") if its[end] is not None)]
    x = {"field": "value", **_of_values({"scale": {"domain": [min(ends), max(ends)]}})}
    interval = {"x": {"field": "low"}, "x2": {"field": "high"}}
    return {
        "data": {"values": values},
        "height": ROW * len(values),
        "encoding": {"y": y, "x": x},
        "layer": [
            {"mark": {"type": "rule", "color": GREY}, "encoding": {"x": {"datum": 0}, "y": None}},
            {"mark": {"type": "rule", "color": BLUE, "strokeWidth": 2}, "encoding": interval},
            {"mark": {"type": "circle", "color": DARK, "size": 60, "opacity": 1}},
        ],
    }


def time_by_part(seconds: Mapping[str, float]) -> Spec:
    """Seconds of each part of a run as bars."""
    return {
        "data": {"values": [{"part": part, "seconds": value} for part, value in seconds.items()]},
        "height": ROW * len(seconds),
        "mark": {"type": "bar", "color": BLUE},
        "encoding": {
            "y": {"field": "part", "type": "nominal", "sort": None, "title": None},
            "x": {"field": "seconds", "type": "quantitative"},
        },
    }


def comparison(
    runs: Sequence[RunHistory], means: Mapping[str, Pooled] = FrozenMapping(), methods: Sequence[str] = ()
) -> Spec:
    """The best fitness so far of every run by env steps, and the mean of each method with its interval.

    Runs have a colour each; with `methods`, the name of each run's, the runs of a method have one.
    """
    names = distinct_names([run.name for run in runs])
    curves = [
        {"run": name, **({"method": method} if methods else {}), "steps": steps, "best": best}
        for name, method, run in zip(names, methods or names, runs, strict=True)
        for steps, best in zip(
            numbers(run.per_generation("time/total_timesteps")), numbers(best_so_far(run)), strict=True
        )
    ]
    field, coloured = ("method", list(dict.fromkeys(methods))) if methods else ("run", names)
    colours = {"domain": coloured, "range": [COLOURS[n % len(COLOURS)] for n in range(len(coloured))]}
    colour = {"field": field, "type": "nominal", "title": None, "scale": colours, "legend": _legend(1)}
    step = {"interpolate": "step-after"}  # the best so far is that of the last generation that has ended
    steps = {"field": "steps", "type": "quantitative", "title": "env steps of all members"}
    layers = [
        {
            "data": {"values": curves},
            "mark": {"type": "line", "strokeWidth": 1.5, **step},
            "encoding": {"y": {"field": "best"}, "color": colour, "detail": {"field": "run"}},
        }
    ]
    for method, its in means.items():
        mean = [
            {"steps": float(steps), **dict(zip(("mean", "low", "high"), numbers(of[:3]), strict=True))}
            for steps, of in zip(its.env_steps, its.estimates, strict=True)
        ]
        its_colour = colours["range"][coloured.index(method)] if methods else DARK
        band = {"y": {"field": "low"}, "y2": {"field": "high"}}
        line = {"type": "line", "color": its_colour, "strokeWidth": 3, **step}
        area = {"mark": {"type": "area", "color": its_colour, "opacity": 0.18, **step}, "encoding": band}
        drawn = {"mark": line, "encoding": {"y": {"field": "mean"}}}
        layers += [{"data": {"values": mean}, **part} for part in ([area] if its.interval_name else []) + [drawn]]
    return {
        "height": 320,
        "encoding": {
            "x": {**steps, "axis": {"grid": False, "format": "~s"}},
            "y": _of_values({"axis": {"title": None}}),
        },
        "layer": layers,
    }


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return the names of runs, with the run's number where two are equal."""
    return [name if names.count(name) == 1 else f"{name} ({n})" for n, name in enumerate(names, 1)]


def fitness_range(fitness: np.ndarray) -> tuple[float, float]:
    """Return the fitnesses at the ends of the colours; a member that failed badly does not use up the range."""
    finite = fitness[np.abs(fitness) < LARGEST]
    low, high = np.quantile(finite, [0.1, 1.0]) if finite.size else (0.0, 1.0)
    return float(low), float(high)


def _fitness_colour(run: RunHistory, legend: Spec | None) -> Spec:
    scale = {"scheme": "viridis", "domain": [*fitness_range(run.column(FITNESS))], "clamp": True}
    return {"field": "fitness", "type": "quantitative", "scale": scale, "legend": legend}


def _tooltip(titles: Mapping[str, str]) -> list[Spec]:
    return [{"field": field, "title": title} for field, title in titles.items()]


def _generations(run: RunHistory) -> Spec:
    first, last = (int(run.rows[row]["generation"]) for row in (0, -1))
    step = next(n * 10**power for power in range(9) for n in (1, 2, 5) if last - first < TICKS * n * 10**power)
    axis = {"grid": False, "title": "generation", "format": "d"}
    axis["values"] = [tick for tick in range(first, last + 1) if tick % step == 0]
    scale = {"domain": [first - 0.5, last + 0.5], "nice": False}
    return {"field": "generation", "type": "quantitative", "axis": axis, "scale": scale}


def _of_values(changes: Spec | None = None) -> Spec:
    return {"type": "quantitative", "title": None, "scale": {"zero": False}, **(changes or {})}


def _legend(columns: int) -> Spec:
    return {"title": None, "columns": columns, "symbolType": "stroke", "symbolStrokeWidth": 3}


def _axis(values: np.ndarray) -> Spec:
    """The scale of all finite values, a little wider than these if they are about equal."""
    finite = values[np.abs(values) < LARGEST]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if low > 1 / LARGEST and high / low > LOG_RANGE:
        axis = {"tickCount": 5, "format": "~e" if low < 0.01 else "~g" if high < 10_000 else "~s"}
        return {"scale": {"type": "log", "domain": [low, high], "nice": False}, "axis": axis}
    if high - low <= 0.02 * max(abs(low), abs(high)):
        margin = 0.1 * (max(abs(low), abs(high)) or 1.0)
        if low >= 0.9 and high < 1:  # discounts differ in their distance from 1
            margin = min(margin, 1 - high)
        low, high = low - margin, high + margin
    return {"scale": {"domain": [low, high], "nice": False, "zero": False}}
