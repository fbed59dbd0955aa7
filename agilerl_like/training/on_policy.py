"""`train_on_policy`: AgileRL's call, with its names."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import NoneType
from typing import Any, Literal

import gymnasium
import numpy as np

from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.algorithms.rl_algorithm import RLAlgorithm
from agilerl_like.distributed.process_group import ProcessGroup, process_group_of
from agilerl_like.envs.env_errors import env_name_of
from agilerl_like.errors import ConfigurationError, check_argument_names, tuple_of
from agilerl_like.hpo import AUTO, AutoExplorer, AutoSelection, Explorer, Selection
from agilerl_like.registry import registered
from agilerl_like.reporting.callback import Callback, CallbackList, Reporter
from agilerl_like.reporting.console import ConsoleReporter
from agilerl_like.reporting.run_history import CONFIG
from agilerl_like.reporting.trackers import TensorBoardReporter, WandbReporter, check_no_secret, tracker_reporter
from agilerl_like.storage.run_names import POPULATION
from agilerl_like.training.checkpoint_manager import RunFinished
from agilerl_like.training.env_setup import EnvSetup, SingleAgentEnvSetup
from agilerl_like.training.process_choice import choose_layout, torch_threads
from agilerl_like.training.run_folder import NOT_IN_FILE, ConfigReporter, TrainingReporter, run_folder_reporters
from agilerl_like.training.run_plan import NO_MUTATION, RunPlan
from agilerl_like.training.run_settings import RunDescription, describe_run
from agilerl_like.training.session import train_population
from agilerl_like.training.training_arguments import LogEvery, Opponents, OutputPaths, TrainingArguments
from agilerl_like.yaml_writer import to_yaml

FLAGS = ("swap_channels", "overwrite_checkpoints", "save_elite", "wb", "tensorboard", "verbose", "overwrite")
PATHS = ("run_dir", "resume", "checkpoint_path", "elite_path", "tensorboard_log_dir")
MAPPINGS = ("init_hp", "mut_p", "INIT_HP", "MUT_P", "wandb_kwargs")
"""Arguments of `train_on_policy` that are flags, paths and mappings; the last two may be None."""
AFTER_INTERRUPT = 'the script continues with what was trained; outcome of the returned population is "interrupted"'


@dataclass(frozen=True)
class _Logs:
    """The arguments of `train_on_policy` that choose trackers."""

    trackers: Sequence[str | Mapping[str, Any]]
    tensorboard: bool
    tensorboard_log_dir: str | os.PathLike[str] | None
    wb: bool
    wandb_kwargs: Mapping[str, Any] | None

    def settings(self) -> dict[str, Any]:
        """Return the settings as a configuration has them: TensorBoard and W&B by a flag or with options."""
        log_dir, wandb_kwargs = self.tensorboard_log_dir, self.wandb_kwargs
        with_options: list[str | Mapping[str, Any]] = []
        if self.tensorboard and log_dir is not None:
            with_options.append({"name": "tensorboard", "log_dir": os.fspath(log_dir)})
        if self.wb and wandb_kwargs:
            with_options.append({**wandb_kwargs, "name": "wandb"})  # which has no place for a name of the W&B run
        flags = {"tensorboard": bool(self.tensorboard) and log_dir is None, "wandb": bool(self.wb) and not wandb_kwargs}
        return {**flags, "trackers": [*with_options, *self.trackers]}

    def reporters(self, folder: Path) -> list[Reporter]:
        """Return the reporters of the trackers, which write into `folder`, or where their options name another one."""
        found: list[Reporter] = []
        if self.tensorboard:
            found.append(TensorBoardReporter(Path(self.tensorboard_log_dir or folder / "tensorboard")))
        if self.wb:
            check_no_secret("wandb", self.wandb_kwargs or {})
            found.append(WandbReporter(**(self.wandb_kwargs or {})))
        return [*found, *(tracker_reporter(tracker, folder) for tracker in self.trackers)]


@check_argument_names
def train_on_policy(
    env: gymnasium.vector.VectorEnv | EnvSetup,
    env_name: str | None = None,
    algo: str | None = None,
    pop: BasePopulation | Iterable[EvolvableAlgorithm] | EvolvableAlgorithm | None = None,
    *,
    init_hp: Mapping[str, Any] | None = None,
    mut_p: Mapping[str, Any] | None = None,
    swap_channels: bool = False,
    max_steps: int = TrainingArguments.max_steps,
    evo_steps: int = TrainingArguments.evo_steps,
    eval_steps: int | None = TrainingArguments.eval_steps,
    eval_loop: int = TrainingArguments.eval_loop,
    eval_share: float = TrainingArguments.eval_share,
    history: int = TrainingArguments.history,
    target: float | None = TrainingArguments.target,
    fitness: str = TrainingArguments.fitness,
    opponents: Opponents = TrainingArguments.opponents,
    max_updates: int | None = TrainingArguments.max_updates,
    max_seconds: float | None = TrainingArguments.max_seconds,
    selection_strategy: Selection | None = None,
    tournament: Selection | None = None,
    mutation: Explorer | None = None,
    evolution: Literal["auto"] | None = None,
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
    eval_env: gymnasium.vector.VectorEnv | EnvSetup | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    processes: int | Literal["auto"] = 1,
    reporters: Iterable[Reporter] = (),
    callbacks: Iterable[Callback] = (),
    log_every: LogEvery = "generation",
    trackers: Iterable[str | Mapping[str, Any]] = (),
    INIT_HP: Mapping[str, Any] | None = None,  # noqa: N803  # the name that AgileRL's older releases have for it
    MUT_P: Mapping[str, Any] | None = None,  # noqa: N803  # likewise
    wandb_api_key: str | None = None,
) -> tuple[Any, list[float]]:
    """Train a population, and evolve it if a selection strategy is given; return it and the fitness of its members.

    The names are AgileRL's. `max_steps`, `evo_steps` and `checkpoint` are env steps of each member (see
    `TrainingArguments`) in this run: members that were trained before are trained for `max_steps` more, and keep their
    weights: neither `evolution="auto"` nor `GatedSelection` starts one of them again with initial weights. Without
    `mutation` offspring are clones; without `selection_strategy` (or `tournament`, the same) there is no evolution;
    `evolution="auto"` stands for both and adapts to the population and the budget (see `hpo/auto.py`): in runs of at
    least ten generations it removes members, and those that stay train longer, and in the second half of the budget the
    learning rate falls. `fitness` is what selection compares; "rating" is for teams, and so are `opponents` other than
    "self" (see `train_multi_agent_on_policy`).

    `env` is where members train: an env that can be made again (of `make_vect_envs`, `gymnasium.make_vec`, or a plain
    sync or async vector env) is copied, with as many rows for each member; the rows of any other are divided among the
    members, and `eval_env` must be given. That one is copied likewise, with a row for each evaluation episode, if it
    can be made again. It may be `env` itself, whose training episodes are then reset after every evaluation. An
    `EnvSetup` in the place of an env makes the envs itself.

    `pop` is a population, a list of agents of one run seed, or one agent, each of which is put in training mode
    (`set_training_mode`). `swap_channels` is True if the env's images have their channels last although the agents were
    made for channels first.

    Ctrl-C or SIGTERM ends the run after the current step: it is saved, and the population is returned as at any other
    end, so that a script continues, also with the next run of a loop: the population's `outcome` is then "interrupted",
    as that in `run.json`. A second one raises KeyboardInterrupt.

    The returned population is the last generation, as it was evaluated. Its `best` is the best agent of the whole run:
    a copy of a member, confirmed on fresh episodes, whose last `fitness` is its mean return on these (see
    `training/best_agent.py`). Summary, plot, trackers and `best/` name the same agent; `fittest` is the best member of
    the last generation.

    `run_dir` is a folder for metrics.csv, lineage.jsonl, checkpoints, the last population, the best agent, and the
    weights of all members at `history` points of the run; without it only what `checkpoint_path` and `save_elite`
    request is written. A folder that holds an earlier run is refused unless `overwrite` is true, which removes that
    run's files. With `checkpoint` and neither a `run_dir` nor a `checkpoint_path`, populations are saved in the working
    directory, in folders named after env, algorithm and time, as AgileRL does. The elite is saved to `elite_path`, by
    default the env's name and "-elite", if that or `save_elite` is given. With `overwrite_checkpoints` the newest
    population replaces the one before in `checkpoint_path`; without, each has a folder that ends with its env steps.

    `resume` is such a folder: training continues from its newest checkpoint as if it had never stopped (`pop` is then
    needed only for custom networks, hooks and another device), with as many envs for each member as before; without a
    checkpoint the run starts, with a warning. Pass the other arguments again: the run continues with those that are
    given now, or their defaults, and warns if an argument that counts steps, limits the run or evaluates (`max_steps`,
    `target`, `eval_loop`, …), `history`, `checkpoint` or `mutation` has its default now and had another value, or if
    `selection_strategy` is another. The section `training` of config.yaml then has the new arguments. A run that has
    ended continues with a larger `max_steps` or, if it had reached its target, a higher one or none; otherwise its
    population is returned.

    `processes` divides the members among so many processes of this machine, which are started here; a script then
    needs `if __name__ == "__main__":`. "auto" measures for some hundred milliseconds whether several processes, or more
    torch threads, would end the run sooner, and uses them until it ends. With an `accelerator` they are those that
    `accelerate launch` started. All of them return the whole population; only the main one prints, logs, saves and has
    callbacks.

    `tensorboard` writes events to `tensorboard_log_dir`, by default the folder tensorboard in `run_dir`, or in
    runs/NAME without one, and `wb` logs to W&B, with `wandb_kwargs` as the arguments of `wandb.init`. Without `verbose`
    only warnings are printed.

    `callbacks` receive the events of the run, and may stop it (see `reporting.Callback`); `reporters` receive its
    records only. With `log_every="update"` the run folder has an updates.csv with a row for each member and update, and
    records of generations have their updates. `trackers` are names of Accelerate's trackers ("mlflow", "trackio", …) or
    of registered ones, or {"name": …, its options}. `env_name` and `algo` are labels and inferred when left out;
    `init_hp` and `mut_p` are AgileRL's dictionaries for its logs, recorded with the run's settings; `INIT_HP` and
    `MUT_P` are their older names. `wandb_api_key`, of older releases, is ignored, or refused with `wb`: W&B finds a key
    itself.

    Raises:
        ConfigurationError: before anything is trained.
        EnvStepError: the env returned a number that is not finite.
        PopulationDivergedError: all members have diverged, and the run has no checkpoint of its own to restart from, or
            has restarted already.
        CallbackError: a callback raised an exception; the run was saved before.
    """
    _check_kinds(locals())
    if tensorboard_log_dir is not None and not tensorboard:
        warnings.warn(
            f"tensorboard_log_dir={tensorboard_log_dir!r} has no effect without tensorboard=True", stacklevel=3
        )
    if wandb_kwargs and not wb:
        warnings.warn(f"wandb_kwargs={wandb_kwargs!r:.100} has no effect without wb=True", stacklevel=3)
    if pop is None and resume is None:
        raise ConfigurationError("pop is missing: pass PPO.population(size=…, …)")
    if wb and wandb_api_key:
        raise ConfigurationError(
            "wandb_api_key is not taken: set the environment variable WANDB_API_KEY, or type `wandb login`"
        )
    if env is None:
        raise ConfigurationError("env is missing: pass make_vect_envs(…)")
    callbacks, reporters = _callbacks("callbacks", callbacks), _callbacks("reporters", reporters)
    if isinstance(trackers, str | Mapping):
        raise ConfigurationError(f"trackers={trackers!r:.200} is a single tracker; allowed is a list of them")
    trackers = tuple_of("trackers", trackers, "a list of them")
    selection, explorer = _search(selection_strategy, tournament, mutation, evolution)
    env_setup, eval_setup = _env_setup(env), None if eval_env is None else _env_setup(eval_env, "eval_env")
    if env_name is not None and not isinstance(env_name, str):
        raise ConfigurationError(f"env_name={env_name!r:.200} must be text, the environment's id")
    population = _population(pop, env_setup)
    if swap_channels:
        _swap_channels(population, env_setup)
    run_dir = _run_dir(run_dir, resume, overwrite=overwrite)
    name = env_name or env_name_of(env_setup.vec_env)
    given = {"algo": algo, "init_hp": dict(init_hp or INIT_HP or {}), "mut_p": dict(mut_p or MUT_P or {})}
    plan = RunPlan(
        TrainingArguments(
            max_steps=max_steps,
            evo_steps=evo_steps,
            eval_loop=eval_loop,
            eval_steps=eval_steps,
            target=target,
            fitness=fitness,
            checkpoint=checkpoint,
            eval_share=eval_share,
            history=history,
            opponents=opponents,
            max_updates=max_updates,
            max_seconds=max_seconds,
        ),
        selection,
        explorer,
        name=name if run_dir is None else run_dir.resolve().name,
        settings={name: value for name, value in given.items() if value},
        resume="" if run_dir is None else f"{env_setup.train_function}(…, resume={str(run_dir)!r})",
        restart="" if run_dir is None else _restart(env_setup, run_dir),
        log_every=log_every,
    )
    process_group = process_group_of(accelerator)
    choice = choose_layout(
        env_setup,
        population,
        plan,
        processes=processes,
        eval_setup=eval_setup,
        process_group=process_group,
        resume=resume,
    )
    processes, plan = choice.layout.processes, replace(plan, layout=choice.line)
    logs = _Logs(trackers, tensorboard, tensorboard_log_dir, wb, wandb_kwargs)
    described = None
    if population is not None:
        described = _described(
            env_setup,
            population,
            plan,
            logs,
            layout=choice.layout._asdict() if choice.rates else {"processes": processes},
            process_group=process_group,
            observers=len(callbacks) + len(reporters),
            has_eval_env=eval_setup is not None,
        )
        plan = replace(plan, settings={**described.settings, **plan.settings})
    reporters = [*reporters, ConsoleReporter(verbose=verbose, after_interrupt=AFTER_INTERRUPT)]
    if run_dir is not None:
        reporters = _with_run_folder(reporters, run_dir, plan, described)
    reporters += logs.reporters(run_dir or Path("runs") / name)
    if checkpoint is not None and run_dir is None and checkpoint_path is None:
        checkpoint_path = _checkpoint_name(name, algo, population)
    output_paths = OutputPaths(
        run_dir=run_dir,
        checkpoint_path=None if checkpoint_path is None else Path(checkpoint_path),
        overwrite_checkpoints=overwrite_checkpoints,
        elite_path=Path(elite_path or f"{name}-elite") if save_elite or elite_path is not None else None,
        overwrite=overwrite,
    )
    try:
        with torch_threads(choice.layout.threads):
            result = train_population(
                env_setup,
                population,
                plan,
                output_paths=output_paths,
                callbacks=CallbackList([*reporters, *callbacks]),
                eval_setup=eval_setup,
                process_group=process_group,
                processes=processes,
                resume=resume is not None,
            )
    except RunFinished as end:
        return end.population, list(end.population.fitness)
    return result.population, result.fitness


def _check_kinds(arguments: Mapping[str, Any]) -> None:
    """Raise ConfigurationError if a flag, a path or a mapping is of another kind, or a path is empty."""
    for names, kinds, allowed in (
        (FLAGS, (bool, np.bool_, int, NoneType), "True and False"),
        (PATHS, (str, os.PathLike, NoneType), "a path and None"),
        (MAPPINGS, (Mapping, NoneType), "a mapping and None"),
    ):
        for name in names:
            if not isinstance(arguments[name], kinds):
                raise ConfigurationError(f"{name}={arguments[name]!r:.100}; allowed are {allowed}")
    for name in PATHS:
        if arguments[name] == "":
            raise ConfigurationError(f"{name}='' is no path; allowed are a path ('.' for the current folder) and None")


def _search(
    selection_strategy: Selection | None,
    tournament: Selection | None,
    mutation: Explorer | None,
    evolution: Literal["auto"] | None,
) -> tuple[Selection | None, Explorer]:
    """Return the selection and the explorer that these arguments stand for."""
    arguments = {"selection_strategy": selection_strategy, "tournament": tournament, "mutation": mutation}
    for name, value in arguments.items():
        wanted = Explorer if name == "mutation" else Selection
        if value is not None and not isinstance(value, wanted):
            known = registered("explorer" if name == "mutation" else "selection")
            example = f", such as {known[value].__name__}()" if isinstance(value, str) and value in known else ""
            raise ConfigurationError(
                f"{name}={value!r:.200}; allowed are None and an instance of {wanted.__name__}{example}"
            )
    if selection_strategy is not None and tournament is not None:
        raise ConfigurationError("selection_strategy and tournament mean the same; pass one of them")
    if evolution is None:
        return selection_strategy or tournament, mutation or NO_MUTATION
    if evolution != AUTO:
        raise ConfigurationError(
            f"evolution={evolution!r:.100}; allowed are 'auto' and None, since selection_strategy and mutation have "
            "others, such as TruncationSelection() and FactorSteps(), which are PBT"
        )
    if not (selection_strategy is tournament is mutation is None):
        raise ConfigurationError("evolution='auto' chooses selection and mutation; pass either it or those")
    return AutoSelection(), AutoExplorer()


def _callbacks(name: str, given: Any) -> list[Any]:
    """Return the callbacks of an argument; ConfigurationError unless they are instances."""
    found = list(given) if isinstance(given, Iterable) else None
    if found is None or not all(isinstance(one, Callback) for one in found):
        raise ConfigurationError(f"{name}={given!r:.200}; allowed is a list of instances of Callback")
    return found


def _env_setup(env: gymnasium.vector.VectorEnv | EnvSetup, name: str = "env") -> EnvSetup:
    """Return the setup of an env, which may be one already; `name` is that of the argument."""
    return env if isinstance(env, EnvSetup) else SingleAgentEnvSetup(env, name)


def _checkpoint_name(name: str, algo: str | None, population: BasePopulation | None) -> str:
    """Return AgileRL's name for populations of a run on an env that is called `name`."""
    label = algo or ("" if population is None else population[0].algo)
    return f"{name}-EvoHPO-{label}-{datetime.now():%Y%m%d-%H%M%S}"


