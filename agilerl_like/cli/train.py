"""`agilerl-like train` and `agilerl-like resume`: train a population from a configuration.

Options override the settings of the file under the same names. `config` parses and validates both together, because
tyro has no syntax for a new entry of a mapping; tyro prints the help pages.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, cast, get_args, get_origin

import numpy as np
import torch
import tyro
from tyro.conf import (
    AvoidSubcommands,
    EnumChoicesFromValues,
    FlagConversionOff,
    FlagCreatePairsOff,
    Positional,
    PositionalMetavarFromFieldName,
)
from tyro.constructors import PrimitiveConstructorSpec, PrimitiveTypeInfo

from agilerl_like.cli.found import write_found
from agilerl_like.cli.help_pages import UnwrappedHelpRegistry
from agilerl_like.cli.output import PROGRAM, write_error, write_line, write_note
from agilerl_like.cli.report import write_findings
from agilerl_like.config import (
    TRUST,
    Config,
    build,
    check_resume_changes,
    check_trust,
    load,
    trust_notes,
    trust_option,
)
from agilerl_like.config.bundled import find_config
from agilerl_like.config.notes import config_notes
from agilerl_like.config.resume_rules import fixed_fields
from agilerl_like.distributed.process_group import ProcessGroup, SingleProcess, is_launched
from agilerl_like.envs.env_errors import close_quietly
from agilerl_like.errors import CheckpointError, ConfigurationError, EnvStepError, ExitCode, PopulationDivergedError
from agilerl_like.registry import registered
from agilerl_like.reporting import formatting
from agilerl_like.reporting.callback import Callback, CallbackError, CallbackList, Reporter
from agilerl_like.reporting.console import ConsoleReporter
from agilerl_like.reporting.estimates import best_so_far
from agilerl_like.reporting.importance import hyperparameter_effects
from agilerl_like.reporting.plot import plot_run
from agilerl_like.reporting.records import RunRecord
from agilerl_like.reporting.report import write_report
from agilerl_like.reporting.run_history import CONFIG, RunHistory, read_history
from agilerl_like.reporting.trackers import TRACKERS, TensorBoardReporter, WandbReporter, tracker_reporter
from agilerl_like.saved_runs import Run
from agilerl_like.seeding import fresh_seed
from agilerl_like.storage.checkpoint_folder import has_marker
from agilerl_like.storage.durable_io import make_folder, sync_folder
from agilerl_like.storage.run_names import BEST
from agilerl_like.training.checkpoint_manager import Progress, RunFinished, load_identity, newest_checkpoint
from agilerl_like.training.loop import RunResult
from agilerl_like.training.process_choice import AUTO, choose_layout, torch_threads
from agilerl_like.training.run_folder import (
    FOUND,
    ConfigReporter,
    RunFolderExistsError,
    check_links,
    check_unused,
    is_search,
    not_in_file,
    run_folder_reporters,
)
from agilerl_like.training.session import distributed_session, train_population
from agilerl_like.training.training_arguments import OutputPaths

QUIET, SEEDS, RESUME_EXISTING = "--quiet", "--seeds", "--resume-existing"
BEYOND = {
    "max_steps": "a larger --training.max-steps",
    "target": "a higher --training.target, or none",
    "max_updates": "a larger --training.max-updates, or none",
    "max_seconds": "a larger --training.max-seconds, or none",
}
"""How to continue a run that has reached a limit."""


@dataclass(frozen=True)
class Train:
    """Train a population from a configuration, with options that override its settings.

    The configuration is a YAML file, a name that `agilerl-like configs` lists (cartpole, ppo/cartpole), or the id of an
    environment (CartPole-v1, own:Env, mpe2.simple_spread_v3). Settings of multi-agent runs (IPPO) are listed by
    `agilerl-like train ippo/simple_spread --help`.

    Values are YAML: 1e5, 100_000, [64, 64], none. Entries of mappings and lists are not listed below but allowed:
    --hyperparameters.lr.min 1e-5 --hyperparameters.lr.max 1e-2, --environment.wrappers [FlattenObservation],
    --environment.training-wrappers [NormalizeReward], --environment.kwargs.gravity -9, --mutation.rl-hp 0.5,
    --algorithm.schedules.lr linear (or cosine, or points; also of ent_coef, clip_coef and vf_coef). Hyphens in
    options are underscores; a name that has a hyphen is given in a mapping: --algorithm.groups '{agent-0: team}'.
    """

    config: Positional[str]
    """A YAML file, the name of a bundled configuration, or an environment's id."""
    settings: Annotated[FlagConversionOff[Config], tyro.conf.arg(name="")]
    seeds: int = 1
    """Train this many runs one after the other, with the seeds from --seed on, and report them side by side."""
    resume_existing: FlagCreatePairsOff[bool] = False
    """Resume the run of --run.name if there is one, else start it: the same command starts and continues a job that may
    be interrupted. With --seeds, each of the runs."""
    print_config: FlagCreatePairsOff[bool] = False
    """Print the whole configuration and exit."""
    quiet: FlagCreatePairsOff[bool] = False
    """Print warnings and errors only."""


