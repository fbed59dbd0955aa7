"""The protocol's goals beside what was measured; a goal is decided only by as many runs as it needs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.search import statistics as stats
from benchmarks.search.protocol import ENVS, MEMBERS, TIERS
from benchmarks.search.runner import Row
from benchmarks.search.scores import auc_score, final_score, scores, to_target
from benchmarks.tables import markdown

OURS = "ours"
SEEDS = 10
"""Runs of each side and task without which a goal is undecided, as the goals require.

search-methods.md advises twenty for a claim of P = 0.6: with normal scores in six environments and a true P of 0.64,
the interval is above 0.5 in 75 % of 2,500 simulated comparisons of ten runs, and in 97 % of those of twenty.
"""
RANKED_SEEDS = 5
"""Runs in each task from which on a method is ranked; the three that lead need `SEEDS`."""
RANKED = TIERS["main"].methods
"""Methods that are ranked: neither ablations of ours nor `tuned`, which no search can know, are rivals."""
TASKS = 6
"""Environments that a claim over the main tier needs."""
BAD_STARTS = ("S1", "S4")
BAD_START_ENVS = ("cartpole", "acrobot", "pendulum")
RIVALS = {
    "no_evolution": (0.75, 0.5, "random search (full runs)"),
    "random_quarters": (0.75, 0.5, "random search (quarters)"),
    "ray_pbt": (0.65, 0.5, "Ray's PBT"),
    "agilerl_rules": (0.65, 0.5, "AgileRL's rules"),
    "tpe_hyperband": (0.6, 0.5, "TPE + Hyperband"),
}
"""Wanted probability of improvement, wanted low end of its interval, and the name."""
ZOO = {
    "cartpole": (500.0, 0.0),
    "acrobot": (-73.5, 18.2),
    "pendulum": (-172.2, 104.0),
    "mountain_car_continuous": (88.3, 2.6),
    "lunar_lander": (242.1, 31.8),
}
"""Mean return and standard deviation of rl-zoo's tuned PPO, as its page of benchmarks has them."""
OWN_CORE = 0.9
"""Least CPU seconds of a run's process for each second of its search, in a comparison of CPU seconds. Imports and tests
count in the first alone, so a run that shared its core for some of the time may pass. Other work beside a run lengthens
its CPU seconds, too: those of TPE + Hyperband in LunarLander were 608 alone and 1,693 with half of a core."""
DROP = 0.05
"""Share of target minus random by which the test return of the best agent so far may fall between two tests."""


@dataclass(frozen=True)
class Goal:
    """A goal of the protocol; `measured` is empty where nothing was run."""

    what: str
    wanted: str
    measured: str = ""
    is_met: bool = False
    is_decided: bool = False

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Return the table's row."""
        reached = ("yes" if self.is_met else "**no**") if self.is_decided else "undecided: too few runs"
        return self.what, self.wanted, self.measured or "not run", reached


