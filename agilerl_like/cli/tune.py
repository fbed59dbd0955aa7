"""`agilerl-like tune`: search for hyperparameters and architecture of an environment, without a configuration."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tyro.conf import FlagCreatePairsOff, Positional

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.ppo_config import longest_rollout, rollout_steps
from agilerl_like.algorithms.rollout_algorithm import RolloutAlgorithm
from agilerl_like.cli.found import write_found
from agilerl_like.cli.output import PROGRAM, checked_seed, write_line, write_note
from agilerl_like.cli.train import new_folder, remove_if_empty, train_config
from agilerl_like.config import Config, Draft, build
from agilerl_like.config.bundled import find_config, names_file
from agilerl_like.config.search_space import SMALLEST_ROLLOUT, UPDATES_IN_GENERATION, search_space
from agilerl_like.distributed.process_group import is_launched
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.reporting import formatting
from agilerl_like.reporting.callback import Callback, CallbackList, RunContext
from agilerl_like.reporting.records import GenerationRecord
from agilerl_like.saved_runs import Run
from agilerl_like.seeding import fresh_seed
from agilerl_like.storage.durable_io import make_folder, replace_file
from agilerl_like.storage.run_names import BEST
from agilerl_like.training.process_choice import choose_layout, torch_threads
from agilerl_like.training.run_folder import FOUND, SEARCH_HEAD
from agilerl_like.training.session import longest_episode, train_population
from agilerl_like.training.training_arguments import OutputPaths

BUDGET = 2e6
GENERATIONS = 30
"""Generations of a search: more would leave members little time to learn between two evaluations."""
FEW_GENERATIONS, FEW_EPISODES = 12, 3
"""Generations, and evaluation episodes in each, that a search has even if evaluation then exceeds its share: with fewer
there is little selection, or fitness is mostly noise."""
TYPICAL_LIMIT = 1000
"""Steps of the longest episode that is assumed: episodes rarely reach a higher time limit."""
EVALUATION_SHARE = 1 / 3
"""Env steps that the evaluation of members may take for each step of training, if all episodes reach their limit.

