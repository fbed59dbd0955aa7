"""Agents that act by functions: opponents, groups that are not trained, and players in games and ratings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from agilerl_like.envs.action_masks import is_legal
from agilerl_like.envs.multi_agent.packed_env import zero_sample
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.errors import ConfigurationError

ScriptedPolicy = Callable[[Any, "np.ndarray | None", np.random.Generator], Any]
"""An agent's observation in one env, its action mask `[choices]` (None without masks) and a generator -> its action."""


def random_moves(observation: Any, mask: np.ndarray | None, rng: np.random.Generator) -> int:
    """Return a legal action, each with the same probability; of agents with masks and Discrete actions from 0 on.

    Raises:
        ConfigurationError: the environment gives no masks.
    """
    if mask is None:
        raise ConfigurationError("random_moves needs action masks; this environment gives none")
    return int(rng.choice(np.flatnonzero(mask)))


class ScriptedAgents:
    """Some agents and their functions, with the `actor` of a `GroupPolicy`."""

    def __init__(self, policies: Mapping[str, ScriptedPolicy], action_spaces: Mapping[str, Space]) -> None:
        self.policies = dict(policies)
        """By agent."""
        self._spaces = action_spaces

    def part(self, agents: Collection[str]) -> ScriptedAgents:
        """Return those of its agents that are among `agents`."""
        policies = {agent: policy for agent, policy in self.policies.items() if agent in agents}
        return ScriptedAgents(policies, self._spaces)

    def actor(self, env: Any, row_seeds: Sequence[int]) -> ScriptedActor:
        """Return what acts in a round of evaluation; an agent's draws in a row depend on the episode's seed alone."""
        generators = {
            agent: [np.random.default_rng((seed, env.agent_ids.index(agent))) for seed in row_seeds]
            for agent in self.policies
        }
        return ScriptedActor(self, env, generators)

    def actions(
        self,
        agent: str,
        observation: Tree,
        mask: np.ndarray | None,
        rows: np.ndarray,
        generators: Sequence[np.random.Generator],
    ) -> np.ndarray:
        """Return an agent's actions `[N, …]`: those of its function where `rows` `[N]` is True, else `zero_sample`.

        Raises:
            ConfigurationError: the function returned an action outside the space, or one that is masked.
        """
        space, policy = self._spaces[agent], self.policies[agent]
        found = np.empty((len(rows), *(space.shape or ())), space.dtype)
        found[:] = zero_sample(space)
        for row in np.flatnonzero(rows).tolist():
            its_mask = None if mask is None else mask[row].copy()
            seen = tree_map(lambda leaf, row=row: leaf[row].copy(), observation)
            action = policy(seen, its_mask, generators[row])
            if not is_legal(space, action, its_mask):
                allowed = f"{space}" if its_mask is None else f"{space} with the mask {its_mask.astype(int).tolist()}"
                raise ConfigurationError(
                    f"policy={policy!r:.100} of agent {agent!r} returned {action!r:.100}; allowed is an action of "
                    f"{allowed}"
                )
            found[row] = action
        return found


class ScriptedActor:
    """Scripted agents in all rows of an env."""

    def __init__(
        self, agents: ScriptedAgents, env: Any, generators: Mapping[str, Sequence[np.random.Generator]]
    ) -> None:
        self._agents, self._env, self._generators = agents, env, generators

    def act(self, observations: Mapping[str, Tree], masks: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the actions by agent `[N, …]`."""
        acting = self._env.acting
        return {
            agent: self._agents.actions(agent, observations[agent], masks[agent], acting[agent], its)
            for agent, its in self._generators.items()
        }

    def note(self, step: Any) -> None:
        """Do nothing: functions have no hidden state."""


class ScriptedRows:
    """Functions that control some agents of some envs in training, with a generator for each env."""

    def __init__(
        self,
        agents: ScriptedAgents,
        rows: Mapping[str, np.ndarray],
        generators: Sequence[np.random.Generator],
    ) -> None:
        self.agents, self._rows, self._generators = agents, rows, generators

    def others(self, agent: str, values: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """Return an agent's values `[n]` in the envs numbered `envs` `[n]`, with 0 where a function controls it."""
        return np.where(self._rows[agent][envs], 0, values)

    def replace(
        self,
        actions: Mapping[str, np.ndarray],
        envs: np.ndarray,
        observations: Mapping[str, Tree],
        masks: Mapping[str, np.ndarray | None],
        acting: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Return the actions `[n, …]` of the envs numbered `envs` `[n]`, with those of functions in their rows.

        Observations, masks and `acting` are of these envs.
        """
        found, generators = dict(actions), [self._generators[env] for env in envs]
        for agent in self.agents.policies:
            rows = self._rows[agent][envs] & acting[agent]
            theirs = self.agents.actions(agent, observations[agent], masks[agent], rows, generators)
            chosen = rows.reshape(-1, *[1] * (theirs.ndim - 1))
            found[agent] = np.where(chosen, theirs, found[agent])
        return found
