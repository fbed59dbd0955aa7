"""The protocol's goals beside what was measured; a goal is decided only by as many runs as it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.search import statistics as stats
from benchmarks.search.protocol import ENVS, MEMBERS
from benchmarks.search.runner import Row
from benchmarks.search.scores import auc_score, final_score, scores, to_target
from benchmarks.tables import markdown

OURS = "ours"
SEEDS = 10
"""Runs of each side and task without which a goal is undecided."""
TASKS = 6
"""Environments that a claim over the main tier needs."""
RIVALS = {
    "no_evolution": (0.75, 0.5, "random search (full runs)"),
    "random_quarters": (0.75, 0.5, "random search (quarters)"),
    "ray_pbt": (0.65, 0.5, "Ray's PBT"),
    "agilerl_rules": (0.65, 0.5, "AgileRL's rules"),
    "tpe_hyperband": (0.6, 0.5, "TPE + Hyperband"),
}
"""Wanted probability of improvement, wanted low end of its interval, and the name."""


def table(rows: Sequence[Row], replays: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return the lines of a table of all goals, from runs of the full protocol alone."""
    rows = [row for row in rows if row.case["members"] == MEMBERS]
    s2 = [row for row in rows if row.case["start"] == "S2"]
    found = [_improvement(s2, rival, *wanted) for rival, wanted in RIVALS.items()]
    found += [_rank(s2), *(_target(rows, start) for start in ("S1", "S4")), _no_harm(rows), _bias(rows)]
    found += [_speed(rows), _replay(rows, replays), _overhead(rows)]
    return markdown(("goal", "wanted", "measured", "reached"), found)


def verdict(met: bool, enough: bool) -> str:
    """Return whether a goal is reached, where there are enough runs to say so."""
    return "undecided: too few runs" if not enough else "yes" if met else "**no**"


def _enough(*its: Mapping[str, Sequence[float]], tasks: int = 1) -> bool:
    """Return whether all sides have enough runs in enough common tasks."""
    common = set.intersection(*(set(one) for one in its))
    return sum(all(len(one[task]) >= SEEDS for one in its) for task in common) >= tasks


def _of(rows: Sequence[Row], *methods: str, by: Callable[[Row], float] = final_score) -> list[dict[str, list[float]]]:
    """Return the scores of each method in the tasks that all of them have."""
    found = scores(rows, by)
    sides = [found.get(method, {}) for method in methods]
    common = set.intersection(*(set(side) for side in sides))
    return [{task: side[task] for task in sorted(common)} for side in sides]


def _improvement(rows: Sequence[Row], rival: str, wanted: float, low_end: float, name: str) -> tuple[str, ...]:
    ours, theirs = _of(rows, OURS, rival)
    goal = f"S2: better than {name}", f"P >= {wanted}, interval above {low_end}"
    if not ours:
        return *goal, "not run", verdict(False, False)
    probability = stats.probability_of_improvement(ours, theirs)
    low, high = stats.bootstrap_interval(stats.probability_of_improvement, ours, theirs)
    shown = f"{probability:.2f} ({low:.2f} to {high:.2f}), {len(ours)} environments"
    return *goal, shown, verdict(probability >= wanted and low > low_end, _enough(ours, theirs, tasks=TASKS))


def _rank(rows: Sequence[Row]) -> tuple[str, ...]:
    every = scores(rows, final_score)
    goal = "S2: mean rank among all methods", "1st"
    if OURS not in every or len(every) < 2:
        return *goal, "not run", verdict(False, False)
    sides = dict(zip(every, _of(rows, *every), strict=True))
    ranks = stats.mean_ranks(sides) if sides[OURS] else {}
    if not ranks:
        return *goal, "no environment in common", verdict(False, False)
    place = sorted(ranks, key=lambda name: ranks[name]).index(OURS) + 1
    return (
        *goal,
        f"{ranks[OURS]:.1f}, place {place} of {len(ranks)}",
        verdict(place == 1, _enough(*sides.values(), tasks=TASKS)),
    )


