"""Env steps per CPU second beside a program in JAX whose whole loop, CartPole included, is one jitted `vmap`.

Each side has one thread, so that its CPU seconds are the seconds of a quiet machine, and a busy one can be used.

    python -m benchmarks.jax_program
    python -m benchmarks.jax_program --members 1 8 --repetitions 2 --output -
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.agilerl_like_setup import CARTPOLE, build_population, collecting, train
from benchmarks.harness import (
    Run,
    conditions,
    interleaved,
    libraries,
    one,
    options_of,
    print_result,
    publish,
    ratios,
    steps_per_second,
    values,
)
from benchmarks.measurement import UPDATE_STEPS, Measurement, Work
from benchmarks.tables import Goal, markdown, median_and_range
from benchmarks.venvs import interpreter, is_ready

JAX, OURS = "JAX program", "agilerl_like"
PROMISES = {1: 0.35, 8: 1.2, 16: 1.2, 64: 1.5, 256: 1.5}
"""How many times its steps/s, by members; that of one member is promised with `compile=True`, and measured without."""


@dataclass(frozen=True)
class Case:
    """How many members train how many env steps each."""

    members: int
    steps_per_member: int


def measure(case: Case, seed: int) -> Measurement:
    """Train our population in one thread, after a warm-up update."""
    population = build_population(CARTPOLE, case.members, seed)
    with collecting(population, CARTPOLE) as collector:
        train(collector, UPDATE_STEPS)
        start = time.process_time()
        train(collector, case.steps_per_member)
        seconds = time.process_time() - start
    work = Work(CARTPOLE, case.members, case.steps_per_member, 1, seed)
    return Measurement.of(OURS, "agilerl-like", work, seconds, ())


def runs_of(members: int, options: argparse.Namespace) -> list[Run[Measurement]]:
    """Run both sides in turn."""
    work = ["--members", str(members), "--steps-per-member", str(options.steps_per_member)]
    sides = {
        JAX: [str(interpreter("jax")), "-m", "benchmarks.peers.jax_population", *work],
        OURS: one("benchmarks.jax_program", Case(members, options.steps_per_member)),
    }
    return interleaved(sides, Measurement, options, case=f"P={members}")


def section(results: dict[int, list[Run[Measurement]]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    runs = [run for its in results.values() for run in its]
    rows = [
        (
            str(members),
            *(median_and_range(values(its, side, steps_per_second), "{:,.0f}".format) for side in (JAX, OURS)),
            median_and_range(ratios(its, OURS, JAX, steps_per_second), "{:.2f}x".format),
        )
        for members, its in results.items()
    ]
    return [
        "## Beside a program in JAX",
        "",
        "CartPole-v1, the work of the throughput table, one thread a side. The program, "
        "`benchmarks/peers/jax_population.py`, is ours, after PureJaxRL: environment, networks and updates of all "
        "members are one jitted `vmap`; it has no evaluation, no evolution and no other environment, and its "
        "compilation is not timed. Steps of all members per CPU second, "
        f"{options.steps_per_member:,} timed steps of each. Median (minimum to maximum) of {options.repetitions} "
        "rounds; ratios are taken within a round.",
        "",
        conditions(runs, options),
        "",
        *libraries(runs),
        "",
        *markdown(("P", JAX, OURS, f"{OURS} / {JAX}"), rows),
    ]


def goals(results: dict[int, list[Run[Measurement]]]) -> list[Goal]:
    """Return the goals that these runs measured."""
    return [
        Goal(
            f"CartPole-v1, P={members}, one thread: steps/s against the JAX program",
            f">= {PROMISES[members]:g}x",
            median_and_range(got := ratios(runs, OURS, JAX, steps_per_second), "{:.2f}x".format),
            statistics.median(got) >= PROMISES[members],
        )
        for members, runs in results.items()
        if members in PROMISES
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 8, 16, 64, 256], metavar="P")
    parser.add_argument("--steps-per-member", type=int, default=5 * UPDATE_STEPS, metavar="N")
    quick = {"members": [1, 2], "steps_per_member": UPDATE_STEPS}
    options = options_of(parser, argv, repetitions=3, threads=1, quick=quick)
    if options.one:
        torch.set_num_threads(1)
        print_result(measure(Case(**json.loads(options.one)), options.seed))
        return
    if options.quick and not is_ready("jax"):
        print("jax: no virtual environment yet; python -m benchmarks.venvs jax makes it")
        return
    results = {members: runs_of(members, options) for members in options.members}
    runs = [run for its in results.values() for run in its]
    publish("jax_program", section(results, options), runs, goals(results), options)


if __name__ == "__main__":
    main()
