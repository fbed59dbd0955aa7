"""The page benchmarks/search.md and its figure, made from the rows of report seeds alone."""

from __future__ import annotations

import statistics as basic
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search import goals
from benchmarks.search import statistics as stats
from benchmarks.search.methods import METHODS
from benchmarks.search.protocol import (
    ENVS,
    FIRST_REPORT_SEED,
    RANGES,
    STARTS,
    TEST_EPISODES,
    TIERS,
    TUNING_ENVS,
    TUNING_SEEDS,
    Case,
    Start,
    digest,
)
from benchmarks.search.runner import Row
from benchmarks.search.scores import auc_score, final_score, scores, to_target
from benchmarks.tables import ROOT, markdown

PAGE = ROOT / "benchmarks" / "search.md"
FIGURE = "results/search_curves_{}.svg"
OURS = goals.OURS
FEW_SEEDS = goals.SEEDS
"""Below so many runs of both sides a comparison decides nothing (search-methods: power of "above .5")."""
RUNS_THAT_DECIDE = (
    f"{goals.SEEDS} runs of each side in each of {goals.TASKS} environments decide a goal of P, as the goals require. "
    "For a P of 0.6 the sources of the protocol advise twenty: with normal scores in six environments and a true P of "
    "0.64, the interval is above 0.5 in 75 % of simulated comparisons of ten runs and in 97 % of those of twenty. An "
    "interval above 0.5 shows that P exceeds 0.5, not that it reaches the wanted value."
)


def write(page: Path, rows: Sequence[Row], replays: Mapping[str, dict[str, Any]]) -> None:
    """Write the page, and a figure for each tier beside it."""
    rows = [row for row in rows if Case(**row.case).seed >= FIRST_REPORT_SEED]
    parts = [*_head(rows), *_coverage(rows)]
    parts += ["## Goals", "", RUNS_THAT_DECIDE, "", *goals.table(rows, replays), ""]
    for setting, its in _by_setting(rows).items():
        parts += _section(setting, its, replays, page)
    page.write_text("\n".join(parts) + "\n")


