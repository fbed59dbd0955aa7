"""Gradient steps per CPU second from a replay, DQN and TD3, beside AgileRL's.

python -m benchmarks.off_policy_speed
python -m benchmarks.off_policy_speed --algorithms TD3 --repetitions 2 --output -
"""

import argparse
import statistics
import sys
from collections.abc import Sequence

from benchmarks.harness import Run, conditions, interleaved, libraries, options_of, publish, ratios, values
from benchmarks.off_policy_work import BATCH, ENVS, WIDTH, Updates
from benchmarks.tables import Goal, markdown, median_and_range
from benchmarks.venvs import interpreter, is_ready

PEER, ONE, EIGHT = "agilerl", "one", "eight"
HEADINGS = {PEER: "AgileRL", ONE: "agilerl_like, one step a call", EIGHT: "agilerl_like, eight steps a call"}
PROMISES = {"DQN": 6.0, "TD3": 5.0}
"""How many times AgileRL's speed."""
MEMBERS = 8


def command(side: str, algorithm: str, updates: int) -> list[str]:
    """Return the command of a side."""
    work = ["--algorithm", algorithm, "--members", str(MEMBERS), "--updates", str(updates)]
    if side == PEER:
        return [str(interpreter(PEER)), "-m", "benchmarks.peers.agilerl_off_policy", *work]
    at_once = "8" if side == EIGHT else "1"
    return [sys.executable, "-m", "benchmarks.agilerl_like_off_policy", *work, "--at-once", at_once]


def per_second(result: Updates) -> float:
    """What sides are compared by."""
    return result.per_second


def faster(runs: Sequence[Run[Updates]], algorithm: str, side: str) -> list[float]:
    """Return how many times faster we are, round by round."""
    return ratios([run for run in runs if run.case == algorithm], side, PEER, per_second)


def section(runs: Sequence[Run[Updates]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    rows = []
    for algorithm in options.algorithms:
        mine = [run for run in runs if run.case == algorithm]
        speeds = [median_and_range(values(mine, side, per_second), "{:,.0f}".format) for side in HEADINGS]
        quotients = [median_and_range(faster(runs, algorithm, side), "{:.2f}x".format) for side in (ONE, EIGHT)]
        rows.append((f"{algorithm}, {ENVS[algorithm]}", *speeds, *quotients))
    return [
        "## Updates from a replay",
        "",
        f"Gradient steps per CPU second, summed over {MEMBERS} members, {options.updates:,} of each after a warm-up; a "
        f"step draws a minibatch of {BATCH} from a full replay, updates the networks and moves the targets; encoder, "
        f"latent layer and heads of {WIDTH}, ReLU, no LayerNorm; DQN without double estimates, TD3 with two critics "
        "and a delay of 2. AgileRL's members learn in turn from one replay, as in its own loop. `gradient_steps` sets "
        f"how many steps one call takes. Median (minimum to maximum) of {options.repetitions}; ratios are taken within "
        "a round. AgileRL has no SAC.",
        "",
        conditions(runs, options),
        "",
        *libraries(runs),
        "",
        *markdown(("work", *HEADINGS.values(), "one step / AgileRL", "eight steps / AgileRL"), rows),
    ]


def goals(runs: Sequence[Run[Updates]]) -> list[Goal]:
    """Return the goals that these runs measured."""
    found = []
    for algorithm, wanted in PROMISES.items():
        if got := faster(runs, algorithm, EIGHT):
            what = f"{algorithm}, P={MEMBERS}: updates/s against AgileRL, eight gradient steps a call"
            measured = median_and_range(got, "{:.1f}x".format)
            found.append(Goal(what, f">= {wanted:g}x", measured, statistics.median(got) >= wanted))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument("--sides", nargs="+", choices=HEADINGS, default=list(HEADINGS))
    parser.add_argument("--updates", type=int, default=400)
    here = [side for side in HEADINGS if side != PEER or is_ready(side)]
    options = options_of(parser, argv, repetitions=3, quick={"sides": here, "updates": 16}, threads=1)
    runs: list[Run[Updates]] = []
    for algorithm in options.algorithms:
        sides = {side: command(side, algorithm, options.updates) for side in options.sides}
        runs += interleaved(sides, Updates, options, case=algorithm)
    publish("off_policy_speed", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
