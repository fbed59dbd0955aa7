"""Seconds until an agent reaches a return: 475 on CartPole, 200 on LunarLander, beside AgileRL and Stable-Baselines3.

Every side is set up as its own project does it for this environment, and stops at the first evaluation after which 20
fresh episodes of its best agent, without exploration, reach the target. Everything counts from the first env step on:
training, evaluation, evolution. CPU seconds are those of the process, which a busy machine changes least; no side has
env workers.

    python -m benchmarks.time_to_target
    python -m benchmarks.time_to_target --envs CartPole-v1 --repetitions 2 --output -
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from agilerl_like.config.bundled import find_config
from benchmarks.agilerl_like_setup import train_bundled
from benchmarks.harness import (
    Run,
    conditions,
    earlier_runs,
    interleaved,
    options_of,
    print_result,
    publish,
    ratios,
    values,
)
from benchmarks.tables import markdown, median_and_range
from benchmarks.targets import BUDGETS, TARGETS, Reached
from benchmarks.venvs import interpreter, is_ready

OURS = "agilerl_like"
SIDES = {OURS: OURS, "sb3": "Stable-Baselines3", "agilerl": "AgileRL"}
CONFIGS = {  # the bundled cartpole begins with a learning rate that is bad on purpose
    "CartPole-v1": ("cartpole", "--algorithm.lr", "1e-3"),
    "LunarLander-v3": ("lunar_lander", "--environment.backend", "sync"),
}


@dataclass(frozen=True)
class Case:
    """What our side does."""

    env: str


def options_for(env: str) -> tuple[str, list[str]]:
    """Return the bundled configuration of our side and its options; all members together have the budget of a peer."""
    name, *overrides = CONFIGS[env]
    members = find_config(name).override(overrides).validate().population.size
    budget = "--training.max-steps", str(BUDGETS[env] // members), "--training.target", str(TARGETS[env])
    return name, [*overrides, *budget]


def measure(case: Case, seed: int) -> Reached:
    """Train the bundled configuration in one process until its target is confirmed."""
    name, options = options_for(case.env)
    run = train_bundled(name, [*options, "--seed", str(seed)])
    summary = run.result.summary
    return Reached(
        OURS,
        case.env,
        len(run.result.population),
        round(run.seconds, 2),
        round(run.cpu_seconds, 2),
        summary.env_steps,
        round(summary.best.fitness, 1),
        summary.reason == "target reached",
    )


def cell(runs: Sequence[Run[Reached]], side: str) -> str:
    """Return a side's CPU seconds, and how many of its runs reached the target."""
    mine = [run for run in runs if run.side == side]
    reached = [run for run in mine if run.result.reached]
    text = median_and_range([run.result.cpu_seconds for run in reached], "{:,.0f}".format)
    return text if len(reached) == len(mine) else f"{text} in {len(reached)} of {len(mine)}".strip()


def section(results: dict[str, list[Run[Reached]]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    runs = [run for its in results.values() for run in its]
    sides = [side for side in SIDES if any(run.side == side for run in runs)]
    rows = [
        [
            env,
            f"{TARGETS[env]:g}",
            str(len({run.round for run in its})),
            *(cell(its, side) for side in sides),
            *(
                median_and_range(values(its, side, lambda result: float(result.env_steps)), "{:,.0f}".format)
                for side in sides
            ),
            *(
                median_and_range(ratios(its, side, OURS, lambda result: result.cpu_seconds), "{:.1f}x".format)
                for side in sides
                if side != OURS
            ),
        ]
        for env, its in results.items()
    ]
    head = [
        "env",
        "target",
        "seeds",
        *(f"{SIDES[side]}, CPU seconds" for side in sides),
        *(f"{SIDES[side]}, env steps of all members" for side in sides),
        *(f"time of {SIDES[side]} / ours" for side in sides if side != OURS),
    ]
    return [
        "## Time to a target",
        "",
        "CPU seconds of one process from the first env step until the mean return of 20 fresh episodes of the best "
        "agent reaches the target. Ours: the bundled configurations `cartpole` (six members; learning rate 1e-3 in "
        "place of the one that is bad on purpose) and `lunar_lander` (eight). Stable-Baselines3: one agent with "
        "rl-zoo's tuned hyperparameters, evaluated every 10,000 steps (50,000 on LunarLander, where an evaluation may "
        "have 20,000). AgileRL: four members with the values of its `ppo.yaml`, tournament and mutations every 10,240 "
        "steps of a member. A population searches while it learns, and takes steps for all of its members. A run that "
        "did not get there spent its budget, and its time counts in the ratio. Median (minimum to maximum) of the "
        "seeds. The date is that of the last run, which keeps the rows of envs and sides that it did not measure.",
        "",
        conditions(runs, options),
        "",
        *markdown(head, rows),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    quick = {"envs": ["CartPole-v1"], "sides": [side for side in SIDES if side == OURS or is_ready(side)]}
    options = options_of(parser, argv, repetitions=3, threads=1, quick=quick)
    torch.set_num_threads(options.threads)
    if options.one:
        print_result(measure(Case(**json.loads(options.one)), options.seed))
        return
    results = {}
    for env in options.envs:
        scripts = {
            side: [sys.executable, "-m", "benchmarks.time_to_target", "--one", json.dumps({"env": env})]
            if side == OURS
            else [str(interpreter(side)), "-m", f"benchmarks.peers.{side}_target", "--env", env]
            for side in options.sides
        }
        results[env] = interleaved(scripts, Reached, options, case=env)
    for run in earlier_runs("time_to_target", Reached, [run for its in results.values() for run in its], options):
        results.setdefault(run.case, []).append(run)
    runs = [run for its in results.values() for run in its]
    publish("time_to_target", section(results, options), runs, [], options)


if __name__ == "__main__":
    main()
