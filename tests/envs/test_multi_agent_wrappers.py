"""Image wrappers of PettingZoo envs: observations and rewards derived by hand."""

import multi_agent_envs as envs
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo import ParallelEnv

from agilerl_like import ConfigurationError, make_multi_agent_vect_envs
from agilerl_like.envs.multi_agent.pettingzoo import is_multi_agent, single_env_vector
from agilerl_like.envs.multi_agent.wrappers import RepeatActions, SmallImages, StackImages, shrink_image

HERE = "agilerl_like.envs.multi_agent.wrappers"


class Film:
    """Agents named by letters observe images whose pixels equal the step number, for a given number of steps."""

    metadata, render_mode = {"name": "film"}, None

    def __init__(self, shape=(4, 6, 3), dtype=np.uint8, **lives):
        self.lives = lives
        self.possible_agents = list(lives)
        self.space = Box(0, 255, shape, dtype)

    def observation_space(self, agent):
        return self.space

    def action_space(self, agent):
        return Discrete(10)

    def close(self):
        self.agents = []

    def see(self):
        return {agent: np.full(self.space.shape, self.tick, self.space.dtype) for agent in self.agents}

    def reset(self, seed=None, options=None):
        self.agents, self.tick = list(self.possible_agents), seed or 0
        return self.see(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.tick += 1
        rewards = {agent: float(action) for agent, action in actions.items()}
        terminations = {agent: self.tick == self.lives[agent] for agent in self.agents}
        seen = self.see()
        self.agents = [agent for agent in self.agents if not terminations[agent]]
        return seen, rewards, terminations, dict.fromkeys(actions, False), {agent: {} for agent in actions}


IMAGES = st.tuples(*(st.integers(1, 9),) * 2, st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32 - 1))


