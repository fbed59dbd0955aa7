"""Envs of torch tensors beside gymnasium's, in the whole loop: acting and learning, P = 1, 8, 64, 256, one thread.

python -m benchmarks.tensor_envs
python -m benchmarks.tensor_envs --members 1 8 --envs Pendulum-v1 --output -
"""

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import torch

from agilerl_like import PPO, make_vect_envs
from agilerl_like.envs import VecEnvAdapter
from agilerl_like.training.collector import Collector, PhaseTimer
from benchmarks.agilerl_like_setup import settings, train
from benchmarks.harness import Run, conditions, interleaved, one, options_of, print_result, publish, ratios, values
from benchmarks.measurement import ENVS_PER_MEMBER, UPDATE_STEPS
from benchmarks.tables import markdown, median_and_range

GYMNASIUMS = {"CartPole-v1": "vector", "Pendulum-v1": "sync"}
"""The backend that "auto" takes for gymnasium's env in one process."""
TENSORS = "torch"


@dataclass(frozen=True)
class Case:
    """An env, how it is stepped, and how many members train for how many updates."""

    env: str
    backend: str
    members: int
    updates: int


@dataclass(frozen=True)
class Result:
    """CPU time of the whole loop and of its env steps."""

    cpu_seconds: float
    steps_per_cpu_second: float
    env_share: float

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        return f"{self.cpu_seconds:.2f} s, {self.steps_per_cpu_second:,.0f} steps/s, {self.env_share:.0%} in the env"


def measure(case: Case, threads: int, seed: int) -> Result:
    """Train one population, after an update that allocates."""
    torch.set_num_threads(threads)
    env = make_vect_envs(case.env, case.members * ENVS_PER_MEMBER, backend=case.backend)
    spaces = env.single_observation_space, env.single_action_space
    population = PPO.population(case.members, *spaces, **settings(seed=seed))
    with closing(env):
        timer = PhaseTimer(("env", "act", "learn"))
        collector = Collector(population, VecEnvAdapter(env), timer)
        collector.reset(range(len(collector.population)))
        train(collector, UPDATE_STEPS)
        before, start, steps = timer.seconds["env"], time.process_time(), case.updates * UPDATE_STEPS
        wall = train(collector, steps)
        seconds = time.process_time() - start
    share = (timer.seconds["env"] - before) / wall
    return Result(round(seconds, 4), round(case.members * steps / seconds, 1), round(share, 3))


def side(backend: str, members: int) -> str:
    return f"{backend}, P={members}"


def section(runs: Sequence[Run[Result]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    rows = []
    for env in options.envs:
        mine = [run for run in runs if run.case == env]
        for members in options.members:
            cells = []
            for backend in (TENSORS, GYMNASIUMS[env]):
                found = values(mine, side(backend, members), lambda result: result.steps_per_cpu_second)
                shares = values(mine, side(backend, members), lambda result: result.env_share)
                cells += [median_and_range(found, "{:,.0f}".format), median_and_range(shares, "{:.0%}".format)]
            sides = side(TENSORS, members), side(GYMNASIUMS[env], members)
            faster = ratios(mine, *sides, lambda result: result.steps_per_cpu_second)
            rows.append((env, str(members), *cells, median_and_range(faster, "{:.2f}x".format)))
    return [
        "## Envs of tensors",
        "",
        "The whole loop (acting and learning, the work of the throughput table) with this package's envs of torch "
        "tensors (`backend: torch`) and with gymnasium's (CartPole: its native vector env, Pendulum: single envs in "
        "turn) on the CPU. Steps of all members per second of CPU time, and the env's share of the loop. Median "
        f"(minimum to maximum) of {options.repetitions} rounds.",
        "",
        conditions(runs, options),
        "",
        *markdown(("env", "P", "tensors: steps/s", "env's share", "gymnasium: steps/s", "env's share", "ratio"), rows),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 8, 64, 256], metavar="P")
    parser.add_argument("--envs", nargs="+", choices=GYMNASIUMS, default=list(GYMNASIUMS))
    parser.add_argument("--updates", type=int, default=64, help="of one member; P members have a P-th, at least one")
    quick = {"members": [1, 2], "updates": 1}
    options = options_of(parser, argv, repetitions=3, quick=quick, threads=1)
    if options.one:
        print_result(measure(Case(**json.loads(options.one)), options.threads, options.seed))
        return
    runs = []
    for env in options.envs:
        commands = {
            side(backend, members): one(
                "benchmarks.tensor_envs", Case(env, backend, members, max(1, options.updates // members))
            )
            for members in options.members
            for backend in (TENSORS, GYMNASIUMS[env])
        }
        runs += interleaved(commands, Result, options, case=env)
    publish("tensor_envs", section(runs, options), runs, [], options)


if __name__ == "__main__":
    main()
