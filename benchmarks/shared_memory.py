"""Return of DQN's population after equal env steps, learning from the transitions of all members or from its own.

Sharing is SEARL's (Franke et al. 2021). Each run trains the bundled configuration for its whole budget, without a
target; 20 fresh episodes of the best agent are its return. The sides of a round have one seed.

    python -m benchmarks.shared_memory
    python -m benchmarks.shared_memory --envs LunarLander-v3 --repetitions 5
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.agilerl_like_setup import train_bundled
from benchmarks.harness import (
    Run,
    conditions,
    earlier_runs,
    interleaved,
    one,
    options_of,
    print_result,
    publish,
    values,
)
from benchmarks.tables import markdown, median_and_range

MEMBERS = 4
SIDES = {"shared": "shared", "own": "own"}
CONFIGS = {"CartPole-v1": ("cartpole_dqn", 12_500), "LunarLander-v3": ("lunar_lander_dqn", 200_000)}
"""Bundled configuration, and env steps of each of four members."""
RESAMPLES = 10_000


@dataclass(frozen=True)
class Case:
    """What one process trains."""

    env: str
    memory: str
    steps: int


@dataclass(frozen=True)
class Reward:
    """What a run reached."""

    env: str
    memory: str
    env_steps: int
    cpu_seconds: float
    score: float
    fitness: list[float]
    """Of the members, in the last generation."""

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        return f"{self.score:.1f} after {self.env_steps:,} steps, {self.cpu_seconds:.0f} CPU s"


def measure(case: Case, seed: int) -> Reward:
    """Train a population for its whole budget."""
    options = ["--algorithm.memory", case.memory, "--training.max-steps", str(case.steps)]
    options += ["--training.evo-steps", str(case.steps // 10), "--training.target", "none", "--seed", str(seed)]
    run = train_bundled(CONFIGS[case.env][0], options)
    summary, seconds = run.result.summary, round(run.cpu_seconds, 1)
    fitness = [round(float(value), 1) for value in run.result.fitness]
    return Reward(case.env, case.memory, summary.env_steps, seconds, round(summary.best.fitness, 1), fitness)


def interval(runs: Sequence[Run[Reward]]) -> str:
    """Return the mean of shared - own within rounds, and its bootstrap interval of 95%."""
    scores = [{run.round: run.result.score for run in runs if run.side == side} for side in SIDES]
    differences = np.array([scores[0][at] - scores[1][at] for at in scores[0] if at in scores[1]])
    if not len(differences):
        return ""
    draws = np.random.default_rng(0).choice(differences, (RESAMPLES, len(differences))).mean(1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return f"{differences.mean():+.0f} ({low:+.0f} to {high:+.0f})"


def section(results: dict[str, list[Run[Reward]]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    runs = [run for its in results.values() for run in its]
    rows = [
        [
            env,
            f"{its[0].result.env_steps // MEMBERS:,}",
            str(len({run.round for run in its})),
            *(median_and_range(values(its, side, lambda result: result.score), "{:.0f}".format) for side in SIDES),
            *(
                f"{statistics.mean(values(its, side, lambda result: statistics.mean(result.fitness))):.0f}"
                for side in SIDES
            ),
            interval(its),
        ]
        for env, its in results.items()
    ]
    return [
        "## Shared replay against own replays",
        "",
        "DQN, bundled configurations `cartpole_dqn` and `lunar_lander_dqn`, four members, ten generations, no target: "
        "with `memory=shared` a member learns from the transitions of all four (SEARL), with `own` from its own. Mean "
        "return of 20 fresh episodes of the best agent: median (minimum to maximum) of the seeds; the difference is "
        "within seeds, with a bootstrap interval of 95%. The date is that of the last run, which keeps the rows of "
        "envs that it did not measure.",
        "",
        conditions(runs, options, timed=False),
        "",
        *markdown(
            [
                "env",
                "env steps of a member",
                "seeds",
                *(f"{side}: best agent" for side in SIDES),
                *(f"{side}: mean of all members" for side in SIDES),
                "shared - own, best agent",
            ],
            rows,
        ),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", choices=CONFIGS, default=["CartPole-v1"])
    parser.add_argument("--steps", type=int, default=0, help="of each member; 0: as CONFIGS has it")
    options = options_of(parser, argv, repetitions=5, threads=1, quick={"steps": 2_000})
    torch.set_num_threads(options.threads)
    if options.one:
        print_result(measure(Case(**json.loads(options.one)), options.seed))
        return
    results = {}
    for env in options.envs:
        cases = {side: Case(env, side, options.steps or CONFIGS[env][1]) for side in SIDES}
        sides = {side: one("benchmarks.shared_memory", case) for side, case in cases.items()}
        results[env] = interleaved(sides, Reward, options, case=env)
    for run in earlier_runs("shared_memory", Reward, [run for its in results.values() for run in its], options):
        results.setdefault(run.case, []).append(run)
    runs = [run for its in results.values() for run in its]
    publish("shared_memory", section(results, options), runs, [], options)


if __name__ == "__main__":
    main()
