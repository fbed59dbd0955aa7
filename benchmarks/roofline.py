"""Env steps per second as a share of the machine's roofline.

The roofline's step costs the multiplications that its networks need, at the fastest rate that this machine multiplies
matrices with the same threads, and one row of the vectorised env stepped alone. Nothing else: no memory traffic, no
activation, no Adam, no Python. All of it is measured by one process, right before the training.

    python -m benchmarks.roofline
    python -m benchmarks.roofline --members 16 --threads 1 --output -
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from agilerl_like.envs import make_vect_envs
from benchmarks.agilerl_like_setup import CARTPOLE, build_population, collecting, flop_per_step, train
from benchmarks.harness import Run, conditions, interleaved, one, options_of, print_result, publish, values
from benchmarks.measurement import ENVS_PER_MEMBER, EPOCHS, MINIBATCH, UPDATE_STEPS, WIDTH
from benchmarks.tables import Goal, markdown, median_and_range

LEAST = 0.4
"""The share of the roofline that sixteen members should reach."""

SGEMM = 1024
"""Rows and columns of the matrices whose product counts as the machine's peak."""

BLOCK_SECONDS = 0.05
BLOCKS = 20


@dataclass(frozen=True)
class Case:
    """How many members train how many env steps each, and whether their minibatch steps are compiled."""

    members: int
    steps_per_member: int
    compile: bool


@dataclass(frozen=True)
class Result:
    """What the machine can do, and what the engine did."""

    members: int
    flop_per_step: int
    sgemm: float  # GFLOP/s of one large product
    batched: float  # GFLOP/s of the products of a minibatch, all members at once
    env_steps_per_second: float
    first_update: float  # seconds, with compilation
    steps_per_second: float

    @property
    def floor_seconds(self) -> float:
        """Least seconds of one env step: multiplying and stepping, one after the other."""
        return self.flop_per_step / (1e9 * max(self.sgemm, self.batched)) + 1 / self.env_steps_per_second

    @property
    def share(self) -> float:
        """The share of the roofline's speed."""
        return self.steps_per_second * self.floor_seconds

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        return f"{self.steps_per_second:,.0f} steps/s, {self.share:.0%} of the roofline"


def calls_per_second(call: Callable[[], object]) -> float:
    """Return how often a call can be made in the best of many short whiles: a peak, not a mean."""
    call()
    best = 0.0
    for _ in range(BLOCKS):
        start, calls = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - start) < BLOCK_SECONDS:
            call()
            calls += 1
        best = max(best, calls / elapsed)
    return best


def sgemm_rate() -> float:
    """GFLOP/s of one product of two large matrices."""
    a, b, out = (torch.rand(SGEMM, SGEMM) for _ in range(3))
    return 2e-9 * SGEMM**3 * calls_per_second(lambda: torch.mm(a, b, out=out))


def batched_rate(members: int) -> float:
    """GFLOP/s of the products of one hidden layer on a minibatch of every member."""
    a, b = torch.rand(members, MINIBATCH, WIDTH), torch.rand(members, WIDTH, WIDTH)
    out = torch.empty(members, MINIBATCH, WIDTH)
    return 2e-9 * members * MINIBATCH * WIDTH**2 * calls_per_second(lambda: torch.bmm(a, b, out=out))


def env_rate(members: int) -> float:
    """Env steps per second of all members' envs, with a constant action and without a policy."""
    env = make_vect_envs(CARTPOLE, num_envs=members * ENVS_PER_MEMBER)
    env.reset(seed=0)
    actions = env.action_space.sample()
    rate = env.num_envs * calls_per_second(lambda: env.step(actions))
    env.close()
    return rate


