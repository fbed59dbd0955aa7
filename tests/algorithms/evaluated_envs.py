"""Environments of tests of evaluation. Workers import this file, and so neither torch nor the package."""

import os
from pathlib import Path

import gymnasium
import numpy as np


class Counter(gymnasium.Env):
    """An env whose seed is the length of its episodes; its info counts the steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = int(self.np_random.integers(2, 6))
        self.done = 0
        return np.zeros(2, np.float32), {"phase": "first", "done": 0}

    def step(self, action):
        self.done += 1
        info = {"done": self.done, "nested": {"half": self.done / 2}, "phase": "later"}
        if self.done == self.length:
            info["is_success"] = self.length > 3
        return np.zeros(2, np.float32), 1.0, self.done == self.length, False, info


class Deadly(gymnasium.Env):
    """Five steps of reward 1; its process dies in the third step of an episode of certain seeds, once."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seeds, marker):
        self.seeds, self.marker = seeds, Path(marker)

    def reset(self, *, seed=None, options=None):
        self.steps, self.is_deadly = 0, seed in self.seeds and not self.marker.exists()
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.is_deadly and self.steps == 3:
            self.marker.touch()
            os._exit(3)
        return np.zeros(1, np.float32), 1.0, self.steps == 5, False, {}
