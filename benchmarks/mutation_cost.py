"""What one birth costs: milliseconds to draw a mutation and to bear a mutated clone, by kind of mutation.

The agent has an encoder of two layers of 128 units, which actor and critic share or each have for themselves, and has
learnt once, so that mutations are measured on states of a rollout and moments travel.

python -m benchmarks.mutation_cost
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from agilerl_like import HyperparameterConfig, Mutations, RLParameter
from agilerl_like.hpo import History, Offspring
from benchmarks.agilerl_like_setup import CARTPOLE, build_population, collecting, net_config, train
from benchmarks.harness import Run, conditions, interleaved, one, options_of, print_result, publish
from benchmarks.measurement import UPDATE_STEPS
from benchmarks.tables import Goal, markdown, quantile_90

MOST, MOST_SHRINK = 5.0, 50.0
"""Milliseconds of any mutation that loses nothing, and of one that removes units or a layer."""
SOME = 10
"""Births before the clock runs."""
CLONE, REFUSED = "clone", "refused removal"
KINDS = ("architecture", "parameters", "activation", "rl_hp")


ENCODERS = {"one encoder": True, "two encoders": False}
"""Whether actor and critic share theirs."""


@dataclass(frozen=True)
class Case:
    """How many births of each kind, and whether actor and critic of the parent share an encoder."""

    births: int
    shared: bool


@dataclass(frozen=True)
class Births:
    """Milliseconds of each birth, by what was done: nothing to a mere clone; a removal may be tried and refused."""

    milliseconds: Mapping[str, Sequence[float]]

    @property
    def headline(self) -> str:
        """One line for the terminal."""
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
        share_encoders=case.shared,
        hp_config=HyperparameterConfig(lr=RLParameter(min=1e-4, max=1e-2)),
    )
    with collecting(population, CARTPOLE) as collector:
        train(collector, UPDATE_STEPS)
    (parent,), rng, taken = population, np.random.default_rng(seed), defaultdict(list)
    for kind in ("no_mutation", *KINDS):
        chances: dict[str, Any] = {**dict.fromkeys(("no_mutation", *KINDS), 0.0), kind: 1.0}
        mutations = Mutations(**chances, new_layer_prob=0.5, activation_selection=("Tanh", "GELU"))
        for birth in range(SOME + case.births):
            start = time.perf_counter()
            if kind == "no_mutation":
                child = parent.clone(index=1 + birth)
            else:  # as a population does it
                genome, changes = mutations.propose(
                    parent.genome, History(), rng, hp_config=parent.hp_config, repair=parent.repair
                )
                child, _ = parent.make_offspring(Offspring(1, 0, 1 + birth, parent.index, 0, genome, changes))
            milliseconds = 1e3 * (time.perf_counter() - start)
            if birth >= SOME:
                done = CLONE if kind == "no_mutation" else REFUSED if child.mut == "None" else child.mut
                taken[done].append(round(milliseconds, 3))
    return Births(dict(taken))


def pooled(runs: Sequence[Run[Births]], side: str) -> dict[str, list[float]]:
    """Return the milliseconds of all runs of a side, by what was done."""
    found = defaultdict(list)
    for run in runs:
        for done, milliseconds in run.result.milliseconds.items() if run.side == side else ():
            found[done] += milliseconds
    return found


def shrinks(done: str) -> bool:
    return "remove_" in done or done == REFUSED


def section(runs: Sequence[Run[Births]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    rows = [
        (
            done,
            side,
            str(len(taken)),
            f"{statistics.median(taken):.2f}",
            f"{quantile_90(taken):.2f}",
            f"{max(taken):.2f}",
        )
        for side in ENCODERS
        for done, taken in sorted(pooled(runs, side).items())
    ]
    return [
        "## Cost of one offspring",
        "",
        f"A mutation is drawn and an agent on {CARTPOLE} is cloned and mutated, as evolution does, with an encoder of "
        "128-128 and latent 64, shared by actor and critic or one each, and heads of 64, after one update; "
        f"{options.births} offspring of each kind in each of {options.repetitions} processes, operators drawn as in a "
        "run. A removal refits the following layers on states of the last rollout; one that would change the policy "
        "too much is refused. `clone` is clone() without mutation.",
        "",
        conditions(runs, options),
        "",
        *markdown(("operator", "actor and critic have", "offspring", "ms, median", "90 % within, ms", "longest"), rows),
    ]


def goals(runs: Sequence[Run[Births]]) -> list[Goal]:
    """Return what the dearest operator of either sort takes."""
    found = []
    for side in ENCODERS:
        medians = {done: statistics.median(taken) for done, taken in pooled(runs, side).items()}
        for what, most, shrinking in (("clone + mutation", MOST, False), ("clone + removal", MOST_SHRINK, True)):
            mine = {done: median for done, median in medians.items() if shrinks(done) == shrinking}
            worst = max(mine, key=lambda done: mine[done])
            measured = f"{mine[worst]:.1f} ms ({worst}, the dearest of {len(mine)})"
            found.append(Goal(f"{what} of a 2x128 net, {side}", f"<= {most:g} ms", measured, mine[worst] <= most))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--births", type=int, default=300, help="of each kind (default: %(default)s)")
    options = options_of(parser, argv, repetitions=3, quick={"births": 40})
    if options.one:
        print_result(measure(Case(**json.loads(options.one)), options.threads, options.seed))
        return
    commands = {
        side: one("benchmarks.mutation_cost", Case(options.births, shared)) for side, shared in ENCODERS.items()
    }
    runs = interleaved(commands, Births, options)
    publish("mutation_cost", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
