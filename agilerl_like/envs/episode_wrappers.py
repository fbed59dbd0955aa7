"""Wrappers of single environments: a limit of the return, attributes in the info, an info in the observation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict
from gymnasium.utils import RecordConstructorArgs

from agilerl_like.envs.critic_observation import POLICY
from agilerl_like.errors import ConfigurationError, EnvStepError


class MaxTotalReward(gym.Wrapper, RecordConstructorArgs):
    """Terminates an episode once its return has reached `limit`; what exceeds it is not paid.

    Raises:
        ConfigurationError: the limit is not above 0, where an episode begins.
    """

    def __init__(self, env: gym.Env, limit: float) -> None:
        if not limit > 0:
            raise ConfigurationError(f"limit={limit!r} must be greater than 0, the return at the start of an episode")
        RecordConstructorArgs.__init__(self, limit=limit)
        gym.Wrapper.__init__(self, env)
        self.limit, self._total = float(limit), 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._total = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action; the last reward is what is missing to the limit."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._total + float(reward) >= self.limit:
            reward, terminated = self.limit - self._total, True
        self._total += float(reward)
        return observation, reward, terminated, truncated, info


class AttributesInInfo(gym.Wrapper, RecordConstructorArgs):
    """Adds attributes of the environment to the info of each step, under their names."""

    def __init__(self, env: gym.Env, names: Sequence[str]) -> None:
        RecordConstructorArgs.__init__(self, names=list(names))
        gym.Wrapper.__init__(self, env)
        self.names = list(names)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action.

        Raises:
            EnvStepError: the environment has no such attribute.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        try:
            found = {name: self.env.get_wrapper_attr(name) for name in self.names}
        except AttributeError as fault:
            raise EnvStepError(
                f"info_keys: {self.env} lacks an attribute of {', '.join(self.names)}: {fault}"
            ) from fault
        return observation, reward, terminated, truncated, {**info, **found}


class InfoObservation(gym.Wrapper, RecordConstructorArgs):
    """Adds an array of the info to the observation: `{"policy": observation, key: info[key]}`, for the critic.

    `space` is that of the array; left out, it is a Box without bounds of the shape that the first reset gives.

    Raises:
        ConfigurationError: the info has no such key; or it is "policy", the observation's own.
    """

    def __init__(self, env: gym.Env, key: str = "state", space: gym.Space | None = None) -> None:
        RecordConstructorArgs.__init__(self, key=key, space=space)
        gym.Wrapper.__init__(self, env)
        self.key = key
        if key == POLICY:
            raise ConfigurationError(f"key={key!r} is the name of the observation; allowed is another key of the info")
        if space is None:
            found = self.env.reset(seed=0)[1].get(key)
            self.env.np_random = np.random.default_rng()  # else all copies would play the episodes of seed 0
            if found is None:
                raise ConfigurationError(f"key={key!r} is not in the info of {env}'s reset; allowed are its keys")
            space = Box(-np.inf, np.inf, np.shape(found), np.float32)
        self.observation_space = Dict([(POLICY, env.observation_space), (key, space)])

    def _observed(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        if self.key not in info:
            raise EnvStepError(f"{self.env} gave no info[{self.key!r}]")
        space = self.observation_space[self.key]  # pyright: ignore[reportIndexIssue]  # a Dict
        return {POLICY: observation, self.key: np.asarray(info[self.key], space.dtype)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._observed(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._observed(observation, info), reward, terminated, truncated, info
