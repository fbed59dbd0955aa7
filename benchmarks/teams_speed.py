"""Env steps per second of populations of teams, beside AgileRL's IPPO: a whole call of either's training function.

python -m benchmarks.teams_speed
python -m benchmarks.teams_speed --worlds simple_spread_v3 --repetitions 1 --output -
"""

import argparse
import statistics
import sys
from collections.abc import Sequence

from benchmarks.harness import Run, conditions, interleaved, options_of, publish, ratios, values
from benchmarks.measurement import ENVS_PER_MEMBER, EPOCHS, MINIBATCH, UPDATE_STEPS, WIDTH, Measurement
from benchmarks.tables import Goal, markdown, spread
from benchmarks.teams_worlds import CYCLES, MEMBERS, SPEED, WORLDS, Task
from benchmarks.venvs import interpreter, is_ready

OURS, PEER = "ours", "agilerl"
HEADINGS = {PEER: "AgileRL", OURS: "agilerl_like"}
MODULES = {PEER: "benchmarks.peers.agilerl_teams", OURS: "benchmarks.teams_ours"}
FASTER = 4.0


def commands(part: str, world: str, steps_per_member: int, options: argparse.Namespace) -> dict[str, list[str]]:
    """Return how each side is asked to do a part of its work."""
    task = Task(part, world, steps_per_member, options.threads, options.seed)
    pythons = {side: sys.executable if side == OURS else str(interpreter(side)) for side in options.sides}
    return {side: [pythons[side], "-m", MODULES[side], *task.words()] for side in HEADINGS if side in pythons}


def steps_per_second(measurement: Measurement) -> float:
    return measurement.steps_per_second


def faster(runs: Sequence[Run[Measurement]], world: str) -> list[float]:
    """Return how many times faster we are, round by round."""
    return ratios([run for run in runs if run.case == world], OURS, PEER, steps_per_second)


def section(runs: Sequence[Run[Measurement]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    rows = []
    for world in options.worlds:
        mine = [run for run in runs if run.case == world]
        speeds = [spread(values(mine, side, steps_per_second), "{:,.0f}".format) for side in HEADINGS]
        rows.append((world, *speeds, spread(faster(runs, world), "{:.2f}x".format)))
    latest = {run.result.peer: run.result for run in runs}
    return [
        "## How fast teams train",
        "",
        f"Env steps per second, summed over {MEMBERS} members; in each all agents of a team act. "
        f"{options.steps_per_member:,} timed steps a member, a whole call of `train_multi_agent_on_policy` after "
        f"another one of {UPDATE_STEPS:,} steps: envs made and {ENVS_PER_MEMBER} episodes of {CYCLES} steps a member "
        f"played as evaluation, no evolution. {ENVS_PER_MEMBER} envs a member, {UPDATE_STEPS:,} steps an update, "
        f"minibatch {MINIBATCH}, {EPOCHS} epochs, actor and critic of {WIDTH} + latent {WIDTH} + head of {WIDTH} each, "
        "ReLU, no LayerNorm; agents of a group share theirs. AgileRL's members take turns, as in its own loop, and its "
        "envs live in a process each, for it has no other way to step many. Median (minimum to maximum) of "
        f"{options.repetitions}; ratios are taken within a round.",
        "",
        conditions(runs, options),
        "",
        *(
            f"- {peer} {measurement.version} ({', '.join(f'{k} {v}' for k, v in measurement.versions.items())})"
            for peer, measurement in latest.items()
        ),
        "",
        *markdown(("world", *HEADINGS.values(), "agilerl_like / AgileRL"), rows),
    ]


def goals(runs: Sequence[Run[Measurement]]) -> list[Goal]:
    """Return the promises that these runs speak of."""
    found = []
    for world in WORLDS:
        if got := faster(runs, world):
            what = f"{world}, P={MEMBERS}: steps/s against AgileRL's IPPO"
            measured = spread(got, "{:.1f}x".format)
            found.append(Goal(what, f">= {FASTER:g}x", measured, statistics.median(got) >= FASTER))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS), metavar="WORLD")
    parser.add_argument("--sides", nargs="+", choices=HEADINGS, default=list(HEADINGS))
    parser.add_argument("--steps-per-member", type=int, default=10 * UPDATE_STEPS, metavar="N")
    here = [side for side in HEADINGS if side == OURS or is_ready(side)]
    options = options_of(parser, argv, repetitions=3, quick={"sides": here, "steps_per_member": UPDATE_STEPS})
    runs: list[Run[Measurement]] = []
    for world in options.worlds:
        sides = commands(SPEED, world, options.steps_per_member, options)
        runs += interleaved(sides, Measurement, options, case=world)
    publish("teams_speed", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
