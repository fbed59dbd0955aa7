"""What evolution reaches with the shipped configurations: return on 100 fresh episodes, steps and seconds, by seed.

The target is taken out of each configuration, so that the whole budget is spent; the steps at which the best member's
evaluation first reached it are reported instead. Budgets count the training steps of all members; those of evaluation
stand beside them. Every seed is a process of its own; `--jobs` of them run side by side.

    python -m benchmarks.evolution                             # all, into benchmarks/README.md
    python -m benchmarks.evolution --cases cartpole --seeds 1 2 --output -
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from agilerl_like.config import build, load
from agilerl_like.envs import evaluation_env
from agilerl_like.envs.vec_adapter import VecEnvAdapter
from agilerl_like.reporting import CallbackList, GenerationRecord, Reporter, fittest
from agilerl_like.seeding import Purpose, integers
from agilerl_like.training.env_setup import SingleAgentEnvSetup
from agilerl_like.training.session import train_population
from agilerl_like.training.training_arguments import OutputPaths
from benchmarks.tables import ROOT, machine, replace_section, versions

EPISODES = 100
RAW = ROOT / "benchmarks" / "results" / "evolution.jsonl"


@dataclass(frozen=True)
class Case:
    """A configuration, what a seed should reach with it, and the return whose steps are counted."""

    config: str
    bar: float
    seeds_at_bar: str
    milestone: float


CASES = {
    "cartpole": Case("configs/ppo/cartpole_tuned.yaml", 495.0, "5 of 5", 475.0),
    "acrobot": Case("configs/ppo/acrobot.yaml", -85.0, "5 of 5", -85.0),
    "pendulum": Case("configs/ppo/pendulum.yaml", -200.0, "4 of 5", -200.0),
    "mountain_car_continuous": Case("configs/ppo/mountain_car_continuous.yaml", 90.0, "4 of 5", 90.0),
    "lunar_lander": Case("configs/ppo/lunar_lander.yaml", 250.0, "4 of 5", 200.0),
}


@dataclass(frozen=True)
class Result:
    """One seed."""

    case: str
    seed: int
    threads: int
    members: int
    mean: float  # return of the best member on fresh episodes
    fitness: float  # what it was chosen by
    env_steps: int
    evaluation_steps: int
    steps_to_milestone: int | None
    seconds: float
    found: str


class Milestone(Reporter):
    """Notes at how many env steps of all members the best evaluation first reached a return."""

    def __init__(self, wanted: float) -> None:
        self.wanted = wanted
        self.steps: int | None = None

    def generation(self, record: GenerationRecord) -> None:
        """Look at the best evaluation of this generation."""
        if self.steps is None and fittest(record.members).fitness >= self.wanted:
            self.steps = record.env_steps


def measure(name: str, seed: int, threads: int) -> Result:
    """Train one seed with a configuration's whole budget and test its best member."""
    torch.set_num_threads(threads)
    case = CASES[name]
    config = load(ROOT / case.config, ["--seed", str(seed), "--training.target", "null"])
    setup = build(config)
    milestone = Milestone(case.milestone)
    start = time.perf_counter()
    outcome = train_population(
        SingleAgentEnvSetup(setup.env),
        setup.population,
        setup.plan(),
        output_paths=OutputPaths(),
        callbacks=CallbackList([milestone]),
    )
    seconds = time.perf_counter() - start
    best = outcome.population.best
    env = VecEnvAdapter(evaluation_env(setup.env, EPISODES))
    fresh = best.run_episodes(env, integers(EPISODES, seed, Purpose.MANUAL, EPISODES))
    env.close()
    return Result(
        case=name,
        seed=seed,
        threads=threads,
        members=len(outcome.population),
        mean=round(float(fresh.returns.mean()), 1),
        fitness=round(best.fitness[-1], 1),
        env_steps=outcome.summary.env_steps,
        evaluation_steps=outcome.summary.evaluation_steps,
        steps_to_milestone=milestone.steps,
        seconds=round(seconds, 1),
        found=f"{best.architecture.describe()}; " + ", ".join(f"{k}={v:.3g}" for k, v in best.hyperparameters.items()),
    )


def table(results: list[Result]) -> str:
    """The results as Markdown."""
    lines = [
        "| case | members, steps | return on 100 fresh episodes, seed by seed | bar | steps to milestone, median "
        "| seconds, median (min-max) |",
        "|---|---|---|---|---|---|",
    ]
    for name, case in CASES.items():
        mine = sorted((r for r in results if r.case == name), key=lambda r: r.seed)
        if not mine:
            continue
        seconds = [r.seconds for r in mine]
        evaluation = statistics.median(r.evaluation_steps for r in mine)
        reached = [r.steps_to_milestone for r in mine if r.steps_to_milestone is not None]
        never = len(mine) - len(reached)
        cells = (
            name,
            f"{mine[0].members}, {mine[0].env_steps:,} (+{evaluation:,.0f} of evaluation)",
            ", ".join(f"{r.mean:.0f}" for r in mine),
            f"{case.bar:.0f} for {case.seeds_at_bar}: **{sum(r.mean >= case.bar for r in mine)} of {len(mine)}**",
            f"{case.milestone:.0f}: " + (f"{never} never" if never else f"{statistics.median(reached):,.0f}"),
            f"{statistics.median(seconds):.0f} ({min(seconds):.0f}-{max(seconds):.0f})",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def in_a_process(wanted: tuple[str, int, int]) -> Result:
    """Measure one seed in a process of its own."""
    case, seed, threads = wanted
    one = ["--one", "--cases", case, "--seeds", str(seed), "--threads", str(threads)]
    command = [sys.executable, "-m", "benchmarks.evolution", *one]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=True)
    result = Result(**json.loads(done.stdout.splitlines()[-1]))
    print(result, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--threads", type=int, default=1, help="torch's threads of each process")
    parser.add_argument(
        "--jobs", type=int, default=1, help="seeds at once; more than one and the seconds are not to be trusted"
    )
    parser.add_argument(
        "--output", default="benchmarks/README.md", help="file with the section to replace, or - to print"
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # one measurement, as a line of JSON
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asdict(measure(options.cases[0], options.seeds[0], options.threads))))
        return
    with ThreadPoolExecutor(options.jobs) as pool:
        wanted = [(case, seed, options.threads) for case in options.cases for seed in options.seeds]
        results = list(pool.map(in_a_process, wanted))
    text = "\n".join(
        (
            f"{machine()}; {versions('torch', 'gymnasium', 'numpy')}; {options.threads} thread(s), "
            f"{options.jobs} seed(s) side by side.",
            "",
            table(results),
        )
    )
    if options.output == "-":
        print(text)
        return
    RAW.parent.mkdir(exist_ok=True)
    RAW.write_text("".join(json.dumps(asdict(result)) + "\n" for result in results))
    replace_section(Path(options.output), "evolution", text)


if __name__ == "__main__":
    main()
