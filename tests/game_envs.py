"""Small turn-based environments; worker processes import this file, so it imports nothing of the package."""

from types import MappingProxyType

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import AgentSelector


class Nim(AECEnv):
    """Players take 1 to 3 of the stones in turn; who takes the last one wins 1 from the other.

    With `masks` the legal numbers are given in `infos`, none to the player that waits; without them an illegal number
    raises ValueError. With `bonus` each taken stone is paid so much by the other player.
    """

    metadata = MappingProxyType({"name": "nim", "is_parallelizable": False})

    def __init__(self, stones=7, masks=True, bonus=0.0):
        super().__init__()
        self.stones, self.masks, self.bonus = stones, masks, bonus
        self.possible_agents = ["player_0", "player_1"]
        self.agents = []
        self.render_mode = None
        self.observation_spaces = {agent: Box(0, 1, (stones + 1,), np.float32) for agent in self.possible_agents}
        self.action_spaces = {agent: Discrete(3) for agent in self.possible_agents}

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def observe(self, agent):
        return np.eye(self.stones + 1, dtype=np.float32)[self.left]

    def reset(self, seed=None, options=None):
        self.left = self.stones
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.selector = AgentSelector(self.agents)
        self.agent_selection = self.selector.reset()
        self.infos = {agent: self.tell(agent) for agent in self.agents}

    def tell(self, agent):
        legal = (np.arange(1, 4) <= self.left) & (agent == self.agent_selection)
        return {"action_mask": legal.astype(np.int8)} if self.masks else {}

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        taken = int(action) + 1
        if taken > self.left:
            raise ValueError(f"{taken} of {self.left} stones")
        self.left -= taken
        other = self.possible_agents[1 - self.possible_agents.index(agent)]
        gain = self.bonus * taken + float(self.left == 0)
        self.rewards = {agent: gain, other: -gain}
        if self.left == 0:
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = self.selector.next()
        self.infos = {one: self.tell(one) for one in self.agents}
        self._accumulate_rewards()


class ListsTheActing(ParallelEnv):
    """Nim as a parallel env that lists only the selected player in `agents`, and rewards both at once."""

    metadata = MappingProxyType({"name": "lists_the_acting"})

    def __init__(self, stones=7):
        self.nim = Nim(stones, bonus=0.1)
        self.possible_agents = self.nim.possible_agents
        self.agents = []
        self.render_mode = None

    def observation_space(self, agent):
        return self.nim.observation_space(agent)

    def action_space(self, agent):
        return self.nim.action_space(agent)

    def reset(self, seed=None, options=None):
        self.nim.reset()
        self.agents = [self.nim.agent_selection]
        return self.look(), {agent: self.nim.tell(agent) for agent in self.agents}

    def look(self):
        return {agent: self.nim.observe(agent) for agent in self.agents}

    def step(self, actions):
        assert list(actions) == self.agents
        self.nim.step(actions[self.agents[0]])
        over = self.nim.left == 0
        self.agents = [] if over else [self.nim.agent_selection]
        flags = dict.fromkeys(self.possible_agents, over)
        return (
            self.look(),
            dict(self.nim.rewards),
            flags,
            dict.fromkeys(flags, False),
            {agent: self.nim.tell(agent) for agent in self.agents},
        )


class Sacrifice(ParallelEnv):
    """If agent a_0 plays 1 in the first step it ends, and a_1 is paid 10 two steps later; else both earn 0.5 in all."""

    metadata = MappingProxyType({"name": "sacrifice"})
    possible_agents = ("a_0", "a_1")

    def __init__(self, ends=True):
        self.ends = ends
        self.render_mode = None

    def observation_space(self, agent):
        return Box(0, 1, (5,), np.float32)

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.now, self.given = list(self.possible_agents), 0, False
        return self.look(), {agent: {} for agent in self.agents}

    def look(self):
        rows = np.eye(5, dtype=np.float32)
        return dict.fromkeys(self.possible_agents, rows[self.now])

    def step(self, actions):
        acted = list(self.agents)
        if self.now == 0:
            self.given = actions["a_0"] == 1
        self.now += 1
        rewards = dict.fromkeys(acted, 0.0)
        if self.now == 4:
            rewards["a_1"] = 10.0 if self.given else 1.0
        over = self.now == 4
        terminated = {agent: over or (agent == "a_0" and self.given and self.ends) for agent in acted}
        self.agents = [agent for agent in acted if not terminated[agent]]
        seen = {agent: seen for agent, seen in self.look().items() if agent in acted}
        return seen, rewards, terminated, dict.fromkeys(acted, False), {agent: {} for agent in acted}


class PaysAll(ParallelEnv):
    """Agents act where their line has "o"; all are paid 1 in every step, also those that are absent or have ended.

    A line's "T" is the end of an agent that acted in the step before.
    """

    metadata = MappingProxyType({"name": "pays_all"})

    def __init__(self, **lines):
        self.lines, self.possible_agents, self.render_mode = lines, list(lines), None

    def observation_space(self, agent):
        return Box(0, 99, (1,), np.float32)

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.now = 0
        self.agents = self.living()
        return self.look(self.agents), {agent: {} for agent in self.agents}

    def living(self):
        return [agent for agent, line in self.lines.items() if line[self.now : self.now + 1] == "o"]

    def look(self, agents):
        return {agent: np.full(1, self.now, np.float32) for agent in agents}

    def step(self, actions):
        acted, self.now = self.agents, self.now + 1
        self.agents = self.living()
        terminated = {agent: self.lines[agent][self.now : self.now + 1] == "T" for agent in acted}
        seen = {*acted, *self.agents}
        rewards = dict.fromkeys(self.possible_agents, 1.0)
        return self.look(seen), rewards, terminated, dict.fromkeys(acted, False), {agent: {} for agent in seen}
