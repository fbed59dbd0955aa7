"""Small environments for the golden record: an image, a dictionary of spaces, and a partly observed walk."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import ParallelEnv


class Target(gymnasium.Env):
    """A dot moves left or right on a line of 16 places; the reward is minus its distance to the target."""

    action_space = Discrete(3)

    def __init__(self):
        self.observation_space = self.space()

    def space(self):
        return Box(0, 15, (2,), np.float32)

    def observe(self):
        return np.array([self.place, self.goal], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.goal = (int(n) for n in self.np_random.integers(0, 16, 2))
        self.count = 0
        return self.observe(), {}

    def step(self, action):
        self.place = int(np.clip(self.place + int(action) - 1, 0, 15))
        self.count += 1
        reward = -abs(self.place - self.goal) / 15
        return self.observe(), reward, self.place == self.goal, self.count == 24, {}


class ImageTarget(Target):
    """The same as an image of 1 x 16 x 16: the dot in its upper half, the target in its lower half."""

    def space(self):
        return Box(0, 255, (1, 16, 16), np.uint8)

    def observe(self):
        image = np.zeros((1, 16, 16), np.uint8)
        image[0, :8, self.place] = 255
        image[0, 8:, self.goal] = 255
        return image


class DictTarget(ImageTarget):
    """The same as an image and a vector."""

    def space(self):
        return Dict({"image": super().space(), "vector": Box(0, 15, (2,), np.float32)})

    def observe(self):
        return {"image": super().observe(), "vector": Target.observe(self)}


class HiddenTarget(Target):
    """The target is observed in the first step of an episode only."""

    def observe(self):
        return np.array([self.place, self.goal if self.count == 0 else 0], np.float32)


class ContinuousTarget(Target):
    """The dot moves by the action, in [-1, 1]."""

    action_space = Box(-1, 1, (1,), np.float32)

    def step(self, action):
        self.place = float(np.clip(self.place + float(np.clip(action, -1, 1)[0]), 0, 15))
        self.count += 1
        return self.observe(), -abs(self.place - self.goal) / 15, False, self.count == 24, {}


class TeamTarget(ParallelEnv):
    """Two walkers and a caller; the caller observes the target and names its half, which the walkers observe."""

    metadata = {"name": "team_target", "render_modes": []}  # noqa: RUF012  # PettingZoo's own habit
    render_mode = None
    length = 16

    def __init__(self):
        self.possible_agents = ["walker_0", "walker_1", "caller_0"]
        self.random = np.random.default_rng(0)

    def observation_space(self, agent):
        return Box(0, 15, (2 if agent.startswith("walker") else 1,), np.float32)

    def action_space(self, agent):
        return Discrete(3 if agent.startswith("walker") else 2)

    def observe(self, agent):
        seen = [self.places[agent], self.call] if agent in self.places else [self.goal]
        return np.array(seen, np.float32)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.goal, *places = (int(n) for n in self.random.integers(0, 16, 3))
        self.places = dict(zip(self.possible_agents, places, strict=False))
        self.call = self.count = 0
        return {a: self.observe(a) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions):
        for agent in self.places:
            self.places[agent] = int(np.clip(self.places[agent] + int(actions[agent]) - 1, 0, 15))
        self.call = int(actions["caller_0"])
        self.count += 1
        reward = -sum(abs(place - self.goal) for place in self.places.values()) / 30
        over = self.count == self.length
        names, self.agents = self.agents, [] if over else self.agents
        return (
            {a: self.observe(a) for a in names},
            dict.fromkeys(names, reward),
            dict.fromkeys(names, False),
            dict.fromkeys(names, over),
            {a: {} for a in names},
        )
