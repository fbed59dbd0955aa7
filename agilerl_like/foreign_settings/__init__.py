"""The settings of other systems by their names there, and how each is converted to settings here.

A setting here is a path: "algorithm.lr", "training.max_steps". `algorithms.presets` has the defaults of the systems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agilerl_like.foreign_settings.agilerl import AGILERL, complete
from agilerl_like.foreign_settings.cleanrl import CLEANRL, DTI
from agilerl_like.foreign_settings.further_systems import BRAX, ISAACLAB, METABOX, RLIB, complete_strategy
from agilerl_like.foreign_settings.rules import NotConvertible, Rule, Rules, Settings
from agilerl_like.foreign_settings.skrl import SKRL
from agilerl_like.foreign_settings.stable_baselines3 import SB3

SYSTEMS: Mapping[str, Rules] = {
    "sb3": SB3,
    "cleanrl": CLEANRL,
    "skrl": SKRL,
    "agilerl": AGILERL,
    "rlib": RLIB,
    "dti": DTI,
    "metabox": METABOX,
    "brax": BRAX,
    "isaaclab": ISAACLAB,
}
"""The rules of each system."""
COMPLETE: Mapping[str, Callable[[Settings, Mapping[str, Any]], Settings]] = {
    "agilerl": complete,
    "rlib": complete_strategy,
}
"""What completes the settings of a whole file, by the names of its sections, calls such as "train()", and settings."""


@dataclass
class Conversion:
    """Settings of another system, converted."""

    settings: Settings = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    """How each setting was converted, by its path; empty for those of the same name and value."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Names there of settings that are not needed, and why."""
    refused: dict[str, str] = field(default_factory=dict)
    """Names there of settings that have no equivalent, with their values, and why."""


def canonical(name: object) -> str:
    """Return a name as the tables have it: in lower case, with underscores."""
    return str(name).lower().replace("-", "_")


NEEDS_NONE = "it needs no setting here, or is part of another one"
SHOWN = 60
"""Characters of a value in comments and messages."""


def _shown(name: str, value: Any) -> str:
    text = repr(value)
    return f"{name}={text}" if len(text) <= SHOWN else f"{name}={text[:SHOWN]}…"


def _comment(rule: Rule, path: str, name: str, value: Any, here: Any) -> str:
    """Return how a setting was converted; nothing for one of the same name and value."""
    is_same = here == value and type(here) is type(value)
    meaning = rule.meaning.format(name) if path == rule.setting else ""
    if is_same and path.rpartition(".")[2] == name and not meaning:
        return ""
    origin = name if is_same or len(repr(value)) > SHOWN else f"{name}={value!r}"
    return f"{origin}; here it {meaning}" if meaning else origin


def convert(system: str, given: Mapping[str, Any], *, num_envs: int | None = None) -> Conversion:
    """Convert the settings of a system; names that it does not have are refused.

    `num_envs` is the number of environments, if the settings do not have it.
    """
    rules, found = SYSTEMS[system], Conversion()
    values = {canonical(name): value for name, value in given.items()}
    values["num_envs"] = values.get("num_envs", values.get("n_envs", num_envs))
    for name, value in given.items():
        rule = rules.get(canonical(name))
        if rule is None:
            found.refused[_shown(name, value)] = "it is no known setting"
            continue
        try:
            settings = rule.convert(value, values)
        except NotConvertible as reason:
            found.refused[_shown(name, value)] = str(reason)
            settings = reason.converted
        except (
            TypeError,
            AttributeError,
            LookupError,
            OverflowError,
        ):  # of a value that the system itself would refuse
            found.refused[_shown(name, value)] = "its form is unknown"
            continue
        if not settings and _shown(name, value) not in found.refused:
            found.left_out[_shown(name, value)] = NEEDS_NONE if rule.setting else rule.meaning.format(name)
        for path, one in settings.items():
            found.settings[path] = one
            found.comments[path] = _comment(rule, path, name, value, one)
    return found


AMBIGUOUS = ("network", "policy", "class", "models", "experiment", "activation", "hpo", "env_config", "kl_threshold")
"""Names that have another meaning in other places of a configuration here."""


def _foreign_names() -> dict[str, tuple[str, str]]:
    """Return the setting here of every name, and how its value is converted; of systems that differ, all ways."""
    ways: dict[str, dict[tuple[str, str], list[str]]] = {}
    for system, rules in SYSTEMS.items():
        for name, rule in rules.items():
            if rule.setting and rule.setting.count(".") < 2 and "." not in name and name not in AMBIGUOUS:
                ways.setdefault(name, {}).setdefault((rule.setting, rule.meaning.format(name)), []).append(system)
    found = {}
    for name, by_way in ways.items():
        if any(setting.rpartition(".")[2] == name for setting, _ in by_way):
            continue  # a name of this package
        setting = next(iter(by_way))[0]
        meanings = [(meaning, systems) for (path, meaning), systems in by_way.items() if path == setting]
        texts = [f"{meaning or 'has the same value'} ({', '.join(systems)})" for meaning, systems in meanings]
        found[name] = (setting, meanings[0][0] if len(meanings) == 1 else " or ".join(texts))
    return found


FOREIGN_NAMES: Mapping[str, tuple[str, str]] = _foreign_names()
"""Names of all systems that are no names here -> the setting here, and how the value is converted."""
