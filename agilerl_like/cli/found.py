"""The configuration of what `agilerl-like tune` has found, which `agilerl-like train` reads."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agilerl_like.algorithms.ippo import IPPO
from agilerl_like.algorithms.ppo_config import settings_without_effect
from agilerl_like.algorithms.rollout_algorithm import RolloutAlgorithm
from agilerl_like.algorithms.serialization import to_builtin
from agilerl_like.cli.output import PROGRAM, write_line
from agilerl_like.config import Config, trust_option
from agilerl_like.hpo.frozen_mapping import FrozenMapping
from agilerl_like.hpo.schedules import LR_SCHEDULE, schedules_to_json
from agilerl_like.reporting import formatting
from agilerl_like.saved_runs import Run
from agilerl_like.saved_runs.run import changes_in
from agilerl_like.storage.durable_io import replace_file
from agilerl_like.training.run_folder import FOUND_HEAD
from agilerl_like.yaml_writer import to_yaml

SEEDS = 4
"""Members of the configuration that is written: independent seeds, of which the best is kept."""


class Best(NamedTuple):
    """What the records of a run contain about the agent in `best/`."""

    uid: int
    generation: int
    fitness: float
    is_confirmed: bool
    """Whether the fitness is that of fresh episodes."""
    changes: int
    """Changes of hyperparameters and architecture in its lineage."""


def best_of(run: Run) -> Best:
    """Return the records of a run's best agent; of a run that broke off, those of the checkpoint that it is from."""
    saved, rows = run.saved_best, run.records
    if saved is not None:
        its = saved.record
        return Best(its.uid, its.generation, its.fitness, its.is_confirmed, changes_in(saved.ancestry))
    own, fitness = rows.rows[rows.best_row], rows.rows[-1]["population/best_ever"]
    return Best(int(own["uid"]), int(own["generation"]), fitness, rows.best_is_confirmed, run.num_changes)


def write_found(run: Run, config: Config, path: Path, *, quiet: bool = False) -> None:
    """Write what a search has found to a file and, unless `quiet`, print how to train it."""
    replace_file(path, found_yaml(run, config).encode())
    if quiet:
        return
    write_line(f"\nfound    {path}")
    rows = run.records
    if not any(map(rows.is_birth, range(len(rows.rows)))):
        settings = len({row["uid"] for row in rows.rows})
        write_line(
            f"         {formatting.number_of(len(rows.generations), 'generation')}, no births: this compared "
            f"{settings} random settings; a longer budget lets evolution act"
        )
    elif not _has_improved(run):
        write_line("         it is an initial member, of generation 1: no later agent was better")
    write_line(f"to train {PROGRAM} train {shlex.quote(str(path))}")
    if command := _replay(run, config):
        write_line(f"         {command}: whether the find transfers to new seeds")


def found_yaml(run: Run, config: Config) -> str:
    """Return a configuration with the settings and the architecture of a run's best agent, without evolution.

    It trains for as many env steps as a member of the whole search: an agent that was the best after few steps owes
    that to its initial weights, too, and new seeds need more.
    """
    best, record, data = run.best(), best_of(run), config.to_json()
    defaults = config.algorithm_class.config()
    given = {name: its for name, its in data["algorithm"].items() if name != "preset"}  # whose values are among them
    differs = {name: its for name, its in given.items() if its != getattr(defaults, name, None)}
    network = _without_blends(to_builtin(best.architecture.to_config()))
    kept = ("max_steps", "evo_steps", "eval_loop", "eval_steps", "fitness", "opponents")
    training = {name: data["training"][name] for name in kept if name in data["training"]}
    training["max_steps"] = max(training["max_steps"], best.steps[-1])
    found: dict[str, Any] = {
        "environment": config.environment.model_dump(mode="json", exclude_defaults=True),
        "algorithm": {"name": best.algo, **differs, **to_builtin(best.hyperparameters)},
        "network": {"groups": network} if isinstance(best, IPPO) else network,
        "population": {"size": SEEDS, "sample_hyperparameters": False},
        "mutation": None,
        "training": training,
    }
    if schedules := _schedules(config, found["algorithm"]):
        found["algorithm"]["schedules"] = schedules
    if issubclass(config.algorithm_class, RolloutAlgorithm):  # what has no effect with a choice that was found
        for unused in settings_without_effect({**vars(defaults), **found["algorithm"]}):
            found["algorithm"].pop(unused.name, None)
    if not config.algorithm_class.group_class.has_networks:
        del found["network"]
    fitness = formatting.fitness(record.fitness)
    changes, command = formatting.number_of(record.changes, "time"), _replay(run, config)
    lines = [
        f"{FOUND_HEAD}: member {record.uid}, generation {record.generation}, "
        f"{'mean return' if run.fitness_is_mean_return else 'fitness'} {fitness}"
        f"{' on fresh episodes' if record.is_confirmed else ', not yet on fresh episodes'}.",
        f"Its lineage changed {changes}; these are its last values."
        f"{f' `{command}` trains with all of them in turn.' * bool(command)}",
    ]
    lines += [
        f"population: {SEEDS} seeds, of which the best is kept; mutation: null, since these values stay as they are.",
        "training.max_steps: as many as a member of the search had, so that new seeds have time to learn.",
    ]
    if "schedules" in found["algorithm"]:
        lines.append("algorithm.schedules: what they were in the search, over the whole of max_steps.")
    if not _has_improved(run):
        lines.append("No agent of a later generation was better: a longer search may find more.")
    return "".join(f"# {line}\n" for line in lines) + to_yaml(found)


def _replay(run: Run, config: Config) -> str:
    """Return the command that replays a run; "" if fitness is a rating, for which there is none."""
    if config.training.fitness == "rating":
        return ""
    return f"{PROGRAM} replay {shlex.quote(str(run.display_path))}{trust_option(config)}"


def _has_improved(run: Run) -> bool:
    """Whether the best agent is of a later generation than the first, or there was one alone."""
    return best_of(run).generation > 1 or run.generations() <= 1


def _schedules(config: Config, found: Mapping[str, Any] = FrozenMapping()) -> dict[str, Any]:
    """Return the members' own schedules and, of settings without one, those of the search's selection.

    `found` are the settings of the best agent that may differ from the configuration.
    """
    settings = {**config.algorithm.settings(), **found}
    if "schedules" not in settings:
        return {}
    own = settings["schedules"]
    has_own = {*own, *(["lr"] if settings.get(LR_SCHEDULE) is not None else [])}
    keeps_experience = config.algorithm_class.group_class.keeps_experience  # without schedules of the selection
    given = {} if keeps_experience else config.strategy.schedules()
    return schedules_to_json({**own, **{name: its for name, its in given.items() if name not in has_own}})


def _without_blends(network: Any) -> Any:
    """Return the settings of a network without the activations that a mutation is blending out."""
    if isinstance(network, dict):
        return {name: _without_blends(its) for name, its in network.items() if name != "fading"}
    return network
