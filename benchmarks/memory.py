"""Whether a long run grows: memory, threads, files and child processes over 1,000 generations of a tiny population.

Every kind of mutation is on and a checkpoint is written every fifty generations. What is looked at comes from Linux's
`/proc` and `/dev/shm`; elsewhere nothing is measured, and the script says so.

    python -m benchmarks.memory
    python -m benchmarks.memory --backend sync --generations 300 --output -
"""

import argparse
import contextlib
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch

from agilerl_like import (
    PPO,
    HyperparameterConfig,
    Mutations,
    RLParameter,
    TournamentSelection,
    make_vect_envs,
    train_on_policy,
)
from agilerl_like.envs.vector import Backend
from agilerl_like.reporting import GenerationRecord, Reporter
from benchmarks.harness import Run, answer, conditions, interleaved, one, options_of, publish
from benchmarks.ours import CARTPOLE, RANGES, net_config
from benchmarks.tables import Goal, markdown, spread

MEMBERS = 4
ENVS = 4
STEPS = 64
"""Of each member in a generation."""

EVALUATION_STEPS = 16
CHECKPOINT_GENERATIONS = 50
WARM_UP = 100
"""Generations that may still grow: buffers, caches, the allocator."""

EVERY = 5
"""Generations from one look to the next."""

MOST_KB = 1.0
MOST_TOTAL_MB = 5.0

