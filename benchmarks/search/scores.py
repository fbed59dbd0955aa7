"""Scores of runs: what tables, curves and goals are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from benchmarks.search import statistics as stats
from benchmarks.search.protocol import ENVS
from benchmarks.search.runner import Row


def final_score(row: Row) -> float:
    """Return the normalised test return of what was handed over; a failed run scores as a random policy."""
    value = ENVS[row.case["env"]].score(row.test_return)
    return value if math.isfinite(value) and not row.failure else 0.0


def auc_score(row: Row) -> float:
    """Return the step-weighted mean of the normalised test return over the budget; 0 before the first evaluation."""
    env = ENVS[row.case["env"]]
    points = [] if row.failure else [(steps, env.score(value)) for steps, _, value in row.curve]
    return stats.area_under_curve(points, row.case["budget"])


def to_target(row: Row, seconds: bool = False) -> float | None:
    """Return the steps (or seconds) until what would be handed over reached the target in the test; None: never."""
    target = ENVS[row.case["env"]].target
    reached = [(steps, at) for steps, at, value in row.curve if value >= target]
    return None if not reached or row.failure else reached[0][int(seconds)]


def scores(rows: Iterable[Row], of: Callable[[Row], float]) -> dict[str, dict[str, list[float]]]:
    """Return scores by method and task, in the order of seeds; a task is an environment with its start."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in sorted(rows, key=lambda row: row.case["seed"]):
        task = f"{row.case['env']} {row.case['start']}"
        found.setdefault(row.case["method"], {}).setdefault(task, []).append(of(row))
    return found