def _population(
    pop: BasePopulation | Iterable[EvolvableAlgorithm] | EvolvableAlgorithm | None, env_setup: EnvSetup
) -> BasePopulation | None:
    """Return the members as a population.

    Raises:
        ConfigurationError: they cannot act in the envs.
    """
    agents = [pop] if isinstance(pop, EvolvableAlgorithm) else pop
    if not isinstance(agents, Iterable | NoneType):
        raise ConfigurationError(f"pop={agents!r:.100}; allowed are a population, an agent, and a list of agents")
    population = agents if agents is None or isinstance(agents, BasePopulation) else env_setup.population(agents)
    if population is not None and not isinstance(population, env_setup.population):
        raise ConfigurationError(
            f"pop={type(population).__name__} of {population[0].algo} cannot act in {env_name_of(env_setup.vec_env)}; "
            f"allowed are {env_setup.population.__name__}"
        )
    return population


def _swap_channels(population: BasePopulation | None, env_setup: EnvSetup) -> None:
    """Let the members read the env's images, whose channels are last although theirs are first.

    Raises:
        ConfigurationError: a team was made for other images.
    """
    for agent in population or ():
        if isinstance(agent, RLAlgorithm):
            agent.set_image_layout(env_setup.vec_env.single_observation_space, swap_channels=True)
        elif not getattr(agent, "swap_channels", False):
            raise ConfigurationError(
                "swap_channels=True is for agents without a team; allowed is IPPO(…, swap_channels=True)"
            )


