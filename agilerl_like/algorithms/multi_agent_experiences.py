"""Conversion of AgileRL's data by agent (observations, infos, experiences) to the rows of a group's learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from agilerl_like.algorithms.agilerl_experiences import NAMES, Experiences
from agilerl_like.algorithms.ppo_learner import PPOLearner
from agilerl_like.envs.multi_agent.group_env import AgentGroup
from agilerl_like.envs.pytree import tree_map
from agilerl_like.errors import ConfigurationError, check_mapping, unknown_name

ByAgent = tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]
MultiAgentExperiences = Sequence[Mapping[str, Any]]
"""`NAMES`, in this order, each by agent: the first six are lists over time of arrays `[N, …]`."""


def get_action_by_agent(
    groups: Mapping[str, AgentGroup],
    learners: Mapping[str, PPOLearner],
    obs: Mapping[str, Any],
    infos: Mapping[str, Any],
) -> ByAgent:
    """Act on the observations of the agents that are present; return action, log_prob, entropy and value by agent.

    Raises:
        ConfigurationError: a group is recurrent, or an observation or mask does not fit.
    """
    results: ByAgent = ({}, {}, {}, {})
    envs, absent = 0, []
    for group, agents in groups.items():
        present = [agent for agent in agents.agent_ids if agent in obs]
        if not present:
            absent.append(group)
            continue
        learner = learners[group]
        if learner.recurrent:
            raise ConfigurationError(
                f"group {group!r} is recurrent, and get_action of a team has no hidden state; call "
                f"team.learners[{group!r}].get_action(obs, hidden_state=…), or train with train_multi_agent_on_policy"
            )
        rows = [agents.rows_of_agent(agent, agents.as_batch(agent, obs[agent])) for agent in present]
        agent_infos = [{} if infos.get(agent) is None else infos[agent] for agent in present]
        for agent, info in zip(present, agent_infos, strict=True):
            check_mapping(f"infos[{agent!r}]", info)
        masks = [None if (mask := info.get("action_mask")) is None else np.atleast_2d(mask) for info in agent_infos]
        batch = tree_map(lambda *parts: np.concatenate(parts), *rows)
        envs = len(learner.encode(batch)) // len(present)
        its_masks = _concatenate_masks(masks, envs)
        learner.warn_of_missing_masks("get_action", its_masks)
        actions, log_probs, *others = learner.get_action(batch, its_masks, envs=envs)
        defined = [info.get("env_defined_actions") for info in agent_infos]
        if any(given is not None for given in defined):
            parts = zip(np.split(actions, len(present)), defined, strict=True)
            actions = np.concatenate([_with_env_defined(part, given) for part, given in parts])
            with torch.no_grad():
                log_probs = learner.evaluate_actions(batch, actions, action_mask=its_masks)[0].cpu().numpy()
        for by_agent, output in zip(results, (actions, log_probs, *others), strict=True):
            by_agent |= zip(present, np.split(output, len(present)), strict=True)
    for group in absent:
        learners[group].skip_step(envs)
    return results


class GroupExperiences(NamedTuple):
    """The arguments of `PPO.learn`."""

    experiences: Experiences
    action_masks: list[np.ndarray] | None
    acting: list[np.ndarray] | None

    @property
    def has_acted(self) -> bool:
        """Whether any agent of the group acted."""
        return self.acting is None or any(np.any(flags) for flags in self.acting)

    @property
    def rows(self) -> int:
        """Rows of all steps: agents of the group in all envs."""
        return sum(np.size(row) for row in self.experiences[3])


def experiences_of_group(
    group: AgentGroup,
    experiences: MultiAgentExperiences | None,
    action_masks: Mapping[str, Sequence[Any]] | None,
    acting: Mapping[str, Sequence[Any]] | None,
) -> GroupExperiences:
    """Return the experiences, masks and acting flags of one group's agents as rows.

    Those of a loop over one env that is not vectorised may lack the axis of envs.

    Raises:
        ConfigurationError: an agent is missing, or parts have different lengths.
    """
    if not isinstance(experiences, Sequence) or len(experiences) != len(NAMES):
        raise ConfigurationError(f"experiences must be ({', '.join(NAMES)}), each by agent")
    tables: dict[str, Mapping[str, Any]] = dict(zip(NAMES, experiences, strict=True))
    tables |= {} if action_masks is None else {"action_masks": action_masks}
    tables |= {} if acting is None else {"acting": acting}
    for name, table in tables.items():
        for agent in group.agent_ids:
            if agent not in table:
                raise unknown_name(f"experiences: {name} has nothing of agent", agent, table)
    steps = len(tables["states"][group.agent_ids[0]])

    def over_time(name: str, stack: Any) -> list[Any]:
        for agent in group.agent_ids:
            if len(tables[name][agent]) != steps:
                raise ConfigurationError(
                    f"experiences: {name}[{agent!r}] has {len(tables[name][agent])} steps; states has {steps}"
                )
        return [stack({agent: tables[name][agent][t] for agent in group.agent_ids}) for t in range(steps)]

    def numbers(by_agent: Mapping[str, Any]) -> Any:
        return group.to_rows({agent: np.atleast_1d(np.asarray(part)) for agent, part in by_agent.items()})

    def actions_of_step(by_agent: Mapping[str, Any]) -> Any:
        parts = {agent: np.asarray(part) for agent, part in by_agent.items()}
        shape = group.single_action_space.shape
        return group.to_rows(
            {agent: part[None] if part.shape == shape else np.atleast_1d(part) for agent, part in parts.items()}
        )

    def masks_of_step(by_agent: Mapping[str, Any]) -> Any:
        return group.to_rows({agent: np.atleast_2d(np.asarray(part)) for agent, part in by_agent.items()})

    def observations(by_agent: Mapping[str, Any]) -> Any:
        return group.observation_rows({agent: group.as_batch(agent, by_agent[agent]) for agent in group.agent_ids})

    actions = over_time("actions", actions_of_step)
    log_probs, rewards, dones, values = (over_time(name, numbers) for name in NAMES[2:6])
    next_state, next_done = observations(tables["next_state"]), numbers(tables["next_done"])
    rows = over_time("states", observations), actions, log_probs, rewards, dones, values, next_state, next_done
    masks = over_time("action_masks", masks_of_step) if "action_masks" in tables else None
    flags = over_time("acting", numbers) if "acting" in tables else None
    return GroupExperiences(rows, masks, _acting_by_reward(rewards) if flags is None else flags)


def _acting_by_reward(rewards: Sequence[Any]) -> list[np.ndarray] | None:
    """Return flags of the rows whose reward is not NaN, over time; None if none is."""
    flags = [~np.isnan(np.asarray(row, np.float64)) for row in rewards]
    return None if all(row.all() for row in flags) else flags


def _concatenate_masks(masks: Sequence[np.ndarray | None], envs: int) -> np.ndarray | None:
    """Concatenate the masks of several agents; agents without a mask may take every action."""
    known = [mask for mask in masks if mask is not None]
    if not known:
        return None
    all_allowed = np.ones((envs, known[0].shape[-1]), np.bool_)
    return np.concatenate([all_allowed if mask is None else mask for mask in masks])


def _with_env_defined(actions: np.ndarray, defined: Any) -> np.ndarray:
    """Replace actions by those that the env defines (not NaN)."""
    if defined is None:
        return actions
    given = np.asarray(defined, np.float64).reshape(actions.shape)
    return np.where(np.isnan(given), actions, given).astype(actions.dtype)
