"""Env steps per second beside AgileRL and Stable-Baselines3: all sides in turn, again and again, then one table.

`measurement.py` fixes the work, and each side runs its own loop in an environment of its own. One agent alone trains
four times as long as a member of a population, or it would be over in a second.

    python -m benchmarks.throughput                                   # the table of benchmarks/README.md
    python -m benchmarks.throughput --cases CartPole-v1:4 --sides agilerl ours --repetitions 2 --output -
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from benchmarks.harness import (
    Run,
    conditions,
    interleaved,
    libraries,
    options_of,
    publish,
    ratios,
    steps_per_second,
    values,
)
from benchmarks.measurement import ENVS, EPOCHS, MINIBATCH, UPDATE_STEPS, WIDTH, Measurement
from benchmarks.tables import Goal, markdown, median_and_range
from benchmarks.venvs import PEERS, interpreter, is_ready

OURS, SPREAD, COMPILED = "ours", "spread", "compiled"
HEADINGS = {
    "agilerl": "AgileRL",
    "sb3": "Stable-Baselines3",
    OURS: "agilerl_like",
    SPREAD: "agilerl_like, two processes",
    COMPILED: "agilerl_like, compiled",
}
MINE = {OURS: (), SPREAD: ("--processes", "2"), COMPILED: ("--compile",)}
"""Our sides, with the options of their script."""
ALONE = 4
"""How many times longer one agent trains."""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    env: str
    members: int
    sides: tuple[str, ...] = ("agilerl", OURS, SPREAD)

    @classmethod
    def parse(cls, text: str) -> "Case":
        """Read ``ENV:P``; all sides take part that can."""
        env, _, members = text.partition(":")
        if env not in ENVS or not members.isdigit() or int(members) < 1:
            raise argparse.ArgumentTypeError(f"{text!r} is not ENV:P with ENV one of {', '.join(ENVS)} and P >= 1")
        return cls(env, int(members), tuple(side for side in HEADINGS if side != SPREAD or int(members) > 1))

    def __str__(self) -> str:
        return f"{self.env}:{self.members}"


CASES = (  # SB3 has no population: it stands beside one agent
    Case("CartPole-v1", 1, ("agilerl", "sb3", OURS, COMPILED)),
    Case("CartPole-v1", 8, ("agilerl", OURS, SPREAD, COMPILED)),
    Case("CartPole-v1", 16),
    Case("LunarLander-v3", 8),
)

PROMISES = (  # case, our side, the one that it is compared with, how many times its speed
    ("CartPole-v1:8", OURS, "agilerl", 10.0),
    ("CartPole-v1:16", OURS, "agilerl", 15.0),
    ("CartPole-v1:16", SPREAD, "agilerl", 15.0),
    ("LunarLander-v3:8", OURS, "agilerl", 6.0),
    ("LunarLander-v3:8", SPREAD, "agilerl", 6.0),
    ("CartPole-v1:1", OURS, "sb3", 2.0),
    ("CartPole-v1:1", COMPILED, "sb3", 4.0),
)

Results = Mapping[Case, Sequence[Run[Measurement]]]


def script(side: str, python: str | None) -> list[str]:
    """Return the command of a side's script; the environment of a peer is made here, before anything is timed."""
    if side in MINE:
        return [sys.executable, "-m", "benchmarks.agilerl_like_throughput", *MINE[side]]
    return [str(interpreter(side, python)), "-m", f"benchmarks.peers.{side}_throughput"]


def measure(case: Case, scripts: Mapping[str, Sequence[str]], options: argparse.Namespace) -> list[Run[Measurement]]:
    """Run the case's sides in turn."""
    steps = options.steps_per_member * (ALONE if case.members == 1 else 1)
    work = ["--env", case.env, "--members", str(case.members), "--steps-per-member", str(steps)]
    commands = {side: [*scripts[side], *work] for side in case.sides if side in scripts}
    return interleaved(commands, Measurement, options, case=str(case))


def ratio_cell(runs: Sequence[Run[Measurement]], above: str, below: str) -> str:
    """Return how many times faster ``above`` is."""
    return median_and_range(ratios(runs, above, below, steps_per_second), "{:.2f}x".format)


def growth(results: Results, case: Case, side: str) -> str:
    """Return the time of P members over the time of one, same steps a member (rows of one sitting, not neighbours)."""

    def seconds_per_step(members: int) -> float | None:
        runs = [run for other in results if (other.env, other.members) == (case.env, members) for run in results[other]]
        times = values(runs, side, lambda measured: measured.seconds * measured.members / measured.env_steps)
        return statistics.median(times) if times else None

    one, many = seconds_per_step(1), seconds_per_step(case.members)
    return f"{many / one:.1f}x" if case.members > 1 and one and many else ""