def table(rows: Sequence[Row], replays: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return the lines of a table of all goals, from runs of the full protocol alone."""
    rows = [row for row in rows if row.case["members"] == MEMBERS]
    s2, s3 = ([row for row in rows if row.case["start"] == start] for start in ("S2", "S3"))
    found = [_improvement(s2, rival, *wanted) for rival, wanted in RIVALS.items()]
    found += [_rank(s2), _faster_on_average(s2), _not_worse_at_the_end(s2), _faster_in_seconds(s2)]
    found += [_target(rows, start) for start in BAD_STARTS] + [_usable_lr(rows, start) for start in BAD_STARTS]
    found += [_no_harm(s3), _zoo(s3), _speed(rows), _bias(rows), _never_lost(rows), _replay(rows, replays)]
    return markdown(("goal", "wanted", "measured", "reached"), [goal.cells for goal in [*found, _overhead(rows)]])


def ranked(rows: Sequence[Row]) -> dict[str, stats.Scores]:
    """Return the final scores of the methods that have enough runs to be ranked, in the environments of all of them."""
    its = [row for row in rows if row.case["method"] in RANKED]
    return stats.with_runs(scores(its, final_score), RANKED_SEEDS)


def _has_enough(*its: Mapping[str, Sequence[float]], tasks: int = 1) -> bool:
    """Return whether all sides have enough runs in enough common tasks, and in the others two for an interval."""
    common = set.intersection(*(set(one) for one in its))
    fewest = [min(len(one[task]) for one in its) for task in common]
    return min(fewest, default=0) > 1 and sum(runs >= SEEDS for runs in fewest) >= tasks


def _of(rows: Sequence[Row], *methods: str, by: Callable[[Row], float] = final_score) -> list[stats.Scores]:
    """Return the scores of each method in the tasks that all of them have."""
    found = scores(rows, by)
    return stats.in_common(*(found.get(method, {}) for method in methods))


def with_interval(statistic: Callable[..., float], *its: stats.Scores) -> tuple[str, float, float]:
    """Return a statistic with its interval as text, its value, and the interval's low end.

    Where a task has a single run on a side, which has no variance, there is no interval: its low end is then -inf.
    """
    value = statistic(*its)
    if any(len(runs) < 2 for one in its for runs in one.values()):
        return f"{value:.2f}", value, -math.inf
    low, high = stats.bootstrap_interval(statistic, *its)
    return f"{value:.2f} ({low:.2f} to {high:.2f})", value, low


# -- S2: members drawn from the ranges


def _improvement(rows: Sequence[Row], rival: str, wanted: float, low_end: float, name: str) -> Goal:
    goal = f"S2: better than {name}", f"P >= {wanted}, interval above {low_end}"
    ours, theirs = _of(rows, OURS, rival)
    if not ours:
        return Goal(*goal)
    shown, value, low = with_interval(stats.probability_of_improvement, ours, theirs)
    is_met = value >= wanted and low > low_end
    return Goal(*goal, f"{shown}, {len(ours)} environments", is_met, _has_enough(ours, theirs, tasks=TASKS))


def _rank(rows: Sequence[Row]) -> Goal:
    goal = "S2: mean rank among all methods", "1st"
    its = ranked(rows)
    if OURS not in its:
        return Goal(*goal)
    ranks = stats.mean_ranks(its)
    order = sorted(ranks, key=lambda name: ranks[name])
    place = 1 + sum(ranks[name] <= ranks[OURS] for name in order if name != OURS)  # a tie is not won
    of = f"{len(order)} with {RANKED_SEEDS} runs or more in {len(its[OURS])} environments"
    is_decided = set(RANKED) <= set(its) and _has_enough(*(its[name] for name in order[:3]), tasks=TASKS)
    return Goal(*goal, f"{ranks[OURS]:.2f}, place {place} of {of}", place == 1, is_decided)


def _faster_on_average(rows: Sequence[Row]) -> Goal:
    goal = "S2: IQM of the area under the curve, minus that of random search (full runs)", ">= 0.1"
    return _iqm_difference(goal, *_of(rows, OURS, "no_evolution", by=auc_score), wanted=0.1)


def _not_worse_at_the_end(rows: Sequence[Row]) -> Goal:
    goal = "S2: IQM of the final score, minus that of TPE + Hyperband", ">= -0.02"
    return _iqm_difference(goal, *_of(rows, OURS, "tpe_hyperband"), wanted=-0.02)


def _iqm_difference(goal: tuple[str, str], ours: stats.Scores, theirs: stats.Scores, wanted: float) -> Goal:
    if not ours:
        return Goal(*goal)
    sides = stats.as_many_runs(ours, theirs)
    shown, value, _ = with_interval(lambda one, other: stats.iqm(one) - stats.iqm(other), *sides)
    is_decided = _has_enough(ours, theirs, tasks=TASKS)
    return Goal(*goal, f"{shown}, {len(ours)} environments", value >= wanted, is_decided)


def _faster_in_seconds(rows: Sequence[Row]) -> Goal:
    """Compare mean CPU seconds to the target of runs on one machine; a run that misses it counts with all its seconds.

    Runs that clearly shared their core with other work are left out (`OWN_CORE`).
    """
    goal = "S2: CPU seconds to the target on one machine, TPE + Hyperband against ours", "> 1 time on 3 environments"
    return _ratios(goal, rows, "tpe_hyperband", wanted=1.0, seconds=True)


# -- S1, S4: bad starts


def _target(rows: Sequence[Row], start: str) -> Goal:
    reached = _by_env(rows, start, lambda row: to_target(row) is not None)
    shown = ", ".join(f"{env} {sum(its)} of {len(its)}" for env, its in reached.items())
    is_met = all(sum(its) >= 0.9 * len(its) for its in reached.values())
    return Goal(f"{start}: target reached", "9 of 10 seeds each", shown, is_met, _has_seeds(reached))


def _usable_lr(rows: Sequence[Row], start: str) -> Goal:
    """Return the goal of the generations until a member has a learning rate in [1e-4, 3e-3]; never counts as inf."""
    found = _by_env(rows, start, lambda row: row.generations_to_usable_lr or math.inf)
    medians = {env: float(np.median(its)) for env, its in found.items() if its}
    shown = ", ".join(f"{env} {median:g}" for env, median in medians.items())
    is_met = all(median <= 8 for median in medians.values())
    goal = f"{start}: generations until a member has lr 1e-4 to 3e-3, median", "<= 8"
    return Goal(*goal, shown, is_met, _has_seeds(found))


def _by_env(rows: Sequence[Row], start: str, of: Callable[[Row], Any]) -> dict[str, list[Any]]:
    its = [row for row in rows if (row.case["method"], row.case["start"]) == (OURS, start)]
    return {env: [of(row) for row in its if row.case["env"] == env] for env in BAD_START_ENVS}


def _has_seeds(found: Mapping[str, Sequence[Any]]) -> bool:
    return all(len(its) >= SEEDS for its in found.values())


def _speed(rows: Sequence[Row]) -> Goal:
    goal = "S1: steps to the target, TPE + median against ours", ">= 3 times, interval above 1.5, on 3 environments"
    s1 = [row for row in rows if row.case["start"] == "S1"]
    return _ratios(goal, s1, "tpe_median", wanted=3.0, low_end=1.5)


def _ratios(
    goal: tuple[str, str],
    rows: Sequence[Row],
    rival: str,
    *,
    wanted: float,
    low_end: float = 0.0,
    seconds: bool = False,
) -> Goal:
    """Return the goal of how many times as long as ours a rival takes to the target, by restricted means.

    Of seconds it counts all environments in which a run reaches the target, of steps the three with a bad start. It
    counts those with enough runs, and is missed if those with too few could not make up three of them. The budget
    limits a ratio of steps: an environment whose limit is below the goal decides that it is missed, without a run of
    the rival.
    """
    shown, reached, undecided, enough, is_limited = [], 0, 0, 0, False
    for env in ENVS if seconds else BAD_START_ENVS:
        its = [row for row in rows if row.case["env"] == env]
        ours, theirs = ([row for row in its if row.case["method"] == method] for method in (OURS, rival))
        if seconds:
            ours, theirs = _on_one_machine(ours, theirs)
        elif len(ours) >= SEEDS > len(theirs):
            most = max(row.case["budget"] for row in ours) / float(np.mean([_steps_to_target(row) for row in ours]))
            if most < wanted:
                shown.append(f"{env} {most:.2f} at most, by the budget")
                is_limited = True
                continue
        if not ours or not theirs or all(to_target(row) is None for row in (*ours, *theirs)):
            continue
        of_row = _cpu_seconds_to_target if seconds else _steps_to_target
        times = [{env: [of_row(row) for row in side]} for side in (theirs, ours)]

        def ratio(one: stats.Scores, other: stats.Scores, env: str = env) -> float:
            return float(np.mean(one[env]) / np.mean(other[env]))

        text, value, low = with_interval(ratio, *times)
        if min(len(ours), len(theirs)) < SEEDS:
            shown.append(f"{env} {text} [{len(theirs)} against {len(ours)} runs]")
            undecided += 1
            continue
        shown.append(f"{env} {text}")
        enough += 1
        reached += (value > wanted if seconds else value >= wanted) and low >= low_end
    is_missed = reached + undecided < 3 and (enough >= 3 or is_limited)
    return Goal(*goal, ", ".join(shown), reached >= 3, reached >= 3 or is_missed)


def _steps_to_target(row: Row) -> float:
    """Return the env steps to the target; the budget if it was missed."""
    steps = to_target(row)
    return row.case["budget"] if steps is None else steps


def _cpu_seconds_to_target(row: Row) -> float:
    """Return the CPU seconds to the target; all if it was missed.

    They are the share of all, with imports and tests, that the seconds to the target have of those of the search.
    """
    seconds = to_target(row, seconds=True)
    return row.cpu_seconds * (1.0 if seconds is None else seconds / row.seconds)


def _on_one_machine(ours: Sequence[Row], theirs: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the runs of both sides that had a core to themselves, on the machine that has the most of both."""
    ours, theirs = ([row for row in side if row.cpu_seconds >= OWN_CORE * row.seconds] for side in (ours, theirs))
    machines = {row.machine for row in ours} & {row.machine for row in theirs}
    found = [([row for row in ours if row.machine == name], [row for row in theirs if row.machine == name])
             for name in sorted(machines)]  # fmt: skip
    return max(found, key=lambda sides: min(map(len, sides)), default=([], []))


# -- S3: good starts


def _no_harm(rows: Sequence[Row]) -> Goal:
    goal = "S3: area under the curve against no evolution", ">= 0.95 times, interval above 0.9"
    ours, theirs = _of(rows, OURS, "no_evolution", by=auc_score)
    if not ours:
        return Goal(*goal)
    sides = stats.as_many_runs(ours, theirs)
    shown, value, low = with_interval(lambda one, other: stats.iqm(one) / stats.iqm(other), *sides)
    return Goal(*goal, shown, value >= 0.95 and low >= 0.9, _has_enough(ours, theirs, tasks=TASKS))


def _zoo(rows: Sequence[Row]) -> Goal:
    goal = "S3: mean return at the end", "at least rl-zoo's minus its deviation, in each environment"
    found = {}
    for env in ZOO:
        its = [row.test_return for row in rows if (row.case["method"], row.case["env"]) == (OURS, env)]
        if its:
            found[env] = its
    shown = ", ".join(f"{env} {np.mean(its):.4g} of {ZOO[env][0] - ZOO[env][1]:.4g}" for env, its in found.items())
    is_met = all(np.mean(its) >= ZOO[env][0] - ZOO[env][1] for env, its in found.items())
    return Goal(*goal, shown, is_met, len(found) == len(ZOO) and _has_seeds(found))


# -- any start


def _ours(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.case["method"] == OURS and not row.failure]


def _are_enough(rows: Sequence[Row]) -> bool:
    """Return whether enough environments have enough runs, of any start."""
    return sum(count >= SEEDS for count in Counter(row.case["env"] for row in rows).values()) >= TASKS


def _bias(rows: Sequence[Row]) -> Goal:
    goal = "return that the method reports of its agent, minus its return in the test", "<= 5 % of target minus random"
    its = _ours(rows)
    if not its:
        return Goal(*goal)
    bias = float(np.mean([ENVS[row.case["env"]].score(row.chosen_fitness) - final_score(row) for row in its]))
    return Goal(*goal, f"{bias:+.1%}", bias <= 0.05, _are_enough(its))


def _never_lost(rows: Sequence[Row]) -> Goal:
    """Count the generations after which the test return of the best agent so far has fallen by more than `DROP`."""
    goal = "generations in which the test return of the best agent so far falls by over 5 %", "<= 5 %"
    its = _ours(rows)
    if not its:
        return Goal(*goal)
    falls = 0
    for row in its:
        tested = np.array([ENVS[row.case["env"]].score(value) for _, _, value in row.curve])
        falls += int((np.diff(tested) < -DROP).sum())
    share = falls / sum(row.acts for row in its)
    return Goal(*goal, f"{share:.1%} of {sum(row.acts for row in its)}", share <= 0.05, _are_enough(its))


def _replay(rows: Sequence[Row], replays: Mapping[str, dict[str, Any]]) -> Goal:
    goal = "replay on ten new seeds", ">= 90 % of what was found"
    its = [row for row in _ours(rows) if row.key in replays]
    if not its:
        return Goal(*goal)
    again = [ENVS[row.case["env"]].score(value) for row in its for value in replays[row.key]["returns"]]
    share = float(np.mean(again)) / float(np.mean([final_score(row) for row in its]))
    envs = {row.case["env"] for row in its}
    measured = f"{share:.0%}, {len(its)} runs of {len(envs)} environments"
    return Goal(*goal, measured, share >= 0.9, len(its) >= SEEDS and len(envs) >= TASKS)


def _overhead(rows: Sequence[Row]) -> Goal:
    goal = "share of evolution in seconds, of evaluation in steps", "<= 5 %, <= 10 %"
    its = _ours(rows)
    if not its:
        return Goal(*goal)
    evolve = float(np.median([row.evolve_seconds / row.seconds for row in its]))
    evaluate = _evaluation_share(its)
    envs = {row.case["env"] for row in its}
    others = [row for row in rows if row.case["method"] == "no_evolution" and row.case["env"] in envs]
    of_others = f" (evaluation of random search: {_evaluation_share(others):.0%})" if others else ""
    measured = f"{evolve:.1%}, {evaluate:.0%}{of_others}"
    return Goal(*goal, measured, evolve <= 0.05 and evaluate <= 0.1, _are_enough(its))


def _evaluation_share(rows: Sequence[Row]) -> float:
    return float(np.median([row.evaluation_steps / row.steps for row in rows]))
