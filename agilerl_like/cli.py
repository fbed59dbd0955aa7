"""The command `agilerl-like`: train, resume, eval, probe, plot.

What follows a YAML file overrides it in the file's own words, so both are judged together, by the same code. tyro reads
the other commands and writes every help page.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import select
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import torch
import tyro
from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from tyro.conf import (
    AvoidSubcommands,
    FlagConversionOff,
    FlagCreatePairsOff,
    Positional,
    PositionalMetavarFromFieldName,
)

from agilerl_like import storage
from agilerl_like.algorithms.individual import Individual
from agilerl_like.algorithms.ippo import IPPO
from agilerl_like.config import Config, Draft, build, check_changes, load
from agilerl_like.envs.probes import PROBES, Probe
from agilerl_like.envs.team_probes import TEAM_PROBES, TeamProbe
from agilerl_like.errors import (
    CheckpointError,
    ConfigurationError,
    EnvironmentFault,
    ExitCode,
    NoHealthyMember,
    unknown_name,
)
from agilerl_like.reporting.console import ConsoleReporter
from agilerl_like.reporting.files import METRICS, CsvReporter, LineageReporter, replace_text
from agilerl_like.reporting.plot import plot_run
from agilerl_like.reporting.records import RunRecord
from agilerl_like.reporting.reporter import Reporter, Reporters
from agilerl_like.reporting.tensorboard import TensorBoardReporter
from agilerl_like.reporting.wandb import WandbReporter
from agilerl_like.room import check_room
from agilerl_like.seeding import Purpose, fresh_seed, integers
from agilerl_like.training.archive import Finished
from agilerl_like.training.conduct import evolve_on_policy, joined
from agilerl_like.training.distributed import Alone, World, is_launched
from agilerl_like.training.lock import RunLock
from agilerl_like.training.probe import Answer, ProbeRecord, solve
from agilerl_like.training.run import Outcome
from agilerl_like.training.schedule import Places
from agilerl_like.training.team_probe import solve_team

PROGRAM = "agilerl-like"
DESCRIPTION = "Populations of PPO agents and teams that find their hyperparameters and architectures while they train."
CONFIG = "config.yaml"
EVALUATION_ENVS = 32
EPISODE = 64
"""Bytes that an episode takes at least: its seed, its return and its length, and they are copied."""
BEYOND = {"max_steps": "a larger --training.max-steps", "target": "a higher --training.target, or none"}
"""What lets a run go on that has reached a limit."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; what a user can mend is said in one line."""
    try:
        return _command(list(sys.argv[1:] if arguments is None else arguments))
    except ConfigurationError as error:
        return _say_wrong(error, ExitCode.MISTAKE)
    except (CheckpointError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains as it ends
            return 128 + signal.SIGPIPE
        return _say_wrong(error, ExitCode.DISK)
    except (EnvironmentFault, NoHealthyMember) as error:
        return _say_wrong(error, ExitCode.FAULT)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _command(arguments: list[str]) -> int:
    if arguments[:1] == ["train"]:
        return train(arguments[1:])
    if arguments[:1] == ["resume"]:
        return resume(arguments[1:])
    torch.set_num_threads(1)
    commands = {"train": Train, "resume": Resume, "eval": evaluate, "probe": probe, "plot": plot}
    markers = (PositionalMetavarFromFieldName, AvoidSubcommands)
    return tyro.extras.subcommand_cli_from_dict(
        commands, prog=PROGRAM, description=DESCRIPTION, args=arguments, config=markers
    )


def _nobody_reads() -> bool:
    """Whether the standard output is a pipe whose reader has gone, as `head` does when it has enough."""
    try:
        look = select.poll()
        look.register(sys.stdout.fileno(), 0)  # errors are told unasked
    except OSError:  # it is no file, in a notebook for instance
        return False
    return any(event & select.POLLERR for _, event in look.poll(0))


def _say_wrong(error: Exception, code: int) -> int:
    sys.stderr.write(f"{PROGRAM}: {' '.join(str(error).split())}\n")
    return code


# -- train


@dataclass(frozen=True)
class Train:
    """Train a population as a YAML file says, and as the options behind it say.

    Values are YAML: 1e5, 100_000, [64, 64], none. What has no entry yet is given alike, though it is not listed below:
    --hyperparameters.lr.min 1e-5 --hyperparameters.lr.max 1e-2, --environment.wrappers [NormalizeReward],
    --environment.kwargs.gravity -9, --mutation.rl-hp 0.5.
    """

    file: Positional[Path]
    """The run's configuration, such as configs/ppo/cartpole.yaml."""
    settings: Annotated[FlagConversionOff[Config], tyro.conf.arg(name="")]
    print_config: FlagCreatePairsOff[bool] = False
    """Print the whole configuration and do nothing."""


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was interrupted, broke off or was killed, from its newest checkpoint, as if nothing was.

    Settings may be given as to train: of selection, mutation, training (but for how fitness is measured: fitness,
    eval-steps), of environment how it is stepped (backend, num-workers, step-timeout), and of run how it is computed
    and reported. What members are made of, and the world that they live in, stay as they are. A larger
    --training.max-steps, or a higher --training.target, lets a run go on that has ended.
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
    return joined(cpu=not torch.cuda.is_available()) if is_launched() else contextlib.nullcontext(Alone())


def _conduct(config: Config, world: World, find_folder: Callable[[], Path], *, resume: bool) -> int:
    """Train, from the beginning or from the newest checkpoint; only the main process has a folder."""
    setup = build(config)
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
            _print(f"{end}; to go on it needs {' and '.join(map(BEYOND.__getitem__, end.limits))}")
            return ExitCode.DONE
        except (EnvironmentFault, NoHealthyMember) as error:
            return _say_wrong(type(error)(f"{error}; to go on: {command}"), ExitCode.FAULT)
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
        _print(f"drawn in {plot_run(run_dir)}")
    except (ConfigurationError, OSError) as error:  # what was trained is saved, whatever becomes of its picture
        _say_wrong(error, ExitCode.DONE)


def _exit_code(outcome: Outcome) -> int:
    if outcome.summary.reason == "interrupted":
        return 128 + outcome.signal
    return ExitCode.DISK if outcome.unsaved else ExitCode.DONE


# -- eval


def evaluate(run: Positional[Path], /, episodes: int = 100, seed: int | None = None, env: str = "") -> int:
    """Play fresh episodes with the best agent or team of a run, without exploration.

    What a team's agents earn together is its return; what each of them earns stands below it.

    Args:
        run: Folder of a run, or of a saved agent or team.
        episodes: How many episodes.
        seed: Names the episodes; none: new ones.
        env: Another env than the run's, as `environment.id` would name it.
    """
    if episodes < 1:
        raise ConfigurationError(f"episodes={episodes!r} must be at least 1")
    check_room(f"episodes={episodes}", episodes, EPISODE, "episodes")
    seed = fresh_seed() if seed is None else _checked(seed)
    agent = _saved(run / "best" if (run / "best").is_dir() else run)
    config = _config_of(run, env, agent.algo)
    stage = config.stage(num_envs=1)
    with contextlib.closing(stage.env):
        spaces = tuple(map(_as_one, config.spaces(stage.env)))
        if spaces != (agent.observation_space, agent.action_space):
            raise ConfigurationError(
                f"env={config.environment.id!r} has {spaces[0]} and {spaces[1]}; "
                f"the agent was made for {agent.observation_space} and {agent.action_space}"
            )
        with contextlib.closing(stage.for_trials(min(episodes, EVALUATION_ENVS))) as trials:
            env_and_seeds = stage.stepped(trials), integers(episodes, seed, Purpose.CONFIRMATION_ENVS)
            by_agent = agent.perform(*env_and_seeds) if isinstance(agent, IPPO) else None
            played = agent.play(*env_and_seeds) if by_agent is None else by_agent.together
    scores = played.returns[0]
    _print(
        f"mean return {scores.mean():.2f} ± {scores.std():.2f} over {episodes} episodes "
        f"(from {scores.min():.2f} to {scores.max():.2f}, {played.lengths.mean():.0f} steps on average, seed {seed})"
    )
    if by_agent is not None:
        _print(", ".join(f"{name}: {earned.mean():.2f}" for name, earned in by_agent.returns.items()))
    return ExitCode.DONE


def _checked(seed: int) -> int:
    if seed < 0:
        raise ConfigurationError(f"seed={seed!r} must be at least 0")
    return seed


def _saved(path: Path) -> Individual:
    """An agent or a team, as its file says."""
    document = storage.read_folder(path, "agent")[0].get("agent")
    algorithm = document.get("algorithm") if isinstance(document, dict) else None
    return Individual.kind_named(algorithm, str(path)).load(path)


def _as_one(space: Any) -> gymnasium.Space:
    """A space, or those of a team by agent."""
    return gymnasium.spaces.Dict(space) if isinstance(space, dict) else space


def _config_of(run: Path, env: str, algorithm: str) -> Config:
    """The configuration of a run; if another env is named, one that says nothing but this."""
    if env:
        return Draft({"environment": {"id": env}, "algorithm": {"name": algorithm}}).judge()
    for folder in (run, run.parent):
        if (folder / CONFIG).is_file():
            return load(folder / CONFIG)
    raise ConfigurationError(f"env is missing: {run} has no {CONFIG} that names it; allowed is --env ID")


# -- probe


def probe(names: Positional[tuple[str, ...]] = (), /, seed: int = 0, teams: FlagCreatePairsOff[bool] = False) -> int:
    """Train PPO in tiny worlds with known answers; exit code 1 if one is not solved.

    Args:
        names: Which worlds; all of them if left out.
        seed: Names all random streams.
        teams: Train IPPO in worlds for teams.
    """
    worlds: Mapping[str, Probe | TeamProbe] = TEAM_PROBES if teams else PROBES
    seed = _checked(seed)
    for name in names:
        if name not in worlds:
            raise unknown_name("probe", name, worlds)
    answers = Column("known", no_wrap=True), Column("found", no_wrap=True)
    table = Table(Column("probe", min_width=max(map(len, worlds))), *answers, "solved", "seconds")
    records: list[ProbeRecord] = []
    with Live(table, console=Console(), auto_refresh=False) as live:
        for name in names or worlds:
            world = worlds[name]
            record = solve(world, seed=seed) if isinstance(world, Probe) else solve_team(world, seed=seed)
            records.append(record)
            table.add_row(*_row(record))
            live.refresh()
    return ExitCode.DONE if all(record.solved for record in records) else ExitCode.UNSOLVED


def _row(record: ProbeRecord) -> Iterable[str]:
    yield f"[bold]{record.probe.name}[/]\n{record.probe.question}"
    yield "\n".join(map(_known, record.answers))
    yield "\n".join(map(_found, record.answers))
    yield "[green]yes" if record.solved else "[red]no"
    yield f"{record.seconds:.1f}"


def _known(answer: Answer) -> str:
    who, what = answer.who and f"{answer.who}: ", "V" if answer.what == "value" else "a"
    return f"{who}{what}({answer.asked}) = {_list(answer.known)}"


def _found(answer: Answer) -> str:
    text = _list(answer.found)
    return text if answer.right else f"[red]{text}"


def _list(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers)


# -- plot


def plot(run: Positional[Path], /) -> int:
    """Draw a run: fitness, hyperparameters and sizes over generations.

    Args:
        run: Folder of the run.
    """
    _print(str(plot_run(run)))
    return ExitCode.DONE


def _print(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
