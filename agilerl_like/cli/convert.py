"""`agilerl-like convert`: a configuration file of another system as YAML of this package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from agilerl_like.cli.output import PROGRAM
from agilerl_like.config.foreign_files import convert_file
from agilerl_like.errors import ConfigurationError, ExitCode


def convert(
    file: Positional[Path],
    /,
    system: Annotated[str, tyro.conf.arg(name="from")] = "",
    env: str = "",
    num_envs: int | None = None,
    entry: str = "",
) -> int:
    """Print a configuration of another system as YAML of this package, with a comment beside each conversion.

    The file is YAML (rl-zoo, AgileRL, skrl), JSON, a Python file with a dictionary, a class of arguments or the call of
    the algorithm, or a command line. Python is parsed, not executed. What has no equivalent is listed.

    Args:
        file: The configuration.
        system: The system that it is for: sb3, agilerl, skrl, cleanrl, rlib, dti, metabox, brax, isaaclab.
        env: Id of the environment, if the file does not have it.
        num_envs: Number of environments, if the file does not have it.
        entry: Name of the environment's entry in a file with the settings of several.
    """
    if not system:
        raise ConfigurationError(f"from is missing, as in {PROGRAM} convert {file} --from sb3")
    converted = convert_file(file, system, entry=entry, env=env, num_envs=num_envs)
    sys.stdout.write(converted.to_yaml())
    converted.check()
    return ExitCode.DONE
