"""Groups of agents that share a policy, and the agents' spaces; validated before a team is built."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import gymnasium
from torch import nn

from agilerl_like.algorithms.ppo_config import PPOConfig
from agilerl_like.algorithms.presets import PRESETS
from agilerl_like.algorithms.settings import DEFAULT_PRESET, check_preset, start_in, validated, with_types
from agilerl_like.errors import ConfigurationError, check_mapping, tuple_of, unknown_name
from agilerl_like.hpo import HyperparameterConfig
from agilerl_like.networks.architecture import NET_CONFIG_KEYS, inherited_by
from agilerl_like.networks.custom import CustomSpec

Spaces = Mapping[str, gymnasium.Space] | Sequence[gymnasium.Space]

NO_FACTORS: Mapping[str, Mapping[str, float]] = MappingProxyType({})
GROUP_HYPERPARAMETERS = ("lr", "ent_coef", "vf_coef", "clip_coef")
"""Hyperparameters that may have a factor for each group."""
MAY_BE_ZERO = ("ent_coef", "vf_coef")
"""Those whose factor may be 0."""

MAX_AGENTS = 1024
"""Largest number of agents in a team."""


def death_of(stored: Mapping[str, Any]) -> Literal["continue", "end"]:
    """Return `death` of a team's stored settings; earlier releases stored none, because it followed from `rewards`."""
    return stored.get("death", "continue" if stored["rewards"] == "individual" else "end")


def group_of(agent_id: str) -> str:
    """Return an agent's default group: "speaker" for "speaker_0"; a name without a number is its own group."""
    return re.sub(r"_\d+$", "", agent_id)


def agent_ids_of(spaces: Spaces) -> Sequence[str]:
    """Return the agent ids that are the keys of `spaces`; ConfigurationError if it is a list."""
    if isinstance(spaces, Mapping):
        return list(spaces)
    raise ConfigurationError("agent_ids is missing: observation_spaces is a list, which does not name the agents")


def names_of(field: str, given: str | Iterable[str]) -> tuple[str, ...]:
    """Return one name or several as a tuple; ConfigurationError if they are something else."""
    names = (given,) if isinstance(given, str) else tuple_of(field, given, "a list of names")
    if not all(isinstance(name, str) for name in names):
        raise ConfigurationError(f"{field}={given!r:.100}; allowed is a list of names")
    return names


def check_names(field: str, ids: Sequence[str]) -> None:
    """Raise ConfigurationError unless `ids` are valid agent ids of a team."""
    if not 0 < len(ids) <= MAX_AGENTS:
        raise ConfigurationError(f"{field} has {len(ids)} names; allowed are 1 to {MAX_AGENTS}")
    if not all(isinstance(agent, str) and agent for agent in ids) or len(set(ids)) < len(ids):
        raise ConfigurationError(f"{field}={[*ids]!r:.200}; allowed are distinct names")


def spaces_by_agent(name: str, spaces: Spaces, ids: Sequence[str]) -> dict[str, gymnasium.Space]:
    """Return the space of each agent; ConfigurationError if one is missing or belongs to no agent."""
    if not isinstance(spaces, Mapping):
        if len(spaces) != len(ids):
            raise ConfigurationError(f"{name} has {len(spaces)} spaces; agent_ids names {len(ids)} agents")
        return dict(zip(ids, spaces, strict=True))
    for agent in spaces:
        if agent not in ids:
            raise unknown_name(f"{name} agent", agent, ids)
    missing = [agent for agent in ids if agent not in set(spaces)]  # `agent in Dict space` would test samples, not keys
    if missing:
        raise ConfigurationError(f"{name} lacks {missing}; allowed is one space for each of {list(ids)}")
    return {agent: spaces[agent] for agent in ids}