def _head(rows: Sequence[Row]) -> list[str]:
    machines = Counter(row.machine or "not recorded" for row in rows)
    known = {row.case["method"] for row in rows}
    return [
        "# Search: does it find better hyperparameters at equal environment steps?",
        "",
        "Written by `python -m benchmarks.search --report` from `benchmarks/results/search.jsonl`; nothing here is "
        "written by hand. Every method trains this package's PPO in the same environments and begins with the same "
        "networks; `ours`, `pb2`, `ipbt` and `agilerl_rules` also change them. Every environment step of every member, "
        "trial and evaluation counts against one budget. A method hands over one agent, chosen on episodes that it "
        f"paid for, and {TEST_EPISODES} fresh episodes evaluate it. Score 0 is a random policy, 1 the target.",
        "",
        f"Methods may be tuned on {' and '.join(TUNING_ENVS)} with seeds 0 to {TUNING_SEEDS[-1]}; this page has seeds "
        f"from {FIRST_REPORT_SEED} on only. These are no untouched seeds for `ours`, though: its versions 3 to 20 ran "
        "on them while it was developed. No value was tuned on them, but what failed there was noticed: "
        "failures in MountainCarContinuous and Acrobot led to three of its parts, and one in LunarLander to normal "
        "steps in place of PB2 (`tutorials/why_auto.md`). No other method was developed in this way.",
        "",
        f"The protocol (`benchmarks/search/protocol.py`, digest `{digest()}`) was fixed on 24 November 2026 and has "
        "been changed five times since, the last time on 26 November; the changes are named below the table of "
        "environments.",
        "",
        f"Machines: {'; '.join(f'{name} ({count} rows)' for name, count in machines.most_common()) or 'none'}. One "
        "thread for each run. They were shared with other work, so seconds are indicative; steps are exact.",
        "",
        "## Space, starts, environments",
        "",
        ", ".join(f"{name} {its.min:g} to {its.max:g} ({its.scale})" for name, its in RANGES.items()) + ".",
        "",
        "; ".join(f"{name}: {what}" for name, what in STARTS.items()) + ".",
        "",
        *markdown(
            ("environment", "id", "budget", "evaluation episodes", "random", "target", "installed here"),
            [
                (name, env.id, f"{env.budget:,}", f"{env.episodes}", f"{env.random:g}", f"{env.target:g}",
                 "yes" if env.is_available else f"no: {env.package}")
                for name, env in ENVS.items()
            ],
        ),
        "",
        "Differences from the protocol's first draft: gae_lambda reaches down to 0.5, because start S1 has it; "
        "CartPole and MountainCarContinuous have 800,000 steps, because with 400,000 two evaluation episodes of 500 to "
        "999 steps would take half of a generation, and 20 rounds of selection and mutation need 21 generations; S4 "
        "widens the range of lr to its start. Changed later, so that 20 acts fit in: 13 % of a budget (before: 10 %) "
        "are reserved for the further episodes that decide whether a member replaces the best agent so far; "
        "evaluation episodes are expected to last 250 steps in Acrobot, 600 in LunarLander and 820 in "
        "MountainCarContinuous (before: 150, 400 and 600). "
        "Evaluation episodes are few where they are long. All methods play the same number at first; in `ours` and "
        "`ipbt` members whose replacement is in doubt play further ones. Evaluation takes more "
        "than a tenth of the steps, the protocol's goal: of CartPole's budget 21 evaluations of eight "
        "members, each of three episodes of 500 steps, are 32 %.",
        "",
        "Trial methods (TPE, ASHA, SMAC) run four trials at a time as one population: their samplers see results as "
        "from four parallel workers. Optuna and SMAC decide themselves, in their own interpreter. Ray's and AgileRL's "
        "rules are re-implementations that agree with the originals on recorded inputs (`tests/benchmarks`).",
        "",
        *markdown(("method", "what"), [(f"`{name}`", its.what) for name, its in METHODS.items() if name in known]),
        "",
        "Without a run here: " + ", ".join(f"`{name}`" for name in METHODS if name not in known) + ".",
        "",
        "Beside selection and mutation, `ours` differs from the other methods in this: the learning rate falls in the "
        "second half of the budget; the members of S2 are a Sobol sequence over the ranges, not independent draws; and "
        "since half of the members are removed, less of the budget is spent on evaluation." + _unknown_effects(known),
        "",
    ]  # fmt: skip


def _unknown_effects(known: Collection[str]) -> str:
    """Return the ablations of these three differences that have no run; empty if all have one."""
    missing = [f"`{name}`" for name in ("ours_no_annealing", "ours_drawn", "ours_no_halving") if name not in known]
    return f" How much they matter is not known before there are runs of {', '.join(missing)}." if missing else ""


def _coverage(rows: Sequence[Row]) -> list[str]:
    """Return how much of each tier was run."""
    done = {row.key for row in rows}
    lines = ["## How much was run", ""]
    table = []
    for name, tier in TIERS.items():
        keys = [case.key for case in tier.cases()]
        count = sum(key in done for key in keys)
        verdict = "complete" if count == len(keys) else "not run" if not count else f"{count / len(keys):.1%}: partial"
        table.append((name, f"{count} of {len(keys)}", verdict))
    lines += markdown(("tier", "runs", ""), table)
    failed = [row for row in rows if row.failure]
    lines += [
        "",
        f"{len(rows)} rows; {len(failed)} failed runs, which score as a random policy:"
        if failed
        else f"{len(rows)} rows; no run failed.",
        "",
        "Runs of earlier versions of a method do not count; earlier commits of this page have their results."
        + _earlier_versions(rows),
        "",
    ]
    lines += [
        f"- {row.case['method']}, {row.case['env']}, {row.case['start']}, seed {row.case['seed']}: {row.failure}"
        for row in failed
    ]
    return [*lines, ""] if failed else lines


