"""Date, command, versions, git state and machine of a run, for the head of its config.yaml and its run.json."""

from __future__ import annotations

import contextlib
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from agilerl_like.reporting.callback import Reporter
from agilerl_like.reporting.formatting import printable
from agilerl_like.reporting.records import GenerationRecord, RunRecord, SummaryRecord, plain_data
from agilerl_like.reporting.run_history import BROKEN_OFF, RUN_DOCUMENT, run_document
from agilerl_like.storage.durable_io import make_folder, replace_file

PACKAGES = ("agilerl-like", "torch", "gymnasium", "numpy", "pettingzoo")
"""Packages whose versions affect the results of a run."""
SCHEMA = 1
"""Version of the keys of run.json."""


def provenance(event: str) -> list[str]:
    """Return lines with the event ("begun", "changed"), its date, the command, the versions and the machine."""
    versions = [f"{name} {found}" for name, found in package_versions(PACKAGES).items()]
    return [
        f"{event} {_now()} by: {_command()}",
        f"with python {platform.python_version()}, {', '.join(versions)}",
        f"on {platform.platform()}, torch threads: {torch.get_num_threads()}",
    ]


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the version of each package that is installed.

    That of torch includes its build (+cpu, +cu130), which affects results and is not in the metadata of every wheel.
    """
    found = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):  # it is not installed, or not by a package manager
            found[name] = str(torch.__version__) if name == "torch" else version(name)
    return found


def git_state(folder: Path) -> dict[str, Any]:
    """Return commit and dirty (whether a tracked file differs) of the repository of a folder; {} without one."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return {}
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit.strip(), "dirty": None if changed is None else bool(changed.strip())}


class ProvenanceReporter(Reporter):
    """Writes `run.json`: command, versions and machine of a run, and how it ended."""

    def __init__(self, run_dir: Path | str) -> None:
        self.path = Path(run_dir).absolute() / RUN_DOCUMENT
        self._git = git_state(Path.cwd())  # an environment may change the working directory
        self._document: dict[str, Any] = {}

    def start(self, run: RunRecord) -> None:
        """Write the document; a resumed run keeps the earlier entries and adds its own to `resumed`."""
        now = {
            "begun": _now(),
            "command": _command(),
            "python": platform.python_version(),
            "versions": package_versions(PACKAGES),
            "git": self._git,
            "platform": platform.platform(),
            "host": platform.node(),
            "torch_threads": torch.get_num_threads(),
        }
        names = ("name", "env", "algorithm", "population_size", "num_envs", "seed", "max_env_steps", "target")
        of_run = {name: getattr(run, name) for name in (*names, "processes", "backend")}
        before = run_document(self.path)
        if before.get("generation"):
            resumed = before.get("resumed", [])
            resumed = resumed if isinstance(resumed, list) else []
            self._document = {**before, **of_run, "resumed": [*resumed, now]}
        else:
            trained = {"steps_before": run.steps_before} if run.steps_before else {}
            self._document = {"schema": SCHEMA, **of_run, **trained, **now}
        self._write(outcome="", generation=before.get("generation", 0))

    def generation(self, record: GenerationRecord) -> None:
        """Store the number of the generation, which is written with the first and at the end."""
        first = not self._document.get("generation")
        self._document["generation"] = record.generation
        if first:
            self._write()

    def finish(self, summary: SummaryRecord) -> None:
        """Write how the run ended."""
        best = summary.best
        self._write(
            outcome=summary.reason,
            ended=_now(),
            seconds=summary.seconds,
            env_steps=summary.env_steps,
            evaluation_steps=summary.evaluation_steps,
            best={name: getattr(best, name) for name in ("uid", "generation", "fitness", "standard_error", "episodes")},
        )

    def break_off(self) -> None:
        """Write that the run ended without a summary, if it has begun."""
        if self._document and not self._document["outcome"]:
            self._write(outcome=BROKEN_OFF, ended=_now())

    def _write(self, **changes: Any) -> None:
        self._document |= changes
        make_folder(self.path.parent)
        replace_file(self.path, (json.dumps(plain_data(self._document), indent=2) + "\n").encode())


def is_run_document(document: Mapping[str, Any]) -> bool:
    """Return whether a document is one that `ProvenanceReporter` wrote."""
    return {"schema", "env", "algorithm", "command"} <= document.keys()


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _command() -> str:
    return printable(shlex.join(sys.argv)) if sys.argv[:1] != [""] else "an interactive session"


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git; None if it fails.

    A repository's own monitor, which is a command, does not run, and no lock is taken, which a full disk would leave.
    """
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments],
            cwd=folder, capture_output=True, text=True, timeout=10, check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout
