"""Wrappers around agents: everything is the wrapped agent's, but for what a wrapper changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.envs.pytree import tree_map
from agilerl_like.errors import ConfigurationError

__getattr__ = absent_from(__name__)

WrapperT = TypeVar("WrapperT", bound="AgentWrapper")


class AgentWrapper:
    """Forwards attribute access and assignment to its `agent`."""

    agent: Any

    def __init__(self, agent: Any) -> None:
        object.__setattr__(self, "agent", agent)

    def __getattr__(self, name: str) -> Any:
        if name == "agent":  # of a copy that is not made yet
            raise AttributeError(name)
        return getattr(self.agent, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.agent, name, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.agent!r})"

    def clone(self: WrapperT, index: int | None = None, wrap: bool = True) -> WrapperT:
        """A wrapper of the same kind around a clone."""
        return self.around(self.agent.clone(index, wrap))

    def mutate(self: WrapperT, *args: Any, **kwargs: Any) -> WrapperT:
        """Mutate the agent itself."""
        self.agent.mutate(*args, **kwargs)
        return self

    def around(self: WrapperT, agent: Any) -> WrapperT:
        """A wrapper of the same kind around another agent."""
        other = object.__new__(type(self))
        object.__setattr__(other, "agent", agent)
        return other


class RSNorm(AgentWrapper):
    """Running normalisation of observations, which agents of this package have of their own.

    Raises:
        ConfigurationError: the agent was made without running statistics, or `norm_obs_keys` are given.
    """

    def __init__(self, agent: Any, epsilon: float = 1e-4, norm_obs_keys: Sequence[str] | None = None) -> None:
        super().__init__(agent)
        if norm_obs_keys is not None:
            raise ConfigurationError(
                f"norm_obs_keys={norm_obs_keys!r}; allowed is None: vectors are normalised, and images scaled"
            )
        if agent.normalize_observation not in (True, "running"):
            raise ConfigurationError(
                f"normalize_observation={agent.normalize_observation!r}; allowed is True, of an agent in RSNorm"
            )


class AsyncAgentsWrapper(AgentWrapper):
    """For teams whose agents do not observe in every step: agents without an observation take no action.

    `learn` leaves out the steps whose reward is NaN, as `IPPO.learn` does without a wrapper.
    """

    def extract_inactive_agents(self, obs: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The rows of each agent that observe nothing (NaN), and the observations of all agents with any."""
        there = {agent: _observing(seen) for agent, seen in obs.items()}
        inactive = {agent: np.flatnonzero(~rows) for agent, rows in there.items() if not rows.all()}
        return inactive, {agent: seen for agent, seen in obs.items() if there[agent].any()}

    def get_action(self, obs: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As the agent's, without agents that observe nothing; a row without an observation is answered as zeros."""
        _, active = self.extract_inactive_agents(obs)
        return self.agent.get_action(tree_map(np.nan_to_num, active), *args, **kwargs)


def _observing(observation: Any) -> np.ndarray:
    """Rows `[N]` in which something is observed."""
    found: list[Any] = []
    tree_map(lambda part: found.append(_numbers_in(part)), observation)
    return np.asarray(np.logical_or.reduce(found))


def _numbers_in(part: np.ndarray) -> np.ndarray:
    """Rows `[N]` without a NaN."""
    rows = np.asarray(part, np.float64).reshape(len(part), -1)
    return np.asarray(~np.isnan(rows).any(axis=1))


def bare(agent: Any) -> Any:
    """The agent inside of wrappers."""
    while isinstance(agent, AgentWrapper):
        agent = agent.agent
    return agent
