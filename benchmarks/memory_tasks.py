"""Time until each kind of memory repeats the card of four steps ago (POPGym's repeat-previous).

Each run trains the bundled configuration `repeat_previous` until its target. The sides of a round have one seed.

    python -m benchmarks.memory_tasks
    python -m benchmarks.memory_tasks --cells minGRU --repetitions 1 --output -
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.agilerl_like_setup import train_bundled
from benchmarks.harness import Run, conditions, interleaved, one, options_of, print_result, publish, values
from benchmarks.tables import Goal, markdown, median_and_range

CELLS: dict[str, dict[str, Any]] = {
    "LSTM": {"cell": "LSTM"},
    "GRU": {"cell": "GRU"},
    "minGRU": {"cell": "minGRU"},
    "transformer": {"cell": "transformer", "context": 8},
}
CONFIG, TARGET, SECONDS = "repeat_previous", 0.95, 180


@dataclass(frozen=True)
class Case:
    """What one process trains."""

    cell: str
    max_steps: int


@dataclass(frozen=True)
class Score:
    """What a run reached."""

    env_steps: int
    cpu_seconds: float
    score: float

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        return f"{self.score:.2f} after {self.env_steps:,} steps, {self.cpu_seconds:.0f} CPU s"

    @property
    def met(self) -> bool:
        """Whether the target was reached in time."""
        return self.score >= TARGET and self.cpu_seconds < SECONDS


def measure(case: Case, seed: int) -> Score:
    """Train a population until its best agent reaches the target, or its budget is spent."""
    options = ["--network.memory-config", json.dumps(CELLS[case.cell]), "--seed", str(seed)]
    run = train_bundled(CONFIG, [*options, "--training.max-steps", str(case.max_steps)])
    summary = run.result.summary
    return Score(summary.env_steps, round(run.cpu_seconds, 1), round(summary.best.fitness, 3))


def section(runs: Sequence[Run[Score]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    rows = [
        (
            cell,
            median_and_range(values(runs, cell, lambda result: result.score), "{:.2f}".format),
            median_and_range(values(runs, cell, lambda result: result.env_steps), "{:,.0f}".format),
            median_and_range(values(runs, cell, lambda result: result.cpu_seconds), "{:.0f}".format),
        )
        for cell in options.cells
    ]
    return [
        "## What each kind of memory learns",
        "",
        "`RepeatPrevious` of `agilerl_like.envs.memory_tasks`: the right answer is the card of four steps ago, the "
        f"best return is 1. Bundled configuration `{CONFIG}`: four members, at most {options.max_steps:,} steps each, "
        f"until the best agent's return is {TARGET} in 20 fresh episodes. Median (minimum to maximum) of "
        f"{options.repetitions} seeds.",
        "",
        conditions(runs, options, timed=False),
        "",
        *markdown(("memory", "return", "env steps of all members", "CPU seconds"), rows),
    ]


def goals(runs: Sequence[Run[Score]], cells: Sequence[str]) -> list[Goal]:
    """Return the goal of each cell."""
    found = []
    for cell in cells:
        mine = [run.result for run in runs if run.side == cell]
        met = sum(result.met for result in mine)
        wanted = f">= {TARGET} in {SECONDS} CPU s, all seeds"
        found.append(Goal(f"repeat-previous(4), {cell}", wanted, f"{met} of {len(mine)}", met == len(mine)))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--max-steps", type=int, default=100_000, help="of each member (default: %(default)s)")
    options = options_of(parser, argv, repetitions=5, threads=1, quick={"max_steps": 10_000})
    torch.set_num_threads(options.threads)
    if options.one:
        print_result(measure(Case(**json.loads(options.one)), options.seed))
        return
    sides = {cell: one("benchmarks.memory_tasks", Case(cell, options.max_steps)) for cell in options.cells}
    runs = interleaved(sides, Score, options)
    publish("memory_tasks", section(runs, options), runs, goals(runs, options.cells), options)


if __name__ == "__main__":
    main()
