"""What one birth costs: milliseconds to clone an agent and to mutate the clone, by kind of mutation.

The agent has an encoder of two layers of 128 units, which actor and critic each have for themselves, and has learnt
once, so that mutations are measured on states of a rollout and moments travel.

python -m benchmarks.mutation_cost
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from agilerl_like import HyperparameterConfig, Mutations, RLParameter
from benchmarks.harness import Run, answer, conditions, interleaved, one, options_of, publish
from benchmarks.measurement import UPDATE_STEPS
from benchmarks.ours import CARTPOLE, build_population, collecting, net_config, train
from benchmarks.tables import Goal, markdown, nine_tenths

MOST, MOST_SHRINK = 5.0, 50.0
"""Milliseconds of any mutation that loses nothing, and of one that removes units or a layer."""
SOME = 10
"""Births before the clock runs."""
CLONE, REFUSED = "clone", "refused removal"
KINDS = ("architecture", "parameters", "activation", "rl_hp")


@dataclass(frozen=True)
class Case:
    """How many births of each kind."""

    births: int


@dataclass(frozen=True)
class Births:
    """Milliseconds of each birth, by what was done: nothing to a mere clone; a removal may be tried and refused."""

    milliseconds: Mapping[str, Sequence[float]]

    @property
    def headline(self) -> str:
        """A few words for those who watch."""
        worst = max(self.milliseconds, key=lambda operator: statistics.median(self.milliseconds[operator]))
        return f"{worst}: {statistics.median(self.milliseconds[worst]):.1f} ms, the most of all kinds"


def measure(case: Case, threads: int, seed: int) -> Births:
    """Let one agent have many children, none of which lives."""
    torch.set_num_threads(threads)
    population = build_population(
        CARTPOLE,
        1,
        seed,
        net_config=net_config((128, 128), 64, (64,)),
        share_encoders=False,
        hp_config=HyperparameterConfig(lr=RLParameter(min=1e-4, max=1e-2)),
    )
    with collecting(population, CARTPOLE) as collector:
        train(collector, UPDATE_STEPS)
    (parent,), rng, taken = population, np.random.default_rng(seed), defaultdict(list)
    for kind in ("no_mutation", *KINDS):
        nothing = dict.fromkeys(("no_mutation", *KINDS), 0.0)
        mutations = Mutations(**{**nothing, kind: 1.0}, new_layer_prob=0.5, activation_selection=("Tanh", "GELU"))
        for birth in range(SOME + case.births):
            start = time.perf_counter()
            child = parent.clone(index=1 + birth)
            if kind != "no_mutation":
                child.mutate(mutations, rng)
            milliseconds = 1e3 * (time.perf_counter() - start)
            if birth >= SOME:
                done = CLONE if kind == "no_mutation" else REFUSED if child.mut == "None" else child.mut
                taken[done].append(round(milliseconds, 3))
    return Births(dict(taken))


def pooled(runs: Sequence[Run[Births]]) -> dict[str, list[float]]:
    """Return the milliseconds of all runs, by what was done."""
    found = defaultdict(list)
    for run in runs:
        for done, milliseconds in run.result.milliseconds.items():
            found[done] += milliseconds
    return found


def shrinks(done: str) -> bool:
    return "remove_" in done or done == REFUSED


def section(runs: Sequence[Run[Births]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    rows = [
        (
            done,
            str(len(taken)),
            f"{statistics.median(taken):.2f}",
            f"{nine_tenths(taken):.2f}",
            f"{max(taken):.2f}",
        )
        for done, taken in pooled(runs).items()
    ]
    return [
        "## What one birth costs",
        "",
        f"clone() and mutate() of an agent on {CARTPOLE} with encoders of 128-128, latent 64 and heads of 64 (actor "
        f"and critic apart), after one update; {options.births} births of each kind in each of {options.repetitions} "
        "processes, what is done within a kind drawn as in a run. A removal is refitted on the states of the last "
        "rollout and weighed; one that would change the policy too much is refused.",
        "",
        conditions(runs, options),
        "",
        *markdown(("what is done", "births", "ms, median", "90 % within, ms", "longest, ms"), rows),
    ]


def goals(runs: Sequence[Run[Births]]) -> list[Goal]:
    """Return what the dearest operator of either sort takes."""
    medians, found = {done: statistics.median(taken) for done, taken in pooled(runs).items()}, []
    for what, most, shrinking in (("clone + mutation", MOST, False), ("clone + removal", MOST_SHRINK, True)):
        mine = {done: median for done, median in medians.items() if shrinks(done) == shrinking}
        worst = max(mine, key=lambda done: mine[done])
        measured = f"{mine[worst]:.1f} ms ({worst}, the dearest of {len(mine)})"
        found.append(Goal(f"{what} of a 2x128 net", f"<= {most:g} ms", measured, mine[worst] <= most))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--births", type=int, default=300, help="of each kind (default: %(default)s)")
    options = options_of(parser, argv, repetitions=3, quick={"births": 40})
    if options.one:
        answer(measure(Case(**json.loads(options.one)), options.threads, options.seed))
        return
    command = {"births": one("benchmarks.mutation_cost", Case(options.births))}
    runs = interleaved(command, Births, options)
    publish("mutation_cost", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