def _target(rows: Sequence[Row], start: str) -> tuple[str, ...]:
    envs = ("cartpole", "acrobot", "pendulum")
    cells, met, enough = [], True, True
    for env in envs:
        its = [row for row in rows if (row.case["method"], row.case["env"], row.case["start"]) == (OURS, env, start)]
        reached = sum(to_target(row) is not None for row in its)
        cells.append(f"{env} {reached} of {len(its)}")
        met, enough = met and reached >= 0.9 * len(its), enough and len(its) >= SEEDS
    return f"{start}: target reached", "9 of 10 seeds each", ", ".join(cells), verdict(met, enough)


def _no_harm(rows: Sequence[Row]) -> tuple[str, ...]:
    ours, theirs = _of([row for row in rows if row.case["start"] == "S3"], OURS, "no_evolution", by=auc_score)
    goal = "S3: area under the curve against no evolution", ">= 0.95 times"
    if not ours:
        return *goal, "not run", verdict(False, False)
    ratio = stats.iqm(ours) / stats.iqm(theirs)
    return *goal, f"{ratio:.2f}", verdict(ratio >= 0.95, _enough(ours, theirs, tasks=TASKS))


def _speed(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return how many times the steps of TPE with a median pruner are needed to the target, by restricted means."""
    goal = "S1: steps to the target, TPE + median against ours", ">= 3 times on 3 environments"
    ratios, enough = {}, 0
    for env in ENVS:
        its = [row for row in rows if row.case["start"] == "S1" and row.case["env"] == env]
        ours, theirs = (
            [to_target(row) for row in its if row.case["method"] == method] for method in (OURS, "tpe_median")
        )
        if ours and theirs:
            budget = its[0].case["budget"]
            ratios[env] = stats.restricted_mean(theirs, budget) / stats.restricted_mean(ours, budget)
            enough += min(len(ours), len(theirs)) >= SEEDS
    if not ratios:
        return *goal, "not run", verdict(False, False)
    shown = ", ".join(f"{env} {ratio:.1f}" for env, ratio in ratios.items())
    return *goal, shown, verdict(sum(ratio >= 3 for ratio in ratios.values()) >= 3, enough >= 3)


def _ours(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.case["method"] == OURS and not row.failure]


def _bias(rows: Sequence[Row]) -> tuple[str, ...]:
    its = _ours(rows)
    goal = "what the method believes of its agent minus the test return", "<= 5 % of target minus random"
    if not its:
        return *goal, "not run", verdict(False, False)
    bias = float(np.mean([ENVS[row.case["env"]].score(row.chosen_fitness) - final_score(row) for row in its]))
    return *goal, f"{bias:+.1%}", verdict(bias <= 0.05, len(its) >= SEEDS)


def _replay(rows: Sequence[Row], replays: Mapping[str, dict[str, Any]]) -> tuple[str, ...]:
    its = [row for row in _ours(rows) if row.key in replays]
    goal = "replay on ten new seeds", ">= 90 % of what was found"
    if not its:
        return *goal, "not run", verdict(False, False)
    again = [ENVS[row.case["env"]].score(value) for row in its for value in replays[row.key]["returns"]]
    share = float(np.mean(again)) / float(np.mean([final_score(row) for row in its]))
    return *goal, f"{share:.0%}", verdict(share >= 0.9, len(its) >= SEEDS)


def _overhead(rows: Sequence[Row]) -> tuple[str, ...]:
    its = _ours(rows)
    goal = "share of evolution in seconds, of evaluation in steps", "<= 5 %, <= 10 %"
    if not its:
        return *goal, "not run", verdict(False, False)
    evolve = float(np.median([row.evolve_seconds / row.seconds for row in its]))
    evaluate = float(np.median([row.evaluation_steps / row.steps for row in its]))
    return *goal, f"{evolve:.1%}, {evaluate:.0%}", verdict(evolve <= 0.05 and evaluate <= 0.1, len(its) >= SEEDS)
