"""What successive halving brings to eight members: how it allocates env steps, simulated on learning curves.

Members are drawn from the ranges of `benchmarks.search` (S2) and trained without evolution, on its tuning seeds and
environments; their evaluations are the learning curves. A simulated search draws members from them. `AutoSelection`
decides which start again, as other draws, which are removed, and which become clones. Those that stay continue along
their curves, and clones along those of their parents, as if their other hyperparameters changed nothing. A member earns
what a random policy does until it has come to its first evaluation. The result is the best agent on the way, by the
mean of the last three evaluations. In further searches all members begin as the draw that learns least.

    python -m benchmarks.halving                    # simulates, and replaces the section of benchmarks/README.md
    python -m benchmarks.halving --record pendulum  # trains the draws again first, about 15 minutes
"""

import argparse
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from agilerl_like.hpo import Genome, History, HyperparameterConfig, PopulationView, RLParameter, Selection, Trial
from agilerl_like.hpo.auto import AutoSelection
from agilerl_like.hpo.genome import NO_PARENT
from agilerl_like.reporting.callback import Callback, RunContext
from agilerl_like.reporting.records import GenerationRecord
from agilerl_like.training.on_policy import train_on_policy
from benchmarks.search import protocol, runner
from benchmarks.search.protocol import ENVS
from benchmarks.tables import README, ROOT, lines_of, machine, markdown, replace_section

RAW = ROOT / "benchmarks" / "results" / "halving.jsonl"
SEED, DRAWS = 50, 48
MEMBERS, GENERATIONS, SEARCHES = 8, 20, 400


@dataclass(frozen=True)
class Recorded:
    """How the learning curves of an environment are recorded, and the budgets that are simulated on them."""

    steps: int
    """Env steps of a draw."""
    between: int
    """Env steps between two evaluations."""
    episodes: int
    budgets: tuple[int, ...]
    """Training steps of each of eight members that all stay: from too few for most draws to enough."""
    budgets_of_one_start: tuple[int, ...]
    """The same where all begin as the draw that learns least."""


RECORDED = {
    "pendulum": Recorded(90_000, 1_536, 5, (4_600, 6_000, 9_000, 12_000, 16_000), (12_000, 16_000, 24_000, 32_000)),
    "cartpole": Recorded(30_720, 512, 3, (1_024, 1_536, 2_048, 3_072, 4_096, 6_144), (2_048, 3_072, 6_144, 10_000)),
}
THRICE = (1 / 4, 1 / 2, 3 / 4)
ALLOCATIONS: dict[str, Selection | None] = {
    "independent members": None,
    "the worse half starts again twice": AutoSelection(warm_up=1.0, halve_at=()),
    "halved once": AutoSelection(warm_up=1.0, restart_worse=0.0),
    "halved three times": AutoSelection(warm_up=1.0, restart_worse=0.0, halve_at=THRICE),
    "both, halved once": AutoSelection(warm_up=1.0),
    "both, halved three times": AutoSelection(warm_up=1.0, halve_at=THRICE),
    "**both, halved once, clones from 1/2 (the default)**": AutoSelection(),
    "both, halved once, clones from 2/3": AutoSelection(warm_up=2 / 3),
    "both, halved three times, clones from 1/2": AutoSelection(halve_at=THRICE),
    "both, halved three times, clones from 2/3": AutoSelection(warm_up=2 / 3, halve_at=THRICE),
    "clones from 1/2, not halved": AutoSelection(halve_at=()),
}
FROM_ONE_START: dict[str, Selection] = {
    "selection from the first generation on, not halved": AutoSelection(warm_up=0.0, halve_at=()),
    "selection from the first generation on": AutoSelection(warm_up=0.0),
    "not halved": AutoSelection(halve_at=()),
    "**the default**": AutoSelection(),
    "halved three times, clones from 2/3": AutoSelection(warm_up=2 / 3, halve_at=THRICE),
}
RANGES = HyperparameterConfig(draw=RLParameter(0, DRAWS, dtype=int))
NO_ARCHITECTURE: Any = None
"""Of members that are learning curves."""


