"""Ranges of the noise of continuous actions, which `evolution: auto` of a configuration adds to the given ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from agilerl_like.algorithms.settings import evolvable_settings
from agilerl_like.hpo import HyperparameterConfig, RLParameter

EXPLORATION: Mapping[str, Mapping[str, Any]] = {
    "action_std_init": {"min": -2.0, "max": 0.5, "scale": "linear"},
    "action_noise_correlation": {"min": 0.0, "max": 0.95, "scale": "linear"},
}
"""Strength and duration of the noise of continuous actions."""


def with_exploration(
    settings_class: type[Any], action_space: Any, given: Mapping[str, Any], ranges: HyperparameterConfig
) -> HyperparameterConfig:
    """Return ranges with those of exploration added, for continuous actions; each includes the value given."""
    known = evolvable_settings(settings_class) if is_continuous(action_space) else ()
    added = {}
    for name, range_ in exploration_within_bounds(given).items():
        if name in known and name not in ranges:
            low, high = min(range_["min"], given[name]), max(range_["max"], given[name])
            added[name] = RLParameter(low, high, scale=range_["scale"])
    return HyperparameterConfig(**{**ranges, **added})


def exploration_within_bounds(settings: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return `EXPLORATION` with the bounds of the standard deviation, beyond which `action_std_init` has no effect.

    Where the bounds leave no more than one value, there is no range of it.
    """
    std = EXPLORATION["action_std_init"]
    low = max(std["min"], settings.get("action_std_min", std["min"]))
    high = min(std["max"], settings.get("action_std_max", std["max"]))
    others = {name: range_ for name, range_ in EXPLORATION.items() if name != "action_std_init"}
    return others if low >= high else {"action_std_init": {**std, "min": low, "max": high}, **others}


def is_continuous(space: Any) -> bool:
    """Whether actions, or those of some agent, are continuous."""
    if isinstance(space, gymnasium.spaces.Dict | Mapping):
        return any(map(is_continuous, space.values()))
    return isinstance(space, gymnasium.spaces.Box)