def table(results: Results, sides: Sequence[str]) -> list[str]:
    """Return the lines of the table."""
    pairs = [
        (above, below)
        for above, below in product(MINE, HEADINGS)
        if below not in MINE and any({above, below} <= {*sides} & {*case.sides} for case in results)
    ]
    populations = [side for side in sides if side not in ("sb3", SPREAD, COMPILED)]
    head = [
        "env",
        "P",
        *(HEADINGS[side] for side in sides),
        *(f"{HEADINGS[above]} / {HEADINGS[below]}" for above, below in pairs),
        *(f"time of P / time of 1, {HEADINGS[side]}" for side in populations),
    ]
    rows = [
        [
            case.env,
            str(case.members),
            *(median_and_range(values(runs, side, steps_per_second), "{:,.0f}".format) for side in sides),
            *(ratio_cell(runs, above, below) for above, below in pairs),
            *(growth(results, case, side) for side in populations),
        ]
        for case, runs in results.items()
    ]
    return markdown(head, rows)


def section(results: Results, sides: Sequence[str], options: argparse.Namespace) -> list[str]:
    """Return the whole section: what was done, on what, and the table."""
    runs = [run for its_runs in results.values() for run in its_runs]
    compiled = ", or in one with `compile=True` (the clock starts after the compilation)" if COMPILED in sides else ""
    return [
        "## Throughput",
        "",
        f"Env steps per second, summed over P members, {options.steps_per_member:,} timed steps a member "
        f"({ALONE * options.steps_per_member:,} where P is 1) after one warm-up update; PPO with 16 envs a member, "
        f"{UPDATE_STEPS:,} steps an update, minibatch {MINIBATCH}, {EPOCHS} epochs, encoder {WIDTH} + latent {WIDTH} "
        f"shared by heads of {WIDTH}, ReLU, no LayerNorm; no evaluation, no evolution. AgileRL's members take turns in "
        "one process, as in its own loop; ours are in one, or with `processes=2` in two of half as many threads (the "
        f"clock starts after their first generation){compiled}. Median (minimum to maximum) of "
        f"{options.repetitions}; ratios are taken within a round.",
        "",
        conditions(runs, options),
        "",
        *libraries(runs),
        "",
        *table(results, sides),
        "",
        "On LunarLander `make_vect_envs` takes EnvPool where it is installed (its version stands above if it was); "
        "AgileRL and Stable-Baselines3 step gymnasium's own env.",
        "",
        f"Reproduce: `{reproduction(results, sides, options)}`",
    ]


def reproduction(results: Results, sides: Sequence[str], options: argparse.Namespace) -> str:
    """Return the command that makes this table again, without the paths of this machine."""
    words = ["python -m benchmarks.throughput", f"--steps-per-member {options.steps_per_member}"]
    words += [f"--repetitions {options.repetitions}", f"--threads {options.threads}", f"--seed {options.seed}"]
    if tuple(results) != CASES:
        words.append(f"--cases {' '.join(map(str, results))}")
    if set(sides) != set(HEADINGS):
        words.append("--sides " + " ".join(sides))
    return " ".join(words)


def goals(runs: Sequence[Run[Measurement]]) -> list[Goal]:
    """Return the goals that these runs measured."""
    found = []
    for case, ours, peer, wanted in PROMISES:
        got = ratios([run for run in runs if run.case == case], ours, peer, steps_per_second)
        if got:
            env, _, members = case.partition(":")
            measured = median_and_range(got, "{:.1f}x".format)
            what = f"{env}, P={members}{HEADINGS[ours].removeprefix(HEADINGS[OURS])}: steps/s against {HEADINGS[peer]}"
            found.append(Goal(what, f">= {wanted:g}x", measured, statistics.median(got) >= wanted))
    return found


def parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Case.parse, nargs="+", default=list(CASES), metavar="ENV:P")
    parser.add_argument("--sides", choices=HEADINGS, nargs="+", default=list(HEADINGS))
    parser.add_argument("--steps-per-member", type=int, default=5 * UPDATE_STEPS, metavar="N")
    for peer in PEERS.values():
        parser.add_argument(f"--{peer.name}-python", help=f"an interpreter that has it; also ${peer.override}")
    here = [side for side in HEADINGS if side != COMPILED and (side in MINE or is_ready(side))]
    quick = {"cases": [Case.parse("CartPole-v1:2")], "sides": here, "steps_per_member": UPDATE_STEPS}
    return options_of(parser, argv, repetitions=3, quick=quick)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse_options(argv)
    sides = [side for side in HEADINGS if side in options.sides]
    scripts = {side: script(side, getattr(options, f"{side}_python", None)) for side in sides}
    results = {case: measure(case, scripts, options) for case in options.cases}
    runs = [run for its_runs in results.values() for run in its_runs]
    publish("throughput", section(results, sides, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
