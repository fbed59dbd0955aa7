"""An env that marks the start of its episodes; worker processes import this file, so it imports nothing else."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

LENGTHS = (2, 5, 3, 4)


class Walk(gym.Env):
    """An episode of one of a few lengths, drawn at reset: seen are the steps taken and the length.

    The action 1 pays more with every step.
    """

    observation_space = Box(0, 9, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, *, truncates=True):
        self.truncates = truncates

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.taken = int(self.np_random.choice(LENGTHS)), 0
        return self.look(), {}

    def look(self):
        return np.array([self.taken, self.length], np.float32)

    def step(self, action):
        self.taken += 1
        over = self.taken == self.length
        return self.look(), float(action * self.taken), over and not self.truncates, over and self.truncates, {}
