"""What may change when a run goes on, and what a run keeps that has begun.

What members are made of stands in the checkpoint, and nobody reads it from a configuration again. If it were given
anew it would change nothing, and config.yaml would say what is not true.
"""

from __future__ import annotations

from agilerl_like.config.run_config import Config
from agilerl_like.config.yaml12 import KeyPath
from agilerl_like.errors import ConfigurationError
from agilerl_like.training.run_settings import flatten_settings, repr_setting

CHANGEABLE_SECTIONS = ("environment", "selection", "mutation", "training", "run")
"""Sections that are read from the configuration whenever a run begins or goes on."""
FIXED_SETTINGS = (
    ("environment", "id"),
    ("environment", "kwargs"),
    ("environment", "wrappers"),
    ("environment", "training_wrappers"),
    ("environment", "num_envs"),
    ("training", "fitness"),
    ("training", "eval_steps"),
    ("run", "name"),
    ("run", "dir"),
    ("run", "overwrite"),
)
"""What stays nevertheless: the world, by what steps are counted, how fitness is measured, and where all is written.

In another world, or measured otherwise, the best fitness so far would be of another kind than those to come: nobody
might reach it again, or anybody, and the best agent would be the best at something else.
"""


def check_resume_changes(before: Config, after: Config) -> None:
    """Raise ConfigurationError, with every change, if a run of one configuration cannot go on with another."""
    old, new = dict(flatten_settings(before.to_json())), dict(flatten_settings(after.to_json()))
    refused = [
        f"{'.'.join(place)}={repr_setting(new, place)} is {repr_setting(old, place)} in this run"
        for place in {**old, **new}
        if _stays(place) and repr_setting(old, place) != repr_setting(new, place)
    ]
    if refused:
        raise ConfigurationError(
            f"{'; '.join(refused)}: a run keeps that; allowed are changes of {', '.join(CHANGEABLE_SECTIONS)}, but for "
            f"{', '.join('.'.join(place) for place in FIXED_SETTINGS)}"
        )


def _stays(place: KeyPath) -> bool:
    return place[0] not in CHANGEABLE_SECTIONS or place[:2] in FIXED_SETTINGS  # also what stands inside it
