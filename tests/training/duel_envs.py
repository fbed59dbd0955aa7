"""Small PettingZoo envs: a symmetric zero-sum game, and one in which agents need their ids."""

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

CHOICES = 3


class Duel(ParallelEnv):
    """Both sides observe a colour and name one; a side that alone is right wins two points (red) or one (blue)."""

    possible_agents = ("red_0", "blue_0")

    def __init__(self, steps=4):
        self.metadata, self.steps = {"name": "duel"}, steps

    def observation_space(self, agent):
        return Box(0, 1, (CHOICES,), np.float32)

    def action_space(self, agent):
        return Discrete(CHOICES)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.now = list(self.possible_agents), 0
        return self._look(), {agent: {} for agent in self.agents}

    def step(self, actions):
        right = {agent: int(actions[agent] == self.colour) for agent in self.agents}
        point = 2 * right["red_0"] * (1 - right["blue_0"]) - right["blue_0"] * (1 - right["red_0"])
        self.now += 1
        over = self.now == self.steps
        observations = self._look()
        flags = dict.fromkeys(self.agents, over)
        self.agents = [] if over else self.agents
        rewards = {"red_0": float(point), "blue_0": -float(point)}
        return observations, rewards, flags, dict.fromkeys(flags, False), {agent: {} for agent in flags}

    def _look(self):
        self.colour = int(self.rng.integers(CHOICES))
        return {agent: np.eye(CHOICES, dtype=np.float32)[self.colour] for agent in self.possible_agents}


class Roles(ParallelEnv):
    """Both agents observe zeros; the first must play 0 and the second 1, which needs agent ids."""

    possible_agents = ("twin_0", "twin_1")

    def __init__(self):
        self.metadata = {"name": "roles"}

    def observation_space(self, agent):
        return Box(-1, 1, (1,), np.float32)

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return self._look(), {agent: {} for agent in self.agents}

    def step(self, actions):
        rewards = {agent: float(actions[agent] == int(agent[-1])) for agent in self.agents}
        observations, over = self._look(), dict.fromkeys(self.agents, True)
        self.agents = []
        return observations, rewards, over, dict.fromkeys(over, False), {agent: {} for agent in over}

    def _look(self):
        return {agent: np.zeros(1, np.float32) for agent in self.possible_agents}
