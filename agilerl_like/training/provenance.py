"""Date, command, versions and machine of a run, for the head of its config.yaml."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version

import torch

PACKAGES = ("agilerl-like", "torch", "gymnasium", "numpy", "pettingzoo")
"""Packages whose versions affect the results of a run."""


def provenance(event: str) -> list[str]:
    """Return lines with the event ("begun", "changed"), its date, the command, the versions and the machine."""
    command = shlex.join(sys.argv) if sys.argv[:1] != [""] else "an interactive session"
    versions = [f"{name} {found}" for name in PACKAGES for found in _version(name)]
    return [
        f"{event} {datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC by: {' '.join(command.split())}",
        f"with python {platform.python_version()}, {', '.join(versions)}",
        f"on {platform.platform()}, torch threads: {torch.get_num_threads()}",
    ]


def _version(package: str) -> Iterator[str]:
    try:
        yield version(package)
    except PackageNotFoundError:  # it is not installed, or not by a package manager
        return
