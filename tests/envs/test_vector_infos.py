"""Infos of megabytes per step: one warning, with their size and the largest key."""

import warnings
from functools import partial

import numpy as np
import pytest
from image_envs import Talkative

from agilerl_like.envs import VecEnvAdapter, make_vect_envs
from agilerl_like.envs.vector_infos import LARGE, approx_bytes, info_of_env


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
