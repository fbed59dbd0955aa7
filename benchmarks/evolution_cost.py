"""What evolution and evaluation cost: milliseconds of one generation's births, and their shares of real runs.

Births are selection, cloning, mutation of every kind and the stacks made again, of eight members that learn between
generations, so that moments, recent observations and fading mutations are there to be carried over. The shares are a
run's own account of its seconds, with each shipped configuration shortened to a few generations and its target out.

    python -m benchmarks.evolution_cost
    python -m benchmarks.evolution_cost --configs cartpole --repetitions 1 --output -
"""

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch

from agilerl_like import Mutations, train_on_policy
from agilerl_like.config import build, load
from agilerl_like.learning.population_learner import PopulationLearner
from agilerl_like.reporting import Reporter, SummaryRecord
from benchmarks.agilerl_like_setup import CARTPOLE, RANGES, build_population, collecting, evolve, train
from benchmarks.harness import Run, conditions, interleaved, one, options_of, print_result, publish, values
from benchmarks.measurement import ENVS_PER_MEMBER, MINIBATCH
from benchmarks.tables import ROOT, Goal, markdown, median_and_range, quantile_90

MEMBERS = 8
MOST_MILLISECONDS = 40.0
MOST_EVOLVE, MOST_EVALUATE = 0.01, 0.1
"""Largest shares of a run."""

UPDATE_STEPS = 256
UPDATES = 4
"""Updates between two generations: as many as a mutation takes to fade in."""

ALL_KINDS = Mutations(no_mutation=0.2, architecture=0.2, parameters=0.2, activation=0.2, rl_hp=0.2)

FEWEST_GENERATIONS = 3
CONFIGS = {path.stem: path for path in sorted((ROOT / "configs" / "ppo").glob("*.yaml"))}


@dataclass(frozen=True)
class BirthsCase:
    """So many generations of births."""

    generations: int


@dataclass(frozen=True)
class RunCase:
    """A configuration, and about how many env steps of all members it may take."""

    config: str
    env_steps: int


class LastWords(Reporter):
    """Keeps the summary of a run."""

    def __init__(self) -> None:
        self.heard: list[SummaryRecord] = []

    def finish(self, summary: SummaryRecord) -> None:
        self.heard.append(summary)


@dataclass(frozen=True)
class Births:
    """Milliseconds of each generation, and what came out of it."""

    milliseconds: Sequence[float]
    changed: Sequence[int]  # slots that a newcomer took
    stacks: Sequence[int]

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        return f"{statistics.median(self.milliseconds):.1f} ms, at most {max(self.milliseconds):.1f} ms"


@dataclass(frozen=True)
class Shares:
    """Where a run's seconds went; what its parts leave over is `other`."""

    generations: int
    members: int
    env_steps: int
    seconds: float
    seconds_by_part: Mapping[str, float]

    def share(self, part: str) -> float:
        """Return a part's share of the whole run."""
        spent = self.seconds_by_part
        return (self.seconds - sum(spent.values()) if part == "other" else spent.get(part, 0.0)) / self.seconds

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        return f"{self.seconds:.1f} s, evolve {self.share('evolve'):.2%}, evaluate {self.share('evaluate'):.1%}"


def births(case: BirthsCase, threads: int, seed: int) -> Births:
    """Evolve by chance, with a few updates between generations."""
    torch.set_num_threads(threads)
    population = build_population(CARTPOLE, MEMBERS, seed, learn_step=UPDATE_STEPS, hp_config=RANGES)
    rng, next_uid = np.random.default_rng(seed), MEMBERS
    milliseconds, changed, stacked = [], [], []
    with collecting(population, CARTPOLE) as collector:
        for generation in range(1, case.generations + 1):
            train(collector, UPDATES * UPDATE_STEPS)
            fitness, before = rng.random(MEMBERS).tolist(), [agent.index for agent in population]
            start = time.perf_counter()
            next_uid = evolve(population, fitness, generation, next_uid, ALL_KINDS)
            stacks = cast(PopulationLearner, population.cohort).stacks  # made again by this question at the latest
            milliseconds.append(round(1e3 * (time.perf_counter() - start), 3))
            changed.append(sum(agent.index != old for agent, old in zip(population, before, strict=True)))
            stacked.append(len(stacks))
    return Births(milliseconds, changed, stacked)


