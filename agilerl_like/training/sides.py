"""The sides of a game between teams: the agents that one team controls while another one controls the rest."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from agilerl_like.algorithms.episode_guard import never_stop
from agilerl_like.algorithms.evaluation import EvalEnv, GroupPolicy, HasActor, evaluate
from agilerl_like.algorithms.openings import Openings
from agilerl_like.envs.distinct_envs import num_instances
from agilerl_like.envs.multi_agent.group_env import AgentGroup
from agilerl_like.envs.multi_agent.scripted import ScriptedAgents, ScriptedPolicy
from agilerl_like.errors import ConfigurationError, unknown_name

Policies = Callable[[Collection[str]], Sequence[HasActor]]
"""Agents -> their policies."""


class SidesPlayed(NamedTuple):
    """Games of P members from each of S sides, on K seeds, without those that openings leave out."""

    mine: np.ndarray  # [S, P, K], the total return of the side's agents
    others: np.ndarray  # [S, P, K], that of all other agents
    lengths: np.ndarray  # [S, P, K], in env steps
    lost: np.ndarray  # [S, P, K] bool: the worker process died during the game
    steps: np.ndarray  # [P], env steps of all games, also of those that are left out
    infos: np.ndarray | None = None  # [S, P, K] object: the info of each game's last step, None unless requested


def play_sides(
    sides: Sequence[Collection[str]],
    mine: Policies,
    others: Policies,
    env: EvalEnv,
    seeds: Sequence[int],
    *,
    members: int = 1,
    max_steps: int | None = None,
    should_stop: Callable[[], bool] = never_stop,
    openings: Openings | None = None,
    with_infos: bool = False,
) -> SidesPlayed:
    """Play a game from each side on each seed: `mine` acts for the agents of the side, `others` for all others.

    Raises:
        EvaluationStopped: `should_stop` returned True.
    """
    everyone = frozenset(env.agent_ids)
    found = [
        evaluate(
            [*mine(side), *others(everyone - frozenset(side))],
            env,
            seeds,
            members=members,
            max_steps=max_steps,
            should_stop=should_stop,
            openings=openings,
            with_infos=with_infos,
        )
        for side in sides
    ]
    kept = slice(None)
    if openings is not None:
        lengths = np.concatenate([episodes.lengths for episodes in found]).max(axis=0)
        is_new = np.ones(len(lengths), np.bool_)  # also of the seeds that whole sets of instances needed
        given = len(seeds) * num_instances(env.env)
        counting = openings.are_new(seeds, lengths[:given].reshape(len(seeds), -1))
        is_new[:given] = np.repeat(counting, num_instances(env.env))
        kept = np.flatnonzero(is_new)

    def totals(agents_by_side: Sequence[Collection[str]]) -> np.ndarray:
        """Sum returns in the order of the env's agents: that of a set differs between runs, and rounding with it."""
        return np.stack(
            [
                np.sum([episodes.returns_by_agent[one] for one in env.agent_ids if one in agents], axis=0)[:, kept]
                for agents, episodes in zip(agents_by_side, found, strict=True)
            ]
        )

    return SidesPlayed(
        totals(sides),
        totals([everyone - frozenset(side) for side in sides]),
        np.stack([episodes.lengths[:, kept] for episodes in found]),
        np.stack([episodes.lost[:, kept] for episodes in found]),
        np.sum([episodes.lengths.sum(axis=1) for episodes in found], axis=0),
        np.stack([episodes.infos[:, kept] for episodes in found if episodes.infos is not None]) if with_infos else None,
    )


def scores_of(mine: np.ndarray, others: np.ndarray, lost: np.ndarray | np.bool) -> np.ndarray:
    """Return 1 where a player's return is above that of the others, 0.5 where it is equal, else 0; nan where `lost`."""
    return np.where(lost, np.nan, np.where(mine == others, 0.5, mine > others))


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
    """Return the policies of some agents of a team, given those of its groups."""
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
        if not callable(policy) or isinstance(policy, type) or not _takes_three(policy):
            raise ConfigurationError(
                f"the policy of group {group!r} is {policy!r:.100}; allowed is a function of observation, mask and rng"
            )
    by_agent = {agent: policy for group, policy in by_group.items() for agent in groups[group]}
    return ScriptedAgents(by_agent, action_spaces)


def _takes_three(policy: Callable[..., Any]) -> bool:
    """Return whether a function takes three arguments; True if that is unknown, as of functions in C."""
    try:
        inspect.signature(policy).bind(None, None, None)
    except ValueError:
        return True
    except TypeError:
        return False
    return True
