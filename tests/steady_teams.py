"""A multi-agent environment for tests of whole runs: its rewards are known and do not depend on the actions."""

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

EARNED = {"speaker_0": 1.0, "listener_0": 2.0, "listener_1": 2.0}


class Steady(ParallelEnv):
    """Every agent sees the step, the listeners twice, and earns the same in each of `steps`."""

    def __init__(self, steps=3, agents=tuple(EARNED)):
        self.metadata = {"name": "steady", "render_modes": []}
        self.render_mode = None
        self.steps = steps
        self.possible_agents = list(agents)
        sights = {agent: 1 if agent == "speaker_0" else 2 for agent in agents}
        self.spaces = {agent: (Box(0, 1000, (sight,)), Discrete(2)) for agent, sight in sights.items()}

    def observation_space(self, agent):
        return self.spaces[agent][0]

    def action_space(self, agent):
        return self.spaces[agent][1]

    def see(self):
        return {agent: np.full(seen.shape, self.tick, np.float32) for agent, (seen, _) in self.spaces.items()}

    def reset(self, seed=None, options=None):
        self.agents, self.tick = list(self.possible_agents), 0
        return self.see(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.tick += 1
        last = self.tick == self.steps
        rewards = {agent: EARNED.get(agent, 2.0) for agent in actions}
        self.agents = [] if last else self.agents
        return (
            self.see(),
            rewards,
            dict.fromkeys(actions, last),
            dict.fromkeys(actions, False),
            {a: {} for a in actions},
        )


class Louder:
    """Goes around a team's env: multiplies what it pays."""

    def __init__(self, env, by=10.0):
        self.env, self.by = env, by

    def __getattr__(self, name):
        return getattr(self.env, name)

    def step(self, actions):
        observations, rewards, *rest = self.env.step(actions)
        return observations, {agent: self.by * reward for agent, reward in rewards.items()}, *rest
