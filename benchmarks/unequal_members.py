"""What differences between members cost: eight that differ against eight that are equal, same steps a member.

Members differ in their networks, in the numbers that decide shapes and counts (update_epochs, batch_size, learn_step),
or in whatever generations of evolution made of them. Those of evolution are another population in every round, and so
are those whose numbers are drawn from ranges as wide as a search has, on Pendulum; there the equal members learn from
each step as often as the drawn ones do on average.

    python -m benchmarks.unequal_members
    python -m benchmarks.unequal_members --mixes equal architectures --repetitions 3 --output -
"""

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from agilerl_like import PPO, HyperparameterConfig, Mutations, Population, RLParameter
from agilerl_like.learning.population_learner import PopulationLearner
from benchmarks import measurement as m
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

MOST_DRAWN = 1.5
"""The same for eight members of drawn numbers."""
LEAST_DRAWN = 15_000
"""Steps per second of eight members of drawn numbers on Pendulum."""

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

WIDE = HyperparameterConfig(
    batch_size=RLParameter(min=32, max=512, dtype=int, scale="power_of_two"),
    learn_step=RLParameter(min=256, max=4096, dtype=int, scale="power_of_two"),
    update_epochs=RLParameter(min=1, max=20, dtype=int),
)
"""What the members of drawn numbers are drawn from."""


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
    gradient_steps: int
    """Gradient steps taken in turn in `WARM_UP` env steps of each member; members of equal sizes step together."""
    fewest_gradient_steps: int
    """The same if all members that are due stepped together, whatever their sizes: the longest chain of each time."""

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


def drawn(seed: int, *, compile: bool = False) -> Population:
    """Draw the numbers of each member from `WIDE`."""
    each = [WIDE.sample(np.random.default_rng([seed, place])) for place in range(MEMBERS)]
    population = build_population(PENDULUM, MEMBERS, seed, compile=compile)
    return with_numbers(population, **{name: [int(its[name]) for its in each] for name in WIDE})


def as_many_epochs(seed: int, *, compile: bool = False) -> Population:
    """Return equal members that take as many epochs as `drawn(seed)` on average."""
    epochs = statistics.fmean(agent.update_epochs for agent in cast(Sequence[PPO], drawn(seed).agents))
    return build_population(PENDULUM, MEMBERS, seed, update_epochs=round(epochs), compile=compile)


EQUAL, UNEQUAL = "equal", "architectures"
DRAWN, EQUAL_TO_DRAWN = "drawn", "equal to drawn"
DRAWN_COMPILED, EQUAL_COMPILED = "drawn, compiled", "equal to drawn, compiled"
PENDULUM = "Pendulum-v1"

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
    EQUAL_TO_DRAWN: as_many_epochs,
    DRAWN: drawn,
    EQUAL_COMPILED: lambda seed: as_many_epochs(seed, compile=True),
    DRAWN_COMPILED: lambda seed: drawn(seed, compile=True),
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
    EQUAL_TO_DRAWN: f"{PENDULUM}, eight equal members, `update_epochs` the mean of the next row",
    DRAWN: f"{PENDULUM}, drawn: batch_size 32 to 512, learn_step 256 to 4096, update_epochs 1 to 20",
    EQUAL_COMPILED: "the equal ones of the row before the last, with `compile=True`",
    DRAWN_COMPILED: "the drawn ones, with `compile=True`",
}


def compared_with(mix: str) -> str:
    """Return the mix of equal members for a mix."""
    if mix in (DRAWN_COMPILED, EQUAL_COMPILED):
        return EQUAL_COMPILED
    return EQUAL_TO_DRAWN if mix in (DRAWN, EQUAL_TO_DRAWN) else EQUAL


def env_of(mix: str) -> str:
    return CARTPOLE if compared_with(mix) == EQUAL else PENDULUM


def measure(case: Case, threads: int, seed: int) -> Result:
    """Make one population and time it."""
    torch.set_num_threads(threads)
    population = MIXES[case.mix](seed)
    with collecting(population, env_of(case.mix)) as collector:
        train(collector, WARM_UP)
        seconds = train(collector, case.steps_per_member)
    taken, fewest = gradient_steps(population)
    return Result(
        seconds=round(seconds, 4),
        steps_per_second=round(MEMBERS * case.steps_per_member / seconds, 1),
        stacks=len(cast(PopulationLearner, population.cohort).stacks),
        weights=sum(weights(agent) for agent in population),
        flop_per_step=statistics.fmean(flop_per_step(agent) for agent in population),
        gradient_steps=taken,
        fewest_gradient_steps=fewest,
    )