@dataclass(frozen=True)
class Resume:
    """Continue a run from its newest checkpoint.

    The result is the same as without the interruption; with a replay it is if algorithm.save_memory is true. Options
    are those of train: evolution, selection, mutation, training (except fitness, eval-steps and opponents), backend,
    num-workers and step-timeout of environment, and those of run except name, dir and overwrite. Settings of the
    members and of the environment itself are fixed. A larger --training.max-steps, or a higher --training.target,
    continues a run that has ended.
    """

    run: Positional[Path]
    """Folder of the run."""
    settings: Annotated[FlagConversionOff[Config], tyro.conf.arg(name="")]
    trust: FlagCreatePairsOff[bool] = False
    """Import what environment names (id, instances, wrappers, training_wrappers), and algorithm.reward_transform,
    although they belong to no known package: the folder is your own."""
    quiet: FlagCreatePairsOff[bool] = False
    """Print warnings and errors only."""


def train(arguments: Sequence[str]) -> int:
    """Run the command that `Train` describes."""
    arguments, quiet = _without_flag(arguments, QUIET)
    arguments, resumes = _without_flag(arguments, RESUME_EXISTING)
    arguments, seeds = _without_seeds(arguments)
    rest = [argument for argument in arguments if argument not in ("-h", "--help", "--print-config")]
    file, overrides = _split_positional(rest)
    if len(rest) < len(arguments) and "--print-config" not in arguments:
        return _help(
            "train",
            Train,
            (lambda: Train(file, find_config(file, overrides).override(overrides).validate())) if file else None,
        )
    if not file:
        place = f" before {overrides[0]}" if overrides else ""
        raise ConfigurationError(
            f"config is missing{place}; allowed are a YAML file, a name that `{PROGRAM} configs` lists, and an "
            f"environment's id, as in {PROGRAM} train CartPole-v1 [--section.name VALUE ...]"
        )
    config = find_config(file, overrides).override(overrides).validate()
    if "--print-config" in arguments:
        sys.stdout.write(config.with_seed().to_yaml())
        return ExitCode.DONE
    if resumes:
        _check_found_again(config, seeds)
    if seeds == 1:
        return train_config(config, quiet=quiet, resumes=resumes)
    return _train_seeds(config, seeds, rest, quiet=quiet, resumes=resumes)


def _check_found_again(config: Config, seeds: int) -> None:
    """Raise ConfigurationError unless the same command finds the same folders when it is executed again."""
    if not config.run.name:
        raise ConfigurationError(
            f"run.name is missing: {RESUME_EXISTING} finds a run by its name; allowed is --run.name NAME"
        )
    if config.run.overwrite:
        raise ConfigurationError(
            f"run.overwrite=True removes the run that {RESUME_EXISTING} resumes; allowed is one of the two"
        )
    if seeds > 1 and config.seed is None:
        raise ConfigurationError(
            f"seed is missing: {RESUME_EXISTING} with {SEEDS} finds the runs by their seeds; allowed is --seed NUMBER, "
            "the first of them"
        )


