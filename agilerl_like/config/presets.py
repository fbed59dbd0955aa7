"""Presets in configurations: `algorithm.preset` and `algorithm.like`, and settings by the names of other systems.

Settings that belong to other sections, such as the number of environments, are moved there.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

from agilerl_like.algorithms.presets import preset_values, set_entry, take_foreign
from agilerl_like.envs.factory import VecEnvConfig
from agilerl_like.errors import ConfigurationError


def with_preset(data: Any, names: Collection[str]) -> Any:
    """Return a configuration in which the preset gives the settings that are absent.

    `names` are the settings of the algorithm. Data without a preset are returned unchanged.

    Raises:
        ConfigurationError: the preset is unknown, or a setting of its system has no equivalent or is given twice.
    """
    algorithm = data.get("algorithm") if isinstance(data, Mapping) else None
    if not isinstance(algorithm, Mapping) or "preset" not in names or not {"preset", "like"} & algorithm.keys():
        return data
    environment = data.get("environment")
    own_envs = environment.get("num_envs") if isinstance(environment, Mapping) else None
    try:
        rest, found = take_foreign(algorithm, names, num_envs=own_envs or VecEnvConfig.num_envs)
    except ConfigurationError as error:
        raise ConfigurationError(f"algorithm.{error}") from error
    result = {**copy.deepcopy({**data, "algorithm": {}}), "algorithm": rest}
    for path, value in found.settings.items():
        keys = path.split(".")
        if _is_given(result, keys):
            foreign = found.comments[path].partition(";")[0] or path.rpartition(".")[2]
            raise ConfigurationError(f"algorithm.{foreign} is {path}, which is given, too; leave one of them out")
        set_entry(result, keys, value)
    num_envs = result["environment"].get("num_envs") if isinstance(result.get("environment"), Mapping) else None
    evolving = result.get("hyperparameters")
    filled = preset_values(
        rest["preset"],
        rest,
        num_envs=VecEnvConfig.num_envs if num_envs is None else num_envs,
        evolving=evolving if isinstance(evolving, Mapping) else (),
        algorithm=str(rest.get("name", "PPO")),
    )
    result["algorithm"] = {**filled, **rest}
    return result


def _is_given(data: Any, keys: list[str]) -> bool:
    for key in keys:
        if not isinstance(data, Mapping) or key not in data:
            return False
        data = data[key]
    return True
