"""What more members cost: the time of P over the time of one, same steps a member.

python -m benchmarks.scaling
python -m benchmarks.scaling --members 1 16 32 --repetitions 3 --output -
"""

import argparse
import statistics
import sys
from collections.abc import Sequence

from benchmarks.harness import Run, conditions, interleaved, options_of, publish, ratios, values
from benchmarks.measurement import ENVS, UPDATE_STEPS, Measurement
from benchmarks.tables import Goal, markdown, median_and_range

MOST = 4.0
"""How many times as long sixteen members may take as one."""


def side(members: int) -> str:
    return f"P={members}"


def seconds(measurement: Measurement) -> float:
    return measurement.seconds


def section(runs: Sequence[Run[Measurement]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    rows = []
    for members in options.members:
        speeds = values(runs, side(members), lambda measured: measured.steps_per_second)
        times = values(runs, side(members), seconds)
        growth = ratios(runs, side(members), side(1), seconds)
        rows.append(
            (
                str(members),
                median_and_range(speeds, "{:,.0f}".format),
                median_and_range(times, "{:.2f}".format),
                median_and_range(growth, "{:.2f}x".format),
            )
        )
    return [
        "## Scaling over members",
        "",
        f"{options.env}, the work of the throughput table, {options.steps_per_member:,} timed steps of each member, "
        f"one process a run, all P in turn. Median (minimum to maximum) of {options.repetitions} rounds. One after the "
        "other, P members would take P times as long as one.",
        "",
        conditions(runs, options),
        "",
        *markdown(("P", "steps/s, all members", "seconds", "time of P / time of 1"), rows),
    ]


def goals(runs: Sequence[Run[Measurement]]) -> list[Goal]:
    """Return what sixteen members cost."""
    cartpole = [run for run in runs if run.case == ENVS[0]]
    got = ratios(cartpole, side(16), side(1), seconds)
    if not got:
        return []
    measured = median_and_range(got, "{:.2f}x".format)
    return [Goal(f"{ENVS[0]}: time of P=16 / time of P=1", f"<= {MOST:g}x", measured, statistics.median(got) <= MOST)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 2, 4, 8, 16], metavar="P")
    parser.add_argument("--env", choices=ENVS, default=ENVS[0])
    parser.add_argument("--steps-per-member", type=int, default=20 * UPDATE_STEPS, metavar="N")
    quick = {"members": [1, 2], "steps_per_member": UPDATE_STEPS}
    options = options_of(parser, argv, repetitions=5, quick=quick)
    work = ["--env", options.env, "--steps-per-member", str(options.steps_per_member)]
    command = [sys.executable, "-m", "benchmarks.agilerl_like_throughput", *work]
    runs = interleaved(
        {side(members): [*command, "--members", str(members)] for members in options.members},
        Measurement,
        options,
        case=options.env,
    )
    publish("scaling", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