def _train_seeds(config: Config, seeds: int, arguments: Sequence[str], *, quiet: bool, resumes: bool) -> int:
    """Train a run with each of `seeds` seeds, and report all side by side; return the first exit code that is not 0.

    `arguments` are the configuration and the options of the command.
    """
    if is_launched():
        raise ConfigurationError(f"seeds={seeds} trains runs one after the other; under a launcher only 1 is allowed")
    given, config = config, config.with_seed()
    name = config.run.name or dated_name(f"{config.environment.id}-{config.algorithm.name}")
    configs = [config.of_seed(cast(int, config.seed) + number, name) for number in range(seeds)]
    for its in () if resumes else configs:
        _check_folder(its)
    for number, its in enumerate(configs):
        if code := train_config(its, quiet=quiet, resumes=resumes):
            chosen = [] if given.run.name else ["--run.name", name]
            chosen += [] if given.seed is not None else ["--seed", str(config.seed)]
            chosen += ["--run.overwrite", "false"] if given.run.overwrite else []
            later = [one.run.dir / one.run.name for one in configs[number + 1 :]] if given.run.overwrite else []
            if earlier := [str(folder) for folder in later if (folder / CONFIG).is_file()]:
                found = shlex.join(earlier)
                write_note(
                    f"the command below resumes each run that it finds; delete these earlier ones first: {found}"
                )
            again = [PROGRAM, "train", *arguments, SEEDS, str(seeds), *chosen, RESUME_EXISTING]
            missing = ", ".join(str(one.seed) for one in configs[number:])
            write_note(f"seeds that have not ended: {missing}; to continue with them: {shlex.join(again)}")
            return code
    runs = [read_history(its.run.dir / its.run.name) for its in configs]
    if config.run.report:
        _write_report_of_seeds(runs, config.run.dir / f"{name}-{seeds}-seeds.html", quiet=quiet)
    if not quiet:
        best = np.array([best_so_far(run)[-1] for run in runs])
        deviation = formatting.fitness(best.std(ddof=1))
        spread = f"mean {formatting.fitness(best.mean())} ± {deviation} (standard deviation)"
        write_line(f"best fitness of {seeds} seeds: {', '.join(map(formatting.fitness, best))}; {spread}")
        write_line(f"fitness chose these agents; `{PROGRAM} eval RUN --seed 1` has returns of other episodes")
    return ExitCode.DONE


def _write_report_of_seeds(runs: Sequence[RunHistory], path: Path, *, quiet: bool) -> None:
    try:
        target = write_report(runs, path)
    except (ConfigurationError, CheckpointError, OSError) as error:  # the training is saved in any case
        write_error(error, ExitCode.DONE)
        return
    if not quiet:
        write_line(f"\nreport: {target}")


def train_config(
    config: Config, *, callbacks: Iterable[Callback] = (), quiet: bool = False, resumes: bool = False
) -> int:
    """Train from a configuration in a new folder, with further callbacks; return the exit code.

    With `resumes`, the run that its folder holds is resumed, if there is one. A run that a callback stopped has ended.

    Raises:
        ConfigurationError: also if the environment failed before the run began: 75 would have job scripts repeat it.
    """
    folder = config.run.dir / config.run.name
    with _joined_process_group(config) as process_group:
        stored = process_group.broadcast(_stored_settings(config) if resumes and process_group.is_main else None)
        if stored is not None:
            config = config.continuing(type(config).model_validate(stored))
            if outcome := process_group.broadcast(_stop_of(folder) if process_group.is_main else ""):
                if process_group.is_main and not quiet:
                    again = f"{PROGRAM} resume {shlex.quote(str(folder))}{trust_option(config)}"
                    write_line(f"{folder} has ended: {outcome}; to continue: {again}")
                return ExitCode.DONE
            return _run(config, process_group, lambda: folder, resume=True, callbacks=callbacks, quiet=quiet)
        config = config.with_seed(process_group.broadcast(fresh_seed()))
        if process_group.is_main:
            _check_folder(config)
            for note in config_notes(config):
                write_note(note)
        try:
            return _run(
                config, process_group, lambda: _create_run_dir(config), resume=False, callbacks=callbacks, quiet=quiet
            )
        except EnvStepError as error:
            kwargs = dict(config.environment.kwargs)
            raise ConfigurationError(f"{error}; nothing was trained, with environment.kwargs={kwargs}") from error


def _stored_settings(config: Config) -> dict[str, Any] | None:
    """Return the settings of the run in a configuration's folder; None if no run has begun there.

    Raises:
        ConfigurationError: the configuration differs in settings that a resumed run keeps.
    """
    file = config.run.dir / config.run.name / CONFIG
    if not file.is_file():
        return None
    stored = load(file)
    check_resume_changes(stored, config.continuing(stored))
    return stored.to_json()


