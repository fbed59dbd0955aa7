"""Agents with large observations can be loaded; those that could not are refused before they are trained."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Tuple
from small_runs import SMALL

from agilerl_like import IPPO, PPO, ConfigurationError
from agilerl_like.algorithms import serialization
from agilerl_like.envs.spaces import space_to_json

FRAME = Box(0, 255, (3, 720, 1280), np.uint8)


def test_the_space_of_a_color_frame_is_read_again():
    assert serialization.read_space(space_to_json(FRAME)) == FRAME


def test_a_space_that_no_file_may_have_is_refused_by_the_constructor(monkeypatch, tmp_path):
    monkeypatch.setattr(serialization, "MAX_SPACE_BYTES", 4 * 100)
    fits, too_large = Box(-1, 1, (100,)), Box(-1, 1, (101,))
    agent = PPO(fits, Discrete(2), seed=1, net_config=SMALL)
    assert PPO.load(agent.save_checkpoint(tmp_path / "agent")).observation_space == fits
    with pytest.raises(
        ConfigurationError, match=r"observation_space=Box.* needs 404 bytes as float32; allowed are 400;"
    ):
        PPO(too_large, Discrete(2), seed=1, net_config=SMALL)


def test_the_spaces_of_a_team_are_counted_together_and_equal_ones_once(monkeypatch):
    monkeypatch.setattr(serialization, "MAX_SPACE_BYTES", 3 * 4 * 100)
    seen, other = Box(-1, 1, (100,)), Box(-2, 2, (100,))
    acts = dict.fromkeys(("a_0", "b_0", "c_0"), Discrete(2))
    IPPO({"a_0": seen, "b_0": seen, "c_0": other}, acts, seed=1, net_config=SMALL)
    with pytest.raises(ConfigurationError, match="observation_spaces and action_spaces=Box"):
        IPPO({"a_0": seen, "b_0": Box(-3, 3, (100,)), "c_0": other}, acts, seed=1, net_config=SMALL)


def test_a_space_with_more_parts_than_a_file_may_have_is_refused_by_the_constructor(monkeypatch, tmp_path):
    monkeypatch.setattr(serialization, "MAX_SUBSPACES", 4)
    fits, too_many = (Tuple([Box(-1, 1, (2,))] * count) for count in (3, 4))  # and the tuple itself
    agent = PPO(fits, Discrete(2), seed=1)
    assert PPO.load(agent.save_checkpoint(tmp_path / "agent")).observation_space == fits
    with pytest.raises(ConfigurationError, match=r"observation_space=Tuple.* has 5 parts; allowed are 4;"):
        PPO(too_many, Discrete(2), seed=1)
