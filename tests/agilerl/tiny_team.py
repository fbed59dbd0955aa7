"""A parallel environment of three agents that walk together, for scripts of teams."""

from typing import ClassVar

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv

AGENTS = ["walker_0", "walker_1", "guide_0"]


class Meeting(ParallelEnv):
    """Each agent is paid 1 for action 0; an episode has four steps."""

    metadata: ClassVar = {"name": "meeting", "render_modes": []}
    render_mode = None

    def __init__(self):
        self.possible_agents = list(AGENTS)
        self.agents = []

    def observation_space(self, agent):
        return gymnasium.spaces.Box(-1.0, 1.0, (3,))

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.steps = list(AGENTS), 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.steps += 1
        ended = self.steps == 4
        there = list(self.agents)
        result = (
            self._seen(),
            {agent: float(actions[agent] == 0) for agent in there},
            dict.fromkeys(there, ended),
            dict.fromkeys(there, False),
            {agent: {} for agent in there},
        )
        self.agents = [] if ended else there
        return result

    def _seen(self):
        return {agent: np.full(3, self.steps / 4, np.float32) for agent in self.agents}
