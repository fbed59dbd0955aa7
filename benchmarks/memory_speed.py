"""Env steps per CPU second of populations with each kind of memory, beside an LSTM.

python -m benchmarks.memory_speed
python -m benchmarks.memory_speed --lengths 16 --repetitions 2 --output -
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from time import process_time
from typing import Any

import torch

from benchmarks import measurement as m
from benchmarks.agilerl_like_networks import env_source_of
from benchmarks.agilerl_like_setup import build_population, collecting, net_config, train
from benchmarks.harness import Run, conditions, interleaved, one, options_of, print_result, publish, ratios, values
from benchmarks.tables import Goal, markdown, median_and_range

MEMBERS = 4
LSTM = "LSTM"
CELLS: dict[str, dict[str, Any]] = {
    LSTM: {"hidden_state_size": m.WIDTH},
    "GRU": {"cell": "GRU", "hidden_state_size": m.WIDTH},
    "minGRU": {"cell": "minGRU", "hidden_state_size": m.WIDTH},
    "transformer": {"cell": "transformer", "d_model": m.WIDTH, "num_layers": 2, "context": 16},
}
PROMISES = {"minGRU": 1.3, "transformer": 0.5}
"""How many times an LSTM's speed, with sequences of `SEQUENCE` steps."""


@dataclass(frozen=True)
class Cell:
    """A kind of memory that is trained on sequences of `length` steps."""

    name: str
    length: int
    steps_per_member: int


@dataclass(frozen=True)
class Speed:
    """What one run took."""

    env_steps: int
    cpu_seconds: float

    @property
    def steps_per_cpu_second(self) -> float:
        """What cells are compared by."""
        return self.env_steps / self.cpu_seconds

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        return f"{self.steps_per_cpu_second:,.0f} steps per CPU second"


def measure(cell: Cell, seed: int, threads: int) -> Speed:
    """Train a population after a first update that is not timed."""
    torch.set_num_threads(threads)
    env_source = env_source_of(m.POSITIONS)
    network = {**net_config(latent=m.RECURRENT_LATENT), "memory_config": CELLS[cell.name]}
    population = build_population(
        env_source, MEMBERS, seed, recurrent=True, max_seq_len=cell.length, net_config=network
    )
    with collecting(population, env_source) as collector:
        train(collector, m.UPDATE_STEPS)
        start = process_time()
        train(collector, cell.steps_per_member)
        return Speed(MEMBERS * cell.steps_per_member, process_time() - start)


def speed(result: Speed) -> float:
    """Return the speed of a run."""
    return result.steps_per_cpu_second


def of_length(runs: Sequence[Run[Speed]], length: int) -> list[Run[Speed]]:
    """Return the runs on sequences of a length."""
    return [run for run in runs if run.case == str(length)]


def section(runs: Sequence[Run[Speed]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    rows = []
    for name in options.cells:
        row = [name]
        for length in options.lengths:
            mine = of_length(runs, length)
            row.append(median_and_range(values(mine, name, speed), "{:,.0f}".format))
            row.append(median_and_range(ratios(mine, name, LSTM, speed), "{:.2f}x".format))
        rows.append(tuple(row))
    headings = [text for length in options.lengths for text in (f"steps/s, sequences of {length}", "/ LSTM")]
    return [
        "## Training speed of the kinds of memory",
        "",
        f"{m.POSITIONS}: env steps per CPU second, summed over {MEMBERS} members of {m.ENVS_PER_MEMBER} envs; PPO, "
        f"{m.UPDATE_STEPS:,} steps an update, {m.EPOCHS} epochs, minibatches of {m.MINIBATCH} steps; no evaluation, no "
        f"evolution. LSTM, GRU and minGRU have {m.WIDTH} units, the transformer two layers of width {m.WIDTH} "
        f"(4 heads, MLPs of 128) and a context of 16. Encoders of {m.WIDTH} and {m.RECURRENT_LATENT}, heads of "
        f"{m.WIDTH}, one encoder for actor and critic. {options.steps_per_member:,} timed steps a member after a first "
        f"update. Median (minimum to maximum) of {options.repetitions}; ratios are taken within a round.",
        "",
        conditions(runs, options),
        "",
        *markdown(("memory", *headings), rows),
    ]


def goals(runs: Sequence[Run[Speed]]) -> list[Goal]:
    """Return the goals that these runs measured."""
    found, mine = [], of_length(runs, m.SEQUENCE)
    for name, wanted in PROMISES.items():
        if got := ratios(mine, name, LSTM, speed):
            what = f"{m.POSITIONS}, P={MEMBERS}, {name}: steps/s against an LSTM"
            measured = median_and_range(got, "{:.2f}x".format)
            found.append(Goal(what, f">= {wanted:g}x", measured, statistics.median(got) >= wanted))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--lengths", nargs="+", type=int, default=[m.SEQUENCE, 4 * m.SEQUENCE], metavar="L")
    parser.add_argument("--steps-per-member", type=int, default=5 * m.UPDATE_STEPS, metavar="N")
    quick = {"lengths": [m.SEQUENCE], "steps_per_member": m.UPDATE_STEPS}
    options = options_of(parser, argv, repetitions=5, quick=quick, threads=1)
    if options.one:
        print_result(measure(Cell(**json.loads(options.one)), options.seed, options.threads))
        return
    runs: list[Run[Speed]] = []
    for length in options.lengths:
        cells = {name: Cell(name, length, options.steps_per_member) for name in options.cells}
        sides = {name: one("benchmarks.memory_speed", cell) for name, cell in cells.items()}
        runs += interleaved(sides, Speed, options, case=str(length))
    publish("memory_speed", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
