"""A multi-agent env for whole runs: the best actions change every step; agents end, leave and return."""

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

LONGEST = 12


class Restless(ParallelEnv):
    """The speaker must name its observation and the listeners point at theirs, for a random number of steps."""

    def __init__(self):
        self.metadata = {"name": "restless", "render_modes": []}
        self.render_mode = None
        self.possible_agents = ["speaker_0", "listener_0", "listener_1"]
        self.random = np.random.default_rng(0)

    def observation_space(self, agent):
        return Box(-1, 1, (2 if agent == "speaker_0" else 3,))

    def action_space(self, agent):
        return Discrete(3) if agent == "speaker_0" else Box(-1, 1, (1,))

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.tick, self.dead = 0, set()
        self.agents = list(self.possible_agents)
        return self.turn(self.agents)

    def turn(self, agents):
        self.good = self.random.integers(3)
        noise = self.random.uniform(-0.1, 0.1)
        seen = np.array([self.good - 1, noise, self.tick / LONGEST], np.float32).clip(-1, 1)
        return {a: seen[: self.observation_space(a).shape[0]] for a in agents}, {a: {} for a in agents}

    def step(self, actions):
        rewards = {
            agent: float(action == self.good) if agent == "speaker_0" else -(float(action[0] - (self.good - 1)) ** 2)
            for agent, action in actions.items()
        }
        self.tick += 1
        over = self.tick == LONGEST
        dies = {agent: bool(self.random.random() < 0.05) for agent in actions}
        self.dead |= {agent for agent in actions if dies[agent]}
        rests = "listener_1" if self.random.random() < 0.2 else ""
        self.agents = [a for a in self.possible_agents if not (over or a in self.dead or a == rests)]
        seen = [agent for agent in self.possible_agents if agent in {*actions, *self.agents}]
        return *self.turn(seen)[:1], rewards, dies, dict.fromkeys(actions, over), {agent: {} for agent in seen}