def _earlier_versions(rows: Sequence[Row]) -> str:
    """Return the exceptions: rows of earlier versions that count until they are run again."""
    counts = Counter((row.case["method"], row.method_version) for row in rows if row.counts and not row.is_current)
    return "".join(
        f" {count} runs of `{method}` are of version {version} instead of {METHODS[method].version}, and count until "
        f"they are run again: in version {version} {METHODS[method].also_counts[version]}."
        for (method, version), count in sorted(counts.items())
    )


def _by_setting(rows: Sequence[Row]) -> dict[tuple[Start, int, int], list[Row]]:
    """Return rows that may be compared: of one start, with equal members and generations."""
    found: dict[tuple[Start, int, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row.case["start"], row.case["members"], row.case["generations"]), []).append(row)
    return dict(sorted(found.items()))


def _section(
    setting: tuple[Start, int, int], rows: Sequence[Row], replays: Mapping[str, dict[str, Any]], page: Path
) -> list[str]:
    start, members, generations = setting
    budgets = sorted({(row.case["env"], row.case["budget"]) for row in rows})
    lines = [
        f"## {start}: {STARTS[start]}; {members} members, {generations} generations",
        "",
        "Budgets: " + ", ".join(f"{env} {budget:,}" for env, budget in budgets) + " steps.",
        "",
    ]
    final, auc = scores(rows, final_score), scores(rows, auc_score)
    ranks, p_values = stats.mean_ranks(goals.ranked(rows)), _p_values(final)
    methods = sorted(final, key=lambda name: (name not in ranks, -stats.iqm(final[name])))
    lines += [
        "Over the environments that each method has, which differ: the columns of `ours` have its values in those of "
        "the row's method, with as many runs of an environment where the method has fewer. Intervals are 95 % "
        "stratified bootstrap, where every environment has two runs. Rank: the expected place by the final score of a "
        "random run among one random run of each other method, of the methods of the main tier with at least "
        f"{goals.RANKED_SEEDS} runs in every environment, which stand first. "
        "P: the probability that a run of ours is better than one of the method; p: of the difference between the "
        "mean scores, by permutation (one-sided), adjusted for the number of methods of the main tier (Holm).",
        "",
    ]
    table = []
    for name in methods:
        table.append((
            f"`{name}`", f"{sum(map(len, final[name].values()))} in {len(final[name])}",
            _with_interval(stats.iqm, final[name]), _iqm_of_ours(final, name),
            _with_interval(stats.iqm, auc[name]), _iqm_of_ours(auc, name),
            f"{ranks[name]:.2f}" if name in ranks else "", f"{stats.optimality_gap(final[name]):.2f}",
            _probability(final, name) + (f", p {p_values[name]:.2f}" if name in p_values else ""),
            _probability(auc, name),
        ))  # fmt: skip
    lines += markdown(
        (
            "method",
            "runs in tasks",
            "IQM, final",
            "ours there",
            "IQM, area under the curve",
            "ours there",
            "mean rank",
            "optimality gap",
            "P by the final score, p",
            "P by the area",
        ),
        table,
    )
    lines += ["", *_common_ranks(final, auc), *_warning(final), "### By environment", ""]
    lines += _by_env(rows, methods)
    lines += _better_by_env(final, methods)
    lines += _pairs_at_target(final, methods)
    lines += _profiles(final, methods)
    lines += ["", "### Cost, acts and bias", "", *_costs(rows, methods)]
    lines += _replay_table(rows, methods, replays)
    name = FIGURE.format(f"{start}_{members}x{generations}")
    if draw(rows, page.parent / name):
        lines += ["", f"![Best-so-far curves]({name})"]
    return [*lines, ""]