SMALL = HyperparameterConfig(
    **{**RANGES, "batch_size": RLParameter(min=STEPS // 4, max=STEPS, dtype=int, scale="power_of_two")}
)

LIMITS = {"min_mlp_nodes": 16, "max_mlp_nodes": 96, "max_hidden_layers": 2}
"""Bounds of the networks, so that what grows is not what was asked to grow."""

NEEDS_PROC = "no /proc on this system: not measured (what a process holds is read from there)"


@dataclass(frozen=True)
class Case:
    """How many generations, and who steps the envs."""

    generations: int
    backend: Backend


@dataclass(frozen=True)
class Result:
    """What the process held, from `WARM_UP` on, at each look."""

    seconds: float
    generations: Sequence[int]
    rss_kb: Sequence[float]
    threads: Sequence[int]
    files: Sequence[int]
    children: Sequence[int]
    shared: Sequence[int]  # entries of /dev/shm

    @property
    def slope(self) -> float:
        """Growth of resident memory in kB a generation, by least squares."""
        return statistics.linear_regression(self.generations, self.rss_kb).slope

    @property
    def growth_mb(self) -> float:
        """Resident memory at the end more than at the first look."""
        return (self.rss_kb[-1] - self.rss_kb[0]) / 1024

    @property
    def headline(self) -> str:
        """A few words for those who watch."""
        return f"{self.slope:+.2f} kB a generation, {self.growth_mb:+.1f} MB in all, {self.seconds:.0f} s"


class Watch(Reporter):
    """Looks at this process after every few generations."""

    def __init__(self, warm_up: int) -> None:
        self.warm_up = warm_up
        self.seen: list[tuple[int, float, int, int, int, int]] = []
        self.seconds = 0.0

    def generation(self, record: GenerationRecord) -> None:
        self.seconds = record.seconds
        if record.generation >= self.warm_up and record.generation % EVERY == 0:
            self.seen.append((record.generation, *held()))


def held() -> tuple[float, int, int, int, int]:
    """Return resident kB, threads, open files, child processes and shared memory segments of this moment."""
    proc, shm = Path("/proc/self"), Path("/dev/shm")
    resident = int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024
    return (
        resident,
        len(os.listdir(proc / "task")),
        len(os.listdir(proc / "fd")),
        sum(parent_of(status) == os.getpid() for status in Path("/proc").glob("[0-9]*/stat")),
        len(os.listdir(shm)) if shm.is_dir() else 0,
    )


def parent_of(status: Path) -> int:
    """Return the parent of the process of a /proc/…/stat file, 0 if it is gone."""
    try:
        return int(status.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def measure(case: Case, threads: int, seed: int) -> Result:
    """Evolve a tiny population for many generations and watch."""
    torch.set_num_threads(threads)
    env = make_vect_envs(CARTPOLE, num_envs=ENVS, backend=case.backend)
    population = PPO.population(
        MEMBERS,
        env.single_observation_space,
        env.single_action_space,
        num_envs=ENVS,
        learn_step=STEPS,
        batch_size=STEPS,
        net_config={**net_config(limits=LIMITS), "max_latent_dim": LIMITS["max_mlp_nodes"]},
        hp_config=SMALL,
        seed=seed,
    )
    watch = Watch(min(WARM_UP, case.generations // 2))
    with contextlib.closing(env), tempfile.TemporaryDirectory() as folder:
        train_on_policy(
            env,
            pop=population,
            max_steps=case.generations * STEPS,
            evo_steps=STEPS,
            eval_loop=1,
            eval_steps=EVALUATION_STEPS,
            selection_strategy=TournamentSelection(tournament_size=2, elitism=True),
            mutation=Mutations(no_mutation=0.2, architecture=0.2, parameters=0.2, activation=0.2, rl_hp=0.2),
            checkpoint=CHECKPOINT_GENERATIONS * STEPS,
            verbose=False,
            run_dir=Path(folder) / "run",
            reporters=[watch],
        )
    generations, rss, *counts = (list(column) for column in zip(*watch.seen, strict=True))
    return Result(round(watch.seconds, 1), generations, rss, *counts)


def section(runs: Sequence[Run[Result]], options: argparse.Namespace) -> list[str]:
    """Return the whole section."""

    def row(name: str, form: str, of: Callable[[Result], Sequence[float]]) -> tuple[str, str]:
        return name, spread([number for run in runs for number in of(run.result)], form.format)

    first = runs[0].result.generations[0]
    rows = [
        row("resident memory at the first look, MB", "{:.1f}", lambda result: [result.rss_kb[0] / 1024]),
        row("its growth from there to the end, MB", "{:+.1f}", lambda result: [result.growth_mb]),
        row("its slope, kB a generation, least squares", "{:+.2f}", lambda result: [result.slope]),
        row("threads", "{:.0f}", lambda result: result.threads),
        row("open files", "{:.0f}", lambda result: result.files),
        row("child processes", "{:.0f}", lambda result: result.children),
        row("entries of /dev/shm", "{:.0f}", lambda result: result.shared),
        row("seconds", "{:.0f}", lambda result: [result.seconds]),
    ]
    return [
        "## Memory over many generations",
        "",
        f"{CARTPOLE} (backend {options.backend}), P={MEMBERS}, {ENVS} envs a member, {STEPS} steps of each a "
        f"generation, evaluated for at most {EVALUATION_STEPS} steps, all kinds of mutation, networks of at most "
        f"{LIMITS['max_hidden_layers']} x {LIMITS['max_mlp_nodes']} units, a checkpoint every {CHECKPOINT_GENERATIONS} "
        f"generations; {options.generations:,} generations, looked at every {EVERY} from generation {first} on. A "
        "run keeps the history of its members (fitness, returns, births), which is part of what grows.",
        "",
        conditions(runs, options),
        "",
        *markdown((f"{len(runs)} run(s)", ""), rows),
    ]


def goals(runs: Sequence[Run[Result]]) -> list[Goal]:
    """Return what grew."""
    looked_at = f"{runs[0].result.generations[-1]:,} generations"
    slope = statistics.median(run.result.slope for run in runs)
    growth = statistics.median(run.result.growth_mb for run in runs)
    steady = all(
        len(set(counts)) == 1
        for run in runs
        for counts in (run.result.threads, run.result.files, run.result.children, run.result.shared)
    )
    return [
        Goal(
            f"resident memory over {looked_at}: slope, total growth",
            f"<= {MOST_KB:g} kB a generation, <= {MOST_TOTAL_MB:g} MB",
            f"{slope:+.2f} kB a generation, {growth:+.1f} MB",
            slope <= MOST_KB and growth <= MOST_TOTAL_MB,
        ),
        Goal(
            f"threads, files, child processes, shared memory over {looked_at}",
            "constant",
            "constant" if steady else "not constant: see the table",
            steady,
        ),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=1000)
    parser.add_argument("--backend", choices=get_args(Backend), default="auto", help="who steps the envs")
    options = options_of(parser, argv, repetitions=1, quick={"generations": 40})
    if options.one:
        answer(measure(Case(**json.loads(options.one)), options.threads, options.seed))
        return
    if not Path("/proc/self/statm").is_file():
        print(NEEDS_PROC)
        return
    command = {options.backend: one("benchmarks.memory", Case(options.generations, options.backend))}
    runs = interleaved(command, Result, options, case=CARTPOLE)
    publish("memory", section(runs, options), runs, goals(runs), options)


if __name__ == "__main__":
    main()
