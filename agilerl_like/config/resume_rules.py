"""Which settings may change when a run is resumed.

The members are read from the checkpoint and not built from the configuration again: a new setting for them would have
no effect, and config.yaml would be wrong.
"""

from __future__ import annotations

from typing import Any

from agilerl_like.config.run_config import Config
from agilerl_like.config.yaml12 import KeyPath
from agilerl_like.errors import ConfigurationError
from agilerl_like.training.run_settings import flatten_settings, repr_setting

CHANGEABLE_SECTIONS = ("environment", "evolution", "selection", "mutation", "training", "run")
"""Sections that are read from the configuration at every start and resume."""
FIXED_SETTINGS = (
    ("environment", "id"),
    ("environment", "kwargs"),
    ("environment", "wrappers"),
    ("environment", "training_wrappers"),
    ("environment", "num_envs"),
    ("environment", "instances"),
    ("environment", "aggregate"),
    ("environment", "info_keys"),
    ("environment", "seeds"),
    ("environment", "max_total_reward"),
    ("training", "fitness"),
    ("training", "opponents"),
    ("training", "eval_steps"),
    ("run", "name"),
    ("run", "dir"),
    ("run", "overwrite"),
)
"""Settings of these sections that cannot change: environment, step counting, fitness, output folder.

In another environment, or measured in another way, later fitnesses could not be compared with the best one so far.
"""


def check_resume_changes(before: Config, after: Config) -> None:
    """Raise ConfigurationError, listing every change that a resumed run must not make."""
    old, new = dict(flatten_settings(before.to_json())), dict(flatten_settings(after.to_json()))
    refused = [
        f"{'.'.join(path)}={repr_setting(new, path)} is {repr_setting(old, path)} in this run"
        for path in {**old, **new}
        if _is_fixed(path) and repr_setting(old, path) != repr_setting(new, path)
    ]
    if refused:
        raise ConfigurationError(
            f"{'; '.join(refused)}: fixed for the whole run; allowed are changes of "
            f"{', '.join(CHANGEABLE_SECTIONS)}, except {', '.join(map('.'.join, FIXED_SETTINGS))}"
        )


def fixed_fields(config: type[Config]) -> dict[Any, set[str]]:
    """Return the names of the settings that cannot change, by the class of configurations and those of its sections."""
    found: dict[Any, set[str]] = {config: {*config.model_fields} - {*CHANGEABLE_SECTIONS}}
    for section, name in FIXED_SETTINGS:
        found.setdefault(config.model_fields[section].annotation, set()).add(name)
    return found


def _is_fixed(path: KeyPath) -> bool:
    return path[0] not in CHANGEABLE_SECTIONS or path[:2] in FIXED_SETTINGS
