"""Environments with large or nested observations and infos; workers import this file, so it imports little."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple


class Photographer(gym.Env):
    """Observes its position as an image, a number and a category; truncated after some steps, or ended by an action."""

    observation_space = Dict(
        {
            "eye": Box(0, 255, (3, 2, 3), np.uint8),
            "body": Tuple([Box(-np.inf, np.inf, (2,), np.float64), Discrete(5, start=1)]),
        }
    )
    action_space = Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action):
        self.time += 1
        return self._look(), 1.0, bool(action == 0), self.time == 4, {}

    def _look(self):
        random = self.np_random
        return {
            "eye": random.integers(0, 256, (3, 2, 3), dtype=np.uint8),
            "body": (random.standard_normal(2), 1 + int(random.integers(5))),
        }


class Talkative(gym.Env):
    observation_space, action_space = Box(-1, 1, (1,), np.float32), Discrete(2)

    def __init__(self, size):
        self.size = size

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {"frame": np.zeros(self.size, np.uint8), "t": 1.0}
