"""`test(callback)` gets each episode's last info as the environment gave it, whatever resets the environment."""

import threading
from typing import ClassVar

import numpy as np
import pytest
import torch
from evaluated_envs import Counter
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from pettingzoo import ParallelEnv

from agilerl_like import IPPO, PPO, make_multi_agent_vect_envs, make_vect_envs
from agilerl_like.envs.vector_infos import info_of_env


def heard_of(env, **more):
    agent = PPO(Counter.observation_space, Counter.action_space, seed=0)
    heard = []
    agent.test(env, loop=7, callback=lambda score, info: heard.append((score, info)), **more)
    return heard


@pytest.mark.parametrize(
    "make",
    [
        Counter,
        lambda: SyncVectorEnv([Counter] * 3, autoreset_mode=AutoresetMode.SAME_STEP),
        lambda: SyncVectorEnv([Counter] * 3, autoreset_mode=AutoresetMode.NEXT_STEP),
        lambda: SyncVectorEnv([Counter] * 3, autoreset_mode=AutoresetMode.DISABLED),
        lambda: make_vect_envs(Counter, num_envs=4, backend="workers", num_workers=2),
    ],
    ids=["single", "same step", "next step", "disabled", "workers"],
)
def test_the_callback_gets_the_last_info(make):
    heard = heard_of(make())
    assert len({score for score, _ in heard}) > 1
    for score, info in heard:
        wanted = {"done": score, "nested": {"half": score / 2}, "phase": "later", "is_success": score > 3}
        assert info == {**wanted, "episode_length": score}


def test_truncated_episodes_report_the_info_of_their_last_step():
    assert {(info["done"], info["episode_length"]) for _, info in heard_of(Counter(), max_steps=1)} == {(1, 1)}


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_statistics_of_an_episode_are_part_of_its_last_info(mode):
    heard = heard_of(RecordEpisodeStatistics(SyncVectorEnv([Counter] * 3, autoreset_mode=mode)))
    for score, info in heard:
        assert (info["episode"]["r"], info["episode"]["l"], info["done"]) == (score, score, score)


def test_an_entry_of_the_first_info_is_no_part_of_the_last_one():
    infos = {"final_info": {"x": np.array([3])}, "episode": {"r": np.array([5])}}
    assert info_of_env(infos, 0, ended=True) == {"x": 3}


class Logging(Counter):
    """A counter whose infos have one list for all episodes, and an object that cannot be copied."""

    def __init__(self):
        self.events, self.lock = [], threading.Lock()

    def reset(self, *, seed=None, options=None):
        self.events.clear()
        return super().reset(seed=seed)

    def step(self, action):
        self.events.append(1)
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"log": {"events": self.events, "lock": self.lock}}


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("max_steps", [None, 2])
def test_a_list_in_the_last_info_is_that_of_its_episode(mode, max_steps):
    heard = heard_of(SyncVectorEnv([Logging] * 3, autoreset_mode=mode), max_steps=max_steps)
    assert [len(info["log"]["events"]) for _, info in heard] == [info["episode_length"] for _, info in heard]


class TensorCounters(VectorEnv):
    """Counters of tensors; their episodes have 2, 3 and 4 steps, and all infos are one tensor."""

    single_observation_space, single_action_space = Counter.observation_space, Counter.action_space

    def __init__(self, mode):
        self.num_envs, self.metadata = 3, {"autoreset_mode": mode}
        self.lengths = torch.arange(2, 5)
        self.done, self.cost = torch.zeros(3, dtype=torch.int64), torch.zeros(3, 2)

    def reset(self, *, seed=None, options=None):
        self.begin((options or {}).get("reset_mask", torch.ones(3, dtype=torch.bool)))
        return torch.zeros(3, 2), {"cost": self.cost}

    def begin(self, rows):
        self.done[rows], self.cost[rows] = 0, 0

    def step(self, actions):
        begins = self.done == self.lengths
        self.done += 1
        self.cost += 1
        self.begin(begins)
        ended = self.done == self.lengths
        return torch.zeros(3, 2), torch.ones(3), ended, torch.zeros_like(ended), {"cost": self.cost}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("max_steps", [None, 1])
def test_a_tensor_in_the_last_info_is_that_of_its_episode(mode, max_steps):
    heard = heard_of(TensorCounters(mode), max_steps=max_steps)
    assert len(heard) == 7
    for score, info in heard:
        assert info["cost"].tolist() == [score] * 2
        assert info["cost"].untyped_storage().nbytes() == 8, "a copy holds its row alone"


class Visiting(Counter):
    """A counter whose infos have keys that are not strings."""

    def step(self, action):
        *result, _ = super().step(action)
        return *result, {0: 1.5, "visits": {0: 1, 3: 2}}


def test_keys_of_infos_that_are_no_strings_are_reported():
    heard = heard_of(SyncVectorEnv([Visiting] * 3, autoreset_mode=AutoresetMode.SAME_STEP))
    assert all(info == {0: 1.5, "visits": {0: 1, 3: 2}, "episode_length": score} for score, info in heard)


class TwoCounters(ParallelEnv):
    """Two agents; the second earns twice as much, and both count."""

    metadata: ClassVar = {"name": "two_counters"}
    possible_agents: ClassVar = ["a_0", "b_0"]

    def observation_space(self, agent):
        return Counter.observation_space

    def action_space(self, agent):
        return Counter.action_space

    def reset(self, seed=None, options=None):
        self.agents, self.done = list(self.possible_agents), 0
        return {agent: np.zeros(2, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        self.done += 1
        over = dict.fromkeys(self.agents, self.done == 3)
        infos = {agent: {"done": self.done, "who": agent} for agent in self.agents}
        observations = {agent: np.zeros(2, np.float32) for agent in self.agents}
        self.agents = [] if self.done == 3 else self.agents
        return observations, {"a_0": 1.0, "b_0": 2.0}, over, dict.fromkeys(over, False), infos


def test_a_teams_callback_gets_the_infos_of_its_agents():
    env = make_multi_agent_vect_envs(TwoCounters, 2, backend="sync")
    team, heard = IPPO(env.single_observation_spaces, env.single_action_spaces, seed=0), []
    assert team.test(env, loop=3, callback=lambda score, info: heard.append((score, info))) == 9.0
    infos = {agent: {"done": 3, "who": agent} for agent in ("a_0", "b_0")}
    assert heard == [(9.0, {**infos, "episode_length": 3})] * 3


def test_infos_of_other_formats_are_read():
    assert info_of_env({"final_info": [None, {"r": 3}], "_final_info": [False, True]}, 1, ended=True) == {"r": 3}
    assert info_of_env({"lives": np.array([3, 2]), "players": {"id": np.array([7, 8])}, "name": "pool"}, 1) == {
        "lives": 2,
        "players": {"id": 8},
        "name": "pool",
    }
