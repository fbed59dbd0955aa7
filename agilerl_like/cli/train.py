"""`agilerl-like train` and `agilerl-like resume`: evolve a population as a configuration says.

What follows a YAML file overrides it in the file's own words, so both are judged together, by the same code: `config`
reads them, because tyro has no syntax for a new entry of a mapping. tyro writes the help pages.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from tyro.conf import (
    AvoidSubcommands,
    FlagConversionOff,
    FlagCreatePairsOff,
    Positional,
    PositionalMetavarFromFieldName,
)

from agilerl_like.cli.output import PROGRAM, write_error, write_line
from agilerl_like.config import Config, build, check_changes, load
from agilerl_like.errors import CheckpointError, ConfigurationError, EnvironmentFault, ExitCode, NoHealthyMember
from agilerl_like.reporting.console import ConsoleReporter
from agilerl_like.reporting.files import METRICS, CsvReporter, LineageReporter, replace_text
from agilerl_like.reporting.plot import plot_run
from agilerl_like.reporting.records import RunRecord
from agilerl_like.reporting.reporter import Reporter, Reporters
from agilerl_like.reporting.tensorboard import TensorBoardReporter
from agilerl_like.reporting.wandb import WandbReporter
from agilerl_like.seeding import fresh_seed
from agilerl_like.training.archive import Finished
from agilerl_like.training.conduct import evolve_on_policy, joined
from agilerl_like.training.distributed import Alone, World, is_launched
from agilerl_like.training.lock import RunLock
from agilerl_like.training.run import Outcome
from agilerl_like.training.schedule import Places

CONFIG = "config.yaml"
BEYOND = {"max_steps": "a larger --training.max-steps", "target": "a higher --training.target, or none"}
"""What lets a run go on that has reached a limit."""


@dataclass(frozen=True)
class Train:
    """Train a population as a YAML file and the options behind it say.

    Values are YAML: 1e5, 100_000, [64, 64], none. What has no entry yet is given alike, though it is not listed below:
    --hyperparameters.lr.min 1e-5 --hyperparameters.lr.max 1e-2, --environment.training-wrappers [NormalizeReward],
    --environment.kwargs.gravity -9, --mutation.rl-hp 0.5.
    """

    file: Positional[Path]
    """The run's configuration, such as configs/ppo/cartpole.yaml."""
    settings: Annotated[FlagConversionOff[Config], tyro.conf.arg(name="")]
    print_config: FlagCreatePairsOff[bool] = False
    """Print the whole configuration and do nothing."""


@dataclass(frozen=True)
class Resume:
    """Continue a run from its newest checkpoint.

    It ends as a run that was never interrupted. Settings may be given as to train: of selection, mutation, training
    (but for how fitness is measured: fitness, eval-steps), of environment how it is stepped (backend, num-workers,
    step-timeout), and of run how it is computed and reported. The members' settings and their environment stay as they
    are. A larger --training.max-steps, or a higher --training.target, continues a run that has ended.
    """

    run: Positional[Path]
    """Folder of the run."""
    settings: Annotated[FlagConversionOff[Config], tyro.conf.arg(name="")]


def train(arguments: Sequence[str]) -> int:
    """Do what `Train` describes; `config` reads its settings, for tyro has no words for a new hyperparameter."""
    rest = [argument for argument in arguments if argument not in ("-h", "--help", "--print-config")]
    file, overrides = _first(rest)
    if len(rest) < len(arguments) and "--print-config" not in arguments:
        return _help("train", Train, file, overrides)
    if not file:
        raise ConfigurationError(f"file is missing; allowed is {PROGRAM} train FILE.yaml [--section.name VALUE ...]")
    config = load(file, overrides)
    if "--print-config" in arguments:
        sys.stdout.write(config.seeded().to_yaml())
        return ExitCode.DONE
    with _launched(config) as world:
        config = config.seeded(world.agree(fresh_seed()))
        if world.is_main:
            _check_name(config)
        return _conduct(config, world, lambda: _make_run_dir(config), resume=False)


def resume(arguments: Sequence[str]) -> int:
    """Do what `Resume` describes."""
    rest = [argument for argument in arguments if argument not in ("-h", "--help")]
    folder, overrides = _first(rest)
    file = str(Path(folder) / CONFIG) if folder else ""
    if len(rest) < len(arguments):
        return _help("resume", Resume, file, overrides)
    if not folder:
        raise ConfigurationError(f"run is missing; allowed is {PROGRAM} resume FOLDER [--section.name VALUE ...]")
    if not Path(file).is_file():
        raise ConfigurationError(f"run={folder!r} has no {CONFIG}; allowed is the folder of a run of {PROGRAM} train")
    config = load(file, overrides)
    check_changes(load(file), config)
    with _launched(config) as world:
        return _conduct(config, world, lambda: Path(folder), resume=True)