def measure(case: Case, threads: int, seed: int) -> Result:
    """Measure the machine and then the engine on it."""
    torch.set_num_threads(threads)
    sgemm, batched, env_steps_per_second = sgemm_rate(), batched_rate(case.members), env_rate(case.members)
    population = build_population(CARTPOLE, case.members, seed, compile=case.compile)
    with collecting(population, CARTPOLE) as collector:
        first_update = train(collector, UPDATE_STEPS)
        seconds = train(collector, case.steps_per_member)
    return Result(
        members=case.members,
        flop_per_step=flop_per_step(population[0]),
        sgemm=round(sgemm, 2),
        batched=round(batched, 2),
        env_steps_per_second=round(env_steps_per_second, 1),
        first_update=round(first_update, 2),
        steps_per_second=round(case.members * case.steps_per_member / seconds, 1),
    )


def side(members: int, compiled: bool) -> str:
    return f"P={members}" + (", compiled" if compiled else "")


def section(runs: Sequence[Run[Result]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""

    def cells(members: int, compiled: bool) -> tuple[str, ...]:
        def of(number: Callable[[Result], float], form: str) -> str:
            return median_and_range(values(runs, side(members, compiled), number), form.format)

        return (
            side(members, compiled),
            of(lambda result: result.first_update, "{:.1f}"),
            of(lambda result: result.sgemm, "{:.0f}"),
            of(lambda result: result.batched, "{:.0f}"),
            of(lambda result: result.env_steps_per_second, "{:,.0f}"),
            of(lambda result: 1e6 * result.floor_seconds, "{:.2f}"),
            of(lambda result: 1 / result.floor_seconds, "{:,.0f}"),
            of(lambda result: result.steps_per_second, "{:,.0f}"),
            of(lambda result: result.share, "{:.0%}"),
        )

    head = (
        "members",
        "first update, s",
        f"one product of {SGEMM}s, GFLOP/s",
        f"products of [P, {MINIBATCH}, {WIDTH}], GFLOP/s",
        "env alone, steps/s",
        "roofline, us a step",
        "roofline, steps/s",
        "reached, steps/s",
        "share",
    )
    flop = runs[0].result.flop_per_step
    return [
        "## Share of the roofline",
        "",
        f"{CARTPOLE}, the work of the throughput table. One env step needs {flop:,} floating-point operations: a "
        f"forward pass takes {flop // (1 + 3 * EPOCHS):,} (two for each weight of the encoder and both heads), a step "
        f"is acted and valued once, and each of {EPOCHS} epochs takes a forward and a backward pass, which is three "
        f"times that: 1 + 3 x {EPOCHS} passes. The roofline's step takes these at the faster of the two rates "
        f"in the table, then one env step of the vector env of P x {ENVS_PER_MEMBER} envs, stepped alone. Rates are "
        f"the best of {BLOCKS} short measurements in the process that trains right after; "
        f"{options.steps_per_member:,} timed steps of each member, after a first update of {UPDATE_STEPS:,} in which "
        "the step is compiled where it is "
        f"(`PPO(…, compile=True)`). Median (minimum to maximum) of {options.repetitions} rounds.",
        "",
        conditions(runs, options),
        "",
        *markdown(head, [cells(members, compiled) for members in options.members for compiled in (False, True)]),
    ]


def goals(runs: Sequence[Run[Result]]) -> list[Goal]:
    """Return how near sixteen members come."""
    found = []
    for compiled in (False, True):
        if got := values(runs, side(16, compiled), lambda result: result.share):
            subject = f"{CARTPOLE}, P=16{', compiled' if compiled else ''}: share of the roofline"
            measured = median_and_range(got, "{:.0%}".format)
            found.append(Goal(subject, f">= {LEAST:.0%}", measured, statistics.median(got) >= LEAST))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[8, 16], metavar="P")
    parser.add_argument("--steps-per-member", type=int, default=20 * UPDATE_STEPS, metavar="N")
    options = options_of(parser, argv, repetitions=5, quick={"members": [2], "steps_per_member": UPDATE_STEPS})
    if options.one:
        print_result(measure(Case(**json.loads(options.one)), options.threads, options.seed))
        return
    commands = {
        side(members, compiled): one("benchmarks.roofline", Case(members, options.steps_per_member, compiled))
        for members in options.members
        for compiled in (False, True)
    }
    runs = interleaved(commands, Result, options, case=CARTPOLE)
    publish("roofline", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
