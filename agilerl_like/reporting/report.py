"""`report.html`: what evolution did in one run or several, in one file without scripts and without a network.

All figures are SVG that is drawn here, so that a report needs no optional package, is small, and can be mailed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.reporting import formatting
from agilerl_like.reporting.callback import Reporter
from agilerl_like.reporting.estimates import (
    Estimate,
    best_so_far,
    bootstrap,
    operator_effects,
    operator_gains,
    pooled,
)
from agilerl_like.reporting.family_tree import (
    births_by_uid,
    changes_of,
    family_tree,
    fitness_range,
    is_birth,
)
from agilerl_like.reporting.importance import hyperparameter_effects, percent
from agilerl_like.reporting.records import SummaryRecord
from agilerl_like.reporting.run_history import FITNESS, RunHistory, read_history
from agilerl_like.reporting.svg import BLUE, DARK, GREY, RAMP, RED, Chart, canvas, dots, path, ramp_index
from agilerl_like.storage.durable_io import replace_file

REPORT = "report.html"
COLOURS = ("#2a6f97", "#d1495b", "#3c887e", "#edae49", "#7b5ea7", "#8d6346", "#52606d", "#c2699b")
LISTED = 20
"""Last births of the best lineage that are listed; earlier ones are folded."""
PANELS = 48
"""Most hyperparameters that are drawn."""
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1f2933;margin:0 auto;padding:16px;max-width:1180px;background:#fff;
overflow-wrap:break-word}
h1{font-size:24px;margin:8px 0}h2{font-size:18px;margin:28px 0 8px}h3{font-size:14px;margin:8px 0 2px}
section>p,.notes{color:#52606d;margin:4px 0 8px;max-width:80ch}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:12px 0}
.facts div{border:1px solid #e4e7eb;border-radius:8px;padding:8px 12px}.facts b{display:block;font-size:20px}
.facts span{color:#52606d;font-size:13px}
.wide{overflow-x:auto}.wide>svg{max-width:none}svg{max-width:100%;height:auto;font-family:inherit}
.wide.fit>svg{width:100%;min-width:620px;max-width:900px}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(340px,100%),1fr));gap:8px 20px}
.legend{font-size:13px;color:#52606d}.legend i{display:inline-block;width:12px;height:10px}
.legend u{display:inline-block;width:18px;height:3px;vertical-align:middle;margin-right:4px}
table{border-collapse:collapse;font-size:14px}th,td{padding:4px 10px;text-align:left;border-bottom:1px solid #e4e7eb}
td svg{max-width:none}td.long{min-width:240px}td.n,th.n{white-space:nowrap;
text-align:right;font-variant-numeric:tabular-nums}
pre{background:#f5f7fa;padding:10px;overflow-x:auto;font-size:12px;border-radius:6px}
.bar{display:flex;height:26px;border-radius:6px;overflow:hidden;max-width:720px}
.bar div{color:#fff;font-size:12px;padding:4px 6px;overflow:hidden;white-space:nowrap}
.notes{border-left:4px solid #edae49;padding:4px 10px}summary{cursor:pointer;font-weight:600}
"""


def write_report(runs: Sequence[RunHistory], target: Path) -> Path:
    """Write the report of one run or several to a file, and return its path."""
    replace_file(target, report_html(runs).encode())
    return target


def report_run(run_dir: Path | str) -> Path:
    """Write the report of a run to `report.html` in its folder, and return the path."""
    return write_report([read_history(run_dir)], Path(run_dir) / REPORT)


class HtmlReporter(Reporter):
    """Writes `report.html` at the end of a run, also of an interrupted one; it comes after the record files."""

    def __init__(self, run_dir: Path | str) -> None:
        self._run_dir = Path(run_dir).absolute()

    def finish(self, summary: SummaryRecord) -> None:
        """Write the report; without rows of metrics.csv, which a full disk may have prevented, there is none."""
        with contextlib.suppress(ConfigurationError, CheckpointError):
            report_run(self._run_dir)