def _with_interval(statistic: Callable[..., float], *its: stats.Scores) -> str:
    return goals.with_interval(statistic, *its)[0]


def _p_values(final: Mapping[str, stats.Scores]) -> dict[str, float]:
    """Return Holm's p of each rival of the main tier that has an environment in common with ours."""
    ours = final.get(OURS, {})
    rivals = [name for name in goals.RANKED if name != OURS and set(ours) & set(final.get(name, ()))]
    return stats.holm({name: stats.permutation_p(ours, final[name], repetitions=2_000) for name in rivals})


def _probability(its: Mapping[str, stats.Scores], name: str) -> str:
    ours, theirs = stats.in_common(its.get(OURS, {}), its[name])
    return "" if name == OURS or not ours else _with_interval(stats.probability_of_improvement, ours, theirs)


def _iqm_of_ours(its: Mapping[str, stats.Scores], name: str) -> str:
    ours, _ = stats.as_many_runs(its.get(OURS, {}), its[name])
    return "" if name == OURS or not ours else f"{stats.iqm(ours):.2f}"


def _common_ranks(final: Mapping[str, stats.Scores], auc: Mapping[str, stats.Scores]) -> list[str]:
    """Return the mean ranks of as many methods as have enough runs in at least two environments, over those of all."""
    envs = {
        name: {task for task, runs in its.items() if len(runs) >= goals.RANKED_SEEDS} for name, its in final.items()
    }
    names = [name for name, tasks in envs.items() if len(tasks) > 1]
    common = set.intersection(*(envs[name] for name in names)) if names else set()
    if len(names) < 3 or not common:
        return []
    lines = []
    for what, its in (("final score", final), ("area under the curve", auc)):
        ranks = stats.mean_ranks({name: {task: its[name][task] for task in sorted(common)} for name in names})
        lines.append(
            f"by the {what}: "
            + ", ".join(f"{name} {ranks[name]:.1f}" for name in sorted(ranks, key=lambda name: ranks[name]))
        )
    shown = ", ".join(sorted(map(_env_of, common)))
    return [
        f"Mean ranks of {len(names)} methods over the environments that all have ({shown}), {'; '.join(lines)}.",
        "",
    ]


def _warning(final: Mapping[str, stats.Scores]) -> list[str]:
    fewest = min((len(runs) for its in final.values() for runs in its.values()), default=0)
    if fewest >= FEW_SEEDS:
        return []
    return [
        f"**Methods with fewer than {FEW_SEEDS} runs in an environment decide nothing; the fewest are {fewest}.**",
        "",
    ]


def _by_env(rows: Sequence[Row], methods: Sequence[str]) -> list[str]:
    envs = [env for env in ENVS if any(row.case["env"] == env for row in rows)]
    table = []
    for name in methods:
        cells = [f"`{name}`"]
        for env in envs:
            its = [row for row in rows if row.case["env"] == env and row.case["method"] == name]
            values = [row.test_return for row in its if not row.failure]
            times, seconds = [to_target(row) for row in its], [to_target(row, seconds=True) for row in its]
            if not values:
                cells.append("" if not its else "failed")
                continue
            budget = its[0].case["budget"]
            mean = stats.restricted_mean(times, budget)
            reached = sum(time is not None for time in times)
            known = [second for second in seconds if second is not None]
            cells.append(
                f"{basic.median(values):.4g} ({min(values):.4g} to {max(values):.4g}); {reached} of {len(its)}, "
                f"{mean / 1000:,.0f} k" + (f", {basic.median(known):.0f} s" if known else "")
            )
        table.append(cells)
    return [
        "Median test return (minimum to maximum); runs that reached the target, restricted mean of the steps to it "
        "(a run that did not counts with its budget), median seconds of those that did.",
        "",
        *markdown(("method", *envs), table),
    ]