def assign_groups(
    ids: Sequence[str],
    groups: Mapping[str, str] | None,
    observed: Mapping[str, gymnasium.Space],
    acted: Mapping[str, gymnasium.Space],
) -> dict[str, tuple[str, ...]]:
    """Return the agents of each group; groups and agents are in the order of `ids`.

    Raises:
        ConfigurationError: an agent of `groups` is unknown, a group's name is illegal, or its agents' spaces differ.
    """
    for agent, space in (*observed.items(), *acted.items()):
        if not isinstance(space, gymnasium.Space):
            raise ConfigurationError(f"agent {agent!r} has {space!r:.100}; allowed are spaces of gymnasium")
    groups = {} if groups is None else groups
    check_mapping("groups", groups)
    for agent in groups:
        if agent not in ids:
            raise unknown_name("groups agent", agent, ids)
    group_by_agent = {agent: groups.get(agent, group_of(agent)) for agent in ids}
    found = {
        group: tuple(agent for agent in ids if group_by_agent[agent] == group)
        for group in dict.fromkeys(group_by_agent.values())
    }
    for group, members in found.items():
        if not isinstance(group, str) or not group or "." in group or "/" in group:
            raise ConfigurationError(f"groups: {group!r} must be a name without dots and slashes")
        for agent in members[1:]:
            for spaces in (observed, acted):
                if spaces[agent] is not spaces[members[0]] and spaces[agent] != spaces[members[0]]:
                    raise ConfigurationError(
                        f"groups: {agent!r} has {spaces[agent]} and {members[0]!r} has {spaces[members[0]]}, but both "
                        f"are in group {group!r}; allowed are equal spaces, or groups={{{agent!r}: 'another'}}"
                    )
    return found


