"""Multi-agent envs for tests; worker processes import this file, so it imports nothing of the package."""

import os
import signal

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from pettingzoo import ParallelEnv

THERE, AWAY, TERMINATES, TRUNCATES = "o.TX"
KILLS = 7  # an action that kills the process


class Scripted(ParallelEnv):
    """Agents with scripted presence, one letter a tick: "oo.oT" acts twice, is absent once, acts, and terminates.

    An agent observes [episode, tick, its own number] and earns 10 * number + tick + action / 100.
    """

    def __init__(self, *, silent=False, **lives):
        self.metadata = {"name": "scripted", "render_modes": []}
        self.render_mode = None
        self.lives = lives
        self.silent = silent  # agents that leave get no last observation
        self.possible_agents = list(lives)
        self.agents = []
        self.episode = -1
        self.observation_spaces = {agent: Box(-1e6, 1e6, (3,)) for agent in lives}
        self.action_spaces = {agent: Discrete(8) for agent in lives}

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def at(self, tick, agent):
        life = self.lives[agent]
        return life[tick] if tick < len(life) else AWAY

    def reset(self, seed=None, options=None):
        self.episode = self.episode + 1 if seed is None else 100 * seed
        self.tick = 0
        self.agents = [agent for agent in self.possible_agents if self.at(0, agent) == THERE]
        return {agent: self.see(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        assert list(actions) == self.agents
        if KILLS in actions.values():
            os.kill(os.getpid(), signal.SIGKILL)
        acted = self.agents
        rewards = {a: 10.0 * self.number(a) + self.tick + int(actions[a]) / 100 for a in acted}
        self.tick += 1
        terminations = {agent: self.at(self.tick, agent) == TERMINATES for agent in acted}
        truncations = {agent: self.at(self.tick, agent) == TRUNCATES for agent in acted}
        self.agents = [agent for agent in self.possible_agents if self.at(self.tick, agent) == THERE]
        seen = [
            agent
            for agent in self.possible_agents
            if agent in self.agents or (agent in acted and not (self.silent and self.at(self.tick, agent) == AWAY))
        ]
        infos = {agent: {"tick": self.tick} if self.number(agent) else {} for agent in seen}
        return {agent: self.see(agent) for agent in seen}, rewards, terminations, truncations, infos

    def number(self, agent):
        return self.possible_agents.index(agent)

    def see(self, agent):
        return np.array([self.episode, self.tick, self.number(agent)], dtype=np.float32)


class Manifold(ParallelEnv):
    """Spaces of all kinds, masks of both kinds, a state; agents come, go and die at random."""

    def __init__(self):
        self.metadata = {"name": "manifold"}
        self.render_mode = None
        self.possible_agents = ["zeta", "alpha", "mu"]
        self.state_space = Box(-1, 1, (2, 2), np.float64)
        masked = Dict({"observation": Tuple((Discrete(4, start=3), MultiBinary(2))), "action_mask": MultiBinary(5)})
        image = Dict({"pixels": Box(0, 255, (2, 3, 1), np.uint8), "wide": Box(1.0, 9.0, (2,), np.float64)})
        self.observed = {"zeta": masked, "alpha": image, "mu": MultiDiscrete([2, 3])}
        self.acts = {"zeta": Discrete(5, start=-2), "alpha": Box(-1, 1, (2, 2)), "mu": MultiDiscrete([2, 3])}

    def observation_space(self, agent):
        return self.observed[agent]

    def action_space(self, agent):
        return self.acts[agent]

    def reset(self, seed=None, options=None):
        if seed is not None or not hasattr(self, "random"):
            self.random = np.random.default_rng(seed)
        self.dead = set()
        self.agents = ["zeta", "mu"]
        return {agent: self.see(agent) for agent in self.agents}, {agent: self.tell(agent) for agent in self.agents}

    def step(self, actions):
        assert all(self.acts[agent].contains(action) for agent, action in actions.items())
        acted = self.agents
        rewards = {agent: self.random.random() + float(np.sum(actions[agent])) for agent in acted}
        dies = {agent: self.random.random() < 0.1 for agent in acted}
        stops = {agent: self.random.random() < 0.1 for agent in acted}
        self.dead |= {agent for agent in acted if dies[agent] or stops[agent]}
        self.agents = [a for a in self.possible_agents if a not in self.dead and self.random.random() < 0.8]
        seen = [agent for agent in self.possible_agents if agent in {*acted, *self.agents}]
        observations = {agent: self.see(agent) for agent in seen}
        return observations, rewards, dies, stops, {agent: self.tell(agent) for agent in seen}

    def see(self, agent):
        random = self.random
        if agent == "zeta":
            bits = random.integers(0, 2, 2, dtype=np.int8)
            return {
                "observation": (3 + random.integers(4), bits),
                "action_mask": np.array([1, *random.integers(0, 2, 4)], np.int8),
            }
        if agent == "alpha":
            return {"pixels": random.integers(0, 256, (2, 3, 1), dtype=np.uint8), "wide": random.uniform(1, 9, 2)}
        return random.integers([2, 3])

    def tell(self, agent):
        draw = self.random.random()
        info = {"draw": draw} if draw < 0.5 else {}
        if agent == "mu" and draw > 0.3:
            info["action_mask"] = (np.array([True, draw > 0.6]), np.array([False, True, True]))
        return info

    def state(self):
        return self.random.uniform(-1, 1, (2, 2))


class NothingLeft(Scripted):
    """Masks all actions of agent b after the first tick, if seeded with 13."""

    def __init__(self):
        super().__init__(a="oooT", b="oooT")

    def step(self, actions):
        *rest, infos = super().step(actions)
        infos["b"]["action_mask"] = np.full(8, self.episode != 1300)
        return *rest, infos


class Unequal(Scripted):
    made = 0

    def __init__(self):
        super().__init__(a="oT")
        Unequal.made += 1
        self.action_spaces = {"a": Discrete(2 + Unequal.made % 2)}
