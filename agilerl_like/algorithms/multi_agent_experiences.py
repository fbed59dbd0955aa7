"""What a loop by hand knows agent by agent, as a group's learner takes it: AgileRL's way to step and to learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from agilerl_like.algorithms.agilerl_experiences import NAMES, Experiences
from agilerl_like.envs.multi_agent.group_env import AgentGroup
from agilerl_like.envs.pytree import tree_map
from agilerl_like.errors import ConfigurationError, unknown_name

if TYPE_CHECKING:
    from agilerl_like.algorithms.ippo import IPPO

ByAgent = tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]
MultiAgentExperiences = Sequence[Mapping[str, Any]]
"""`NAMES`, in this order, each by agent: the first six are lists over time of arrays `[N, …]`."""


def get_action_by_agent(team: IPPO, obs: Mapping[str, Any], infos: Mapping[str, Any]) -> ByAgent:
    """Let each group act on what those of its agents observe that are there; four results, each by agent."""
    for agent in obs:
        team.learner_of(agent)  # or it is an error
    found: ByAgent = ({}, {}, {}, {})
    for group, rows in team.agent_groups.items():
        present = [agent for agent in rows.agent_ids if agent in obs]
        if not present:
            continue
        learner = team.learners[group]
        if learner.recurrent:
            raise ConfigurationError(
                f"group {group!r} is recurrent, and get_action of a team keeps no hidden state; call "
                f"team.learners[{group!r}].get_action(obs, hidden_state=…), or train with train_multi_agent_on_policy"
            )
        seen = [rows.rows_of_agent(agent, rows.as_batch(agent, obs[agent])) for agent in present]
        told = [infos.get(agent) or {} for agent in present]
        each = [None if (mask := its.get("action_mask")) is None else np.atleast_2d(mask) for its in told]
        batch = tree_map(lambda *parts: np.concatenate(parts), *seen)
        results = learner.get_action(batch, _masks(each, rows, len(learner.encode(batch)) // len(present)))
        for results_by_agent, whole in zip(found, results, strict=True):
            results_by_agent |= zip(present, np.split(whole, len(present)), strict=True)
        for agent, its in zip(present, told, strict=True):
            found[0][agent] = _as_defined(found[0][agent], its.get("env_defined_actions"))
    return found


class GroupExperiences(NamedTuple):
    """The arguments of a learner's `learn`."""

    experiences: Experiences
    action_masks: list[np.ndarray] | None
    acting: list[np.ndarray] | None


def experiences_of_group(
    rows: AgentGroup,
    experiences: MultiAgentExperiences | None,
    action_masks: Mapping[str, Sequence[Any]] | None,
    acting: Mapping[str, Sequence[Any]] | None,
) -> GroupExperiences:
    """The experiences, masks and flags of one group's agents, as its learner takes them."""
    if experiences is None or len(experiences) != len(NAMES):
        raise ConfigurationError(f"experiences must be ({', '.join(NAMES)}), each by agent")
    tables: dict[str, Mapping[str, Any]] = dict(zip(NAMES, experiences, strict=True))
    tables |= {} if action_masks is None else {"action_masks": action_masks}
    tables |= {} if acting is None else {"acting": acting}
    for name, table in tables.items():
        for agent in rows.agent_ids:
            if agent not in table:
                raise unknown_name(f"experiences: {name} has nothing of agent", agent, table)
    steps = len(tables["states"][rows.agent_ids[0]])

    def over_time(name: str, stack: Any) -> list[Any]:
        for agent in rows.agent_ids:
            if len(tables[name][agent]) != steps:
                raise ConfigurationError(
                    f"experiences: {name}[{agent!r}] has {len(tables[name][agent])} steps; states has {steps}"
                )
        return [stack({agent: tables[name][agent][t] for agent in rows.agent_ids}) for t in range(steps)]

    def arrays(by_agent: Mapping[str, Any]) -> Any:
        return rows.to_rows({agent: np.atleast_1d(np.asarray(part)) for agent, part in by_agent.items()})

    def observations(by_agent: Mapping[str, Any]) -> Any:
        return rows.observation_rows({agent: rows.as_batch(agent, by_agent[agent]) for agent in rows.agent_ids})

    actions, log_probs, rewards, dones, values = (over_time(name, arrays) for name in NAMES[1:6])
    next_state, next_done = observations(tables["next_state"]), arrays(tables["next_done"])
    whole = over_time("states", observations), actions, log_probs, rewards, dones, values, next_state, next_done
    masks, flags = (over_time(name, arrays) if name in tables else None for name in ("action_masks", "acting"))
    return GroupExperiences(whole, masks, _without_placeholders(rewards) if flags is None else flags)


def _without_placeholders(rewards: Sequence[Any]) -> list[np.ndarray] | None:
    """Flags of the rows whose reward is a number, over time; None if all are."""
    flags = [~np.isnan(np.asarray(row, np.float64)) for row in rewards]
    return None if all(row.all() for row in flags) else flags


def _masks(each: Sequence[np.ndarray | None], rows: AgentGroup, envs: int) -> np.ndarray | None:
    """Masks of several agents as rows; who has none may do everything."""
    known = [mask for mask in each if mask is not None]
    if not known:
        return None
    everything = np.ones((envs, known[0].shape[-1]), np.bool_)
    return np.concatenate([everything if mask is None else mask for mask in each])


def _as_defined(actions: np.ndarray, defined: Any) -> np.ndarray:
    """Actions, but where the env says what they are (not nan)."""
    if defined is None:
        return actions
    given = np.asarray(defined, np.float64).reshape(actions.shape)
    return np.where(np.isnan(given), actions, given).astype(actions.dtype)
