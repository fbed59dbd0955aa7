"""The sides of a game between teams: the agents that one team controls while another one controls the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


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
