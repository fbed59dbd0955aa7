"""Env steps per second of populations that remember and of populations that see images, beside AgileRL's.

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
    SEQUENCE,
    UPDATE_STEPS,
    WIDTH,
    Measurement,
)
from benchmarks.tables import Goal, markdown, spread
from benchmarks.venvs import interpreter, is_ready

MEMBERS = 4
HEADINGS = {"agilerl": "AgileRL", "ours": "agilerl_like"}
PROMISES = {POSITIONS: 5.0, BREAKOUT: 2.0}
"""How many times AgileRL's speed."""


def faster(runs: Sequence[Run[Measurement]], env: str) -> list[float]:
    """Return how many times faster we are, round by round."""
    return ratios([run for run in runs if run.case == env], "ours", "agilerl", steps_per_second)


def section(runs: Sequence[Run[Measurement]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    rows = []
    for env in options.envs:
        mine = [run for run in runs if run.case == env]
        speeds = [spread(values(mine, side, steps_per_second), "{:,.0f}".format) for side in HEADINGS]
        rows.append((env, *speeds, spread(faster(runs, env), "{:.2f}x".format)))
    return [
        "## Networks that remember, networks that see",
        "",
        f"Env steps per second, summed over {MEMBERS} members, {options.steps_per_member:,} timed steps a member after "
        f"one warm-up update; PPO with {ENVS_PER_MEMBER} envs a member, {UPDATE_STEPS:,} steps an update, {EPOCHS} "
        f"epochs; no evaluation, no evolution. AgileRL's members take turns, as in its own loop. {POSITIONS}: "
        f"sequences of {SEQUENCE} steps, {MINIBATCH // SEQUENCE} in a minibatch; LSTM of {WIDTH}, which in AgileRL "
        f"reads the observation, and in ours a layer of {WIDTH} and the latent one before it; AgileRL leaves out what "
        f"is left of an episode after its last whole sequence, we do not. {BREAKOUT}: uint8 images of 4 by 10 by 10, "
        f"convolutions {'-'.join(map(str, CHANNELS))} of 3 by 3, latent {IMAGE_LATENT}, minibatch {MINIBATCH}. Heads "
        f"of {WIDTH}, ReLU, no LayerNorm, one encoder for actor and critic. Median (minimum to maximum) of "
        f"{options.repetitions}; ratios are taken within a round.",
        "",
        conditions(runs, options),
        "",
        *libraries(runs),
        "",
        *markdown(("env", *HEADINGS.values(), "agilerl_like / AgileRL"), rows),
    ]


def goals(runs: Sequence[Run[Measurement]]) -> list[Goal]:
    """Return the promises that these runs speak of."""
    found = []
    for env, wanted in PROMISES.items():
        if got := faster(runs, env):
            what = f"{env}, P={MEMBERS}: steps/s against AgileRL"
            measured = spread(got, "{:.1f}x".format)
            found.append(Goal(what, f">= {wanted:g}x", measured, statistics.median(got) >= wanted))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", choices=NETWORK_ENVS, default=list(NETWORK_ENVS), metavar="ENV")
    parser.add_argument("--sides", nargs="+", choices=HEADINGS, default=list(HEADINGS))
    parser.add_argument("--steps-per-member", type=int, default=5 * UPDATE_STEPS, metavar="N")
    here = [side for side in HEADINGS if side == "ours" or is_ready(side)]
    options = options_of(parser, argv, repetitions=3, quick={"sides": here, "steps_per_member": UPDATE_STEPS})
    scripts = {"agilerl": "benchmarks.peers.agilerl_networks", "ours": "benchmarks.ours_networks"}
    pythons = {side: sys.executable if side == "ours" else str(interpreter(side)) for side in options.sides}
    runs: list[Run[Measurement]] = []
    for env in options.envs:
        work = ["--env", env, "--members", str(MEMBERS), "--steps-per-member", str(options.steps_per_member)]
        commands = {side: [pythons[side], "-m", scripts[side], *work] for side in HEADINGS if side in pythons}
        runs += interleaved(commands, Measurement, options, case=env)
    publish("network_speed", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