def gradient_steps(population: Population) -> tuple[int, int]:
    """Return both counts of `Result`."""
    taken = fewest = 0
    agents = cast(Sequence[PPO], population.agents)
    for time in range(m.ENVS_PER_MEMBER, WARM_UP + 1, m.ENVS_PER_MEMBER):
        due = [agent for agent in agents if time % agent.learn_step == 0]
        chains = {(a.learn_step, a.batch_size, a.update_epochs): chain(a) for a in due}
        alike: dict[tuple[int, int], int] = {}  # they step together until the last of them has taken its epochs
        for (rows, batch, _), steps in chains.items():
            alike[rows, batch] = max(alike.get((rows, batch), 0), steps)
        taken += sum(alike.values())
        fewest += max(chains.values(), default=0)
    return taken, fewest


def chain(agent: PPO) -> int:
    """Return how many gradient steps an agent takes in an update, each of which needs the one before."""
    return agent.update_epochs * max(1, round(agent.learn_step / agent.batch_size))


def seconds(result: Result) -> float:
    return result.seconds


def section(runs: Sequence[Run[Result]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""

    def cells(mix: str) -> tuple[str, ...]:
        equal_members = compared_with(mix)
        return (
            MEANINGS[mix],
            median_and_range(values(runs, mix, lambda result: result.steps_per_second), "{:,.0f}".format),
            median_and_range(ratios(runs, mix, equal_members, seconds), "{:.2f}x".format),
            median_and_range(ratios(runs, mix, equal_members, lambda result: result.flop_per_step), "{:.2f}x".format),
            median_and_range(values(runs, mix, lambda result: result.weights), "{:,.0f}".format),
            median_and_range(values(runs, mix, lambda result: result.stacks), "{:.0f}".format),
            median_and_range(values(runs, mix, lambda result: result.gradient_steps), "{:,.0f}".format),
            median_and_range(values(runs, mix, lambda result: result.fewest_gradient_steps), "{:,.0f}".format),
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
        "gradient steps",
        "fewest",
    )
    return [
        "## Unequal members",
        "",
        f"P={MEMBERS}, the work of the throughput table but for what differs, {CARTPOLE} unless another is named, "
        f"{options.steps_per_member:,} timed steps of each member, one process a run, all mixes in turn. Median "
        f"(minimum to maximum) of {options.repetitions} rounds; ratios are taken within a round. Work is "
        "floating-point operations of one env step, from the layers' sizes and the epochs. The eight architectures "
        f"(encoder | latent | head): {shapes}. The evolved populations come from selection by random "
        "fitness with the default mutation probabilities, another one in every round. A stack is computed as one "
        f"batch. Gradient steps are those taken in turn in {WARM_UP:,} env steps of each member, where members with "
        "rollouts and minibatches of equal size step together; fewest: if all members that are due stepped together, "
        "whatever their sizes.",
        "",
        conditions(runs, options),
        "",
        *markdown(head, [cells(mix) for mix in options.mixes]),
    ]


def goals(runs: Sequence[Run[Result]]) -> list[Goal]:
    """Return what eight architectures cost, and eight members of drawn numbers."""
    found = []
    for mix, most, what in (
        (UNEQUAL, MOST, "eight members of eight architectures"),
        (DRAWN, MOST_DRAWN, "eight members of drawn batch_size, learn_step and update_epochs, Pendulum-v1"),
    ):
        if got := ratios(runs, mix, compared_with(mix), seconds):
            measured = median_and_range(got, "{:.2f}x".format)
            what = f"{what}: time / time of eight equal ones"
            found.append(Goal(what, f"<= {most:g}x", measured, statistics.median(got) <= most))
    for mix, what in ((DRAWN, "the same drawn members: steps/s of all"), (DRAWN_COMPILED, "the same, compiled")):
        if got := values(runs, mix, lambda result: result.steps_per_second):
            measured = median_and_range(got, "{:,.0f}".format)
            found.append(Goal(what, f">= {LEAST_DRAWN:,}", measured, statistics.median(got) >= LEAST_DRAWN))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixes", nargs="+", choices=MIXES, default=list(MIXES))
    parser.add_argument("--steps-per-member", type=int, default=5 * WARM_UP, metavar="N")
    options = options_of(parser, argv, repetitions=5, quick={"steps_per_member": WARM_UP})
    if options.one:
        print_result(measure(Case(**json.loads(options.one)), options.threads, options.seed))
        return
    commands = {mix: one("benchmarks.unequal_members", Case(mix, options.steps_per_member)) for mix in options.mixes}
    runs = interleaved(commands, Result, options)
    publish("unequal_members", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
