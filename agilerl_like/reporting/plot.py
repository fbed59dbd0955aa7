"""One figure of a run: fitness, hyperparameters, network size and metrics of learning of all members over time.

Every member is a branch that starts at its parent; the lineage of the best member is dark in every panel. Panels whose
height is not fitness show it as colour. Several runs are one figure of their best fitness so far, with its mean.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agilerl_like.errors import CheckpointError, ConfigurationError
from agilerl_like.reporting import formatting
from agilerl_like.reporting.charts import (
    BLUE,
    DARK,
    LARGEST,
    LOG_RANGE,
    PANELS,
    RED,
    distinct_names,
    fitness_range,
)
from agilerl_like.reporting.estimates import best_so_far, pooled_by_method, why_not_comparable
from agilerl_like.reporting.files import METRICS
from agilerl_like.reporting.run_history import FITNESS, RunHistory, read_history
from agilerl_like.storage.durable_io import make_folder, replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

PLOT, RUNS_PLOT = "evolution.png", "runs.png"
_NAMED = 10
"""Most runs of a figure that have a colour and a name each, as many as matplotlib has colours."""
_FORMATS = (".png", ".pdf", ".svg")
_DECADES = 1e4
"""Ratio of largest and smallest value from which a logarithmic axis has powers of 10 alone."""
_LABELS = 16
_LABEL_LENGTH = 20
"""Characters of a mutation's label: `encoder.remove_layer`, the longest operator of the default network."""
_LEFT, _TOP, _RIGHT = 0.15, 0.65, 0.85
"""Shares of the axes beyond which a label is put on the other side of its point, so that it stays inside."""
_LEAST_SPREAD = 0.1
"""Least half height of an axis relative to the values: a smaller one would make noise look like a change."""
_LEARNING = {
    "train/loss": "loss",
    "train/policy_gradient_loss": "policy gradient loss",
    "train/actor_loss": "actor loss",
    "train/value_loss": "value loss",
    "train/td_error": "TD error",
    "train/q_value": "Q value",
    "train/alpha": "temperature",
    "train/entropy_loss": "entropy of the policy",
    "train/approx_kl": "approximate KL of an update",
    "train/return_mean": "return of the perturbed policies",
}
"""Titles of the metrics of learning, by column; a run has those of its algorithm."""
_NEGATED = frozenset({"train/entropy_loss"})
"""Columns that are minus what their panel shows."""
_GREY = "#b8c2cc"


def plot_run(run_dir: Path | str, path: Path | str | None = None) -> Path:
    """Plot a run into a PNG, PDF or SVG file, by default `evolution.png` in its folder, and return the path."""
    return _save(figure(run_dir), Path(run_dir) / PLOT if path is None else Path(path))


def plot_runs(run_dirs: Sequence[Path | str], path: Path | str = RUNS_PLOT, *, methods: Sequence[str] = ()) -> Path:
    """Plot several runs of one env into a PNG, PDF or SVG file, and return the path: see `figure_of_runs`."""
    return _save(figure_of_runs(run_dirs, methods=methods), Path(path))


def _save(drawing: Figure, target: Path) -> Path:
    if target.suffix not in _FORMATS:
        raise ConfigurationError(f"file={str(target)!r}; allowed is a name that ends in {', '.join(_FORMATS)}")
    picture = io.BytesIO()
    drawing.savefig(picture, dpi=130, format=target.suffix[1:])
    make_folder(target.absolute().parent)
    replace_file(target, picture.getvalue())
    return target


def figure_of_runs(run_dirs: Sequence[Path | str], *, methods: Sequence[str] = ()) -> Figure:
    """Return the figure of several runs: the best fitness so far of each over env steps, and their mean.

    The mean is the interquartile one (below 4 runs the mean, without an interval), with its 95 % bootstrap interval,
    up to the end of the shortest run. `methods` are the names of the runs' methods, as `saved_runs.methods_of` returns
    them: the runs of each method have one colour and a mean of their own.

    Raises:
        ConfigurationError: a folder is no run's, or the runs have no common fitness: other envs, other kinds, ratings.
    """
    drawing = _new_figure(figsize=(8, 4))
    runs = [read_history(run_dir) for run_dir in run_dirs]
    if reason := why_not_comparable(runs):
        raise ConfigurationError(
            f"runs have no common axis, because {reason}; allowed are runs of one env and fitness, without ratings"
        )
    axes = drawing.add_subplot()
    one_method = len({*methods}) < 2
    means = pooled_by_method(runs, () if one_method else methods)
    names = distinct_names([run.name for run in runs]) if one_method else methods
    order = list(dict.fromkeys(names))
    named = len(order) <= _NAMED
    for number, (name, run) in enumerate(zip(names, runs, strict=True)):
        colour = f"C{order.index(name)}" if named else _GREY
        is_first = names.index(name) == number and name not in means
        label = (name if is_first else "") if named else "a run" if number == 0 else ""
        steps, width = run.per_generation("time/total_timesteps"), 0.6 if name in means else 1.2
        axes.step(steps, best_so_far(run), where="post", linewidth=width, color=colour, label=_label_in_legend(label))
    for method, its in means.items() if named or one_method else ():
        of, colour = ("", DARK) if one_method else (f"{method}: ", f"C{order.index(method)}")
        low, value, high = np.array([(mean.low, mean.value, mean.high) for mean in its.estimates]).T
        label = _label_in_legend(f"{of}{its.mean_name} of {its.num_runs} runs")
        axes.step(its.env_steps, value, where="post", color=colour, linewidth=2.5, label=label)
        if its.interval_name:
            label, shade = f"{its.interval_name} of the mean", {"color": colour, "alpha": 0.12, "linewidth": 0}
            axes.fill_between(its.env_steps, low, high, step="post", label=label, **shade)
    axes.set(xlabel="env steps of all members", ylabel="best fitness so far")
    axes.xaxis.set_major_formatter(lambda value, _: formatting.count(value))
    _style_axes(axes, str(runs[0].document.get("env", "")))
    legend = axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return drawing


