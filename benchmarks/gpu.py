"""What a GPU makes of many members: P = 1, 8, 64, 256 on CartPole as tensors, with nothing on the host but decisions.

Without a CUDA device nothing is measured, which the page states unless it has results of another machine. Forms
are eager, compiled and mixed precision, as far as PPO has the arguments for them.

    python -m benchmarks.gpu
    python -m benchmarks.gpu --device cpu --members 1 8 --output -
"""

import argparse
import inspect
import json
import platform
import statistics
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agilerl_like import PPO, make_vect_envs
from agilerl_like.envs import VecEnvAdapter
from agilerl_like.training.collector import Collector, PhaseTimer
from benchmarks.agilerl_like_setup import settings, train
from benchmarks.harness import Run, conditions, interleaved, one, options_of, print_result, publish, ratios, values
from benchmarks.measurement import ENVS_PER_MEMBER, UPDATE_STEPS
from benchmarks.tables import Goal, markdown, median_and_range

MOST = 1.5
"""How many times as long 64 members may take as one."""

FORMS: dict[str, dict[str, Any]] = {
    "eager": {},
    "compiled": {"compile": True},
    "bfloat16": {"precision": "bfloat16"},
    "compiled bfloat16": {"compile": True, "precision": "bfloat16"},
}
WHAT = "CUDA, CartPole as tensors: time of P=64 / time of P=1"
NOT_MEASURED = "no CUDA device: not measured"


@dataclass(frozen=True)
class Case:
    """A form of the engine, and how many members train how many env steps each."""

    form: str
    members: int
    steps_per_member: int
    device: str


@dataclass(frozen=True)
class Result:
    """What it took."""

    device: str
    seconds: float
    steps_per_second: float

    @property
    def headline(self) -> str:
        """One line for the terminal."""
        return f"{self.seconds:.2f} s, {self.steps_per_second:,.0f} steps/s"


def available_forms() -> list[str]:
    """Return the forms that this PPO has arguments for."""
    known = inspect.signature(PPO.__init__).parameters
    return [form for form, arguments in FORMS.items() if arguments.keys() <= known.keys()]


def measure(case: Case, threads: int, seed: int) -> Result:
    """Train one population on the device, after two updates that compile and allocate."""
    torch.set_num_threads(threads)
    device = torch.device(case.device)
    env = make_vect_envs("CartPole-v1", case.members * ENVS_PER_MEMBER, backend="torch", device=case.device)
    spaces = env.single_observation_space, env.single_action_space
    population = PPO.population(case.members, *spaces, device=device, **settings(seed=seed, **FORMS[case.form]))
    with closing(env):
        collector = Collector(population, VecEnvAdapter(env), PhaseTimer(("env", "act", "learn")))
        collector.reset(range(len(collector.population)))
        train(collector, 2 * UPDATE_STEPS)
        seconds = train(collector, case.steps_per_member)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return Result(name, round(seconds, 4), round(case.members * case.steps_per_member / seconds, 1))


def side(members: int) -> str:
    return f"P={members}"


def section(runs: Sequence[Run[Result]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""
    rows = []
    for form in options.forms:
        mine = [run for run in runs if run.case == form]
        for members in options.members:
            speeds = values(mine, side(members), lambda result: result.steps_per_second)
            growth = ratios(mine, side(members), side(1), lambda result: result.seconds)
            rows.append(
                (
                    form,
                    str(members),
                    median_and_range(speeds, "{:,.0f}".format),
                    median_and_range(growth, "{:.2f}x".format),
                )
            )
    return [
        "## GPU",
        "",
        f"{runs[0].result.device}: CartPole as tensors on the device, the work of the throughput table, "
        f"{options.steps_per_member:,} timed steps of each member after two updates. Median (minimum to maximum) of "
        f"{options.repetitions} rounds.",
        "",
        conditions(runs, options),
        "",
        *markdown(("form", "P", "steps/s, all members", "time of P / time of 1"), rows),
    ]


def goals(runs: Sequence[Run[Result]]) -> list[Goal]:
    """Return what 64 members cost, in the best form."""
    found: dict[str, list[float]] = {}
    for form in dict.fromkeys(run.case for run in runs):
        mine = [run for run in runs if run.case == form]
        if got := ratios(mine, side(64), side(1), lambda result: result.seconds):
            found[form] = got
    if not found:
        return [Goal(WHAT, f"<= {MOST:g}x", "", None)]
    best = min(found, key=lambda form: statistics.median(found[form]))
    measured = f"{median_and_range(found[best], '{:.2f}x'.format)}, {best}"
    return [Goal(WHAT, f"<= {MOST:g}x", measured, statistics.median(found[best]) <= MOST)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 8, 64, 256], metavar="P")
    parser.add_argument("--forms", nargs="+", choices=available_forms(), default=available_forms())
    parser.add_argument("--steps-per-member", type=int, default=10 * UPDATE_STEPS, metavar="N")
    parser.add_argument("--device", default="cuda", help="cpu shows that the script runs, and little else")
    options = options_of(parser, argv, repetitions=3, quick={"members": [1, 2], "steps_per_member": UPDATE_STEPS})
    if options.one:
        print_result(measure(Case(**json.loads(options.one)), options.threads, options.seed))
        return
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print(NOT_MEASURED)
        raw = Path(options.output).parent / "results" / "gpu.jsonl"
        if options.output != "-" and not (raw.is_file() and raw.stat().st_size):
            publish("gpu", ["## GPU", "", NOT_MEASURED], [], goals([]), options)
        return
    runs = []
    for form in options.forms:
        cases = {members: Case(form, members, options.steps_per_member, options.device) for members in options.members}
        commands = {side(members): one("benchmarks.gpu", case) for members, case in cases.items()}
        runs += interleaved(commands, Result, options, case=form)
    publish("gpu", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
