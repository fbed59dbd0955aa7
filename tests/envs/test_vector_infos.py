"""Infos of several rows keep their values, and infos of megabytes per step give one warning."""

import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from image_envs import Talkative

from agilerl_like.envs import VecEnvAdapter, make_vect_envs
from agilerl_like.envs.vector_infos import LARGE, add_info, approx_bytes, info_of_env


@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_large_infos_are_warned_of_once(backend):
    vector = make_vect_envs(make_env=partial(Talkative, LARGE // 2), num_envs=2, backend=backend, num_workers=1)
    env = VecEnvAdapter(vector)
    env.reset([1, 2])
    with pytest.warns(RuntimeWarning, match=r"the infos of a step take 8.39 MB, of which 'frame' takes 8.39 MB"):
        env.step(np.zeros(2, int))
    for _ in range(4):
        env.step(np.zeros(2, int))  # a warning would be an error
    env.close()


def test_small_infos_are_not_warned_of():
    env = VecEnvAdapter(make_vect_envs(make_env=partial(Talkative, 1000), num_envs=2, backend="sync"))
    env.reset([1, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            env.step(np.zeros(2, int))


def test_lists_of_unequal_lengths_have_an_entry_for_each_row():
    infos = {"route": [[1], [1, 2], []], "name": "maze", "score": np.arange(3.0)}
    assert info_of_env(infos, 1) == {"route": [1, 2], "name": "maze", "score": 1.0}


@pytest.mark.parametrize("size", [(10, 10), [8, 9, 7, 5], np.array([3.0])])
def test_a_value_of_another_length_is_one_for_all_rows(size):
    infos = {"size": size, "score": np.arange(3.0), "nested": {"size": size}}
    found = info_of_env({"final_info": infos}, 2, ended=True, num_envs=3)
    assert found["size"] is size
    assert (found["score"], found["nested"]) == (2.0, {"size": size})


def test_bytes_are_counted_in_trees():
    each = np.empty(2, dtype=object)
    each[0] = np.zeros(3, np.float32)
    assert approx_bytes({"a": np.zeros((2, 3)), "b": ["text", each], "c": 1}) == 48 + 4 + 12 + 8 + 8  # None is a number


class Reporting(gym.Env):
    """An episode of one step, with a value of its own in the info."""

    observation_space, action_space = Box(-1, 1, (1,), np.float32), Discrete(2)

    def __init__(self, value):
        self.value = value

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {"first": self.value}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, True, False, {"last": self.value, "nested": {"last": self.value}}


UNEQUAL_VALUES = [
    (0, 0.75),
    (False, 0.75),
    (True, 3),
    (np.float32(0.5), 0.1),
    (np.int8(1), 300),
    (2**63, 1.5),
    (1, float("nan")),
    (0.5, None),
    (1, "far"),
    ({"a": 1}, 1.0),
    (1.0, {"a": 1}),
    ([1], np.arange(2)),
    (np.arange(2), np.arange(3)),
    (np.arange(2), np.array([0.5, 1.5])),
    (np.array("far"), 1),
]


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv, "sync", "async", "workers"])
def test_each_row_of_a_vector_env_keeps_its_own_number(kind):
    values = [False, 2, 0.75]
    if isinstance(kind, str):
        instances = [{"value": value} for value in values]
        env = make_vect_envs(Reporting, 3, backend=kind, num_workers=2, instances=instances)
    else:
        env = kind([partial(Reporting, value) for value in values], autoreset_mode="SameStep")
    adapter = VecEnvAdapter(env)
    adapter.reset(0)
    adapter.step(np.zeros(3, int))
    for row, value in enumerate(values):
        assert adapter.last_info(row, ended=False) == {"first": value}
        assert adapter.last_info(row, ended=True) == {"last": value, "nested": {"last": value}}
    env.close()


@pytest.mark.parametrize("values", [*UNEQUAL_VALUES, *[pair[::-1] for pair in UNEQUAL_VALUES]])
def test_merged_infos_have_the_value_of_each_row(values):
    infos = {}
    for row, value in enumerate(values):
        add_info(infos, {"x": value, "final_info": {"x": value}}, row + 1, 4)
    for row, value in enumerate(values):
        np.testing.assert_equal(info_of_env(infos, row + 1, num_envs=4), {"x": value})
        np.testing.assert_equal(info_of_env(infos, row + 1, ended=True, num_envs=4), {"x": value})
    assert info_of_env(infos, 0, num_envs=4) == {}


def test_merged_infos_of_equal_types_are_those_of_gymnasium():
    theirs, ours = {}, {}
    env = SyncVectorEnv([partial(Reporting, 0)] * 3)
    info = {
        "n": 1,
        "x": 0.5,
        "on": True,
        "b": np.True_,
        "s": "far",
        "v": np.arange(2),
        "d": {"n": None},
        "final_obs": 1,
    }
    for row in (0, 2):
        theirs = env._add_info(theirs, info, row)
        add_info(ours, info, row, 3)
    np.testing.assert_equal(ours, theirs)
    assert [*ours] == [*theirs]
    assert [getattr(value, "dtype", None) for value in ours.values()] == [
        getattr(value, "dtype", None) for value in theirs.values()
    ]