def _label_in_legend(text: str) -> str:
    """Return a label with a space before an underscore, because matplotlib leaves out labels that begin with one."""
    return f" {text}" if text.startswith("_") else text


def _new_figure(figsize: tuple[float, float]) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("a plot needs one more package: pip install 'agilerl-like[plot]'") from error
    return Figure(figsize=figsize, layout="constrained", facecolor="white")


def figure(run_dir: Path | str) -> Figure:
    """Return the figure of a run; it belongs to no window and no global state."""
    history = read_history(run_dir)
    if len(history.hyperparameters) > PANELS:
        raise CheckpointError(
            f"path={str(Path(run_dir) / METRICS)!r} has {len(history.hyperparameters)} hp/ columns; allowed are "
            f"{PANELS}"
        )
    names = [*history.hyperparameters, "parameters"]
    names += [name for name in _LEARNING if np.isfinite(_column(history, name)).any()]
    columns = len(names) if len(names) <= 4 else min((3, 4), key=lambda n: -len(names) % n)  # fewest empty panels
    lines = math.ceil(len(names) / columns)
    drawing = _new_figure(figsize=(12, 4 + 2.4 * lines))
    grid = drawing.add_gridspec(lines + 1, columns, height_ratios=[1.7] + [1] * lines)
    _draw_fitness(drawing.add_subplot(grid[0, :]), history)
    norm = _fitness_norm(history)
    small = [drawing.add_subplot(grid[1 + i // columns, i % columns]) for i in range(len(names))]
    for axes, name in zip(small, names, strict=True):
        _draw_panel(axes, name, history, norm)
    for axes in small[-columns:]:
        axes.set_xlabel("generation")
    bar = drawing.colorbar(small[0].collections[-1], ax=small, label="fitness", aspect=16 * lines, pad=0.01)
    bar.ax.spines["outline"].set_visible(False)
    drawing.suptitle(
        _title(history),
        x=0.01,
        ha="left",
        fontsize=13,
        fontweight="bold",
        color=DARK,
        parse_math=False,
    )
    return drawing


def _title(history: RunHistory) -> str:
    best = history.rows[history.lineage[-1]]
    fitness = formatting.known_fitness(history.column("population/best_ever")[-1])
    return f"{history.name}: best fitness {fitness}, member {best['uid']:.0f} in generation {best['generation']:.0f}"


def _column(history: RunHistory, name: str) -> np.ndarray:
    values = -history.column(name) if name in _NEGATED else history.column(name)
    sizes = np.abs(values)
    return np.where((sizes < LARGEST) & ((sizes > 1 / LARGEST) | (sizes == 0)), values, np.nan)


def _fitness_norm(history: RunHistory) -> Normalize:
    from matplotlib.colors import Normalize

    return Normalize(*fitness_range(_column(history, FITNESS)), clip=True)


def _draw_branches(axes: Axes, history: RunHistory, x: np.ndarray, y: np.ndarray) -> None:
    from matplotlib.collections import LineCollection

    points = np.stack([x, y], axis=-1)
    segments = [points[[i, j]] for j, i in enumerate(history.before) if i >= 0]
    axes.add_collection(LineCollection([p for p in segments if np.isfinite(p).all()], colors=_GREY, linewidths=0.9))
    axes.plot(*points[history.lineage].T, color=DARK, linewidth=2.0, zorder=3, label="the best member's lineage")


def _draw_fitness(axes: Axes, history: RunHistory) -> None:
    steps, fitness = _column(history, "time/total_timesteps"), _column(history, "eval/mean_reward")
    best, starts = _column(history, "population/best_ever"), [start for start, _ in history.generations]
    axes.scatter(steps, fitness, s=14, color=_GREY, zorder=2, label="a member")
    axes.plot(steps[starts], best[starts], color=BLUE, linestyle=":", label="best so far, confirmed")
    _draw_branches(axes, history, steps, fitness)
    axes.scatter(steps[history.lineage], fitness[history.lineage], s=20, color=DARK, zorder=4)
    middle, spread = fitness[history.lineage], _column(history, "eval/std_reward")[history.lineage]
    axes.fill_between(
        steps[history.lineage], middle - spread, middle + spread, color=DARK, alpha=0.1, linewidth=0, zorder=1,
        label="± standard error of its rating" if history.is_rated else "± standard deviation of its episodes",
    )  # fmt: skip
    target = history.column("population/target")[-1]
    if abs(target) < LARGEST:
        axes.axhline(target, color=RED, linestyle="--", linewidth=1.2, label=f"target {formatting.fitness(target)}")
    axes.set(xlabel="env steps of all members", ylabel="fitness")
    axes.xaxis.set_major_formatter(lambda value, _: formatting.count(value))
    _limit_height(axes, np.concatenate([fitness, best, [target if abs(target) < LARGEST else math.nan]]), margin=0.2)
    _label_mutations(axes, history, steps, fitness)
    _style_axes(axes, "fitness")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=5, frameon=False, fontsize=9)


def _label_mutations(axes: Axes, history: RunHistory, x: np.ndarray, y: np.ndarray) -> None:
    rows = history.rows
    born = [i for i in history.lineage if history.is_birth(i)]
    changed = [i for i in born if rows[i]["mutation"] not in ("", "None") and math.isfinite(y[i])]
    shares = axes.transLimits.transform(np.stack([x, y], axis=-1))
    for i in changed[-_LABELS:]:
        across, up = shares[i]
        above = up < _TOP
        ends_here = across > (_LEFT if above else _RIGHT)  # above the point to its left, below it to its right
        axes.annotate(
            _shortened(rows[i]["mutation"]), (x[i], y[i]), xytext=(-3 if ends_here else 3, 5 if above else -5),
            textcoords="offset points", ha="right" if ends_here else "left", va="bottom" if above else "top",
            rotation=-30 if above == ends_here else 30, rotation_mode="anchor", fontsize=8, color=DARK, zorder=5,
            parse_math=False, clip_on=True,
        )  # fmt: skip


def _shortened(label: str) -> str:
    """Shorten the label of a mutation to `_LABEL_LENGTH` characters; several hyperparameters become their number."""
    if len(label) <= _LABEL_LENGTH:
        return label
    if "," in label:
        return f"{label.count(',') + 1} hyperparameters"
    parts = label.split(".")
    ends = [".".join(parts[first:]) for first in range(1, len(parts))]  # the location is dropped before the operation
    end = next((end for end in ends if len(end) < _LABEL_LENGTH), "")
    return f"…{end}" if end else f"{label[: _LABEL_LENGTH - 1]}…"


def _draw_panel(axes: Axes, name: str, history: RunHistory, norm: Normalize) -> None:
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    values, fitness = _column(history, name), _column(history, "eval/mean_reward")
    generation = _column(history, "generation")
    _draw_branches(axes, history, generation, values)
    colours = colormaps["viridis"].with_extremes(bad=RED)  # red: the fitness is not finite
    axes.scatter(generation, values, c=fitness, s=16, cmap=colours, norm=norm, zorder=4, plotnonfinite=True)
    _scale(axes, values)
    if name == "parameters":
        axes.yaxis.set_major_formatter(lambda value, _: formatting.count(value))
    if categories := history.categories(name):
        axes.set_yticks(range(len(categories)), [formatting.hyperparameter(value)[:12] for value in categories])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    title = {"parameters": "weights in the network", **_LEARNING}.get(name, name.removeprefix("hp/"))
    _style_axes(axes, title)


def _scale(axes: Axes, values: np.ndarray) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    low, high = np.nanmin(values), np.nanmax(values)
    whole = bool((values[np.isfinite(values)] % 1 == 0).all())
    if low > 0 and high / low > LOG_RANGE:
        axes.set_yscale("log", base=2 if whole else 10)
        subs = (1.0, 2.0, 5.0) if high / low < _DECADES else (1.0,)
        axes.yaxis.set_major_locator(LogLocator(base=2) if whole else LogLocator(subs=subs))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}" if whole else formatting.hyperparameter(value))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=whole, min_n_ticks=1))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
        _limit_height(axes, values)


def _limit_height(axes: Axes, values: np.ndarray, margin: float = 0.05) -> None:
    """Set the limits of y to the values with a margin, but at least to a minimum height.

    The minimum is relative to the largest value, and for values in [0.9, 1), such as discounts, to their distance from
    1: 0.99 and 0.995 are far apart.
    """
    finite = values[np.isfinite(values)]
    if not finite.size:
        return
    low, high = finite.min(), finite.max()
    middle = low + (high - low) / 2
    least = _LEAST_SPREAD * (max(abs(low), abs(high)) or 1.0)
    if low >= 0.9 and high < 1:
        least = min(least, 1 - middle)
    half = max((high - low) * (0.5 + margin), least)
    axes.set_ylim(middle - half, middle + half)


def _style_axes(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=DARK, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e9ecef", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, color=_GREY)
    axes.tick_params(which="minor", length=0)
