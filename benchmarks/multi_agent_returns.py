"""What teams learn: the share of the way from random agents to scripted ones, with AgileRL's IPPO beside it.

    python -m benchmarks.multi_agent_returns --side-by-side                     # hours; AgileRL takes most of them
    python -m benchmarks.multi_agent_returns --envs simple_spread_v3 --sides ours --repetitions 2 --output -

Each seed is a process of its own. AgileRL gets fewer seeds, for it takes long; where it has one, sides take turns.
"""

import argparse
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks.harness import Run, conditions, earlier_runs, interleaved, options_of, publish, values
from benchmarks.multi_agent_envs import CYCLES, ENVS, FRESH_EPISODES, LEARN, MEMBERS, Learned
from benchmarks.multi_agent_speed import CENTRAL, OURS, PEER, commands
from benchmarks.tables import Goal, markdown, median_and_range
from benchmarks.venvs import PEERS, is_ready

HEADINGS = {PEER: "AgileRL", OURS: "agilerl_like", CENTRAL: "agilerl_like, central critic"}
ENOUGH, SEEDS = 0.6, 5
MARKS = 5  # where a curve is written down


def learning(options: argparse.Namespace, env_name: str) -> list[Run[Learned]]:
    """Run the sides in turn as long as all are to have seeds; then ours alone."""
    sides = commands(LEARN, env_name, options.learning_steps // MEMBERS, options)
    together = min(options.peer_seeds, options.repetitions) if PEER in sides else 0
    runs: list[Run[Learned]] = []
    if together:
        runs += interleaved(sides, Learned, options, case=env_name, repetitions=together)
    ours = {side: command for side, command in sides.items() if side != PEER}
    if ours and together < options.repetitions:
        later = argparse.Namespace(**{**vars(options), "seed": options.seed + together})
        alone = options.repetitions - together
        runs += interleaved(ours, Learned, later, case=env_name, repetitions=alone)
    return runs


def shares(runs: Sequence[Run[Learned]], env_name: str, side: str) -> list[float]:
    """Return the shares of a side in one environment, by seed."""
    return values([run for run in runs if run.case == env_name], side, lambda learned: learned.share)


def percents(numbers: Sequence[float]) -> str:
    """Write shares one after the other."""
    return ", ".join(f"{number:.0%}" for number in numbers)


def reached(env_name: str, side: str, learned: Sequence[Learned]) -> tuple[str, ...]:
    """Return a row of what a side came to."""
    drawn = [one.drawn for one in learned if one.drawn is not None]
    return (
        env_name,
        HEADINGS[side],
        f"{statistics.median(one.env_steps for one in learned):,.0f}",
        f"{learned[0].random:.1f} to {learned[0].greedy:.1f}",
        percents([one.share for one in learned]) + (f" (drawn actions: {percents(drawn)})" if drawn else ""),
    )


def curve(env_name: str, side: str, learned: Sequence[Learned], steps: int) -> tuple[str, ...]:
    """Return a row of how a side came to it."""
    marks = [steps * mark // MARKS for mark in range(1, MARKS + 1)]
    return (
        env_name,
        HEADINGS[side],
        *(median_and_range([one.after(mark) for one in learned], "{:.0%}".format) for mark in marks),
    )


def section(runs: Sequence[Run[Learned]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    cases = {
        key: [run.result for run in runs if (run.case, run.side) == key]
        for key in dict.fromkeys((run.case, run.side) for run in runs)
    }
    beside = PEER in {run.side for run in runs}
    how = "ours and AgileRL's without exploration (beside it AgileRL's with drawn actions, as it tests itself)"
    settings = f"AgileRL ({PEERS['agilerl'].requirements[0]}) its `ippo.yaml`, which is for simple_speaker_listener"
    drawn = ", and uses drawn actions in AgileRL" if beside else ""
    head = ("env", "learner", "env steps", "random to greedy", "share of the way, seed by seed")
    after = [f"{options.learning_steps * mark // MARKS:,} steps" for mark in range(1, MARKS + 1)]
    return [
        "## Returns of teams",
        "",
        f"{MEMBERS} members and {options.learning_steps:,} env steps of all of them together. An env step is one of a "
        "whole team, in which all of its agents act; steps of evaluation are not counted. Episodes of "
        f"{CYCLES} steps; a team's return is the total reward of its agents. A share of 0 is the return of random "
        f"agents, of 1 that of scripted greedy agents; all played the same {FRESH_EPISODES} fresh episodes, "
        f"{how if beside else 'without exploration'}, the member that was best in the last evaluation. One value per "
        "seed. Ours has its own settings for both environments, the central critic reads the observations of all "
        'agents (`critic_observation="joint"`), '
        f"{settings if beside else 'AgileRL is not measured yet'}.",
        "",
        conditions(runs, options, timed=False),
        "",
        *markdown(head, [reached(*key, learned) for key, learned in cases.items()]),
        "",
        "Curves: the best member's share by its own evaluation, which is biased upwards because it is the best of "
        f"{MEMBERS}{drawn}. Median (minimum to maximum) of the seeds.",
        "",
        *markdown(
            ("env", "learner", *after),
            [curve(*key, learned, options.learning_steps) for key, learned in cases.items()],
        ),
    ]


def goals(runs: Sequence[Run[Learned]]) -> list[Goal]:
    """Return the goals that these runs measured."""
    found = []
    for env_name in ENVS:
        if got := shares(runs, env_name, OURS):
            enough = sum(share >= ENOUGH for share in got) >= 0.8 * max(SEEDS, len(got))
            what = f"{env_name}, P={MEMBERS}: share of the way from random to scripted greedy agents"
            found.append(Goal(what, f">= {ENOUGH:.0%} for 4 of 5", percents(got), enough))
    return found


def _place(run: Run[Learned]) -> tuple[int, int]:
    return list(ENVS).index(run.case), list(HEADINGS).index(run.side)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS), metavar="ENV")
    parser.add_argument("--sides", nargs="+", choices=HEADINGS, default=list(HEADINGS))
    parser.add_argument("--learning-steps", type=int, default=1_000_000, metavar="N", help="of all members together")
    parser.add_argument("--peer-seeds", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="keep earlier results of other environments and sides")
    parser.add_argument("--side-by-side", action="store_true", help="all environments at the same time")
    here = [side for side in HEADINGS if side != PEER or is_ready(side)]
    quick = {"sides": here, "peer_seeds": 1, "learning_steps": 40_000}
    # nets are small: a second thread costs more than it brings
    options = options_of(parser, argv, repetitions=SEEDS, quick=quick, threads=1, timeout=3 * 3600)
    at_once = len(options.envs) if options.side_by_side else 1
    if options.side_by_side:
        options.patience = 0.0  # it will not get quiet
    with ThreadPoolExecutor(at_once) as pool:
        runs = [run for found in pool.map(partial(learning, options), options.envs) for run in found]
    if options.keep:
        runs = sorted(earlier_runs("multi_agent_returns", Learned, runs, options) + runs, key=_place)
    publish("multi_agent_returns", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
