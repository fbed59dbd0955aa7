"""Env steps per second of populations of teams, beside AgileRL's IPPO: both sides call their own training functions.

python -m benchmarks.multi_agent_speed
python -m benchmarks.multi_agent_speed --envs simple_spread_v3 --repetitions 1 --output -
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
    ENVS_PER_MEMBER,
    EPOCHS,
    GENERATION_STEPS,
    MINIBATCH,
    UPDATE_STEPS,
    WIDTH,
    Measurement,
)
from benchmarks.multi_agent_envs import CYCLES, ENVS, MEMBERS, SPEED, Task
from benchmarks.tables import Goal, markdown, median_and_range
from benchmarks.venvs import interpreter, is_ready

OURS, SPREAD, CENTRAL, PEER = "ours", "spread", "central", "agilerl"
HEADINGS = {PEER: "AgileRL", OURS: "agilerl_like", SPREAD: "agilerl_like, two processes"}
FASTER = 4.0


def commands(part: str, env_name: str, steps_per_member: int, options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the command of each side for one part of the work."""
    common = part, env_name, steps_per_member, options.threads, options.seed
    tasks = {
        PEER: Task(*common),
        OURS: Task(*common),
        SPREAD: Task(*common, processes=2),
        CENTRAL: Task(*common, critic="joint"),
    }
    return {side: [*_worker(side), *task.words()] for side, task in tasks.items() if side in options.sides}


def _worker(side: str) -> list[str]:
    if side == PEER:
        return [str(interpreter(side)), "-m", "benchmarks.peers.agilerl_multi_agent"]
    return [sys.executable, "-m", "benchmarks.agilerl_like_multi_agent"]


def faster(runs: Sequence[Run[Measurement]], env_name: str, side: str) -> list[float]:
    """Return how many times faster we are, round by round."""
    return ratios([run for run in runs if run.case == env_name], side, PEER, steps_per_second)


def section(runs: Sequence[Run[Measurement]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    rows = []
    for env_name in options.envs:
        mine = [run for run in runs if run.case == env_name]
        speeds = [median_and_range(values(mine, side, steps_per_second), "{:,.0f}".format) for side in HEADINGS]
        rows.append(
            (
                env_name,
                *speeds,
                *(median_and_range(faster(runs, env_name, side), "{:.2f}x".format) for side in (OURS, SPREAD)),
            )
        )
    return [
        "## Training speed of teams",
        "",
        f"Env steps per second, summed over {MEMBERS} members; in each all agents of a team act. "
        f"{options.steps_per_member:,} timed steps a member: of AgileRL a whole call of `train_multi_agent_on_policy` "
        f"after one of {UPDATE_STEPS:,} steps, of ours what follows the first generation of a run, so that processes "
        f"have started. {ENVS_PER_MEMBER} episodes of {CYCLES} steps a member are played as evaluation after every "
        f"{GENERATION_STEPS:,} steps; no evolution. {ENVS_PER_MEMBER} envs a member, {UPDATE_STEPS:,} steps an update, "
        f"minibatch {MINIBATCH}, {EPOCHS} epochs, actor and critic of {WIDTH} + latent {WIDTH} + head of {WIDTH} each, "
        "ReLU, no LayerNorm; agents of a group share theirs. AgileRL's members take turns, as in its own loop, and "
        "each of its envs has a process of its own, its only backend; ours are stepped by "
        '`backend="auto"`, '
        "in one process or with `processes=2`. Median (minimum to maximum) of "
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
    for env_name in ENVS:
        if got := faster(runs, env_name, SPREAD):
            what = f"{env_name}, P={MEMBERS}, two processes: steps/s against AgileRL's IPPO"
            measured = median_and_range(got, "{:.1f}x".format)
            found.append(Goal(what, f">= {FASTER:g}x", measured, statistics.median(got) >= FASTER))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS), metavar="ENV")
    parser.add_argument("--sides", nargs="+", choices=HEADINGS, default=list(HEADINGS))
    parser.add_argument("--steps-per-member", type=int, default=10 * UPDATE_STEPS, metavar="N")
    here = [side for side in HEADINGS if side != PEER or is_ready(side)]
    quick = {"sides": here, "steps_per_member": UPDATE_STEPS}
    options = options_of(parser, argv, repetitions=3, quick=quick, threads=1)  # processes are many already
    runs: list[Run[Measurement]] = []
    for env_name in options.envs:
        sides = commands(SPEED, env_name, options.steps_per_member, options)
        runs += interleaved(sides, Measurement, options, case=env_name)
    publish("multi_agent_speed", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