def shares(case: RunCase, threads: int, seed: int) -> Shares:
    """Train a configuration for a few generations and read its account."""
    torch.set_num_threads(threads)
    full = load(CONFIGS[case.config], ["--seed", str(seed), "--training.target", "null"])
    generation, size = full.training.evo_steps, full.population.size
    wanted = max(FEWEST_GENERATIONS, round(case.env_steps / (generation * size)))
    steps = min(wanted * generation, full.training.max_steps)
    overrides = ["--seed", str(seed), "--training.target", "null", "--training.max-steps", str(steps)]
    setup, last_words = build(load(CONFIGS[case.config], overrides)), LastWords()
    with contextlib.closing(setup.env), tempfile.TemporaryDirectory() as folder:
        train_on_policy(
            setup.env,
            pop=setup.population,
            max_steps=steps,
            evo_steps=generation,
            eval_loop=setup.training_args.eval_loop,
            eval_steps=setup.training_args.eval_steps,
            selection_strategy=setup.selection,
            mutation=setup.explorer,
            verbose=False,
            run_dir=Path(folder) / "run",
            reporters=[last_words],
        )
    (summary,) = last_words.heard
    return Shares(
        generations=-(-steps // generation),
        members=size,
        env_steps=summary.env_steps,
        seconds=round(summary.seconds, 4),
        seconds_by_part={part: round(seconds, 5) for part, seconds in summary.seconds_by_part.items()},
    )


def births_lines(runs: Sequence[Run[Births]]) -> list[str]:
    """Return what births took."""
    milliseconds = [taken for run in runs for taken in run.result.milliseconds]
    rows = [
        ("select + clone + mutate + stacks, ms: median", f"{statistics.median(milliseconds):.1f}"),
        ("90 % of generations within, ms", f"{quantile_90(milliseconds):.1f}"),
        ("longest, ms", f"{max(milliseconds):.1f}"),
        ("offspring per generation, mean", f"{statistics.fmean(n for run in runs for n in run.result.changed):.1f}"),
        (
            "stacks, mean",
            f"{statistics.fmean(n for run in runs for n in run.result.stacks):.1f}",
        ),
    ]
    return markdown((f"P={MEMBERS}, {len(milliseconds)} generations", ""), rows)


def shares_lines(runs: Sequence[Run[Shares]], configs: Sequence[str]) -> list[str]:
    """Return where the seconds of runs went."""
    parts = [*runs[0].result.seconds_by_part, "other"]

    def cells(config: str) -> tuple[str, ...]:
        first = next(run.result for run in runs if run.side == config)
        return (
            config,
            f"{first.members}, {first.env_steps:,}",
            str(first.generations),
            median_and_range(values(runs, config, lambda result: result.seconds), "{:.1f}".format),
            *(
                f"{statistics.median(values(runs, config, lambda result, part=part: result.share(part))):.1%}"
                for part in parts
            ),
        )

    return markdown(
        ("configuration", "members, env steps", "generations", "seconds", *parts), [cells(config) for config in configs]
    )


def section(
    births_runs: Sequence[Run[Births]], shares_runs: Sequence[Run[Shares]], options: argparse.Namespace
) -> list[str]:
    """Return the whole section."""
    lines = [
        "## What evolution costs",
        "",
        f"Offspring of {MEMBERS} members on {CARTPOLE} (networks as in the throughput table, at first), all kinds of "
        f"mutation equally likely, tournaments of two, random fitness; {UPDATES} updates of {UPDATE_STEPS} steps in "
        f"minibatches of {MINIBATCH} at first, {ENVS_PER_MEMBER} envs a member, between two generations, not timed; "
        f"{options.generations} generations in each of {options.repetitions} processes. Below: the shipped "
        "configurations, cut to a few generations and without their target, with a run folder and no console; "
        f"evolution comes between generations, so once less often than there are. Medians of {options.runs} run(s); "
        "`other` is time outside these phases.",
        "",
        conditions([*births_runs, *shares_runs], options),
        "",
        *births_lines(births_runs),
    ]
    return [*lines, "", *shares_lines(shares_runs, options.configs)] if shares_runs else lines


def goals(births_runs: Sequence[Run[Births]], shares_runs: Sequence[Run[Shares]]) -> list[Goal]:
    """Return what births take, and the largest shares among the configurations."""
    medians = [statistics.median(run.result.milliseconds) for run in births_runs]
    longest = max(taken for run in births_runs for taken in run.result.milliseconds)
    typical = statistics.median(medians)
    found = [
        Goal(
            f"select + clone + mutate, P={MEMBERS}, stacks made again",
            f"<= {MOST_MILLISECONDS:g} ms",
            f"{typical:.1f} ms (longest {longest:.1f} ms)",
            typical <= MOST_MILLISECONDS,
        )
    ]
    for part, most in (("evolve", MOST_EVOLVE), ("evaluate", MOST_EVALUATE)):
        by_config = {
            config: statistics.median(values(shares_runs, config, lambda result, part=part: result.share(part)))
            for config in dict.fromkeys(run.side for run in shares_runs)
        }
        if by_config:
            worst = max(by_config, key=lambda config: by_config[config])
            measured = f"{by_config[worst]:.2%} ({worst}, the most of {len(by_config)} configurations)"
            found.append(Goal(f"`{part}`'s share of a run", f"<= {most:.0%}", measured, by_config[worst] <= most))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=50, help="of births (default: %(default)s)")
    parser.add_argument("--configs", nargs="*", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--runs", type=int, default=1, help="of each configuration (default: %(default)s)")
    parser.add_argument("--env-steps", type=int, default=400_000, help="of all members of a run, about")
    quick = {"generations": 5, "configs": ["cartpole"], "env_steps": 1}
    options = options_of(parser, argv, repetitions=3, quick=quick)
    if options.one:
        case = json.loads(options.one)
        measured = shares(RunCase(**case), options.threads, options.seed) if "config" in case else None
        print_result(measured or births(BirthsCase(**case), options.threads, options.seed))
        return
    births_command = {"births": one("benchmarks.evolution_cost", BirthsCase(options.generations))}
    run_commands = {
        config: one("benchmarks.evolution_cost", RunCase(config, options.env_steps)) for config in options.configs
    }
    births_runs = interleaved(births_command, Births, options)
    shares_runs = interleaved(run_commands, Shares, options, repetitions=options.runs)
    lines = section(births_runs, shares_runs, options)
    publish("evolution_cost", lines, [*births_runs, *shares_runs], goals(births_runs, shares_runs), options)


if __name__ == "__main__":
    main()
