"""The sides of a game between teams: the agents that one team controls while another one controls the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from agilerl_like.algorithms.evaluation import GroupPolicy, HasActor
from agilerl_like.envs.multi_agent.group_env import AgentGroup
from agilerl_like.envs.multi_agent.scripted import ScriptedAgents, ScriptedPolicy
from agilerl_like.errors import ConfigurationError, unknown_name


def group_sides(groups: Mapping[str, object]) -> list[frozenset[str]]:
    """Return the sets of groups that a team controls in its games: each single group, and all groups but that one."""
    single = [frozenset([group]) for group in groups]
    return list(dict.fromkeys([*single, *(frozenset(groups) - side for side in single)]))


def player_sides(groups: Mapping[str, Sequence[str]]) -> list[frozenset[str]]:
    """Return the sets of agents that a team controls in its games: those of `group_sides`, or, in a single group, each.

    A team of one agent has a single side.
    """
    if len(groups) == 1:
        return [side for side in group_sides(dict.fromkeys(next(iter(groups.values())), ())) if side]
    return [frozenset(agent for group in side for agent in groups[group]) for side in group_sides(groups)]


def group_parts(
    groups: Mapping[str, Sequence[str]], policies: Mapping[str, GroupPolicy], agents: Collection[str]
) -> list[HasActor]:
    """Return what some agents of a team act with, from the policies of its groups."""
    parts = {group: [agent for agent in ids if agent in agents] for group, ids in groups.items()}
    return [
        policies[group]._replace(layout=cast(AgentGroup, policies[group].layout).part(its))
        for group, its in parts.items()
        if its
    ]


def scripted_agents(
    policies: ScriptedPolicy | Mapping[str, ScriptedPolicy],
    groups: Mapping[str, Sequence[str]],
    action_spaces: Mapping[str, Any],
) -> ScriptedAgents:
    """Return the agents of functions: of one for all agents, or of a mapping by group.

    Raises:
        ConfigurationError: an unknown group, no group, or what is not a function.
    """
    by_group = policies if isinstance(policies, Mapping) else dict.fromkeys(groups, policies)
    if not by_group:
        raise ConfigurationError("opponents={} names no group")
    for group, policy in by_group.items():
        if group not in groups:
            raise unknown_name("group of opponents", group, groups)
        if not callable(policy):
            raise ConfigurationError(
                f"the policy of group {group!r} is {policy!r:.100}; allowed is a function of observation, mask and rng"
            )
    by_agent = {agent: policy for group, policy in by_group.items() for agent in groups[group]}
    return ScriptedAgents(by_agent, action_spaces)