def _first(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """What stands before the options, and the options."""
    named = bool(arguments) and not arguments[0].startswith("--")
    return (arguments[0], arguments[1:]) if named else ("", arguments)


def _help(command: str, kind: type[Train] | type[Resume], file: str, overrides: Sequence[str]) -> int:
    default: dict[str, Any] = {"default": kind(Path(file), load(file, overrides))} if file else {}
    markers = (PositionalMetavarFromFieldName, AvoidSubcommands)
    tyro.cli(kind, prog=f"{PROGRAM} {command}", args=["--help"], config=markers, **default)
    return ExitCode.DONE


def _launched(config: Config) -> contextlib.AbstractContextManager[World]:
    """The processes that somebody started together with this one; mostly there are none."""
    torch.set_num_threads(config.run.threads)
    cpu = config.run.torch_device.type == "cpu" or not torch.cuda.is_available()
    return joined(cpu=cpu) if is_launched() else contextlib.nullcontext(Alone())


def _conduct(config: Config, world: World, find_folder: Callable[[], Path], *, resume: bool) -> int:
    """Train, from the beginning or from the newest checkpoint; only the main process has a folder."""
    setup = build(config, world.device(config.run.torch_device))
    with contextlib.closing(setup.env):
        run_dir = find_folder() if world.is_main else None
        command = world.agree(f"{PROGRAM} resume {shlex.quote(str(run_dir))}")  # who says it may be another one
        try:
            outcome = evolve_on_policy(
                setup.stage,
                setup.population,
                setup.plan(name="" if run_dir is None else run_dir.name, resume=command),
                places=Places(run_dir=run_dir),
                reporters=Reporters([] if run_dir is None else _sinks(config, run_dir)),
                world=world,
                processes=config.run.processes,
                resume=resume,
            )
        except Finished as end:
            write_line(f"{end}; to go on it needs {' and '.join(map(BEYOND.__getitem__, end.limits))}")
            return ExitCode.DONE
        except (EnvironmentFault, NoHealthyMember) as error:
            return write_error(type(error)(f"{error}; to go on: {command}"), ExitCode.FAULT)
    if run_dir is not None and config.run.plot and importlib.util.find_spec("matplotlib") is not None:
        _draw(run_dir)
    return _exit_code(outcome)


class _ConfigWriter(Reporter):
    """Writes `config.yaml` when a run begins: not before, for until then the folder may be another run's."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        self.path = run_dir / CONFIG
        # a name is of one run alone, so the same run again needs another one
        again = f"{PROGRAM} train {CONFIG}{' --run.name ANOTHER' if config.run.name else ''}"
        self._text = f"# {again} does this run again\n{config.to_yaml()}"

    def start(self, run: RunRecord) -> None:
        if self.path.is_file() and self.path.read_text(encoding="utf-8") == self._text:
            return
        try:
            replace_text(self.path, self._text)
        except OSError as error:  # a run without it could not be resumed
            raise CheckpointError(f"path={str(self.path)!r} could not be written ({error})") from error


def _sinks(config: Config, run_dir: Path) -> Iterable[Reporter]:
    yield _ConfigWriter(config, run_dir)
    yield ConsoleReporter()
    yield CsvReporter(run_dir)
    yield LineageReporter(run_dir)
    if config.run.tensorboard:
        yield TensorBoardReporter(run_dir / "tensorboard")
    if config.run.wandb:
        yield WandbReporter()


def _check_name(config: Config) -> None:
    metrics = config.run.dir / config.run.name / METRICS
    if config.run.name and metrics.exists():
        with RunLock(metrics.parent):  # who is at it now is what one must know first
            raise ConfigurationError(
                f"run.name={config.run.name!r} is taken: {metrics} exists; allowed is another name, or none for a new "
                f"one; to go on with that run: {PROGRAM} resume {shlex.quote(str(metrics.parent))}"
            )


def _make_run_dir(config: Config) -> Path:
    """Make the folder that was named, or a new one that is nobody else's."""
    run = config.run
    if run.name:
        (run.dir / run.name).mkdir(parents=True, exist_ok=True)
        return run.dir / run.name
    run.dir.mkdir(parents=True, exist_ok=True)
    env = re.sub(r"[^\w.]+", "-", config.environment.id)
    stem = f"{env}-{config.algorithm.name}-{datetime.now():%Y%m%d-%H%M%S}"
    folder, number = run.dir / stem, 1
    while True:
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
        number += 1
        folder = run.dir / f"{stem}-{number}"


def _draw(run_dir: Path) -> None:
    try:
        write_line(f"drawn in {plot_run(run_dir)}")
    except (ConfigurationError, OSError) as error:  # what was trained is saved, whatever becomes of its picture
        write_error(error, ExitCode.DONE)


def _exit_code(outcome: Outcome) -> int:
    if outcome.summary.reason == "interrupted":
        return 128 + outcome.signal
    return ExitCode.DISK if outcome.unsaved else ExitCode.DONE