def _stop_of(run_dir: Path) -> str:
    """Return the outcome of a run that a callback stopped and that has saved its last generation; else ""."""
    checkpoint = newest_checkpoint(OutputPaths(run_dir=run_dir))
    progress = None if checkpoint is None else Progress.from_json(checkpoint.documents["run"]["progress"])
    return "" if progress is None or not progress.is_stopped else progress.outcome


def resume(arguments: Sequence[str]) -> int:
    """Run the command that `Resume` describes."""
    arguments, quiet = _without_flag(arguments, QUIET)
    rest = [argument for argument in arguments if argument not in ("-h", "--help", TRUST)]
    folder, overrides = _split_positional(rest)
    file = str(Path(folder) / CONFIG) if folder else ""
    if folder:
        check_links(Path(folder))
    if {"-h", "--help"} & {*arguments}:
        return _help("resume", Resume, (lambda: Resume(Path(folder), load(file, overrides))) if folder else None)
    if not folder:
        place = f" before {overrides[0]}" if overrides else ""
        raise ConfigurationError(
            f"run is missing{place}; allowed is {PROGRAM} resume FOLDER [--section.name VALUE ...]"
        )
    if not Path(file).is_file():
        raise ConfigurationError(f"run={folder!r} has no {CONFIG}; allowed is the folder of a run of {PROGRAM} train")
    config = load(file, overrides)
    check_resume_changes(load(file), config)
    if TRUST not in arguments:
        check_trust(config, Path(file), overrides)
    with _joined_process_group(config) as process_group:
        if process_group.is_main and (missing := not_in_file(Path(file))):
            write_note(
                f"warning: {file} could not hold: {'; '.join(missing)}. The run continues without it; a script "
                f"continues with all of it: train_on_policy(…, resume={folder!r})"
            )
        searches = process_group.is_main and is_search(Path(folder))  # before options change config.yaml
        code = _run(config, process_group, lambda: Path(folder), resume=True, quiet=quiet)
    if searches and (Path(folder) / BEST).exists():
        write_found(Run.open(folder), config, Path(folder) / FOUND, quiet=quiet)
    return code


def _without_flag(arguments: Sequence[str], flag: str) -> tuple[list[str], bool]:
    """Return the arguments without a flag, and whether it is among them."""
    return [argument for argument in arguments if argument != flag], flag in arguments


def _without_seeds(arguments: Sequence[str]) -> tuple[list[str], int]:
    """Return the arguments without `SEEDS` and its value, and the value, 1 if it is not among them."""
    rest, given = [], "1"
    parts = iter(arguments)
    for argument in parts:
        option, equals, value = argument.partition("=")
        if option == SEEDS:
            given = value if equals else next(parts, "")
        else:
            rest.append(argument)
    if not given.isdecimal() or int(given) < 1:
        raise ConfigurationError(f"seeds={given!r} must be an integer of at least 1")
    return rest, int(given)


