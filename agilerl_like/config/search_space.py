"""Ranges of an algorithm's hyperparameters for a search that starts without any knowledge of the environment.

They span what tuned configurations of PPO use (Eimer et al. 2023, rl-zoo). Ranges that only continuous actions need are
left out for discrete ones.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from agilerl_like.algorithms.exploration_ranges import exploration_within_bounds, is_continuous
from agilerl_like.algorithms.ppo_config import settings_without_effect
from agilerl_like.algorithms.rollout_algorithm import RolloutAlgorithm
from agilerl_like.algorithms.settings import LIMITS, evolvable_settings
from agilerl_like.hpo.schedules import ADAPTIVE, LR_SCHEDULE

SMALLEST_ROLLOUT = 64
UPDATES_IN_GENERATION = 4
"""Updates in a generation, at least: with fewer, fitness shows little of the hyperparameters."""

RANGES: Mapping[str, Mapping[str, Any]] = {
    "lr": {"min": 1e-5, "max": 1e-2, "scale": "log"},
    "gamma": {"min": 0.9, "max": 0.9995, "scale": "one_minus"},
    "gae_lambda": {"min": 0.8, "max": 0.995, "scale": "one_minus"},
    "clip_coef": {"min": 0.1, "max": 0.4},
    "ent_coef": {"min": 1e-5, "max": 0.1, "scale": "log"},
    "vf_coef": {"min": 0.1, "max": 1.0},
    "max_grad_norm": {"min": 0.3, "max": 2.0, "scale": "log"},
    "update_epochs": {"min": 1, "max": 20},
    "batch_size": {"min": 32, "max": 1024, "scale": "power_of_two"},
    "learn_step": {"min": SMALLEST_ROLLOUT, "max": 4096, "scale": "power_of_two"},
}
CONTINUOUS: Mapping[str, Mapping[str, Any]] = {"ent_coef": {"min": 1e-6, "max": 1e-2, "scale": "log"}}
"""Ranges of continuous actions. The entropy of a normal distribution has no bound, so its bonus is smaller."""


def search_space(
    algorithm_class: type[Any], action_space: Any, given: Mapping[str, Any], *, evo_steps: int, num_envs: int
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the section `hyperparameters`, and the settings of the first member, which lie in these ranges.

    A range is widened to a value that is given, except where this is beyond its scale; a setting that is given as None,
    or a limit that is given as 0, is switched off and has no range. Rollouts are so short that a generation of
    `evo_steps` has a few updates. Algorithms without rollouts take minibatches from a replay or have none, so only
    rollouts limit `batch_size`, and only their length is searched.
    """
    ranges = _ranges(algorithm_class, action_space, given)
    longest = sys.maxsize
    if issubclass(algorithm_class, RolloutAlgorithm):
        longest = max(SMALLEST_ROLLOUT, evo_steps // UPDATES_IN_GENERATION)
    else:
        ranges.pop("learn_step", None)
    for name in {"learn_step", "batch_size"} & ranges.keys():
        ranges[name]["max"] = 1 << (min(ranges[name]["max"], longest).bit_length() - 1)
    start: dict[str, Any] = {}
    for name, range_ in ranges.items():
        value = given.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if range_.get("scale") == "power_of_two":
            value = 1 << (max(1, min(int(value), longest)).bit_length() - 1)
        is_on_scale = {"log": value > 0, "one_minus": value < 1}.get(range_.get("scale", "linear"), True)
        if is_on_scale:
            range_["min"], range_["max"] = min(range_["min"], value), max(range_["max"], value)
        start[name] = min(max(value, range_["min"]), range_["max"])
    if {"batch_size", "learn_step"} <= start.keys():
        rows = -(-start["learn_step"] // num_envs) * num_envs
        start["batch_size"] = min(start["batch_size"], 1 << (rows.bit_length() - 1))
    return ranges, start


def _ranges(algorithm_class: type[Any], action_space: Any, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the ranges of the settings that are not switched off and have an effect.

    The algorithm's own ranges replace the general ones, and `lr_schedule: kl` limits that of `lr`.
    """
    wanted = {**RANGES, **({**CONTINUOUS, **exploration_within_bounds(given)} if is_continuous(action_space) else {})}
    wanted |= algorithm_class.group_class.search_ranges
    known = {*evolvable_settings(algorithm_class.config)}
    if issubclass(algorithm_class, RolloutAlgorithm):
        settings = {**vars(algorithm_class.config()), **given}
        known -= {unused.name for unused in settings_without_effect(settings)}
        if settings.get(LR_SCHEDULE) == ADAPTIVE:
            low, high = max(wanted["lr"]["min"], settings["lr_min"]), min(wanted["lr"]["max"], settings["lr_max"])
            wanted["lr"] = {**wanted["lr"], "min": low, "max": high}
    known -= {name for name, value in given.items() if value is None or (not value and name in LIMITS)}
    return {name: dict(range_) for name, range_ in wanted.items() if name in known}