@given(IMAGES.filter(lambda drawn: drawn[2] <= min(drawn[:2])), st.booleans())
def test_a_pixel_is_the_mean_of_its_block(drawn, gray):
    height, width, by, channels, seed = drawn
    image = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    small = shrink_image(image, by, gray=gray)
    assert small.dtype == np.uint8
    for row in range(height // by):
        for column in range(width // by):
            block = image[row * by : (row + 1) * by, column * by : (column + 1) * by].astype(float)
            mean = block.mean(keepdims=True) if gray else block.mean((0, 1))
            np.testing.assert_allclose(small[:, row, column], np.ravel(mean), atol=0.5)
    assert small.shape == (1 if gray else channels, height // by, width // by)


def test_channels_come_first_whatever_the_memory_layout():
    image = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
    np.testing.assert_array_equal(shrink_image(image, 1, gray=False), np.moveaxis(image, -1, 0))
    turned = np.asfortranarray(image)[::-1]
    np.testing.assert_array_equal(shrink_image(turned, 2, gray=True), shrink_image(turned.copy(), 2, gray=True))


def test_a_wrapped_env_is_a_parallel_env():
    env = RepeatActions(envs.Scripted(a="oT", b="oo"), times=2)
    assert isinstance(env, ParallelEnv)
    assert (env.possible_agents, env.max_num_agents, env.unwrapped) == (["a", "b"], 2, env.env)
    assert is_multi_agent(f"{__name__}:repeated")
    assert single_env_vector(env).agent_ids == ("a", "b")


def repeated():
    return RepeatActions(envs.Scripted(a="oT"), times=2)


def test_actions_are_repeated_and_rewards_summed():
    env = RepeatActions(Film(a=100, b=100), times=4)
    env.reset(seed=0)
    seen, rewards, terminations, *_ = env.step({"a": 3, "b": 0})
    assert rewards == {"a": 12.0, "b": 0.0}
    assert (seen["a"] == 4).all()
    assert not any(terminations.values())


def test_an_agents_end_stops_the_repetition():
    env = RepeatActions(Film(a=2, b=100), times=4)
    env.reset(seed=0)
    seen, rewards, terminations, *_ = env.step({"a": 3, "b": 1})
    assert (rewards, terminations) == ({"a": 6.0, "b": 2.0}, {"a": True, "b": False})
    assert (seen["b"] == 2).all()
    _, rewards, *_ = env.step({"b": 1})
    assert rewards == {"b": 4.0}


class Late(Film):
    """Agent b appears at a tick, with a reward of 1."""

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.agents = ["a"]
        return self.see(), {"a": {}}

    def step(self, actions):
        seen, rewards, *rest = super().step(actions)
        if self.tick == self.lives["b"]:
            self.agents, rewards["b"] = ["a", "b"], 1.0
            seen = self.see()
        return seen, rewards, *rest


@pytest.mark.parametrize("tick", [1, 2, 3, 4])
def test_a_new_agent_stops_the_repetition_and_gets_its_own_reward(tick):
    env = RepeatActions(Late(a=100, b=tick), times=4)
    env.reset(seed=0)
    seen, rewards, *_ = env.step({"a": 3})
    assert rewards == {"a": 3.0 * tick, "b": 1.0}
    assert (seen["b"] == tick).all()


def test_frame_stacks_end_with_the_newest_image_and_start_filled_with_the_first():
    env = StackImages(SmallImages(Film(a=100), shrink=2), images=3)
    shown = [env.reset(seed=7)[0]["a"], *(env.step({"a": 0})[0]["a"] for _ in range(3))]
    assert [image[:, 0, 0].tolist() for image in shown] == [[7, 7, 7], [7, 7, 8], [7, 8, 9], [8, 9, 10]]
    assert env.observation_space("a") == Box(0, 255, (3, 2, 3), np.uint8)
    assert env.reset(seed=1)[0]["a"][:, 0, 0].tolist() == [1, 1, 1]  # nothing of the episode before


def test_small_images_put_the_channels_of_stacked_ones_first():
    env = StackImages(SmallImages(Film((40, 60, 3), a=1), shrink=1, gray=False), images=2)
    assert env.observation_space("a").shape == (6, 40, 60)


class OneBuffer(Film):
    """Writes all images of an agent into one array."""

    def see(self):
        self.buffer = getattr(self, "buffer", np.zeros(self.space.shape, self.space.dtype))
        self.buffer[:] = self.tick
        return dict.fromkeys(self.agents, self.buffer)


def test_frame_stacks_keep_images_that_the_env_overwrites():
    film = StackImages(OneBuffer((1, 2, 2), a=9), 3)
    film.reset()
    film.step({"a": 0})
    assert film.step({"a": 0})[0]["a"][:, 0, 0].tolist() == [0, 1, 2]


def test_wrappers_work_by_import_path():
    wrappers = [
        {"name": f"{HERE}:RepeatActions", "times": 2},
        {"name": f"{HERE}:SmallImages", "shrink": 2},
        {"name": f"{HERE}:StackImages", "images": 2},
    ]
    env = make_multi_agent_vect_envs(lambda: Film(a=5, b=9), 2, backend="sync", extra_wrappers=wrappers)
    first, _ = env.reset(seed=[0, 1])
    assert first["a"][:, :, 0, 0].tolist() == [[0, 0], [1, 1]]
    seen, rewards, *_ = env.step({"a": np.array([1, 2]), "b": np.array([0, 0])})
    assert seen["b"][:, :, 0, 0].tolist() == [[0, 2], [1, 3]]
    assert rewards["a"].tolist() == [2.0, 4.0]
    env.close()


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (lambda: RepeatActions(Film(a=1), times=0), "times=0 must be an integer >= 1"),
        (lambda: SmallImages(Film(a=1), shrink=1.5), "shrink=1.5 must be an integer >= 1"),
        (lambda: SmallImages(Film(a=1), shrink=5), "shrink=5 is larger than images of 4 by 6"),
        (lambda: SmallImages(Film((4,), a=1)), "allowed are uint8 images"),
        (lambda: SmallImages(Film(dtype=np.float32, a=1)), "allowed are uint8 images"),
        (lambda: StackImages(Film((4,), a=1)), "allowed are images"),
        (lambda: StackImages(Film(a=1), images=True), "images=True must be an integer >= 1"),
        (
            lambda: StackImages(Film((40, 60, 3), a=1)),
            r"images of shape \(40, 60, 3\), whose channels are last; allowed are images \[C, H, W\], which",
        ),
    ],
)
def test_invalid_arguments_are_refused(wrap, message):
    with pytest.raises(ConfigurationError, match=message):
        wrap()