A step of evaluation needs no update, and takes less than half of the time. Fresh episodes of best agents come on top.
"""
LEAST_GENERATIONS = 4
REPLACED = ("num_steps", "num_minibatches", "preset")
"""Settings that a search leaves out: two that stand for learn_step and batch_size, which are searched, and the preset,
whose values are all written out."""
OF_TUNE = ("population", "evolution", "selection", "mutation")
"""Sections of a file that a search replaces by its own, besides some settings of `training`."""
TRAINING_OF_TUNE = ("max_steps", "evo_steps", "target", "checkpoint")


def tune(
    env: Positional[str],
    /,
    budget: float | None = None,
    minutes: float | None = None,
    population: int = 8,
    dir: Path | None = None,
    seed: int | None = None,
    out: Path | None = None,
    device: str | None = None,
    quiet: FlagCreatePairsOff[bool] = False,
) -> int:
    """Search for the hyperparameters and the architecture of an environment while a population learns in it.

    Ranges follow from the algorithm and the action space, selection and mutation from population and budget
    (evolution: auto). Generations and evaluation episodes follow from the budget and the time limit of an episode, so
    that evaluation takes about a third as many steps as training, more if the budget is short. At the end a YAML of
    what was found is written, ready for `agilerl-like train`. The run itself is in its folder as any other: report,
    metrics, checkpoints.

    Args:
        env: An environment's id, a bundled configuration, or a YAML file. If a file has hyperparameters, these are
            searched, and with continuous actions strength and correlation of the exploration noise. All its settings
            are kept but those that make the search: population, evolution, selection, mutation, run.name, and in
            training max_steps, evo_steps, target and checkpoint, and max_seconds with minutes; eval_loop is lowered
            where evaluation would take too long. Without hyperparameters, the searched settings begin in the ranges,
            and num_steps, num_minibatches and preset are left out, because learn_step and batch_size are searched.
        budget: Env steps of all members together; 2e6 if neither budget nor minutes is given.
        minutes: Time of the search in place of a budget, which the generation that is running then exceeds; speed is
            measured first. It becomes training.max_seconds of the run, and so holds when the run is resumed, too.
        population: Number of members.
        dir: Parent folder of the run; left out: that of the file, or runs.
        seed: Seed of the run; left out: that of the file, or a random one.
        out: A second file for what was found, beside found.yaml in the run's folder.
        device: Device of the networks (cpu, cuda, cuda:1, auto); left out: run.device of the file, or cpu.
        quiet: Print warnings and errors only.
    """
    if budget is not None and minutes is not None:
        raise ConfigurationError(f"minutes={minutes!r} and budget={budget!r} exclude one another; allowed is one")
    for name, value in (("budget", budget), ("minutes", minutes)):
        if value is not None and not 0 < value < math.inf:
            raise ConfigurationError(f"{name}={value!r} must be finite and greater than 0")
    if is_launched():
        raise ConfigurationError("tune starts its own processes (run.processes); a launcher is not allowed")
    if population < 2:
        raise ConfigurationError(f"population={population!r} is too small for tune, which compares members; at least 2")
    if out is not None and out.exists():
        raise ConfigurationError(f"out={str(out)!r} exists; allowed is a new file")
    if out is not None:
        make_folder(out.absolute().parent)  # before the search, whose result would be lost otherwise
    draft, is_file = find_config(env), names_file(env)
    if device is not None:
        draft = draft.override(["--run.device", device])
    if seed is None and is_file:
        seed = draft.validate().seed
    seed = fresh_seed() if seed is None else checked_seed(seed)
    ranges = draft.data.get("hyperparameters") if is_file else None
    if is_file:
        _note_replaced(draft, has_minutes=minutes is not None)
    steps = BUDGET if budget is None else budget
    if minutes is not None:
        steps = _steps_in(minutes, draft, population=population, seed=seed, has_ranges=bool(ranges))
        if not quiet:
            speed, count = f"{steps / minutes / 60:,.0f} env steps/s", formatting.count(steps)
            write_line(f"measured {speed}: about {count} steps in {minutes:g} minutes")
    config = search_config(draft, steps=steps, population=population, seed=seed, has_ranges=bool(ranges))
    if minutes is not None:
        config = config.model_copy(update={"training": replace(config.training, max_seconds=60 * minutes)})
    if is_file and (episodes := config.training.eval_loop) < (wanted := draft.validate().training.eval_loop):
        write_note(
            f"training.eval_loop is {episodes} instead of {wanted}, because evaluation would take too many steps"
        )
    folder = new_folder(dir or config.run.dir, f"tune-{config.environment.id}")
    run = config.run.model_copy(update={"dir": folder.parent, "name": folder.name})
    config = config.model_copy(update={"run": run})
    mark = SearchMark(folder.absolute() / FOUND)
    try:
        code = train_config(config, callbacks=[mark], quiet=quiet)
    finally:
        remove_if_empty(folder)
    if not (folder / BEST).exists():  # an error ended it before its first checkpoint
        return code
    write_found(Run.open(folder), config, folder / FOUND, quiet=quiet or out is not None)
    if out is not None:
        write_found(Run.open(folder), config, out, quiet=quiet)
    return code


def _note_replaced(draft: Draft, *, has_minutes: bool) -> None:
    """Print which settings of a file the search replaces."""
    training, names = draft.data.get("training"), [*TRAINING_OF_TUNE, *["max_seconds"] * has_minutes]
    found = [name for name in OF_TUNE if name in draft.data]
    found += [f"training.{name}" for name in names if isinstance(training, dict) and name in training]
    found += ["run.name"] if isinstance(run := draft.data.get("run"), dict) and run.get("name") else []
    if found:
        write_note(f"tune replaces {', '.join(found)} of the file; `{PROGRAM} train` keeps them")


def search_config(draft: Draft, *, steps: float, population: int, seed: int, has_ranges: bool = False) -> Config:
    """Return the configuration of a search with a budget of env steps of all members together.

    With `has_ranges` the hyperparameters of `draft` are searched, else those of `search_space`.

    Raises:
        ConfigurationError: the budget is shorter than a few generations of all members.
    """
    base = draft.validate()
    shortest, each = _shortest_generation(base, has_ranges=has_ranges), int(steps // population)
    if each < LEAST_GENERATIONS * shortest:
        raise ConfigurationError(
            f"budget={steps:.4g} gives {each} env steps to each of {population} members; allowed are at least "
            f"{least_steps(base, population, has_ranges=has_ranges)}: {LEAST_GENERATIONS} generations of {shortest} "
            "steps"
        )
    given = _searched_settings(base)
    with contextlib.chdir("."):  # an environment may change the working directory
        env_setup = base.env_setup(num_envs=1)
        with contextlib.closing(env_setup.env):
            action_space = env_setup.spaces[-1]
            limits = (longest_episode(env_setup.vec_env), base.training.eval_steps)
            instances = env_setup.num_eval_episodes(1)
    longest = min(filter(None, limits), default=None)
    generations, eval_loop = generations_and_episodes(each, longest, base.training.eval_loop, instances)
    evo_steps = max(shortest, -(-each // generations))  # rounded down, a few steps would be one generation more
    data = base.to_json()
    if not has_ranges:
        ranges, start = search_space(
            base.algorithm_class, action_space, given, evo_steps=evo_steps, num_envs=base.environment.num_envs
        )
        kept = {name: value for name, value in data["algorithm"].items() if name not in REPLACED}
        data |= {"algorithm": {**kept, **start}, "hyperparameters": ranges}
    data["population"] = {"size": population, "sample_hyperparameters": True}
    training = {"max_steps": each, "evo_steps": evo_steps, "eval_loop": eval_loop, "target": None}
    data["training"] = {**data["training"], **training}
    data["training"].pop("checkpoint", None)
    data |= {"evolution": "auto", "seed": seed}
    for name in ("selection", "mutation"):
        data.pop(name, None)
    return Draft(data).validate()


def _steps_in(minutes: float, draft: Draft, *, population: int, seed: int, has_ranges: bool) -> float:
    """Return the env steps of all members in so many minutes, by the measured speed.

    A search of few steps has shorter rollouts and generations than one of `BUDGET`, and is slower: the speed is then
    measured again with its settings.

    Raises:
        ConfigurationError: the steps are too few for a search.
    """
    least = least_steps(draft.validate(), population, has_ranges=has_ranges)

    def speed(steps: float) -> float:
        probe = search_config(draft, steps=steps, population=population, seed=seed, has_ranges=has_ranges)
        with contextlib.chdir("."):  # an environment may change the working directory
            return steps_per_second(probe, seconds=min(10.0, 3 * minutes))

    largest = max(BUDGET, least)
    rate = speed(largest)
    if rate * 60 * minutes < largest:
        rate = speed(max(rate * 60 * minutes, least))
    steps = rate * 60 * minutes
    if steps < least:
        raise ConfigurationError(
            f"minutes={minutes:g} are {steps:,.0f} env steps at {rate:,.0f} steps/s; allowed are at least "
            f"{least:,}, for {LEAST_GENERATIONS} generations"
        )
    return steps


def least_steps(config: Config, population: int, *, has_ranges: bool) -> int:
    """Return the smallest budget of a search, in env steps of all members."""
    return LEAST_GENERATIONS * population * _shortest_generation(config, has_ranges=has_ranges)


def _shortest_generation(config: Config, *, has_ranges: bool) -> int:
    """Return the env steps of each member in the shortest generation that has enough updates, in whole vector steps.

    A rollout has whole vector steps, too; algorithms without rollouts may have an update at any step.
    """
    envs = config.environment.num_envs
    has_rollouts = issubclass(config.algorithm_class, RolloutAlgorithm)
    rollout = _whole_vector_steps(SMALLEST_ROLLOUT, envs) if has_rollouts else SMALLEST_ROLLOUT
    longest = _longest_rollout(config) if has_ranges else 0
    return _whole_vector_steps(max(UPDATES_IN_GENERATION * rollout, longest), envs)


def _whole_vector_steps(steps: int, envs: int) -> int:
    return envs * -(-steps // envs)


def _searched_settings(config: Config) -> dict[str, Any]:
    """Return the settings without `REPLACED`; of PPO, learn_step and batch_size stand for what these are."""
    settings, envs = config.algorithm.settings(), config.environment.num_envs
    if issubclass(config.algorithm_class, RolloutAlgorithm):
        rollout = envs * rollout_steps(settings, envs)
        if settings["num_steps"] is not None:
            settings["learn_step"] = rollout
        if settings["num_minibatches"] is not None:
            settings["batch_size"] = max(1, rollout // settings["num_minibatches"])
    return {name: value for name, value in settings.items() if name not in REPLACED}


def _longest_rollout(config: Config) -> int:
    """Return the env steps of the longest rollout with the settings and ranges of a configuration; 0 without rollouts.

    `search_space` shortens rollouts; those of a file stay, and a generation needs an update.
    """
    if not issubclass(config.algorithm_class, RolloutAlgorithm):
        return 0
    settings, envs = config.algorithm.settings(), config.environment.num_envs
    ranges = {name: its.parameter for name, its in config.hyperparameters.items()}
    return longest_rollout(settings, ranges, envs)


def generations_and_episodes(steps: int, longest: int | None, episodes: int, instances: int = 1) -> tuple[int, int]:
    """Return the generations of a search, and the evaluation episodes of each member in a generation.

    `steps` are the env steps of each member in the whole search, `longest` those of an episode, None if it has no
    limit, and `episodes` the evaluation episodes that the configuration has, which are the most, on each of so many
    `instances`. Where long episodes or many instances would make evaluation exceed `EVALUATION_SHARE`, both numbers
    fall, generations being two and a half times as many.
    """
    if longest is None:
        return GENERATIONS, episodes
    affordable = EVALUATION_SHARE * steps / (instances * min(longest, TYPICAL_LIMIT))
    episodes = min(episodes, max(FEW_EPISODES, round(math.sqrt(affordable / 2.5))))
    return min(GENERATIONS, max(FEW_GENERATIONS, int(affordable / episodes))), episodes


class Stopwatch(Callback):
    """Measures env steps per second of all members for some seconds, and stops the run then.

    A generation that is broken off is evaluated as a whole one, so the time of an evaluation is added to that of the
    steps of a generation. Training is timed until the last step of this process, because others stop up to two seconds
    later.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.started, self.rate = seconds, time.perf_counter(), math.nan
        self.until_last_step = self.evaluation = 0.0

    def on_run_begin(self, run: RunContext) -> None:
        self.started = time.perf_counter()

    def on_step(self, run: RunContext) -> None:
        self.until_last_step = time.perf_counter() - self.started
        if self.until_last_step > self.seconds and run.env_steps:
            run.stop("measured")

    def on_generation(self, run: RunContext, record: GenerationRecord) -> None:
        steps, evaluation = run.record.generation_env_steps, record.seconds_by_part["evaluate"]
        training = (self.until_last_step - self.evaluation) / record.env_steps
        self.evaluation = evaluation
        self.rate = steps / (steps * training + evaluation / record.generation)


