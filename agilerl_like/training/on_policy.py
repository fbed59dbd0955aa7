"""`train_on_policy`: AgileRL's call, and the plainer one below it that the command line uses."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gymnasium

from agilerl_like.algorithms.agent import Agent
from agilerl_like.algorithms.population import Population
from agilerl_like.envs.transitions import TransitionEnv
from agilerl_like.envs.trials import trial_env
from agilerl_like.envs.vector import backend_of, widen
from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import Mutations, Selection
from agilerl_like.modules.layers import check_activation
from agilerl_like.reporting.console import ConsoleReporter
from agilerl_like.reporting.files import CsvReporter, LineageReporter
from agilerl_like.reporting.records import RunRecord
from agilerl_like.reporting.reporter import Reporter, Reporters
from agilerl_like.reporting.tensorboard import TensorBoardReporter
from agilerl_like.reporting.wandb import WandbReporter
from agilerl_like.training.interrupts import Interrupts
from agilerl_like.training.run import Outcome, Run
from agilerl_like.training.schedule import Places, Schedule


def train_on_policy(
    env: gymnasium.vector.VectorEnv,
    env_name: str | None = None,
    algo: str | None = None,
    pop: Population | Iterable[Agent] | None = None,
    *,
    init_hp: Mapping[str, Any] | None = None,
    mut_p: Mapping[str, Any] | None = None,
    swap_channels: bool = False,
    max_steps: int = Schedule.max_steps,
    evo_steps: int = Schedule.evo_steps,
    eval_steps: int | None = Schedule.eval_steps,
    eval_loop: int = Schedule.eval_loop,
    target: float | None = Schedule.target,
    selection_strategy: Selection | None = None,
    tournament: Selection | None = None,
    mutation: Mutations | None = None,
    checkpoint: int | None = None,
    checkpoint_path: str | os.PathLike[str] | None = None,
    overwrite_checkpoints: bool = False,
    save_elite: bool = False,
    elite_path: str | os.PathLike[str] | None = None,
    wb: bool = False,
    tensorboard: bool = False,
    tensorboard_log_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    accelerator: Any = None,
    wandb_kwargs: Mapping[str, Any] | None = None,
    eval_env: gymnasium.vector.VectorEnv | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    reporters: Iterable[Reporter] = (),
) -> tuple[Population, list[float]]:
    """Train a population, and evolve it if a selection strategy is given; return it and the fitness of its members.

    The names are AgileRL's. `max_steps`, `evo_steps` and `checkpoint` are env steps of each member (see `Schedule`).
    Without `mutation` the selected are cloned as they are; without `selection_strategy` (or `tournament`, the same)
    nobody is selected.

    `env` is where members train: one that can be made again (of `make_vect_envs`, `gymnasium.make_vec`, or a plain
    sync or async vector env) is copied to as many rows for each member; the rows of any other are divided among the
    members, and `eval_env` must say where they are tested. It may be `env` itself, whose training episodes then begin
    anew after every test. `pop` is a population, or a list of agents of one run
    seed.

    `run_dir` is a folder for metrics.csv, lineage.jsonl, the last population and the best agent; without it nothing
    is written but what `checkpoint_path` and `save_elite` ask for. `env_name` and `algo` are labels and inferred when
    left out; `init_hp` and `mut_p` are AgileRL's dictionaries for its logs, recorded with the run's settings.
    `reporters` are more sinks for what happens. `swap_channels` says that the env's images have their channels behind,
    though the agents were made for them in front; `accelerator` is where the population's device came from and needs
    nothing more here.

    Raises:
        ConfigurationError: before anything is trained.
        EnvironmentFault: the env returned a number that is not finite.
        NoHealthyMember: no member is left whose loss, weights and fitness are finite.
    """
    if pop is None:
        raise ConfigurationError("pop is missing: pass PPO.population(size=…, …)")
    if selection_strategy is not None and tournament is not None:
        raise ConfigurationError("selection_strategy and tournament mean the same; pass one of them")
    population = pop if isinstance(pop, Population) else Population(pop)
    if swap_channels:
        for agent in population:
            agent.see(env.single_observation_space, swap_channels=True)
    run_dir = None if run_dir is None else Path(run_dir)
    name = env_name or _name_of(env)
    sinks: list[Reporter] = [*reporters, ConsoleReporter(verbose=verbose)]
    if run_dir is not None:
        sinks += [CsvReporter(run_dir), LineageReporter(run_dir)]
    if tensorboard:
        sinks.append(TensorBoardReporter(Path(tensorboard_log_dir or (run_dir or Path("runs") / name) / "tensorboard")))
    if wb:
        sinks.append(WandbReporter(**(wandb_kwargs or {})))
    outcome = evolve_on_policy(
        env,
        population,
        schedule=Schedule(max_steps, evo_steps, eval_loop, eval_steps, target, checkpoint),
        selection=selection_strategy or tournament,
        mutations=mutation,
        places=Places(
            run_dir,
            None if checkpoint_path is None else Path(checkpoint_path),
            overwrite_checkpoints,
            Path(elite_path or f"{name}-elite") if save_elite else None,
        ),
        reporters=Reporters(sinks),
        eval_env=eval_env,
        name=name,
        settings={"algo": algo or population[0].algo, "init_hp": dict(init_hp or {}), "mut_p": dict(mut_p or {})},
    )
    return outcome.population, outcome.fitness


def evolve_on_policy(
    env: gymnasium.vector.VectorEnv,
    population: Population,
    *,
    schedule: Schedule,
    selection: Selection | None,
    mutations: Mutations | None,
    places: Places,
    reporters: Reporters,
    eval_env: gymnasium.vector.VectorEnv | None = None,
    name: str = "",
    settings: Mapping[str, Any] | None = None,
) -> Outcome:
    """Do what `train_on_policy` describes; the arguments are checked before anything is trained."""
    if selection is not None:
        selection.validate(len(population))
    for activation in mutations.activation_selection if mutations is not None else ():
        check_activation("activation_selection", activation)
    with contextlib.ExitStack() as stack:
        training_env = _training_env(env, len(population))
        if training_env is not env:
            stack.callback(training_env.close)
        if eval_env is None:
            eval_env = trial_env(env, len(population) * schedule.eval_loop)
            stack.callback(eval_env.close)
        run = Run(
            population,
            TransitionEnv(training_env),
            TransitionEnv(eval_env),
            schedule=schedule,
            selection=selection,
            mutations=mutations or Mutations(no_mutation=1, architecture=0, parameters=0, rl_hp=0),
            places=places,
            reporters=reporters,
        )
        stack.callback(reporters.close)
        reporters.start(
            RunRecord(
                name=name or _name_of(env),
                env=_name_of(env),
                algorithm=population[0].algo,
                population_size=len(population),
                num_envs=run.collector.envs,
                seed=population.seed,
                max_env_steps=schedule.max_steps * len(population),
                target=schedule.target,
                backend=backend_of(training_env),
                run_dir=places.run_dir,
                settings=settings or {},
            )
        )
        with Interrupts() as interrupts:
            return run.go(interrupts)


def _training_env(env: gymnasium.vector.VectorEnv, members: int) -> gymnasium.vector.VectorEnv:
    if members == 1:
        return env
    try:
        return widen(env, env.num_envs * members)
    except ConfigurationError:
        if env.num_envs % members:
            raise
        return env


def _name_of(env: gymnasium.vector.VectorEnv) -> str:
    recipe = getattr(env, "recipe", None)
    if recipe is not None:
        return recipe.env if isinstance(recipe.env, str) else getattr(recipe.env, "__name__", type(recipe.env).__name__)
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