def _restart(env_setup: EnvSetup, run_dir: Path) -> str:
    """Return what continues a run that ended before its first checkpoint."""
    population = f"{env_setup.population.__name__}.load({str(run_dir / POPULATION)!r})"
    return (
        f"no checkpoint yet; {env_setup.train_function}(env, pop=POPULATION, …, resume={str(run_dir)!r}) begins again "
        f"with a population as at the start; a new run with pop={population} trains the saved members further"
    )


def _run_dir(
    run_dir: str | os.PathLike[str] | None, resume: str | os.PathLike[str] | None, *, overwrite: bool
) -> Path | None:
    """Return the folder of a run; ConfigurationError if `resume` contradicts `run_dir` or `overwrite`."""
    if run_dir is not None and resume is not None and Path(run_dir) != Path(resume):
        raise ConfigurationError(
            f"resume={str(resume)!r} and run_dir={str(run_dir)!r} are two folders; pass one of them"
        )
    if overwrite and resume is not None:
        raise ConfigurationError(f"overwrite=True would remove the run of resume={str(resume)!r}; pass one of them")
    folder = run_dir if resume is None else resume
    return None if folder is None else Path(folder)


def _described(
    env_setup: EnvSetup,
    population: BasePopulation,
    plan: RunPlan,
    logs: _Logs,
    *,
    layout: Mapping[str, int],
    process_group: ProcessGroup | None,
    observers: int,
    has_eval_env: bool,
) -> RunDescription:
    """Describe the run of a script with so many `observers` (callbacks and reporters), which no configuration holds.

    `layout` has the processes, and the threads if they were measured: another machine may have fewer cores than torch
    has threads here.
    """
    several = layout["processes"] != 1 or (process_group is not None and process_group.size > 1)
    device = population.device.type if several else str(population.device)
    run = {**layout, "device": device, "log_every": plan.log_every, **logs.settings()}
    left_out = [f"callbacks: {observers} of the script's own"] if observers else []
    left_out += ["environment: an eval_env of the script's own"] if has_eval_env else []
    left_out += ["trackers: the name of the W&B run"] if logs.wb and "name" in (logs.wandb_kwargs or {}) else []
    return describe_run(env_setup, population, plan, run=run, left_out=left_out)


def _with_run_folder(
    reporters: Sequence[Reporter], run_dir: Path, plan: RunPlan, described: RunDescription | None
) -> list[Reporter]:
    """Return the reporters with those that write the run folder, of which the configuration's are the first of all."""
    first = [] if described is None else [_config_reporter(run_dir, described)]
    return [
        *first,
        TrainingReporter(run_dir, plan.training_args),
        *reporters,
        *run_folder_reporters(run_dir, updates=plan.log_every == "update"),
    ]


def _config_reporter(run_dir: Path, described: RunDescription) -> ConfigReporter:
    """Return a reporter that writes the run of a script as a configuration, unless one exists."""
    notes = [f"{NOT_IN_FILE}{note}" for note in described.notes]
    again = f"train {CONFIG} repeats this run"
    return ConfigReporter(run_dir, to_yaml(described.settings), again=again, notes=notes, replaces=False)