@dataclass
class Curves:
    """The learning curves of an environment."""

    env: str
    seed: int
    machine: str
    steps: list[int]
    """Env steps of a draw at each evaluation `[T]`."""
    fitness: list[list[float]]
    """Mean returns `[draws, T]`, with their standard errors."""
    standard_errors: list[list[float]]

    @cached_property
    def means(self) -> np.ndarray:
        """Mean returns after no evaluation, the first, and so on `[draws, 1 + T]`; after none, of a random policy."""
        return np.pad(np.array(self.fitness), ((0, 0), (1, 0)), constant_values=ENVS[self.env].random)

    @cached_property
    def errors(self) -> np.ndarray:
        """The standard errors of `means`; 0 after no evaluation."""
        return np.pad(np.array(self.standard_errors), ((0, 0), (1, 0)))

    @cached_property
    def best_so_far(self) -> np.ndarray:
        """The best mean of three evaluations in succession, each time up to the last one `[draws, 1 + T]`.

        The first stands for those that are missing before it.
        """
        padded = np.pad(np.array(self.fitness), ((0, 0), (2, 0)), mode="edge")
        smooth = (padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]) / 3
        return np.maximum.accumulate(np.concatenate([self.means[:, :1], smooth], axis=1), axis=1)

    @property
    def worst(self) -> int:
        """The draw that learns least."""
        return int(np.argmin(self.best_so_far[:, -1]))

    def evaluations(self, steps: float) -> int:
        """Return how many evaluations lie at or before so many env steps.

        Steps are rounded, because sums of shares of a budget are not exact.
        """
        return bisect_right(self.steps, round(steps))


class _Member(NamedTuple):
    """A member of a simulated search: its learning curve, and how far it has come."""

    draw: int
    steps: float
    uid: int


class _Recorder(Callback):
    def __init__(self, env: str) -> None:
        self.curves = Curves(env, SEED, machine(), [], [[] for _ in range(DRAWS)], [[] for _ in range(DRAWS)])

    def on_generation(self, run: RunContext, record: GenerationRecord) -> None:
        self.curves.steps.append(record.members[0].env_steps)
        for member in record.members:
            self.curves.fitness[member.slot].append(round(member.fitness, 2))
            self.curves.standard_errors[member.slot].append(round(member.standard_error, 2))


def record(env: str) -> Curves:
    """Train the draws, as one population, because without evolution members do not influence one another."""
    torch.set_num_threads(1)
    plan, setup, recorder = RECORDED[env], runner.make_setup(ENVS[env]), _Recorder(env)
    case = protocol.Case("no_evolution", env, "S2", SEED, ENVS[env].budget, members=DRAWS)
    search = runner.METHODS[case.method].make(case)
    train_on_policy(
        setup,
        pop=runner.make_population(ENVS[env], setup, search.founders, search.ranges, SEED),
        max_steps=plan.steps,
        evo_steps=plan.between,
        eval_loop=plan.episodes,
        selection_strategy=None,
        mutation=None,
        verbose=False,
        callbacks=[recorder],
    )
    setup.vec_env.close()
    return recorder.curves


def simulate(curves: Curves, selection: Selection | None, steps: int, seed: int, start: int | None = None) -> float:
    """Return what a search finds in a budget of `MEMBERS * steps` training steps; `start`: all begin as this draw."""
    rng = np.random.default_rng(seed)
    waiting = [draw for draw in rng.permutation(len(curves.fitness)).tolist() if draw != start]
    members = [_Member(waiting.pop() if start is None else start, 0.0, uid) for uid in range(MEMBERS)]
    uids, state, history, best = count(MEMBERS), {}, History(), -np.inf
    for generation in range(1, GENERATIONS + 1):
        members = [one._replace(steps=one.steps + MEMBERS * steps / GENERATIONS / len(members)) for one in members]
        best = max(best, *(curves.best_so_far[one.draw, curves.evaluations(one.steps)] for one in members))
        if selection is None:
            continue
        history = history.extended(_trial(curves, generation, one) for one in members)
        removed = selection.removed(_view(curves, members, generation, history, state))
        members = [one for slot, one in enumerate(members) if slot not in removed]
        rows = selection.plan(_view(curves, members, generation, history, state), rng)
        members = [
            members[row.weights_from]
            if row.start is None and row.weights_from == slot
            else _Member(waiting.pop(), 0.0, next(uids))
            if row.start is not None
            else members[row.weights_from]._replace(uid=next(uids))
            for slot, row in enumerate(rows)
        ]
    return float(best)