def _split_positional(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Split the arguments into the positional one and the options."""
    named = bool(arguments) and not arguments[0].startswith("--")
    return (arguments[0], arguments[1:]) if named else ("", arguments)


def _help(command: str, kind: type[Train] | type[Resume], settings: Callable[[], Train | Resume] | None) -> int:
    """Print a command's help, with the given settings as defaults; that of resume without those that are fixed."""
    given = None if settings is None else settings()
    default: dict[str, Any] = {} if given is None else {"default": given}
    hidden = fixed_fields(Config if given is None else type(given.settings)) if kind is Resume else {}
    markers = (PositionalMetavarFromFieldName, AvoidSubcommands, EnumChoicesFromValues)
    types = UnwrappedHelpRegistry(hidden)
    types.primitive_rule(_text_or_function)
    tyro.cli(kind, prog=f"{PROGRAM} {command}", args=["--help"], config=markers, registry=types, **default)
    return ExitCode.DONE


def _text_or_function(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Return how help pages show a setting that may be a function in Python: else tyro calls it fixed."""
    if not any(get_origin(one) is Callable for one in get_args(info.type)):
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="YAML",
        instance_from_str=lambda texts: texts[0],
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(value)],
    )


def _joined_process_group(config: Config) -> contextlib.AbstractContextManager[ProcessGroup]:
    """Join the processes that a launcher started together with this one, if there are any."""
    torch.set_num_threads(1 if config.run.threads == AUTO else config.run.threads)
    cpu = config.run.torch_device.type == "cpu" or not torch.cuda.is_available()
    return distributed_session(cpu=cpu) if is_launched() else contextlib.nullcontext(SingleProcess())


def _run(
    config: Config,
    process_group: ProcessGroup,
    find_folder: Callable[[], Path],
    *,
    resume: bool,
    callbacks: Iterable[Callback] = (),
    quiet: bool = False,
) -> int:
    """Train from the start or from the newest checkpoint; only the main process has a folder.

    An environment may change the working directory, which is the given one again at the end.

    Raises:
        EnvStepError: the environment failed before the run began.
    """
    here = Path.cwd()
    evolves_noise = _evolves_noise(config, find_folder()) if resume and process_group.is_main else None
    evolves_noise = process_group.broadcast(evolves_noise)
    with contextlib.ExitStack() as stack:
        stack.callback(os.chdir, here)
        setup = build(config, process_group.device(config.run.torch_device), evolves_noise=evolves_noise)
        stack.callback(close_quietly, setup.env)
        choice = choose_layout(
            setup.env_setup,
            setup.population,
            setup.plan(),
            processes=config.run.processes,
            threads=config.run.threads,
            process_group=process_group,
        )
        processes, threads = choice.layout
        stack.enter_context(torch_threads(threads))
        if choice.rates:  # another measurement may choose otherwise: to repeat the run must repeat this one
            config = config.with_layout(processes, threads)
            setup = setup._replace(settings=config.to_json())
        list(_reporters(config, config.run.dir))  # reports a missing package before a folder is made
        own = [registered("callback").build("run.callbacks", given) for given in config.run.callbacks]
        for given, made in zip(config.run.callbacks, own, strict=True):
            if not isinstance(made, Callback):
                raise ConfigurationError(
                    f"run.callbacks={given!r} is {made!r:.100}; allowed are subclasses of Callback, and functions that "
                    "return an instance of one"
                )
        own += callbacks
        with contextlib.chdir(here):
            shown = find_folder() if process_group.is_main else None
        command = f"{PROGRAM} resume {shlex.quote(str(shown))}{trust_option(config)}"
        command = process_group.broadcast(command)  # ranks may name the folder differently
        run_dir = None if shown is None else here / shown
        stack.callback(remove_if_empty, run_dir)
        plan = setup.plan(name="" if run_dir is None else run_dir.name, resume=command)
        beginning = Beginning()
        try:
            result = train_population(
                setup.env_setup,
                setup.population,
                replace(plan, layout=choice.line, log_every=config.run.log_every),
                output_paths=OutputPaths(run_dir=run_dir, overwrite=config.run.overwrite),
                callbacks=CallbackList(
                    [] if run_dir is None else [beginning, *_reporters(config, run_dir, quiet=quiet), *own]
                ),
                process_group=process_group,
                processes=processes,
                resume=resume,
            )
        except RunFinished as end:
            if process_group.is_main and not quiet:
                write_line(f"{end}; to continue it needs {' and '.join(map(BEYOND.__getitem__, end.limits))}")
            return ExitCode.DONE
        except (EnvStepError, PopulationDivergedError, CallbackError) as error:
            if isinstance(error, EnvStepError) and run_dir is not None and not (resume or beginning.is_reached):
                raise
            return write_error(type(error)(f"{error}; {_continuation(run_dir, command)}"), ExitCode.TEMPFAIL)
    if run_dir is not None:
        _after_run(config, result, run_dir, command, quiet=quiet)
    return _exit_code(result)


class Beginning(Reporter):
    """Whether a run has begun. Files in its folder do not show it, which may be those of a run that it replaces."""

    is_reached = False

    def start(self, run: RunRecord) -> None:
        self.is_reached = True


def _after_run(config: Config, result: RunResult, run_dir: Path, command: str, *, quiet: bool) -> None:
    """Write the plot, print what the run found, and report saves that failed; `command` resumes the run."""
    if config.run.plot and importlib.util.find_spec("matplotlib") is not None:
        _plot(run_dir, quiet=quiet)
    if config.run.report and not quiet:
        _write_findings(run_dir)
    if result.unsaved:
        saves = formatting.number_of(result.unsaved, "save")
        write_note(f"{result.summary.reason}: the last {saves} could not be written; {_continuation(run_dir, command)}")


def _continuation(run_dir: Path | None, command: str) -> str:
    """Return the command that continues a run, and whether it resumes it or starts it again."""
    has_checkpoint = run_dir is None or has_marker(run_dir)  # the main process alone has the folder
    return f"{'to resume' if has_checkpoint else 'there is no checkpoint yet; to start it again'}: {command}"


def _evolves_noise(config: Config, run_dir: Path) -> bool | None:
    """Whether the noise of actions evolves in a run that is resumed, as it began; None if it has no checkpoint.

    Its members have their ranges from the checkpoint, whatever `evolution` is now.
    """
    checkpoint = newest_checkpoint(OutputPaths(run_dir=run_dir))
    if checkpoint is None:
        return None
    ranges = load_identity(checkpoint).get("hyperparameters")
    return isinstance(ranges, dict) and config.evolves_noise(ranges)


def _reporters(config: Config, run_dir: Path, *, quiet: bool = False) -> Iterable[Reporter]:
    # a name belongs to one run, so repeating the run needs another one
    again = f"train {CONFIG}{' --run.name ANOTHER' if config.run.name else ''} repeats this run"
    notes = trust_notes(config)
    yield ConfigReporter(run_dir, config.without_overwrite().to_yaml(), again=again, notes=notes)
    yield ConsoleReporter(verbose=not quiet)
    yield from run_folder_reporters(run_dir, updates=config.run.log_every == "update", report=config.run.report)
    trackers = {TRACKERS.parse("tracker", tracker)[0] for tracker in config.run.trackers}  # one reporter for each
    if config.run.tensorboard and "tensorboard" not in trackers:
        yield TensorBoardReporter(run_dir / "tensorboard")
    if config.run.wandb and "wandb" not in trackers:
        yield WandbReporter()
    yield from (tracker_reporter(tracker, run_dir) for tracker in config.run.trackers)


def _check_folder(config: Config) -> None:
    """Raise ConfigurationError if the run's folder belongs to another run, before anything is created."""
    run, folder = config.run, config.run.dir / config.run.name
    if not run.name:
        return
    try:
        check_unused(folder, overwrite=run.overwrite)
    except RunFolderExistsError as error:
        raise ConfigurationError(
            f"run.name={run.name!r} is taken: {folder} holds an earlier run ({', '.join(error.existing)}); allowed is "
            "another name, none for a new folder, or --run.overwrite true to remove the files of that run; "
            f"to resume that run: {PROGRAM} resume {shlex.quote(str(folder))}{trust_option(config)}"
        ) from None


def _create_run_dir(config: Config) -> Path:
    """Return the named folder, or create a new one."""
    run = config.run
    if run.name:
        return run.dir / run.name
    return new_folder(run.dir, f"{config.environment.id}-{config.algorithm.name}")


def new_folder(parent: Path, name: str) -> Path:
    """Make a folder whose name has the time, and a number if there is one of that name."""
    make_folder(parent)
    stem = dated_name(name)
    folder, number = parent / stem, 1
    while True:
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            sync_folder(parent)
            return folder
        number += 1
        folder = parent / f"{stem}-{number}"


def dated_name(name: str) -> str:
    """Return a name of a folder or file with the time, without characters that file systems refuse."""
    name = re.sub(r"[^\w.]+", "-", name)
    return f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def remove_if_empty(run_dir: Path | None) -> None:
    """Remove the folder of a run that failed before it wrote a file."""
    if run_dir is not None:
        with contextlib.suppress(OSError):  # it is usually not empty
            run_dir.rmdir()


def _plot(run_dir: Path, *, quiet: bool) -> None:
    try:
        path = plot_run(run_dir)
    except Exception as error:  # of matplotlib, too; the training is saved in any case
        write_error(error, ExitCode.DONE)
        return
    if not quiet:
        write_line(f"plot: {path}")


def _write_findings(run_dir: Path) -> None:
    """Print what the report has of hyperparameters and mutations, if the run was long enough to show anything."""
    with contextlib.suppress(ConfigurationError, CheckpointError, OSError):
        history = read_history(run_dir)
        if not hyperparameter_effects(history).reason:
            write_findings(history)


def _exit_code(result: RunResult) -> int:
    if result.signal:
        return 128 + result.signal
    return ExitCode.IOERR if result.unsaved else ExitCode.DONE