class SearchMark(Callback):
    """Writes a file without settings as a search begins, by which `agilerl-like resume` knows one that was killed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_run_begin(self, run: RunContext) -> None:
        replace_file(self.path, f"# {SEARCH_HEAD}: `{PROGRAM} resume` writes here what it finds.\n".encode())


def steps_per_second(config: Config, seconds: float) -> float:
    """Return the env steps per second of all members in a run of some seconds, which leaves no files.

    The run has the processes and threads of the search, and its members learn from the first steps on, because members
    that wait for `learning_starts` are several times as fast.
    """
    experiment = build(config)
    stopwatch = Stopwatch(seconds)
    env_setup, population, plan = experiment.env_setup, experiment.population, experiment.plan()
    run = config.run
    try:
        for agent in population:
            _learn_at_once(agent)
        choice = choose_layout(env_setup, population, plan, processes=run.processes, threads=run.threads)
        with torch_threads(choice.layout.threads):
            result = train_population(
                env_setup,
                population,
                plan,
                output_paths=OutputPaths(),
                callbacks=CallbackList([stopwatch]),
                processes=choice.layout.processes,
            )
        result.raise_if_interrupted()
    finally:
        experiment.env.close()
    members, processes = len(population), min(choice.layout.processes, len(population))
    return stopwatch.rate * (members // processes) / -(-members // processes)  # others may have one member more


def _learn_at_once(agent: EvolvableAlgorithm) -> None:
    """Set `learning_starts` to 0, and remove its range, which may not hold 0, and ranges that depend on it."""
    agent.learning_starts = 0
    removed = {"learning_starts"}
    for name in agent.hp_config.parents_first:
        if removed & {*agent.hp_config[name].when}:
            removed.add(name)
    kept = {name: its for name, its in agent.hp_config.items() if name not in removed}
    agent.hp_config = HyperparameterConfig(**kept)