def _trial(curves: Curves, generation: int, member: _Member) -> Trial:
    fitness = float(curves.means[member.draw, curves.evaluations(member.steps)])
    return Trial(generation, member.uid, NO_PARENT, {"draw": member.draw}, "", "", np.nan, fitness, 1)


def _view(
    curves: Curves, members: Sequence[_Member], generation: int, history: History, state: dict[str, Any]
) -> PopulationView:
    """Return the view of a selection, with two returns for each member that have its mean and standard error."""
    returns = np.full((len(members), 2 * len(members)), np.nan)
    for slot, one in enumerate(members):
        fitness, error = (its[one.draw, curves.evaluations(one.steps)] for its in (curves.means, curves.errors))
        returns[slot, 2 * slot : 2 * slot + 2] = fitness - error, fitness + error
    return PopulationView(
        np.nanmean(returns, axis=1),
        [one.uid for one in members],
        [Genome({"draw": one.draw}, NO_ARCHITECTURE) for one in members],
        generation,
        history,
        returns,
        GENERATIONS,
        hp_configs=[RANGES] * len(members),
        state=state,
    )


def tables(all_curves: Sequence[Curves]) -> list[str]:
    """Return a table for each environment: what searches find, and how often more than independent members."""
    lines: list[str] = []
    for curves in all_curves:
        budgets = RECORDED[curves.env].budgets
        found = {
            name: [np.array([simulate(curves, its, steps, seed) for seed in range(SEARCHES)]) for steps in budgets]
            for name, its in ALLOCATIONS.items()
        }
        plain = found["independent members"]
        rows = []
        for name, results in found.items():
            shares = [_share_better(result, alone) for result, alone in zip(results, plain, strict=True)]
            cells = [f"{share:.2f} ({result.mean():.0f})" for share, result in zip(shares, results, strict=True)]
            rows.append((name, f"{np.mean(shares):.2f}", *cells))
        draws = f"{len(curves.fitness)} draws (seed {curves.seed})"
        lines += [
            f"**{curves.env}**, {draws}, {SEARCHES} searches; {curves.machine}",
            "",
            *markdown(("steps of a member, if all stay", "mean", *(f"{steps:,}" for steps in budgets)), rows),
            "",
            *_table_of_one_start(curves),
            "",
        ]
    return lines[:-1]


def _table_of_one_start(curves: Curves) -> list[str]:
    """Return a table of searches whose members all begin as the draw that learns least."""
    budgets, target, start = RECORDED[curves.env].budgets_of_one_start, ENVS[curves.env].target, curves.worst
    rows = []
    for name, its in FROM_ONE_START.items():
        results = [np.array([simulate(curves, its, steps, n, start) for n in range(SEARCHES)]) for steps in budgets]
        rows.append((name, *(f"{(result >= target).mean():.2f} ({result.mean():.0f})" for result in results)))
    title = f"all begin as the draw that learns least; share of searches that reach {target:g}"
    return markdown((title, *(f"{steps:,}" for steps in budgets)), rows)


def _share_better(one: np.ndarray, other: np.ndarray) -> float:
    """Return the probability that a search of one finds more than a search of the other; a tie counts half."""
    differences = one[:, None] - other[None, :]
    return float((differences > 0).mean() + (differences == 0).mean() / 2)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", nargs="+", choices=RECORDED, default=[], help="record learning curves again")
    parser.add_argument("--output", default=str(README), help="file with the section to replace, or -")
    options = parser.parse_args(arguments)
    known = {curves.env: curves for curves in (Curves(**json.loads(line)) for line in lines_of(RAW))}
    for env in options.record:
        known[env] = record(env)
        RAW.write_text("".join(json.dumps(asdict(known[env])) + "\n" for env in RECORDED if env in known))
    text = "\n".join(tables([known[env] for env in RECORDED if env in known]))
    if options.output == "-":
        print(text)
    else:
        replace_section(Path(options.output), "halving", text)


if __name__ == "__main__":
    main()