def _better_by_env(final: Mapping[str, stats.Scores], methods: Sequence[str]) -> list[str]:
    """Return the probability that a run of ours is better than one of each other method, for each environment."""
    ours = final.get(OURS, {})
    tasks = sorted(ours, key=lambda task: list(ENVS).index(_env_of(task)))
    table = [
        (f"`{name}`", *(_better_in(task, ours, final[name]) for task in tasks))
        for name in methods
        if name != OURS and set(ours) & set(final[name])
    ]
    if not table:
        return []
    return [
        "",
        "P(ours is better) in each environment (runs of ours and of the method); a tie counts half:",
        "",
        *markdown(("method", *map(_env_of, tasks)), table),
    ]


def _pairs_at_target(final: Mapping[str, stats.Scores], methods: Sequence[str]) -> list[str]:
    """Return which runs of the pairs that P counts reached the target, because P hardly sees it if most of both do."""
    table = []
    for name in methods:
        ours, theirs = stats.in_common(final.get(OURS, {}), final[name])
        if name != OURS and ours:
            table.append((f"`{name}`", *(f"{share:.0%}" for share in stats.pairs_at_target(ours, theirs))))
    if not table:
        return []
    return [
        "",
        "P counts a pair of runs as won whether the other is 1 % worse or never reached the target. Shares of pairs in "
        "which the agents handed over are at the target:",
        "",
        *markdown(("method", "both at the target", "ours alone", "the other alone", "neither"), table),
    ]


PROFILE = (0.25, 0.5, 0.75, 0.9, 1.0)


def _profiles(final: Mapping[str, stats.Scores], methods: Sequence[str]) -> list[str]:
    """Return the performance profiles: the share of each method's runs above some scores."""
    table = [
        (f"`{name}`", *(f"{share:.0%}" for share in stats.performance_profile(final[name], PROFILE)))
        for name in methods
    ]
    return [
        "",
        "Performance profile: share of all runs of the method above a score.",
        "",
        *markdown(("method", *(f"{score:g}" for score in PROFILE)), table),
    ]


def _env_of(task: str) -> str:
    return task.partition(" ")[0]


def _better_in(task: str, ours: stats.Scores, theirs: stats.Scores) -> str:
    if task not in theirs:
        return ""
    better = stats.probability_of_improvement({task: ours[task]}, {task: theirs[task]})
    return f"{better:.2f} ({len(ours[task])}, {len(theirs[task])})"


def _costs(rows: Sequence[Row], methods: Sequence[str]) -> list[str]:
    table = []
    for name in methods:
        its = [row for row in rows if row.case["method"] == name and not row.failure]
        if not its:
            continue
        spans = [ENVS[row.case["env"]].target - ENVS[row.case["env"]].random for row in its]
        bias = [(row.selected_fitness - row.test_return) / span for row, span in zip(its, spans, strict=True)]
        kept = [(row.chosen_fitness - row.test_return) / span for row, span in zip(its, spans, strict=True)]
        table.append((
            f"`{name}`", f"{basic.median(row.steps / row.case['budget'] for row in its):.0%}",
            f"{basic.median(row.evaluation_steps / row.steps for row in its):.0%}",
            f"{basic.median(row.seconds for row in its):.0f}", f"{basic.median(row.cpu_seconds for row in its):.0f}",
            f"{basic.median(row.evolve_seconds / row.seconds for row in its):.1%}",
            f"{basic.median(row.acts for row in its):.0f}", f"{basic.median(row.copies for row in its):.0f}",
            f"{np.mean(bias):+.2f}", f"{np.mean(kept):+.2f}",
        ))  # fmt: skip
    return [
        "Medians; biases are means. Selection bias: the evaluation by which the agent was chosen minus its test "
        "return, in units of target minus random; confirmed: the same difference with the return on the fresh episodes "
        "that the method paid for. CPU seconds, also those of the goals, are those of the run's process with imports "
        "and tests, which the seconds leave out; a test plays "
        f"{TEST_EPISODES} episodes whenever another agent would be handed over. The process in which Optuna or SMAC "
        "decides is not counted.",
        "",
        *markdown(
            (
                "method",
                "budget spent",
                "of it evaluation",
                "seconds",
                "CPU seconds",
                "evolution",
                "acts",
                "copies and fresh members",
                "selection bias",
                "confirmed",
            ),
            table,
        ),
    ]


