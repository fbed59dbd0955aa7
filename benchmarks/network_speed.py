"""Env steps per second of populations with memory and with images, beside AgileRL's.

python -m benchmarks.network_speed
python -m benchmarks.network_speed --envs "MinAtar/Breakout-v1" --repetitions 2 --output -
"""

import argparse
import statistics
import sys
from collections.abc import Sequence

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
from benchmarks.measurement import (
    BREAKOUT,
    CHANNELS,
    ENVS_PER_MEMBER,
    EPOCHS,
    IMAGE_LATENT,
    MINIBATCH,
    NETWORK_ENVS,
    POSITIONS,
    RECURRENT_LATENT,
    SEQUENCE,
    UPDATE_STEPS,
    WIDTH,
    Measurement,
)
from benchmarks.tables import Goal, markdown, median_and_range
from benchmarks.venvs import interpreter, is_ready

MEMBERS = 4
OURS, SPREAD, PEER = "ours", "spread", "agilerl"
HEADINGS = {PEER: "AgileRL", OURS: "agilerl_like", SPREAD: "agilerl_like, two processes"}
PROMISES = {POSITIONS: 5.0, BREAKOUT: 2.0}
"""How many times AgileRL's speed."""


def command(side: str, env: str, steps_per_member: int) -> list[str]:
    """Return the command of a side."""
    python, script = sys.executable, "benchmarks.agilerl_like_networks"
    if side == PEER:
        python, script = str(interpreter(PEER)), "benchmarks.peers.agilerl_networks"
    work = ["--env", env, "--members", str(MEMBERS), "--steps-per-member", str(steps_per_member)]
    return [python, "-m", script, *work, *(["--processes", "2"] if side == SPREAD else [])]


def faster(runs: Sequence[Run[Measurement]], env: str, side: str) -> list[float]:
    """Return how many times faster we are, round by round."""
    return ratios([run for run in runs if run.case == env], side, PEER, steps_per_second)


def section(runs: Sequence[Run[Measurement]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    rows = []
    for env in options.envs:
        mine = [run for run in runs if run.case == env]
        speeds = [median_and_range(values(mine, side, steps_per_second), "{:,.0f}".format) for side in HEADINGS]
        rows.append(
            (env, *speeds, *(median_and_range(faster(runs, env, side), "{:.2f}x".format) for side in (OURS, SPREAD)))
        )
    return [
        "## Training speed with memory and images",
        "",
        f"Env steps per second, summed over {MEMBERS} members, {options.steps_per_member:,} timed steps a member after "
        f"a warm-up; PPO with {ENVS_PER_MEMBER} envs a member, {UPDATE_STEPS:,} steps an update, {EPOCHS} epochs; no "
        "evaluation, no evolution. AgileRL's members take turns in one process, as in its own loop; ours are in one, "
        f"or with `processes=2` in two. {POSITIONS}: sequences of {SEQUENCE} steps, {MINIBATCH // SEQUENCE} in a "
        f"minibatch, and 30,000 weights: AgileRL's LSTM of {WIDTH} reads the observation and feeds a layer of "
        f"{WIDTH}, ours reads the output of layers of {WIDTH} and {RECURRENT_LATENT}; AgileRL drops the steps "
        f"of an episode after its last whole sequence, ours does not. {BREAKOUT}: uint8 images of 4 by 10 by 10, "
        f"convolutions {'-'.join(map(str, CHANNELS))} of 3 by 3, latent {IMAGE_LATENT}, minibatch {MINIBATCH}. Heads "
        f"of {WIDTH}, ReLU, no LayerNorm, one encoder for actor and critic. Median (minimum to maximum) of "
        f"{options.repetitions}; ratios are taken within a round.",
        "",
        conditions(runs, options),
        "",
        *libraries(runs),
        "",
        *markdown(("env", *HEADINGS.values(), "one process / AgileRL", "two / AgileRL"), rows),
    ]


def goals(runs: Sequence[Run[Measurement]]) -> list[Goal]:
    """Return the goals that these runs measured."""
    found = []
    for env, wanted in PROMISES.items():
        if got := faster(runs, env, SPREAD):
            what = f"{env}, P={MEMBERS}, two processes: steps/s against AgileRL"
            measured = median_and_range(got, "{:.1f}x".format)
            found.append(Goal(what, f">= {wanted:g}x", measured, statistics.median(got) >= wanted))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", choices=NETWORK_ENVS, default=list(NETWORK_ENVS), metavar="ENV")
    parser.add_argument("--sides", nargs="+", choices=HEADINGS, default=list(HEADINGS))
    parser.add_argument("--steps-per-member", type=int, default=5 * UPDATE_STEPS, metavar="N")
    here = [side for side in HEADINGS if side != PEER or is_ready(side)]
    quick = {"sides": here, "steps_per_member": UPDATE_STEPS}
    options = options_of(parser, argv, repetitions=3, quick=quick, threads=1)  # small nets; and processes are two
    runs: list[Run[Measurement]] = []
    for env in options.envs:
        sides = {side: command(side, env, options.steps_per_member) for side in options.sides}
        runs += interleaved(sides, Measurement, options, case=env)
    publish("network_speed", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
