"""What differences between members cost: eight that differ against eight that are equal, same steps a member.

Members differ in their networks, in the numbers that decide shapes and counts (update_epochs, batch_size, learn_step),
or in whatever generations of evolution made of them. Those of evolution are another population in every round.

    python -m benchmarks.unequal_members
    python -m benchmarks.unequal_members --mixes equal architectures --repetitions 3 --output -
"""

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from agilerl_like import HyperparameterConfig, Mutations, Population, RLParameter
from benchmarks.agilerl_like_setup import (
    CARTPOLE,
    RANGES,
    build_population,
    collecting,
    evolve,
    flop_per_step,
    net_config,
    train,
    weights,
)
from benchmarks.harness import Run, conditions, interleaved, one, options_of, print_result, publish, ratios, values
from benchmarks.tables import Goal, markdown, median_and_range

MEMBERS = 8
MOST = 1.4
"""How many times as long eight architectures may take as one eight times."""

GENERATIONS = 20
WARM_UP = 4096
"""Steps of each member before the clock starts: the longest rollout, so that everybody has learned."""

ARCHITECTURES = (  # encoder, latent, head: one or two mutations from the first, together about eight times its weights
    ((64,), 64, (64,)),
    ((48,), 64, (64,)),
    ((64,), 64, (80,)),
    ((96,), 64, (48,)),
    ((64, 64), 64, (48,)),
    ((64,), 64, (48, 48)),
    ((80,), 48, (64,)),
    ((64,), 72, (48,)),
)
UPDATE_EPOCHS = (2, 3, 4, 5, 6, 2, 4, 6)
BATCH_SIZES = (64, 128, 256, 128, 64, 256, 128, 128)
LEARN_STEPS = (1024, 2048, 4096, 2048, 1024, 4096, 2048, 2048)

SHIPPED = HyperparameterConfig(lr=RANGES["lr"], ent_coef=RANGES["ent_coef"])
"""What evolves in the shipped configurations."""

EVERYTHING = HyperparameterConfig(**RANGES, learn_step=RLParameter(min=1024, max=4096, dtype=int, scale="power_of_two"))


@dataclass(frozen=True)
class Case:
    """A population, by the name of its mix, and how long each member trains."""

    mix: str
    steps_per_member: int


@dataclass(frozen=True)
class Result:
    """What one population took, and what it was made of."""

    seconds: float
    steps_per_second: float
    stacks: int
    weights: int
    flop_per_step: float

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        return f"{self.seconds:.2f} s, {self.stacks} stacks, {self.weights:,} weights"


def networks() -> list[dict[str, object]]:
    return [net_config(*shape) for shape in ARCHITECTURES]


def equal(seed: int) -> Population:
    return build_population(CARTPOLE, MEMBERS, seed)


def of_architectures(seed: int) -> Population:
    return build_population(CARTPOLE, MEMBERS, seed, networks=networks())


def with_numbers(population: Population, **numbers: Sequence[int]) -> Population:
    """Give each member numbers of its own."""
    for name, each in numbers.items():
        for agent, number in zip(population, each, strict=True):
            setattr(agent, name, number)
    return population


def evolved(seed: int, ranges: HyperparameterConfig) -> Population:
    """Evolve a population for some generations with random fitness and the default mutation probabilities."""
    population = build_population(CARTPOLE, MEMBERS, seed, hp_config=ranges)
    rng, next_uid = np.random.default_rng(seed), MEMBERS
    for generation in range(1, GENERATIONS + 1):
        next_uid = evolve(population, rng.random(MEMBERS).tolist(), generation, next_uid, Mutations())
    return population


EQUAL, UNEQUAL = "equal", "architectures"

MIXES: dict[str, Callable[[int], Population]] = {
    EQUAL: equal,
    UNEQUAL: of_architectures,
    "update_epochs": lambda seed: with_numbers(equal(seed), update_epochs=UPDATE_EPOCHS),
    "batch_size": lambda seed: with_numbers(equal(seed), batch_size=BATCH_SIZES),
    "learn_step": lambda seed: with_numbers(equal(seed), learn_step=LEARN_STEPS),
    "all": lambda seed: with_numbers(
        of_architectures(seed), update_epochs=UPDATE_EPOCHS, batch_size=BATCH_SIZES, learn_step=LEARN_STEPS
    ),
    "evolved": lambda seed: evolved(seed, SHIPPED),
    "evolved, all": lambda seed: evolved(seed, EVERYTHING),
}

