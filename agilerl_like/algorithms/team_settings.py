"""The agents of a team, their groups and rewards: the settings of IPPO that PPO does not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, get_args

import gymnasium

from agilerl_like.algorithms.agent_groups import check_factors, death_of
from agilerl_like.algorithms.serialization import read_multi_agent_spec, read_space
from agilerl_like.envs.multi_agent.group_env import AgentGroup, Death, Rewards
from agilerl_like.envs.spaces import space_to_json
from agilerl_like.errors import ConfigurationError, unknown_name


class Team(Protocol):
    """An algorithm whose attributes are the settings of a team."""

    observation_space: gymnasium.spaces.Dict
    action_space: gymnasium.spaces.Dict
    agent_ids: tuple[str, ...]
    rewards: Rewards
    death: Death
    agent_id_one_hot: bool
    frozen_groups: tuple[str, ...]
    state_space: gymnasium.Space | None

    @property
    def group_factors(self) -> Mapping[str, Mapping[str, float]]: ...
    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]: ...


@dataclass(frozen=True)
class TeamSettings:
    """The agents of a team, in the order of their ids, and the settings that `IPPO` describes.

    Raises:
        ConfigurationError: a value is none of those allowed, or names an unknown group.
    """

    observation_spaces: Mapping[str, gymnasium.Space]
    action_spaces: Mapping[str, gymnasium.Space]
    groups: Mapping[str, tuple[str, ...]]
    """The agents of each group."""
    rewards: Rewards
    death: Death
    agent_id_one_hot: bool
    frozen_groups: tuple[str, ...]
    group_factors: Mapping[str, Mapping[str, float]]
    """Factors by group of the hyperparameters named."""
    state_space: gymnasium.Space | None
    """The space of `env.state()`, if critics observe it."""

    def __post_init__(self) -> None:
        if self.rewards not in get_args(Rewards):
            raise unknown_name("rewards", self.rewards, get_args(Rewards))
        if self.death not in get_args(Death):
            raise unknown_name("death", self.death, get_args(Death))
        if not isinstance(self.agent_id_one_hot, bool):
            raise ConfigurationError(f"agent_id_one_hot={self.agent_id_one_hot!r} must be True or False")
        for group in self.frozen_groups:
            if group not in self.groups:
                raise unknown_name("frozen_groups entry", group, self.groups)
        if {*self.frozen_groups} == {*self.groups}:
            raise ConfigurationError(f"frozen_groups={[*self.frozen_groups]} are all groups, so nothing would learn")
        check_factors(self.group_factors, self.groups)
        if self.state_space is not None and not isinstance(self.state_space, gymnasium.Space):
            raise ConfigurationError(f"state_space={self.state_space!r:.100}; allowed are spaces of gymnasium")

    @classmethod
    def of(cls, team: Team) -> TeamSettings:
        """Return the current settings of a team."""
        return cls(
            {agent: team.observation_space[agent] for agent in team.agent_ids},  # a Dict space may sort its keys
            {agent: team.action_space[agent] for agent in team.agent_ids},
            team.groups,
            team.rewards,
            team.death,
            team.agent_id_one_hot,
            team.frozen_groups,
            team.group_factors,
            team.state_space,
        )

    def to_document(self) -> dict[str, Any]:
        """Return the entries of a saved team's document."""
        spaces = [self.observation_spaces, self.action_spaces]
        return {
            "agent_ids": list(self.observation_spaces),
            "groups": [[group, list(ids)] for group, ids in self.groups.items()],  # JSON objects have no order
            "spaces": {
                group: [space_to_json(its_spaces[ids[0]]) for its_spaces in spaces]
                for group, ids in self.groups.items()
            },
            "rewards": self.rewards,
            "agent_id_one_hot": self.agent_id_one_hot,
            **({} if (self.rewards, self.death) == ("individual", "continue") else {"death": self.death}),
            **({"frozen_groups": list(self.frozen_groups)} if self.frozen_groups else {}),
            **({"group_factors": self.group_factors} if self.group_factors else {}),
            **({} if self.state_space is None else {"state_space": space_to_json(self.state_space)}),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> TeamSettings:
        """Read what `to_document` wrote; ValueError if it is inconsistent."""
        stored, rewards, state_space = read_multi_agent_spec(document), document["rewards"], document.get("state_space")
        return cls(
            stored.observation_spaces,
            stored.action_spaces,
            stored.groups,
            rewards,
            death_of(document),
            document["agent_id_one_hot"],
            tuple(document.get("frozen_groups", ())),
            document.get("group_factors", {}),
            None if state_space is None else read_space(state_space),
        )

    def agent_groups(self) -> dict[str, AgentGroup]:
        """Return what converts between each group's agents and its learner's rows."""
        return {
            group: AgentGroup(
                ids,
                self.observation_spaces[ids[0]],
                self.action_spaces[ids[0]],
                agent_id_one_hot=self.agent_id_one_hot,
            )
            for group, ids in self.groups.items()
        }
