"""`report.html`: what evolution did in one run or several, in one file that needs no network.

Charts are drawn by Vega-Lite, which the file contains.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.reporting import charts, formatting
from agilerl_like.reporting.callback import Reporter
from agilerl_like.reporting.estimates import (
    LEAST,
    NOTE_ON_FEW,
    Estimate,
    best_with_error,
    bootstrap,
    operator_effects,
    operator_gains,
    pooled_by_method,
    why_not_comparable,
)
from agilerl_like.reporting.files import METRICS
from agilerl_like.reporting.importance import hyperparameter_effects, percent
from agilerl_like.reporting.records import TIMED_PHASES, SummaryRecord
from agilerl_like.reporting.run_history import FITNESS, RunHistory, read_history
from agilerl_like.reporting.vega_scripts import vega_scripts
from agilerl_like.storage.durable_io import make_folder, replace_file

REPORT = "report.html"
PAGE = Path(__file__).parent / "page"
"""Style of a report, and the script that draws."""
POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"
"""What a browser lets the page load: nothing from outside. Vega compiles its expressions, which is called eval."""
LISTED = 20
"""Last births of the best lineage that are listed; earlier ones are folded."""
NARROWEST = 5
"""Fewest pixels of a generation in the family tree; a tree of more generations than fit is scrolled."""


def write_report(runs: Sequence[RunHistory], target: Path, methods: Sequence[str] = ()) -> Path:
    """Write the report of one run or several to a file, and return its path; `methods` as in `report_html`."""
    page = report_html(runs, methods).encode()
    make_folder(target.absolute().parent)
    replace_file(target, page)
    return target


class HtmlReporter(Reporter):
    """Writes `report.html` at the end of a run, also of an interrupted one; it comes after the record files."""

    def __init__(self, run_dir: Path | str) -> None:
        self._run_dir = Path(run_dir).absolute()

    def finish(self, summary: SummaryRecord) -> None:
        """Write the report, or warn why there is none; a run in which no generation has ended has no metrics.csv."""
        if not (self._run_dir / METRICS).exists():
            return
        try:
            write_report([read_history(self._run_dir)], self._run_dir / REPORT)
        except (ConfigurationError, CheckpointError) as error:
            warnings.warn(f"the run has no {REPORT}: {error}", stacklevel=2)


def report_html(runs: Sequence[RunHistory], methods: Sequence[str] = ()) -> str:
    """Return the report as HTML; `methods`: the name of each run's method, left out if there is one."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs: {', '.join(run.name for run in runs)}"
    body = [f"<h1>{escape(title[:120])}</h1>"]
    if len(runs) == 1:
        body.append(_run_sections(runs[0]))
    else:
        names = charts.distinct_names([run.name for run in runs])
        body.append(_comparison(runs, names, methods if len({*methods}) > 1 else ()))
        for name, run in zip(names, runs, strict=True):
            summary = f"<summary><h2 style='display:inline'>{escape(name)}</h2></summary>"
            body.append(f"<details>{summary}{_run_sections(run)}</details>")
    style, draw = ((PAGE / name).read_text(encoding="utf-8") for name in ("style.css", "draw.js"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="generator" content="agilerl-like">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        # an empty icon: without one a browser requests favicon.ico
        f'<link rel="icon" href="data:,"><title>{escape(title)} · agilerl-like</title>'
        f"<style>{style}</style></head>"
        f"<body><noscript>The charts need JavaScript.</noscript>{''.join(body)}"
        f"<script>(() => {{{vega_scripts()}}})();</script><script>{draw}</script></body></html>\n"
    )


# -- several runs


def _comparison(runs: Sequence[RunHistory], names: Sequence[str], methods: Sequence[str]) -> str:
    reason = why_not_comparable(runs)
    means = {} if reason else pooled_by_method(runs, methods)
    note = f"No mean over the runs, because {reason}." if reason else ""
    if means:
        names_of = ((its.mean_name, its.interval_name) for its in means.values())
        found = {f"{mean} with a {interval} by bootstrap" if interval else mean: None for mean, interval in names_of}
        note = (
            f"{'Thick lines' if methods else 'Black'}: {' or '.join(found)} over the runs"
            f"{' of a method (equal settings)' if methods else ''}, up to the end of the shortest. The interquartile "
            f"mean leaves out the lowest and the highest quarter, rounded down; below {LEAST} runs it is the mean. "
            f"{NOTE_ON_FEW.capitalize()}."
        )
    rows = [
        [
            name,
            *([method] if methods else []),
            formatting.outcome(run.outcome),
            f"{len(run.generations)}",
            formatting.count(run.per_generation("time/total_timesteps")[-1]),
            formatting.count(run.per_generation("time/evaluation_timesteps")[-1]),
            best_with_error(run),
            formatting.duration(run.per_generation("time/time_elapsed")[-1]),
            _genome(run, run.best_row),
        ]
        for name, method, run in zip(names, methods or names, runs, strict=True)
    ]
    head = [
        "run",
        *(["method"] if methods else []),
        "ended",
        "generations",
        "training steps",
        "evaluation steps",
        "best fitness ± standard error",
        "time",
        "best agent",
    ]
    figure = _chart("best fitness so far of every run", charts.comparison(runs, means, methods))
    return _section("Runs side by side", note, f"{figure}{_table(head, rows)}")


# -- one run


def _run_sections(run: RunHistory) -> str:
    notes = "".join(f'<p class="notes">{escape(note)}</p>' for note in run.notes)
    parts = (_facts, _family_tree, _lineage, _fitness, _schedules, _architectures, _operators, _importance, _time)
    sections = "".join(part(run) for part in (*parts, _configuration))
    return f"<article>{_json(charts.table_of(run), 'table')}{notes}{sections}</article>"


def _facts(run: RunHistory) -> str:
    best = run.rows[run.best_row]
    last = run.rows[-1]
    births = sum(map(run.is_birth, range(len(run.rows))))
    of_lineage = sum(map(run.is_birth, run.lineage))
    facts = [
        (
            best_with_error(run),
            f"best fitness{' ± standard error,' if run.best_is_confirmed else ', not yet'} on fresh episodes",
        ),
        (f"{best['uid']:.0f}", f"best member, generation {best['generation']:.0f}"),
        (f"{of_lineage} of {births}", "births in its lineage"),
        (f"{len(run.generations)}", f"generations of {run.sizes} members"),
        (formatting.count(last.get("time/total_timesteps", math.nan)), "env steps of all members"),
        (formatting.duration(last.get("time/time_elapsed", math.nan)), "time"),
        (formatting.outcome(run.outcome), "how it ended"),
    ]
    return (
        '<div class="facts">'
        + "".join(f"<div><b>{escape(value)}</b><span>{escape(label)}</span></div>" for value, label in facts)
        + f"</div><p>Best agent: {escape(_genome(run, run.best_row))}</p>"
    )


def _family_tree(run: RunHistory) -> str:
    return _section(
        "Family tree",
        "Each line is a member; an edge leads from a parent to its clone, with what was mutated in it. Dark outline: "
        "the best agent's lineage; faint: no descendant in the last generation; red: the fitness is not finite. Hold "
        "the pointer over a line for its fitness and mutations.",
        _chart(f"family tree of {run.name}", charts.family_tree(run), min_width=NARROWEST * len(run.generations)),
    )


def lineage_rows(run: RunHistory) -> list[list[str]]:
    """Return the births of the best lineage: generation, member, mutations, fitness before and after its generation.

    The lineage begins with an initial member, or with a fresh one, which has no parent either.
    """
    fitness, first = run.column(FITNESS), run.lineage[0]
    generation, uid = (run.rows[first][name] for name in ("generation", "uid"))
    kind = "initial member" if generation == run.rows[0]["generation"] else "fresh member"
    rows = [[f"{generation:.0f}", f"{uid:.0f}", kind, "", formatting.fitness(fitness[first]), ""]]
    for row in run.lineage:
        if run.is_birth(row):
            own, before = run.rows[row], run.before[row]
            gain = fitness[row] - fitness[before]
            rows.append(
                [
                    f"{own['generation']:.0f}",
                    f"{own['uid']:.0f} ← {run.rows[before]['uid']:.0f}",
                    run.mutations_of(row) or "unchanged",
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
        "before; of a clone of the run's best agent, less this agent's in the generation that it was cloned from.",
        table,
    )


def _fitness(run: RunHistory) -> str:
    return _section("Fitness", "", _chart("fitness by generation", charts.fitness_fan(run)))


def _schedules(run: RunHistory) -> str:
    columns = (*run.hyperparameters, *run.scheduled)
    named = [(n, name) for n, name in enumerate(columns) if np.isfinite(run.column(name)).any()]
    if not named:
        return ""
    drawn = named[: charts.PANELS]
    titled = [(f"h{n}", name, name.removeprefix("hp/")) for n, name in drawn]
    panels = "".join(_chart(title, charts.schedule(run, name, field, title)) for field, name, title in titled)
    best = run.rows[run.best_row]
    values, trained = (
        {name[len(kind) :]: best[name] for name in best if name.startswith(kind)} for kind in ("hp/", "train/")
    )
    note = f" {', '.join(run.scheduled)}: what a schedule made of the values." if run.scheduled else ""
    if scheduled := formatting.scheduled(values, trained):
        note += f" In the best agent's generation, {best['generation']:.0f}: {scheduled}."
    return _section(
        "Hyperparameters",
        f"Points: every member, coloured by fitness; line: the values of the best agent's lineage.{note}",
        f'<div class="panels">{panels}</div>',
    )


def _architectures(run: RunHistory) -> str:
    rows, last = [], None
    for row in run.lineage:
        own = run.rows[row]
        if own["architecture"] != last:
            last = own["architecture"]
            rows.append([f"{own['generation']:.0f}", last, f"{own['parameters']:,.0f}"])
    table = _table(["from generation", "architecture", "weights"], rows, numeric=(2,))
    weights = _chart("weights", charts.schedule(run, "parameters", "weights", "weights"))
    return _section(
        "Architecture",
        "Weights of every member's networks, and the architectures of the best agent's lineage.",
        f'<div class="panels">{weights}{table}</div>',
    )


def _operators(run: RunHistory) -> str:
    gains = operator_gains(run)
    if not gains:
        return _section("What each mutation brought", "No member was born in this run.", "")
    estimates = {name: bootstrap(values) for name, values in gains.items()}
    effects = {name: bootstrap(values) for name, values in operator_effects(run).items()}
    rows = [
        [name, *(cell for its in (gain, effects.get(name, bootstrap(()))) for cell in _births(its))]
        for name, gain in estimates.items()
    ]
    table = _table(["mutation", "births", "gain", "births", "beside the parent"], rows, numeric=(1, 2, 3, 4))
    return _section(
        "What each mutation brought",
        "Mean gain in fitness with a 95 % bootstrap interval: a member's fitness after its first generation less its "
        "parent's one generation before (of a clone of the run's best agent, less this agent's in the generation that "
        "it was cloned from). This gain also has a generation of training (the row of unchanged clones "
        "shows how much) and regression to the mean, because parents are selected for a high and partly lucky fitness. "
        "Beside the parent: the same member less its parent in the same generation, where that one survived as it was; "
        f"it has neither. {NOTE_ON_FEW.capitalize()}.",
        f'<div class="rows">{_chart("gains of mutations", charts.intervals(estimates))}</div>{table}',
    )


def _births(estimate: Estimate) -> list[str]:
    """Return the number of births and their mean with its interval."""
    return [str(estimate.num_values), estimate.text(signed=True)]


def _importance(run: RunHistory) -> str:
    found = hyperparameter_effects(run)
    title = "Which hyperparameters mattered"
    if found.is_of_one_member:
        return ""
    if found.reason:
        return _section(title, f"Not known: {found.reason}.", "")
    rows = [
        [
            effect.name,
            percent(effect.importance),
            effect.good if effect.is_shown else "no effect beyond noise",
            effect.tried,
        ]
        for effect in found.effects
    ]
    table = _table(["hyperparameter", "importance", "good values", "tried"], rows, numeric=(1,))
    figure = _chart("importance", charts.intervals({effect.name: effect.importance for effect in found.effects}))
    return _section(
        title,
        "Share of the variance of the gains of one generation, among the members of that generation, that the "
        f"hyperparameter explains by itself, with a 95 % interval from resampling the {found.num_members} members "
        f"({found.num_rows} gains). Interactions are left out. Good values: the middle 80 % of those with which the "
        "best quarter of the gains was made; where the interval reaches 0, the run does not show an effect.",
        f'<div class="rows">{figure}</div>{table}',
    )


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
    ordered = dict(sorted(parts.items(), key=lambda item: -item[1]))
    rows = [[part, f"{seconds:.1f} s", f"{seconds / whole:.0%}"] for part, seconds in ordered.items()]
    figure, table = (
        _chart("time by part", charts.time_by_part(ordered)),
        _table(["part", "time", "share"], rows, numeric=(1, 2)),
    )
    return _section("Time by part", "", f'<div class="panels">{figure}{table}</div>')


LEVELS = 8
"""Levels of a value in run.json that are shown; a run writes three, and a damaged file may have hundreds."""
TIMES = frozenset(f"time/{part}" for part in TIMED_PHASES)


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
    found = run.active_hyperparameters(row)
    values = [f"{name} {formatting.hyperparameter(value)}" for name, value in found.items()]
    return "; ".join(filter(None, (", ".join(values), run.rows[row]["architecture"])))


def _section(title: str, note: str, body: str) -> str:
    explained = f"<p>{escape(note)}</p>" if note else ""
    return f"<section><h2>{escape(title)}</h2>{explained}{body}</section>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: Sequence[int] = ()) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = [
            ' class="n"' if n in numeric else ' class="long"' if len(cell) > 40 else "" for n, cell in enumerate(row)
        ]
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    top = f"<tr>{cells('th', head)}</tr>" if any(head) else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table>{top}{body}</table></div>'


def _chart(label: str, spec: charts.Spec, *, min_width: int = 0) -> str:
    """A place for a chart, as wide as the page, in which the script draws it; screen readers read the label."""
    size = f"min-width:{min_width}px;min-height:{spec['height'] + 60:.0f}px"
    drawn = _json({"width": "container", "description": label, **spec})
    return f'<div class="wide"><div class="chart" style="{size}">{drawn}</div></div>'


def _json(content: Any, name: str = "") -> str:
    """JSON as an element that is not executed; no "<" is left that could end it."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" class="{name}">{text}</script>'


def _plain(value: Any, levels: int = LEVELS) -> str:
    if not isinstance(value, dict | list):
        return str(value)
    if not levels:
        return "…"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(its, levels - 1)}" for key, its in value.items())
    return ", ".join(_plain(its, levels - 1) for its in value)
