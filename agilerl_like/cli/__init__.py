"""The command `agilerl-like`; each subcommand has a file here."""

from __future__ import annotations

import inspect
import io
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import torch
import tyro
from tyro.conf import PositionalMetavarFromFieldName

from agilerl_like.cli import (
    bench,
    check,
    compare,
    configs,
    convert,
    demo,
    doctor,
    evaluate,
    export,
    film,
    plot,
    presets,
    probe,
    replay,
    report,
    runs,
    train,
    trajectories,
    tune,
)
from agilerl_like.cli.help_pages import unwrapped
from agilerl_like.cli.output import PROGRAM, write_error, write_line
from agilerl_like.errors import (
    CheckpointError,
    ConfigurationError,
    EnvStepError,
    ExitCode,
    PopulationDivergedError,
    unknown_name,
)

DESCRIPTION = (
    "Populations of reinforcement-learning agents that find hyperparameters and architectures while they train."
)


class Command(NamedTuple):
    """A subcommand: a function of its arguments, and the object with its docstring."""

    run: Callable[[Sequence[str]], int]
    documented: Any

    @property
    def summary(self) -> str:
        """The first sentence of the docstring in one line."""
        text = " ".join((inspect.getdoc(self.documented) or "").split("\n\n")[0].split())
        return text.partition(". ")[0].removesuffix(".")


def _parsed(name: str, function: Callable[..., int]) -> Command:
    """Return a command whose arguments tyro takes from a function's signature."""

    def run(arguments: Sequence[str]) -> int:
        torch.set_num_threads(1)
        markers = (PositionalMetavarFromFieldName,)
        return tyro.cli(unwrapped(function), prog=f"{PROGRAM} {name}", args=list(arguments), config=markers)

    return Command(run, function)


COMMANDS: Mapping[str, Command] = {
    "train": Command(train.train, train.Train),
    "resume": Command(train.resume, train.Resume),
    "tune": _parsed("tune", tune.tune),
    "configs": _parsed("configs", configs.configs),
    "presets": _parsed("presets", presets.presets),
    "convert": _parsed("convert", convert.convert),
    "eval": _parsed("eval", evaluate.evaluate),
    "plot": _parsed("plot", plot.plot),
    "report": _parsed("report", report.report),
    "runs": _parsed("runs", runs.runs),
    "compare": _parsed("compare", compare.compare),
    "replay": _parsed("replay", replay.replay),
    "demo": _parsed("demo", demo.demo),
    "export": _parsed("export", export.export),
    "trajectories": _parsed("trajectories", trajectories.trajectories),
    "film": _parsed("film", film.film),
    "probe": _parsed("probe", probe.probe),
    "check": _parsed("check", check.check),
    "bench": _parsed("bench", bench.bench),
    "doctor": _parsed("doctor", doctor.doctor),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; errors that a user can fix are printed in one line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # an ASCII terminal shows question marks
    try:
        return _command(list(sys.argv[1:] if arguments is None else arguments))
    except ConfigurationError as error:
        return write_error(error, ExitCode.USAGE)
    except (CheckpointError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python reports an error at exit
            return 128 + signal.SIGPIPE
        if isinstance(error, OSError) and error.filename is not None:
            error = CheckpointError(f"path={error.filename!r} cannot be read or written: {error.strerror}")
        return write_error(error, ExitCode.IOERR)
    except (EnvStepError, PopulationDivergedError) as error:
        return write_error(error, ExitCode.TEMPFAIL)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _command(arguments: list[str]) -> int:
    name, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if name in ("-h", "--help"):
        return _help()
    if name == "--version":
        write_line(f"{PROGRAM} {version(PROGRAM)}")
        return ExitCode.DONE
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS)
    return COMMANDS[name].run(rest)


def _help() -> int:
    """Print one line for each command."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    write_line(
        f"{PROGRAM} COMMAND ...\n\n{DESCRIPTION}\n\n"
        + "\n".join(lines)
        + f"\n\n{PROGRAM} COMMAND --help describes one; {PROGRAM} --version prints the version."
    )
    return ExitCode.DONE


def _reader_is_gone() -> bool:
    """Whether the standard output is a pipe that its reader has closed, as `head` does."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)  # without events macOS reports nothing
    except OSError:  # no file, for example in a notebook
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
