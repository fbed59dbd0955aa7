"""Results of runs for marl-eval, which aggregates and plots them (Gorsane et al. 2022, arXiv:2209.10485)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.errors import ConfigurationError
from agilerl_like.evaluation import evaluate
from agilerl_like.evaluation.returns import count_of
from agilerl_like.saved_runs.run import Run
from agilerl_like.seeding import Purpose, integer

ABSOLUTE_FACTOR = 10
"""Episodes of the best agent, as a multiple of those of each entry of the history."""


def marl_eval_results(
    runs: Mapping[str, Iterable[Run | Path | str]], episodes: int = 32, seed: int = 0, *, trust: bool = False
) -> dict[str, Any]:
    """Return the raw data that marl-eval reads, ready for `json.dump`, of several runs of each named algorithm.

    It is `{environment: {task: {algorithm: {"run_1": {"step_1": …, "absolute_metrics": …}}}}}`. A step is an entry of
    a run's history: `step_count`, the env steps of all members, and `return` and `episode_length` of `episodes` fresh
    episodes of the fittest member. The absolute metrics are those of ten times as many episodes of the best agent.
    Episodes that were lost with their worker process are left out.

    Args:
        runs: the name of an algorithm -> its runs, such as one for each seed.
        episodes: of each step; every run and step plays its own, the first runs of two algorithms the same ones.
        seed: names the episodes.
        trust: as of `Run.env`.

    Raises:
        ConfigurationError: a run has no history, or its environment cannot be made; or an algorithm has no runs.
    """
    episodes = count_of("episodes", episodes)
    found: dict[str, Any] = {}
    for algorithm, folders in runs.items():
        opened = [folder if isinstance(folder, Run) else Run.open(folder) for folder in folders]
        if not opened:
            raise ConfigurationError(f"runs: {algorithm!r} has none; allowed are one or more")
        for number, run in enumerate(opened, 1):
            own = _results(run, episodes, integer(seed, Purpose.MANUAL, number), trust=trust)
            environment, task = _names(run)  # known, since `_results` has made the environment
            by_algorithm = found.setdefault(environment, {}).setdefault(task, {})
            results = by_algorithm.setdefault(algorithm, {})
            results[f"run_{len(results) + 1}"] = own
    return found


def _results(run: Run, episodes: int, seed: int, *, trust: bool) -> dict[str, Any]:
    """Return the steps and the absolute metrics of a run."""
    found: dict[str, Any] = {}
    with closing(run.env(trust=trust)) as env:

        def played(agent: EvolvableAlgorithm, count: int, number: int) -> dict[str, list[float]]:
            its = evaluate(agent, env, count, integer(seed, Purpose.MANUAL, number), max_steps=run.eval_steps)
            whole = ~its.lost[0]  # the others ended with their worker processes
            return {"return": its.returns[0][whole].tolist(), "episode_length": its.lengths[0][whole].tolist()}

        for number, entry in enumerate(run.history(), 1):
            members = entry.population()
            metrics = played(members.fittest, episodes, number)
            step_count = entry.env_steps * len(members) + entry.moment.steps_of_removed
            found[f"step_{number}"] = {"step_count": step_count, **metrics}
        found["absolute_metrics"] = played(run.best(), ABSOLUTE_FACTOR * episodes, 0)
    return found


def _names(run: Run) -> tuple[str, str]:
    """Return the names of an environment's family and of the environment: mpe2 and simple_spread_v3."""
    name = str(run.config["environment"]["id"])
    family, _, task = name.rpartition("/" if "/" in name else ":" if ":" in name else ".")
    return family or "gymnasium", task