def check_by_agent(name: str, given: object) -> None:
    """Raise ConfigurationError unless an argument maps agents to their values."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{name}={given!r:.100}; allowed is a mapping from agents to theirs")


def net_config_by_group(
    net_config: Mapping[str, Any] | None, groups: Mapping[str, Any], own: Mapping[str, CustomSpec]
) -> dict[str, Mapping[str, Any] | None]:
    """Return each group's `net_config`: the common settings, overridden by those under the group's name.

    Args:
        net_config: the common settings, and those of groups.
        groups: all groups.
        own: the groups that have the user's own networks.

    Raises:
        ConfigurationError: a key is neither a group nor one of `NET_CONFIG_KEYS`, a group's value is not a mapping, or
            a setting has no effect, because the networks that it describes are the user's own.
    """
    config = {} if net_config is None else net_config
    check_mapping("net_config", config)
    for key in config:
        if key not in NET_CONFIG_KEYS and key not in groups:
            raise unknown_name("net_config key", key, (*NET_CONFIG_KEYS, *groups))
    for group in groups:
        check_mapping(f"net_config.{group}", config.get(group, {}))
    common = {key: value for key, value in config.items() if key not in groups}
    unused = {group: config[group] for group in own if config.get(group)}
    if len(own) == len(groups):
        unused |= common
    if unused:
        raise ConfigurationError(
            f"net_config={unused!r:.200} has no effect beside actor_networks and critic_networks; leave it out"
        )
    of_group = {group: config.get(group, {}) for group in groups}
    return {group: {**inherited_by(own, common), **own} or None for group, own in of_group.items()}


def own_networks_by_group(
    actors: Mapping[str, nn.Module] | None, critics: Mapping[str, nn.Module] | None, groups: Mapping[str, Sequence[str]]
) -> dict[str, CustomSpec]:
    """Return the user's own networks of some groups, given by group or by agent.

    Raises:
        ConfigurationError: an unknown name, different modules in one group, or a group with an actor or a critic alone.
    """
    found: dict[str, dict[str, nn.Module]] = {"actor_networks": {}, "critic_networks": {}}
    group_of_agent = {agent: group for group, ids in groups.items() for agent in ids}
    for field, given in (("actor_networks", actors), ("critic_networks", critics)):
        if given is None:
            continue
        if not isinstance(given, Mapping | nn.ModuleDict):
            raise ConfigurationError(f"{field}={given!r:.100}; allowed is a mapping of groups or agents to modules")
        for name, module in given.items():
            if name not in groups and name not in group_of_agent:
                raise unknown_name(f"{field} key", name, (*groups, *group_of_agent))
            group = name if name in groups else group_of_agent[name]
            if found[field].setdefault(group, module) is not module:
                raise ConfigurationError(
                    f"{field}: agents of group {group!r} share a network; allowed is one module for all of them"
                )
    actor_of, critic_of = found.values()
    return {
        group: _custom_spec(group, actor_of.get(group), critic_of.get(group)) for group in {**actor_of, **critic_of}
    }


def _custom_spec(group: str, actor: nn.Module | None, critic: nn.Module | None) -> CustomSpec:
    try:
        return CustomSpec.of(actor, critic)
    except ConfigurationError as error:
        raise ConfigurationError(f"networks of group {group!r}: {error}") from error


MAPPINGS = ("schedules", "reward_transform")
"""Settings whose value may be a mapping, which is not one by group."""


def split_by_group(
    settings: Mapping[str, Any],
    factors: Mapping[str, Mapping[str, float]],
    groups: Iterable[str],
    hp_config: HyperparameterConfig | None,
) -> tuple[dict[str, Any], dict[str, Mapping[str, float]]]:
    """Return settings with one value for all groups, and factors of groups that represent the values given by group.

    Groups without a value have that of the preset. If it lies outside the range of `hp_config`, the nearest value in
    the range replaces it, because evolution changes the value for all groups.

    Raises:
        ConfigurationError: a setting cannot differ by group, has factors too, or a value is out of range.
    """
    check_mapping("group_factors", factors)
    found, single = dict(factors), dict(settings)
    for name, given in settings.items():
        if not isinstance(given, Mapping) or name in MAPPINGS:
            continue
        if name not in GROUP_HYPERPARAMETERS:
            raise ConfigurationError(
                f"{name}={dict(given)}; values by group are allowed for {', '.join(GROUP_HYPERPARAMETERS)} only"
            )
        if name in factors:
            raise ConfigurationError(
                f"{name}={dict(given)} and group_factors both give values by group; pass one of them"
            )
        for group in given:
            if group not in groups:
                raise unknown_name(f"{name} group", group, groups)
        preset = PRESETS[check_preset(settings.get("preset", DEFAULT_PRESET))]
        usual = preset.values().get(name, getattr(PPOConfig, name))
        stored = {group: getattr(validated(PPOConfig, {name: value}), name) for group, value in given.items()}
        common = usual or max(stored.values(), default=usual)  # a factor cannot change 0
        if range_ := with_types(PPOConfig, hp_config).get(name):
            common = start_in(range_, name, common) or common
        by_group = {**dict.fromkeys(groups, common if usual else usual), **stored}
        single[name] = common
        found[name] = {group: value / common for group, value in by_group.items() if value != common}
    return single, found


def check_factors(factors: Mapping[str, Mapping[str, float]], groups: Mapping[str, object]) -> None:
    """Raise ConfigurationError unless each factor is a positive number, of a hyperparameter that allows it."""
    check_mapping("group_factors", factors)
    for name, its in factors.items():
        if name not in GROUP_HYPERPARAMETERS:
            raise unknown_name("group_factors key", name, GROUP_HYPERPARAMETERS)
        check_mapping(f"group_factors.{name}", its)
        for group, factor in its.items():
            if group not in groups:
                raise unknown_name(f"group_factors.{name} group", group, groups)
            is_number = isinstance(factor, int | float) and not isinstance(factor, bool) and 0 <= factor < math.inf
            if not is_number or (factor == 0 and name not in MAY_BE_ZERO):
                least = "0 or a positive number" if name in MAY_BE_ZERO else "a positive number"
                raise ConfigurationError(f"group_factors.{name}.{group}={factor!r} must be {least}")
