"""Which import paths of a run folder may be imported: those of known packages, and those that the user allows.

A run folder may come from anyone, and an import path in it is code to run: `subprocess:call` is one. The user allows it
with the option `--trust` or by giving the same path in the command; a configuration that the user names for `train` or
`demo` counts too. Statements of trust inside the folder do not count, because the author of the path could have written
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agilerl_like.config.loader import Draft
from agilerl_like.config.run_config import Config
from agilerl_like.envs.import_paths import is_trusted_path
from agilerl_like.errors import ConfigurationError

TRUST = "--trust"
SECTIONS = ("environment", "algorithm")
"""Sections that may name code."""
REWARDS = "algorithm.reward_transform"


def untrusted_import_paths(config: Config) -> dict[str, str]:
    """Return the import paths of a configuration that belong to no known package, by field."""
    return {
        field: path
        for field, path in _paths(config, {name: vars(getattr(config, name)) for name in SECTIONS}).items()
        if not is_trusted_path(path)
    }


def check_trust(config: Config, where: Path, options: Sequence[str] = ()) -> None:
    """Raise ConfigurationError unless every import path of a run folder's configuration may be imported.

    `where` is the file of the configuration; paths in the command's own `options` are allowed.
    """
    allowed = set(_paths(config, Draft({}).override(options).data).values())
    refused = {field: path for field, path in untrusted_import_paths(config).items() if path not in allowed}
    if refused:
        raise ConfigurationError(
            f"{_listed(refused)} in {where} would run code that is not of a known package of environments; "
            f"if you know where this folder comes from, {TRUST} allows it"
        )


def trust_option(config: Config) -> str:
    """Return the option that commands for a run folder of this configuration need, after a space; "" for none."""
    return f" {TRUST}" if untrusted_import_paths(config) else ""


def trust_notes(config: Config) -> list[str]:
    """Return comments for a run's config.yaml about the code that it imports."""
    paths = untrusted_import_paths(config)
    if not paths:
        return []
    is_of_training = [*paths] == [REWARDS]
    run = "resume and replay run" if is_of_training else "resume and eval run"
    return [f"it imports {', '.join(paths.values())}: {run} that with {TRUST} alone"]


def _paths(config: Config, written: Mapping[str, Any]) -> dict[str, str]:
    """Return the import paths of a configuration's sections by field, with the section."""
    environment, algorithm = (written.get(name) for name in SECTIONS)
    found = type(config.environment).import_paths(environment) if isinstance(environment, Mapping) else {}
    transform = algorithm.get("reward_transform") if isinstance(algorithm, Mapping) else None
    return {
        **{f"environment.{field}": path for field, path in found.items()},
        **({REWARDS: transform} if isinstance(transform, str) else {}),
    }


def _listed(paths: Mapping[str, str]) -> str:
    fields: Iterable[str] = (f"{field}={path!r}" for field, path in paths.items())
    return ", ".join(fields)
