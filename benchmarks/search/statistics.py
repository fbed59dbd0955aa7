"""Statistics over runs: a run is one whole search, a task one environment with its start.

Definitions are those of Agarwal et al. 2021 ("Deep RL at the edge of the statistical precipice"); scores are
normalised. `Scores` maps each task to the scores of its runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from agilerl_like.reporting import estimates

Scores = Mapping[str, Sequence[float]]
REPETITIONS = 2_000


def iqm(scores: Scores) -> float:
    """Return the interquartile mean of all runs of all tasks: a quarter, rounded down, is dropped at each end."""
    values = np.sort(np.concatenate([np.asarray(runs, dtype=float) for runs in scores.values()]))
    cut = len(values) // 4
    return float(values[cut : len(values) - cut].mean())


def optimality_gap(scores: Scores, wanted: float = 1.0) -> float:
    """Return the mean by which runs fall short of a score."""
    values = np.concatenate([np.asarray(runs, dtype=float) for runs in scores.values()])
    return float(np.maximum(0.0, wanted - values).mean())


def performance_profile(scores: Scores, thresholds: Sequence[float]) -> list[float]:
    """Return the share of runs above each threshold."""
    values = np.concatenate([np.asarray(runs, dtype=float) for runs in scores.values()])
    return [float((values > threshold).mean()) for threshold in thresholds]


def in_common(*its: Scores) -> list[Scores]:
    """Return each side's scores in the tasks that all sides have, sorted, since the bootstrap draws in that order."""
    common = sorted(set.intersection(*(set(side) for side in its)))
    return [{task: side[task] for task in common} for side in its]


def as_many_runs(*its: Scores) -> list[Scores]:
    """Return `in_common` with as many runs in each task as all sides have, the first ones.

    The interquartile mean pools runs, so that a task with fewer runs has less weight: it compares only sides with equal
    numbers of runs.
    """
    sides = in_common(*its)
    return [{task: side[task][: min(len(one[task]) for one in sides)] for task in side} for side in sides]


def probability_of_improvement(ours: Scores, theirs: Scores) -> float:
    """Return the probability that a run of ours is better than one of theirs in a random task; ties count half."""
    return float(
        np.mean([estimates.probability_of_improvement(ours[task], theirs[task]) for task in _common(ours, theirs)])
    )


def pairs_at_target(ours: Scores, theirs: Scores) -> tuple[float, float, float, float]:
    """Return the shares of pairs of runs in a random task of which both, ours alone, theirs alone, neither score 1."""
    found = []
    for task in _common(ours, theirs):
        one, other = (float((np.asarray(side[task], dtype=float) >= 1).mean()) for side in (ours, theirs))
        found.append((one * other, one * (1 - other), (1 - one) * other, (1 - one) * (1 - other)))
    both, alone, other_alone, neither = np.mean(found, axis=0).tolist()
    return both, alone, other_alone, neither


def _common(ours: Scores, theirs: Scores) -> list[str]:
    tasks = [task for task in ours if task in theirs]
    if not tasks:
        raise ValueError(f"no task in common: {sorted(ours)} and {sorted(theirs)}")
    return tasks


def bootstrap_interval(
    statistic: Callable[..., float],
    *scores: Scores,
    seed: int = 0,
    repetitions: int | None = None,
    level: float = 0.95,
) -> tuple[float, float]:
    """Return the percentile interval of a statistic: runs are resampled within each task, methods independently."""
    rng = np.random.default_rng(seed)
    found = [
        statistic(*(_resampled(one, rng) for one in scores))
        for _ in range(REPETITIONS if repetitions is None else repetitions)
    ]
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resampled(scores: Scores, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {task: rng.choice(np.asarray(runs, dtype=float), len(runs)) for task, runs in scores.items()}


def area_under_curve(points: Sequence[tuple[float, float]], budget: float, before: float = 0.0) -> float:
    """Return the step-weighted mean of a step function over the budget.

    A point (steps, score) holds from its steps until the next one; `before` holds until the first.
    """
    area, at, value = 0.0, 0.0, before
    for steps, score in points:
        steps = min(steps, budget)
        area, at, value = area + value * (steps - at), steps, score
    return (area + value * (budget - at)) / budget


def with_runs(scores: Mapping[str, Scores], least: int) -> dict[str, Scores]:
    """Return the scores of methods that have `least` runs in each task in which two methods or more have as many."""
    full = {method: {task for task, runs in its.items() if len(runs) >= least} for method, its in scores.items()}
    counts = Counter(task for tasks in full.values() for task in tasks)
    tasks = sorted(task for task, count in counts.items() if count >= 2)
    found = [method for method in scores if tasks and full[method].issuperset(tasks)]
    return {method: {task: scores[method][task] for task in tasks} for method in found}


def mean_ranks(scores: Mapping[str, Scores]) -> dict[str, float]:
    """Return each method's mean rank in the tasks that all have: 1 is best, ties share their mean rank.

    It is the expected rank of a random run among one random run of each other method, so all runs of a task count, also
    where methods have different numbers of them.
    """
    ranks = {}
    for method, its in scores.items():
        rivals = [other for name, other in scores.items() if name != method]
        tasks = [task for task in its if all(task in other for other in rivals)]
        lost = [1 - estimates.probability_of_improvement(its[task], other[task]) for task in tasks for other in rivals]
        ranks[method] = 1 + sum(lost) / len(tasks) if tasks else math.nan
    return ranks


def restricted_mean(times: Sequence[float | None], horizon: float) -> float:
    """Return the mean time to an event within a horizon; None, the event did not happen, counts as the horizon.

    All runs are followed up to the horizon, so this is the area under the Kaplan-Meier curve.
    """
    return float(np.mean([horizon if time is None else min(time, horizon) for time in times]))


def permutation_p(ours: Scores, theirs: Scores, *, seed: int = 0, repetitions: int = 10_000) -> float:
    """Return the one-sided p of "ours has the higher mean over tasks of mean scores".

    Within each task the runs of both methods are exchanged at random.
    """
    rng, tasks = np.random.default_rng(seed), _common(ours, theirs)
    pooled = [np.concatenate([np.asarray(ours[task]), np.asarray(theirs[task])]).astype(float) for task in tasks]
    counts = [len(ours[task]) for task in tasks]

    def difference(arrays: Sequence[np.ndarray]) -> float:
        return float(np.mean([its[:n].mean() - its[n:].mean() for its, n in zip(arrays, counts, strict=True)]))

    seen = difference(pooled)
    higher = sum(difference([rng.permutation(its) for its in pooled]) >= seen - 1e-12 for _ in range(repetitions))
    return (higher + 1) / (repetitions + 1)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values adjusted for several comparisons (Holm 1979)."""
    adjusted, largest = {}, 0.0
    for place, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p))
        adjusted[name] = largest
    return adjusted
