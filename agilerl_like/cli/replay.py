"""`agilerl-like replay`: train agents with the schedule that a run found."""

from __future__ import annotations

from pathlib import Path

from tyro.conf import FlagCreatePairsOff, Positional

from agilerl_like.cli.output import checked_seed, write_line
from agilerl_like.errors import ExitCode
from agilerl_like.reporting import formatting
from agilerl_like.reporting.console import ConsoleReporter
from agilerl_like.reporting.formatting import number_of
from agilerl_like.saved_runs import Run, replay_run


def replay(
    run: Positional[Path],
    /,
    seeds: int = 5,
    seed: int | None = None,
    quiet: FlagCreatePairsOff[bool] = False,
    trust: FlagCreatePairsOff[bool] = False,
) -> int:
    """Train agents from scratch on new seeds with the schedule of a run's best agent: does the find transfer?

    Each agent receives the hyperparameters and architecture mutations of the best agent's lineage, generation by
    generation; as many agents keep the settings that the lineage began with. All are tested on fresh episodes.

    Args:
        run: Folder of a run.
        seeds: Number of agents with the schedule, and of agents without it; an interval needs four.
        seed: Seed of the replay; left out: a random one.
        quiet: Print the result alone.
        trust: Import what `environment` of the run names (`id`, `instances`, `wrappers`, `training_wrappers`), and
            `algorithm.reward_transform`, although they belong to no known package.
    """
    result = replay_run(
        Run.open(run),
        seeds=seeds,
        seed=None if seed is None else checked_seed(seed),
        trust=trust,
        callbacks=[ConsoleReporter(verbose=not quiet)],
    )
    write_line(f"best agent of the run      {formatting.with_named_error(result.found, result.standard_error)}")
    label = f"replayed on {number_of(seeds, 'seed')}"
    write_line(f"{label:<26} {result.estimate.text()}: {_listed(result.replayed)}")
    write_line(f"initial settings unchanged {result.baseline.text()}: {_listed(result.unchanged)}")
    write_line(f"difference                 {result.difference.text(signed=True)}")
    if result.diverged:
        write_line(result.diverged)
    lineage = f"{number_of(result.generations, 'generation')}, {number_of(result.changes, 'change')}"
    write_line(f"{lineage}; at the end: {result.architecture}")
    write_line(result.verdict)
    return ExitCode.DONE


def _listed(fitness: list[float]) -> str:
    return ", ".join(map(formatting.fitness, fitness))
