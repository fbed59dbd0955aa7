"""An AEC env, whose agents take turns, as a parallel env in which only the selected agent is present.

An agent's reward is the sum of what the env has credited to it since its last action, as PettingZoo's `last()` gives
it. It is returned at the agent's next turn, or when the agent has ended.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, OrderEnforcingWrapper

from agilerl_like.envs.env_errors import check_reward, describe_exception
from agilerl_like.errors import EnvStepError

MASK = "action_mask"

Step = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]
"""What a parallel env's step returns."""


class TurnBasedEnv(ParallelEnv[str, Any, Any]):
    """A parallel env of one agent at a time, around an AEC env."""

    def __init__(self, env: AECEnv) -> None:
        self.aec_env: Any = strip_checks(env)
        self.possible_agents = env.possible_agents
        self.agents: list[str] = []
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)
        if isinstance(getattr(env, "state_space", None), gym.Space):
            self.state_space = env.state_space  # pyright: ignore[reportAttributeAccessIssue]  # optional in AEC envs
        self._has_mask = False
        self._steps = 0

    @property
    def unwrapped(self) -> Any:
        """The AEC env inside of all wrappers."""
        return self.aec_env.unwrapped

    def observation_space(self, agent: str) -> gym.Space:
        return self.aec_env.observation_space(agent)

    def action_space(self, agent: str) -> gym.Space:
        return self.aec_env.action_space(agent)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; only the first agent to act observes."""
        self.aec_env.reset(seed=seed, options=options)
        self._steps = 0
        observations, _, _, _, infos = self._until_next_turn(())
        return observations, infos

    def step(self, actions: dict[str, Any]) -> Step:
        """Take the action of the selected agent."""
        agent = self.aec_env.agent_selection
        self._steps += 1
        try:
            self.aec_env.step(actions[agent])
        except EnvStepError:
            raise
        except Exception as error:
            for paid, reward in getattr(self.aec_env, "rewards", {}).items():  # None, for one, cannot be summed
                check_reward(f"{self}, step {self._steps} of the episode: the reward of agent {paid!r}", reward)
            hint = f"; without {MASK} in observations or infos an illegal action cannot be avoided"
            raise EnvStepError(
                f"{self}: action {actions[agent]} of agent {agent!r} failed with {describe_exception(error)}"
                f"{'' if self._has_mask else hint}"
            ) from error
        return self._until_next_turn((agent,))

    def state(self) -> Any:
        """The global state."""
        return self.aec_env.state()

    def render(self) -> Any:
        return self.aec_env.render()

    def close(self) -> None:
        self.aec_env.close()

    def __str__(self) -> str:
        return str(self.aec_env)

    def _until_next_turn(self, acted: tuple[str, ...]) -> Step:
        """Remove agents that have ended, up to the agent that acts next; those that `acted` have a reward and flags."""
        env = self.aec_env
        observations, infos = {}, {}
        rewards: dict[str, float] = dict.fromkeys(acted, 0.0)
        terminations, truncations = dict.fromkeys(acted, False), dict.fromkeys(acted, False)
        self.agents = []
        while env.agents:
            agent = env.agent_selection
            _, reward, terminated, truncated, info = env.last(observe=False)
            rewards[agent] = rewards[agent] + reward if rewards.get(agent) else reward
            infos[agent] = info
            terminations[agent], truncations[agent] = terminated, truncated
            if not (terminated or truncated):
                self.agents = [agent]
                observations[agent] = env.observe(agent)
                break
            if not terminated:  # its last observation is the state that is bootstrapped from
                observations[agent] = env.observe(agent)
            env.step(None)
        if not self._has_mask and self.agents:
            seen = observations[self.agents[0]]
            self._has_mask = (isinstance(seen, dict) and MASK in seen) or MASK in (infos[self.agents[0]] or {})
        return observations, rewards, terminations, truncations, infos


def strip_checks(env: AECEnv) -> Any:
    """Return an AEC env without the wrappers that check for a step before reset and for actions outside the space.

    They take a large part of a step and are not needed: `MultiAgentVectorEnv` resets first, and `PackedSpace.pack`
    checks actions.
    """
    while type(env) in (OrderEnforcingWrapper, AssertOutOfBoundsWrapper):
        env = env.env  # pyright: ignore[reportAttributeAccessIssue]  # of the wrappers
    return env