MEANINGS = {
    EQUAL: "eight equal members",
    UNEQUAL: "eight architectures",
    "update_epochs": f"update_epochs {', '.join(map(str, UPDATE_EPOCHS))}",
    "batch_size": f"batch_size {', '.join(map(str, BATCH_SIZES))}",
    "learn_step": f"learn_step {', '.join(map(str, LEARN_STEPS))}",
    "all": "all of these at once",
    "evolved": f"{GENERATIONS} generations of evolution: architecture, {', '.join(SHIPPED)}",
    "evolved, all": f"{GENERATIONS} generations of evolution: architecture, {', '.join(EVERYTHING)}",
}


def measure(case: Case, threads: int, seed: int) -> Result:
    """Make one population and time it."""
    torch.set_num_threads(threads)
    population = MIXES[case.mix](seed)
    with collecting(population, CARTPOLE) as collector:
        train(collector, WARM_UP)
        seconds = train(collector, case.steps_per_member)
    return Result(
        seconds=round(seconds, 4),
        steps_per_second=round(MEMBERS * case.steps_per_member / seconds, 1),
        stacks=len(population.cohort.stacks),
        weights=sum(weights(agent) for agent in population),
        flop_per_step=statistics.fmean(flop_per_step(agent) for agent in population),
    )


def seconds(result: Result) -> float:
    return result.seconds


def section(runs: Sequence[Run[Result]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""

    def cells(mix: str) -> tuple[str, ...]:
        return (
            MEANINGS[mix],
            median_and_range(values(runs, mix, lambda result: result.steps_per_second), "{:,.0f}".format),
            median_and_range(ratios(runs, mix, EQUAL, seconds), "{:.2f}x".format),
            median_and_range(ratios(runs, mix, EQUAL, lambda result: result.flop_per_step), "{:.2f}x".format),
            median_and_range(values(runs, mix, lambda result: result.weights), "{:,.0f}".format),
            median_and_range(values(runs, mix, lambda result: result.stacks), "{:.0f}".format),
        )

    shapes = "; ".join(
        f"{'-'.join(map(str, encoder))} | {latent} | {'-'.join(map(str, head))}"
        for encoder, latent, head in ARCHITECTURES
    )
    head = (
        "members",
        "steps/s",
        "time / time of equal members",
        "work / work of equal members",
        "weights, all members",
        "stacks",
    )
    return [
        "## Unequal members",
        "",
        f"{CARTPOLE}, P={MEMBERS}, the work of the throughput table but for what differs, "
        f"{options.steps_per_member:,} timed steps of each member, one process a run, all mixes in turn. Median "
        f"(minimum to maximum) of {options.repetitions} rounds; ratios are taken within a round. Work is "
        "floating-point operations of one env step, from the layers' sizes and the epochs. The eight architectures "
        f"(encoder | latent | head): {shapes}. The evolved populations come from selection by random "
        "fitness with the default mutation probabilities, another one in every round. A stack is computed as one "
        "batch.",
        "",
        conditions(runs, options),
        "",
        *markdown(head, [cells(mix) for mix in options.mixes]),
    ]


def goals(runs: Sequence[Run[Result]]) -> list[Goal]:
    """Return what eight architectures cost."""
    got = ratios(runs, UNEQUAL, EQUAL, seconds)
    if not got:
        return []
    measured = median_and_range(got, "{:.2f}x".format)
    what = "eight members of eight architectures: time / time of eight equal ones"
    return [Goal(what, f"<= {MOST:g}x", measured, statistics.median(got) <= MOST)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixes", nargs="+", choices=MIXES, default=list(MIXES))
    parser.add_argument("--steps-per-member", type=int, default=5 * WARM_UP, metavar="N")
    options = options_of(parser, argv, repetitions=5, quick={"steps_per_member": WARM_UP})
    if options.one:
        print_result(measure(Case(**json.loads(options.one)), options.threads, options.seed))
        return
    commands = {mix: one("benchmarks.unequal_members", Case(mix, options.steps_per_member)) for mix in options.mixes}
    runs = interleaved(commands, Result, options, case=CARTPOLE)
    publish("unequal_members", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