def report_html(runs: Sequence[RunHistory]) -> str:
    """Return the report as HTML."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs: {', '.join(run.name for run in runs)}"
    if len(runs) == 1:
        body = [f"<h1>{escape(title)}</h1>", *_run_sections(runs[0])]
    else:
        body = [f"<h1>{escape(title[:120])}</h1>", _comparison(runs)]
        for run in runs:
            sections = "".join(_run_sections(run))
            body.append(
                f"<details><summary><h2 style='display:inline'>{escape(run.name)}</h2></summary>{sections}</details>"
            )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="generator" content="agilerl-like">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        # an empty icon: without one a browser requests favicon.ico
        f'<link rel="icon" href="data:,"><title>{escape(title)} · agilerl-like</title><style>{STYLE}</style></head>'
        f"<body>{''.join(body)}</body></html>\n"
    )


# -- several runs


def _comparison(runs: Sequence[RunHistory]) -> str:
    steps = [run.per_generation("time/total_timesteps") for run in runs]
    bests = [best_so_far(run) for run in runs]
    envs = {str(run.document.get("env", "")) for run in runs}
    grid, estimates = pooled(runs) if len(envs) == 1 else (np.array([]), [])
    lows, highs = [e.low for e in estimates], [e.high for e in estimates]
    chart = Chart.of(np.concatenate(steps), np.concatenate([*bests, lows, highs]), height=340)
    marks = [
        path(chart.points(x, y), colour=COLOURS[n % len(COLOURS)], width=1.5)
        for n, (x, y) in enumerate(zip(steps, bests, strict=True))
    ]
    note = (
        "" if len(envs) == 1 else f"No mean over the runs, because they have different envs: {', '.join(sorted(envs))}."
    )
    if estimates:
        marks.insert(0, chart.band(grid.tolist(), lows, highs, colour=DARK))
        marks.append(path(chart.points(grid, [e.value for e in estimates]), colour=DARK, width=3))
        note = (
            "Black: interquartile mean over the runs (the mean without the lowest and the highest quarter, rounded "
            "down) with a 95 % bootstrap interval, up to the end of the shortest run."
        )
    names = " ".join(
        f'<u style="background:{COLOURS[n % len(COLOURS)]}"></u>{escape(run.name)}' for n, run in enumerate(runs)
    )
    figure = chart.drawn(
        *marks,
        x_label="env steps of all members",
        x_format=formatting.count,
        y_format=_short,
        label="best fitness so far of every run",
    )
    rows = [
        [
            run.name,
            run.outcome,
            f"{len(run.generations)}",
            formatting.count(own[-1]),
            formatting.known_fitness(best[-1]),
            formatting.duration(run.per_generation("time/time_elapsed")[-1]),
            _genome(run, run.best_row),
        ]
        for run, own, best in zip(runs, steps, bests, strict=True)
    ]
    head = ["run", "ended", "generations", "steps", "best fitness", "time", "best agent"]
    return _section(
        "Runs side by side",
        note,
        f'<div class="wide fit">{figure}</div><p class="legend">{names}</p>{_table(head, rows)}',
    )


# -- one run


def _run_sections(run: RunHistory) -> Iterable[str]:
    for note in run.notes:
        yield f'<p class="notes">{escape(note)}</p>'
    yield _facts(run)
    yield _section(
        "Family tree",
        "Each line is a member; an edge leads from a parent to its clone, with what was mutated in it. Hold the "
        "pointer over a line for its fitness and mutations.",
        f'<div class="wide">{family_tree(run)}</div>',
    )
    yield _lineage(run)
    yield _fitness_fan(run)
    yield _schedules(run)
    yield _architectures(run)
    yield _operators(run)
    yield _importance(run)
    yield _time(run)
    yield _configuration(run)


def _facts(run: RunHistory) -> str:
    best = run.rows[run.best_row]
    last = run.rows[-1]
    births = sum(is_birth(run, row) for row in range(len(run.rows)))
    of_lineage = sum(is_birth(run, row) for row in run.lineage)
    facts = [
        (formatting.known_fitness(best_so_far(run)[-1]), "best fitness, on fresh episodes"),
        (f"{best['uid']:.0f}", f"best member, generation {best['generation']:.0f}"),
        (f"{of_lineage} of {births}", "births in its lineage"),
        (f"{len(run.generations)}", f"generations of {run.generations[0][1]} members"),
        (formatting.count(last.get("time/total_timesteps", math.nan)), "env steps of all members"),
        (formatting.duration(last.get("time/time_elapsed", math.nan)), "time"),
        (run.outcome, "how it ended"),
    ]
    return (
        '<div class="facts">'
        + "".join(f"<div><b>{escape(value)}</b><span>{escape(label)}</span></div>" for value, label in facts)
        + f"</div><p>Best agent: {escape(_genome(run, run.best_row))}</p>"
    )


def lineage_rows(run: RunHistory) -> list[list[str]]:
    """Return the births of the best lineage: generation, member, mutations, fitness before and after its generation."""
    births, fitness = births_by_uid(run.births), run.column(FITNESS)
    first = run.lineage[0]
    rows = [["1", f"{run.rows[first]['uid']:.0f}", "initial member", "", formatting.fitness(fitness[first]), ""]]
    for row in run.lineage:
        if is_birth(run, row):
            own, before = run.rows[row], run.before[row]
            gain = fitness[row] - fitness[before]
            changed = changes_of(births.get(int(own["uid"])), own["mutation"]) or "unchanged"
            rows.append(
                [
                    f"{own['generation']:.0f}",
                    f"{own['uid']:.0f} ← {run.rows[before]['uid']:.0f}",
                    changed,
                    formatting.fitness(fitness[before]),
                    formatting.fitness(fitness[row]),
                    formatting.returns([gain], signed=True)[0],
                ]
            )
    return rows


def _lineage(run: RunHistory) -> str:
    head, rows = ["generation", "member", "mutation", "parent", "member", "gain"], lineage_rows(run)
    table = _table(head, [rows[0], *rows[1:][-LISTED:]], numeric=(3, 4, 5))
    if len(rows) > LISTED + 1:
        rest = _table(head, rows[1:-LISTED], numeric=(3, 4, 5))
        table = f"<details><summary>{len(rows) - LISTED - 1} earlier births</summary>{rest}</details>{table}"
    return _section(
        "How the best agent came about",
        "The births of its lineage. Gain: fitness after the member's first generation less its parent's one generation "
        "before.",
        table,
    )


def _fitness_fan(run: RunHistory) -> str:
    fitness = run.column(FITNESS)
    x = run.column("generation")[[start for start, _ in run.generations]]
    parts = [fitness[start:stop][np.isfinite(fitness[start:stop])] for start, stop in run.generations]
    levels = [
        [float(np.quantile(part, q)) if part.size else math.nan for part in parts] for q in (0, 0.25, 0.5, 0.75, 1)
    ]
    best, target = run.per_generation("population/best_ever"), run.per_generation("population/target")[-1]
    heights = np.concatenate([*map(np.array, levels), best, [target if abs(target) < 1e100 else math.nan]])
    chart = Chart.of(x, heights)
    marks = [
        chart.band(x.tolist(), levels[0], levels[4], colour=BLUE),
        chart.band(x.tolist(), levels[1], levels[3], colour=BLUE),
        path(chart.points(x, levels[0]), colour=GREY),
        path(chart.points(x, levels[2]), colour=BLUE, width=2),
        path(chart.points(x, levels[4]), colour=DARK, width=2),
        path(chart.points(x, best), colour=DARK, extra='stroke-dasharray="2 3"'),
    ]
    legend = [
        (DARK, "best"),
        (BLUE, "median, with the middle half"),
        (GREY, "worst"),
        (DARK, "dotted: best agent so far"),
    ]
    if abs(target) < 1e100:
        y = chart.y(target)
        marks.append(path([(chart.x.start, y), (chart.x.stop, y)], colour=RED, extra='stroke-dasharray="6 4"'))
        legend.append((RED, f"target {formatting.fitness(target)}"))
    figure = chart.drawn(*marks, x_label="generation", x_format=_short, y_format=_short, label="fitness by generation")
    return _section("Fitness", "", f'<div class="wide fit">{figure}</div>{_legend(legend)}')


def _schedules(run: RunHistory) -> str:
    names = [name for name in run.hyperparameters if np.isfinite(run.column(name)).any()]
    if not names:
        return ""
    panels = "".join(f"<div><h3>{escape(name[3:])}</h3>{_schedule(run, name)}</div>" for name in names[:PANELS])
    return _section(
        "Hyperparameters",
        "Points: every member, coloured by fitness; line: what the best agent's lineage trained with.",
        f'<div class="panels">{panels}</div>',
    )


def _schedule(run: RunHistory, name: str) -> str:
    values, generation, fitness = run.column(name), run.column("generation"), run.column(FITNESS)
    chart = Chart.of(generation, values, width=360, height=200, may_be_log=True)
    low, high = fitness_range(fitness)
    groups: dict[int, dict[tuple[float, float], None]] = {}
    for x, y, score in zip(generation, values, fitness, strict=True):
        point = (round(chart.x(x), 1), round(chart.y(y), 1))
        groups.setdefault(ramp_index(score, low, high), {})[point] = None  # equal points are drawn once
    marks = [
        dots(points, colour=RED if colour < 0 else RAMP[colour], radius=2.2)
        for colour, points in sorted(groups.items())
    ]
    marks.append(path(chart.points(generation[run.lineage], values[run.lineage]), colour=DARK, width=2))
    shown = formatting.count if name == "parameters" else formatting.hyperparameter
    if categories := run.categories(name):
        shown = partial(_category, categories)
    return chart.drawn(*marks, x_label="generation", x_format=_short, y_format=shown, label=name)


def _architectures(run: RunHistory) -> str:
    rows, last = [], None
    for row in run.lineage:
        own = run.rows[row]
        if own["architecture"] != last:
            last = own["architecture"]
            rows.append([f"{own['generation']:.0f}", last, f"{own['parameters']:,.0f}"])
    table = _table(["from generation", "architecture", "weights"], rows, numeric=(2,))
    return _section(
        "Architecture",
        "Weights of every member's networks, and the architectures of the best agent's lineage.",
        f'<div class="panels"><div><h3>weights</h3>{_schedule(run, "parameters")}</div><div>{table}</div></div>',
    )


def _operators(run: RunHistory) -> str:
    gains = operator_gains(run)
    if not gains:
        return _section("What each mutation brought", "No member was born in this run.", "")
    estimates = {name: bootstrap(values) for name, values in gains.items()}
    effects = {name: bootstrap(values) for name, values in operator_effects(run).items()}
    ends = [x for e in estimates.values() for x in (e.value, e.low, e.high, 0.0) if math.isfinite(x)]
    low, high = min(ends), max(ends)
    rows = [
        [
            escape(name),
            str(e.num_values),
            escape(_interval(e)),
            _whisker(e, low, high),
            escape(_interval(effects[name])) if name in effects else "",
        ]
        for name, e in estimates.items()
    ]
    return _section(
        "What each mutation brought",
        "Mean gain in fitness with a 95 % bootstrap interval: a member's fitness after its first generation less its "
        "parent's one generation before. That holds a generation of training, which an unchanged clone shows alone, "
        "and the luck that parents are chosen for and lose again. Beside the parent: the same member less its parent "
        "in the same generation, where that one survived; it holds neither.",
        _table(["mutation", "births", "gain", "", "beside the parent"], rows, numeric=(1, 2, 4), is_html=True),
    )


def _importance(run: RunHistory) -> str:
    found = hyperparameter_effects(run)
    title = "Which hyperparameters mattered"
    if found.reason:
        return _section(title, f"Not known: {found.reason}.", "")
    ends = [x for effect in found.effects for x in (*effect.importance[:3], 0.0)]
    rows = [
        [
            escape(effect.name),
            escape(percent(effect.importance)),
            _whisker(effect.importance, min(ends), max(ends)),
            escape(effect.good if effect.is_shown else "no effect shown"),
            escape(effect.tried),
        ]
        for effect in found.effects
    ]
    return _section(
        title,
        "Share of the variance of the gains of one generation, among the members of that generation, that the "
        f"hyperparameter explains by itself, with a 95 % interval from resampling the {found.num_members} members "
        f"({found.num_rows} gains). Interactions are left out. Good values: the middle 80 % of those with which the "
        "best quarter of the gains was made; where the interval reaches 0, the run does not show an effect.",
        _table(["hyperparameter", "importance", "", "good values", "tried"], rows, numeric=(1,), is_html=True),
    )


def _whisker(e: Estimate, low: float, high: float) -> str:
    def x(value: float) -> float:
        return 5 + 190 * (value - low) / (high - low) if high > low else 100.0

    marks = path([(x(0), 0), (x(0), 20)], colour=GREY)
    if math.isfinite(e.low):
        marks += path([(x(e.low), 10), (x(e.high), 10)], colour=BLUE, width=2)
    return canvas(200, 20, marks, dots([(x(e.value), 10)], colour=DARK, radius=4))


def _interval(e: Estimate) -> str:
    value, low, high = formatting.returns([e.value, e.low, e.high], signed=True)
    return f"{value} [{low}, {high}]" if low else value


def _time(run: RunHistory) -> str:
    last = run.rows[-1]
    parts = {
        name.removeprefix("time/"): value
        for name, value in last.items()
        if name in TIMES and isinstance(value, float) and math.isfinite(value) and value > 0
    }
    whole = sum(parts.values())
    if not whole:
        return ""
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    bars = "".join(
        f'<div style="width:{100 * seconds / whole:.2f}%;background:{COLOURS[n % len(COLOURS)]}" '
        f'title="{part}: {seconds:.1f} s">{part}</div>'
        for n, (part, seconds) in enumerate(ordered)
    )
    rows = [[part, f"{seconds:.1f} s", f"{seconds / whole:.0%}"] for part, seconds in ordered]
    return _section(
        "Time by part", "", f'<div class="bar">{bars}</div>{_table(["part", "time", "share"], rows, numeric=(1, 2))}'
    )


TIMES = frozenset(f"time/{part}" for part in ("env", "act", "learn", "evaluate", "evolve", "report"))


def _configuration(run: RunHistory) -> str:
    parts = []
    if run.document:
        rows = [[str(key), _plain(value)] for key, value in run.document.items()]
        parts.append(_table(["", ""], rows))
    if run.config:
        parts.append(f"<details><summary>config.yaml</summary><pre>{escape(run.config)}</pre></details>")
    return _section("Provenance and configuration", "", "".join(parts))


# -- parts of HTML


def _genome(run: RunHistory, row: int) -> str:
    own = run.rows[row]
    values = [
        f"{name[3:]} {formatting.hyperparameter(own[name])}"
        for name in run.hyperparameters
        if isinstance(own[name], str) or math.isfinite(own[name])
    ]
    return "; ".join(filter(None, (", ".join(values), own["architecture"])))


def _section(title: str, note: str, body: str) -> str:
    explained = f"<p>{escape(note)}</p>" if note else ""
    return f"<section><h2>{escape(title)}</h2>{explained}{body}</section>"


def _table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: Sequence[int] = (), is_html: bool = False
) -> str:
    def cells(tag: str, row: Sequence[str], *, html: bool) -> str:
        kinds = [
            ' class="n"' if n in numeric else ' class="long"' if len(cell) > 40 and not html else ""
            for n, cell in enumerate(row)
        ]
        return "".join(
            f"<{tag}{kind}>{cell if html else escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True)
        )

    top = f"<tr>{cells('th', head, html=False)}</tr>" if any(head) else ""
    body = "".join(f"<tr>{cells('td', row, html=is_html)}</tr>" for row in rows)
    return f'<div class="wide"><table>{top}{body}</table></div>'


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    shown = " ".join(f'<u style="background:{colour}"></u>{escape(label)}' for colour, label in entries)
    return f'<p class="legend">{shown}</p>'


def _category(categories: Sequence[Any], place: float) -> str:
    """Return the value of a choice at a place on the axis; "" between two."""
    is_at = abs(place - round(place)) < 1e-6 and 0 <= round(place) < len(categories)
    return formatting.hyperparameter(categories[round(place)])[:8] if is_at else ""


def _short(value: float) -> str:
    return formatting.count(value) if abs(value) >= 1000 else f"{value:.4g}"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(its)}" for key, its in value.items())
    return ", ".join(map(_plain, value)) if isinstance(value, list) else str(value)
