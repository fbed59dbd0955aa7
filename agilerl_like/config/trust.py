"""Which import paths of a run folder may be imported: those of known packages, and those that the user vouches for.

A run folder is data that may come from anyone, and an import path in it is code to run: `subprocess:call` is one. The
user's word is an option of the command (`--trust`) or the same path in the command itself. A file that the user names
for `train` is the user's word as well. What the folder says of its own trust is not: whoever wrote the path could have
written that.
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


def untrusted_import_paths(config: Config) -> dict[str, str]:
    """The import paths of a configuration that are of no known package, by the field that names them."""
    return {
        field: path for field, path in _paths(config, dict(config.environment)).items() if not is_trusted_path(path)
    }


def check_trust(config: Config, where: Path, options: Sequence[str] = ()) -> None:
    """Raise ConfigurationError unless every import path of a run folder's configuration may be imported.

    `where` is the file that holds it, and `options` are those of the command, in which the user may have typed a path.
    """
    typed = Draft({}).override(options).data.get("environment")
    vouched_for = set(_paths(config, typed).values()) if isinstance(typed, Mapping) else set()
    refused = {field: path for field, path in untrusted_import_paths(config).items() if path not in vouched_for}
    if refused:
        raise ConfigurationError(
            f"{_listed(refused)} in {where} would run code that is not of a known package of environments; "
            f"if you know where this folder comes from, {TRUST} allows it"
        )


def trust_notes(config: Config) -> list[str]:
    """What the file of a run records of the code that it imports, for people: nothing reads it."""
    paths = untrusted_import_paths(config).values()
    return [f"it imports {', '.join(paths)}: resume and eval run that with {TRUST} alone"] if paths else []


def _paths(config: Config, written: Mapping[str, Any]) -> dict[str, str]:
    return type(config.environment).import_paths(written)


def _listed(paths: Mapping[str, str]) -> str:
    fields: Iterable[str] = (f"environment.{field}={path!r}" for field, path in paths.items())
    return ", ".join(fields)