def _replay_table(rows: Sequence[Row], methods: Sequence[str], replays: Mapping[str, dict[str, Any]]) -> list[str]:
    table = []
    for name in methods:
        its = [row for row in rows if row.case["method"] == name and row.key in replays]
        for env in ENVS:
            there = [row for row in its if row.case["env"] == env]
            table += [(f"`{name}`", env, *_replay_cells(there, replays))] if there else []
        table += [(f"`{name}`", "all", *_replay_cells(its, replays))] if its else []
    if not table:
        return ["", "Replay on ten new seeds: not run for these rows."]
    return [
        "", "### Replay", "",
        "The schedule of what was handed over, trained again by ten new seeds as long as the agent and its ancestors, "
        "without selection, with the initial architecture. A method selects agents, not values alone: one that is at "
        "the target after few steps was lucky, too, and a replay trains no longer than it did.",
        "",
        *markdown(
            ("method", "environment", "runs", "steps of the agent and its ancestors", "score found (mean)",
             "score of the replays (mean)", "(median)", "replays at the target"), table
        ),
    ]  # fmt: skip


def _replay_cells(rows: Sequence[Row], replays: Mapping[str, dict[str, Any]]) -> tuple[str, ...]:
    """Return the cells of a row of the table: of all replays of some runs."""
    again = [ENVS[row.case["env"]].score(value) for row in rows for value in replays[row.key]["returns"]]
    steps = [row.lineage_steps for row in rows if row.lineage_steps]
    return (
        f"{len(rows)}",
        f"{np.median(steps) / 1000:.0f} k" if steps else "",
        f"{np.mean([final_score(row) for row in rows]):.2f}",
        f"{np.mean(again):.2f}",
        f"{np.median(again):.2f}",
        f"{sum(score >= 1 for score in again)} of {len(again)}",
    )


def draw(rows: Sequence[Row], path: Path) -> bool:
    """Draw mean best-so-far curves of each environment as SVG; return whether matplotlib is installed."""
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        return False
    plt.switch_backend("svg")
    plt.rcParams["svg.hashsalt"] = "search"  # the same rows give the same file
    envs = list(dict.fromkeys(row.case["env"] for row in rows))
    figure, axes = plt.subplots(1, len(envs), figsize=(4.5 * len(envs), 3.6), squeeze=False, layout="constrained")
    methods = [name for name in METHODS if any(row.case["method"] == name for row in rows)]
    for axis, env in zip(axes[0], envs, strict=True):
        for place, name in enumerate(methods):
            its = [row for row in rows if row.case["env"] == env and row.case["method"] == name]
            if its:
                budget = its[0].case["budget"]
                grid = np.linspace(0, budget, 101)
                mean = np.mean([_sampled(row, grid) for row in its], axis=0)
                axis.plot(
                    grid, mean, label=f"{name} ({len(its)})", color=f"C{place % 10}", ls=("-", "--")[place // 10 % 2]
                )
        axis.axhline(1.0, color="grey", lw=0.6)
        axis.set(title=env, xlabel="env steps, all counted", ylabel="score of what would be handed over")
        axis.legend(fontsize=6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return True


def _sampled(row: Row, grid: np.ndarray) -> np.ndarray:
    """Return the best-so-far score at each number of steps; 0 before the first evaluation."""
    env, values = ENVS[row.case["env"]], np.zeros(len(grid))
    for steps, _, value in row.curve if not row.failure else ():
        values[grid >= steps] = env.score(value)
    return values
