"""`BinObservation`: numbers become the numbers of their bins."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from hypothesis import given
from hypothesis import strategies as st

from agilerl_like import QLearning, make_vect_envs
from agilerl_like.envs.observation_wrappers import BinObservation
from agilerl_like.errors import ConfigurationError, EnvStepError

NAME = "agilerl_like.envs.observation_wrappers:BinObservation"


SPACE = Box(np.array([-1.0, 0.0]), np.array([1.0, 10.0]), dtype=np.float64)


class Vector(gymnasium.Env):
    action_space = Discrete(2)

    def __init__(self, space=SPACE):
        self.observation_space = space


def test_bins_are_equally_wide_and_the_outer_ones_have_what_lies_outside():
    env = BinObservation(Vector(), bins=[4, 5])
    assert env.observation_space == MultiDiscrete([4, 5])
    # bins of 0.5 from -1 on, and of 2 from 0 on; the upper bound is in the last one
    seen = np.array([[-1.0, 0.0], [-0.5, 1.99], [0.2, 2.0], [1.0, 10.0], [-7.0, 99.0]])
    assert env.observation(seen).tolist() == [[0, 0], [1, 0], [2, 1], [3, 4], [0, 4]]
    assert env.observation(seen[2]).tolist() == [2, 1]


@given(st.integers(1, 20), st.floats(-5, 5), st.floats(0.1, 5), st.floats(-12, 12))
def test_a_number_lies_within_its_bin(bins, low, width, number):
    high = low + width
    env = BinObservation(Vector(Box(-np.inf, np.inf, (1,))), bins=bins, low=low, high=high)
    (place,) = env.observation(np.array([number]))
    assert 0 <= place < bins
    step, slack = width / bins, 1e-9
    assert place == 0 or number >= low + place * step - slack
    assert place == bins - 1 or number < low + (place + 1) * step + slack


@pytest.mark.parametrize(
    ("space", "arguments", "message"),
    [
        (Box(-np.inf, 1.0, (2,)), {}, r"low of entry 0 of .* is -inf, and bins need finite bounds; set low and high"),
        (Box(-1.0, 3e38, (2,)), {}, r"high of entry 0 of .* is 3e\+38, and bins need finite bounds"),
        (Box(-1.0, 1.0, (2,)), {"bins": 0}, "bins=0; allowed are whole numbers from 1 to 1048576"),
        (Box(-1.0, 1.0, (2,)), {"bins": 2.5}, "bins=2.5; allowed are whole numbers"),
        (Box(-1.0, 1.0, (2,)), {"bins": [2, 3, 4]}, r"bins=\[2, 3, 4\]; allowed are a number and a list of 2 numbers"),
        (Box(-1.0, 1.0, (2,)), {"low": "x"}, "low='x'; allowed are a number and a list of 2"),
        (Box(-1.0, 1.0, (2,)), {"low": 2.0}, r"low=\[2.0, 2.0\] must be below high=\[1.0, 1.0\]"),
        (Box(-1.0, 1.0, (2, 2)), {}, "has no bins; allowed are vectors"),
        (Discrete(3), {}, "has no bins; allowed are vectors"),
    ],
)
def test_what_has_no_bins_is_named(space, arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        BinObservation(Vector(space), **arguments)


def test_a_number_that_is_not_finite_is_an_error():
    with pytest.raises(EnvStepError, match="not finite"):
        BinObservation(Vector()).observation(np.array([0.0, np.nan]))


def test_a_binned_env_has_a_table():
    wrapper = {"name": NAME, "bins": [3, 3, 6, 6], "low": [-2.4, -3, -0.21, -3.5], "high": [2.4, 3, 0.21, 3.5]}
    env = make_vect_envs("CartPole-v1", num_envs=2, wrappers=[wrapper])
    assert env.single_observation_space == MultiDiscrete([3, 3, 6, 6])
    agent = QLearning(env.single_observation_space, env.single_action_space, seed=0)
    assert agent.table.shape == (324, 2)
    observations, _ = env.reset(seed=1)
    # close to 0 everywhere: the middle of three, and beside the middle of six
    assert (observations[:, :2] == 1).all()
    assert set(observations[:, 2:].flatten().tolist()) <= {2, 3}
    assert agent.get_action(observations).shape == (2,)
    env.close()
