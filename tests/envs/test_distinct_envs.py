"""Counting distinct envs in a vector env: by their attributes, not by the functions that made them."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv

from agilerl_like.envs import make_vect_envs, with_num_envs
from agilerl_like.envs.distinct_envs import num_distinct_envs, round_up_to_sets


class Level(gym.Env):
    observation_space, action_space = Box(0, 1, (1,)), Discrete(2)

    def __init__(self, level=0, walls=(), task=None):
        self.level, self.walls, self.task = level, np.array(walls), task
        self.noise = np.random.Generator(np.random.PCG64(level))


class Task:
    def __init__(self, goal):
        self.goal = goal


def thunk(env_id, row, limit):
    def make():
        env = gym.make(env_id)
        return gym.wrappers.TimeLimit(env, limit) if row == 0 else gym.wrappers.TimeLimit(env, 5)

    return make


def scaled(by):
    return lambda: gym.wrappers.TransformReward(Level(), lambda reward: by * reward)


@pytest.mark.parametrize(
    ("functions", "instances"),
    [
        ([Level] * 3, 1),
        ([lambda: Level() for _ in range(3)], 1),
        ([thunk("CartPole-v1", row, 5) for row in range(3)], 1),
        ([thunk("CartPole-v1", row, 9) for row in range(3)], 3),
        ([partial(Level, level) for level in range(3)], 3),
        ([partial(Level, walls=walls) for walls in ((0, 1), (1, 0))], 2),
        ([partial(Level, task=Task(goal)) for goal in (1, 1)], 1),
        ([partial(Level, task=Task(goal)) for goal in (1, 2)], 2),
        ([scaled(2), scaled(2)], 1),
        ([scaled(2), scaled(3)], 2),
        ([partial(gym.make, "Pendulum-v1", g=g) for g in (9.0, 10.0)], 2),
    ],
)
def test_rows_are_distinct_if_their_envs_differ(functions, instances):
    env = SyncVectorEnv(functions)
    assert num_distinct_envs(env) == instances
    assert num_distinct_envs(with_num_envs(env, 2 * instances)) == instances


def test_copies_from_a_config_are_equal_and_new_envs_are_compared():
    assert num_distinct_envs(make_vect_envs("Pendulum-v1", 3, backend="sync")) == 1
    env = SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(2)])
    env.reset(seed=[1, 2])
    assert num_distinct_envs(env) == 1


def test_round_up_to_sets():
    assert [round_up_to_sets(count, 3) for count in (1, 3, 4, 7)] == [3, 3, 6, 9]
