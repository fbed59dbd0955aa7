"""Environments of tests of instances. Workers import this file, and so neither torch nor the package."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

STEPS = 5


class Paid(gymnasium.Env):
    """Pays `pay` a step, times the action's factor, for five steps; the info has the steps as `cost`, and `success`."""

    observation_space = Box(0, 1, (1,))
    action_space = Discrete(2)

    def __init__(self, pay=1.0, factors=(1.0, 1.0)):
        self.pay, self.factors = pay, factors

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.fes, self.bonus = 0, 0
        return self.np_random.random(1).astype(np.float32), {}

    def step(self, action):
        self.fes += 1
        self.bonus += int(action)
        info = {"cost": self.fes, "nested": {"success": bool(action)}, "state": np.float32([self.fes])}
        reward = self.pay * self.factors[int(action)]
        return self.np_random.random(1).astype(np.float32), reward, self.fes == STEPS, False, info
