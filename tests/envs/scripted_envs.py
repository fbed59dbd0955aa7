"""Environments that end by a script; worker processes import this file, so it imports neither torch nor the package."""

import itertools
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

Script = Sequence[tuple[int, bool, bool]]  # episodes: length, terminates, truncates


class Scripted(gym.Env):
    """Observes (env, episode, step), rewards the action's value, ends by a script; records every step in a journal."""

    def __init__(self, index: int, script: Script, *, space: str = "vector") -> None:
        self.index = index
        self.episodes = itertools.cycle(script)
        self.episode = 0
        self.journal: list[tuple[Any, ...]] = []
        self.space = space
        vector = Box(-1, 1e6, (3,), np.float64)
        self.observation_space = Dict({"a": vector, "b": Discrete(10_000)}) if space == "dict" else vector
        self.action_space = Discrete(5)

    def look(self) -> Any:
        seen = np.array([self.index, self.episode, self.time], dtype=np.float64)
        return {"a": seen, "b": np.int64(self.time)} if self.space == "dict" else seen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.terminates, self.truncates = next(self.episodes)
        self.episode += 1
        self.time = 0
        return self.look(), {}

    def step(self, action):
        before = self.look()
        self.time += 1
        ends = self.time == self.length
        flags = (ends and self.terminates, ends and self.truncates)
        self.journal.append((before, int(action), *flags, self.look()))
        return self.look(), float(action) / 4, *flags, {}


class Named(gym.Wrapper):
    """Puts the observation under the key "policy"."""

    def __init__(self, single_env: Scripted) -> None:
        super().__init__(single_env)
        self.observation_space = Dict({"policy": single_env.observation_space})

    def reset(self, **given):
        obs, info = self.env.reset(**given)
        return {"policy": obs}, info

    def step(self, action):
        obs, *rest = self.env.step(action)
        return {"policy": obs}, *rest


class Counted(gym.Env):
    """Its seed is the length of its episodes; counts its calls."""

    observation_space = Box(0, 100, (1,))
    action_space = Discrete(2)
    resets = steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        self.left = seed
        return np.array([self.left], np.float32), {}

    def step(self, action):
        self.steps += 1
        self.left -= 1
        return np.array([self.left], np.float32), 1.0, self.left == 0, False, {"left": self.left}
