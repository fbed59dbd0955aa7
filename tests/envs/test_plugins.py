"""Packages that register envs through gymnasium's entry points are found by the namespace of an id."""

import importlib.util
import sys

import gymnasium as gym
import numpy as np
import pytest

from agilerl_like.envs import describe_backend, make_vect_envs
from agilerl_like.errors import ConfigurationError

PLUGIN = """
import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

def register_envs():
    gym.register("Toys/Cart-v0", entry_point=CartPoleEnv, max_episode_steps=3)
    gym.register("Toys/Pole-v1", entry_point=CartPoleEnv, max_episode_steps=5)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Simulate an installed package that registers envs in the namespace Toys."""

    def write(source, target="toys_of_a_test:register_envs"):
        (tmp_path / "toys_of_a_test.py").write_text(source)
        info = tmp_path / "toys_of_a_test-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys-of-a-test\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[gymnasium.envs]\nToys = {target}\n")
        monkeypatch.syspath_prepend(tmp_path)

    yield write
    sys.modules.pop("toys_of_a_test", None)
    for name in [name for name in gym.registry if name.startswith("Toys/")]:
        del gym.registry[name]


@pytest.mark.parametrize(("env_id", "limit"), [("Toys/Cart-v0", 3), ("Toys/Pole-v1", 5), ("Toys/Pole", 5)])
def test_an_id_of_an_installed_package_needs_no_import(install, env_id, limit):
    install(PLUGIN)
    for _ in range(2):  # the second time nothing is registered again, which gymnasium would warn of
        env = make_vect_envs(env_id, 2, backend="sync")
        env.reset(seed=0)
        ends = [env.step(np.array([1, 0]))[3].all() for _ in range(limit)]
        assert ends == [False] * (limit - 1) + [True]
        env.close()


def test_similar_names_are_suggested_from_the_package(install):
    install(PLUGIN)
    with pytest.raises(ConfigurationError, match="'Toys/Pol-v1' is unknown; did you mean 'Toys/Pole-v1'"):
        make_vect_envs("Toys/Pol-v1")


def test_a_package_with_a_missing_dependency_names_it(install):
    install("import no_such_module_of_anybody")
    with pytest.raises(ConfigurationError, match=r"envs of 'Toys' cannot be registered .*no_such_module_of_anybody"):
        make_vect_envs("Toys/Pole-v1")


@pytest.mark.skipif(importlib.util.find_spec("minatar") is not None, reason="it is installed")
def test_a_package_that_is_missing_is_named():
    with pytest.raises(ConfigurationError, match=r"pip install 'agilerl-like\[minatar\]'"):
        make_vect_envs("MinAtar/Breakout-v1")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("minatar") is None, reason="the extra minatar is not installed")
@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_breakout_of_minatar_is_an_image_with_its_channels_last(backend):
    env = make_vect_envs("MinAtar/Breakout-v1", 2, backend=backend)
    space = env.single_observation_space
    assert (space.dtype, space.shape) == (np.bool_, (10, 10, 4))
    assert env.single_action_space == gym.spaces.Discrete(3)
    image = env.reset(seed=1)[0]
    paddle, ball, _, bricks = np.moveaxis(image, 3, 0)  # [channel, env, row, column]
    assert paddle[:, 9, 4].all()
    assert (paddle.sum((1, 2)) == 1).all()
    assert ball[:, 3].any(axis=1).all()
    assert bricks[:, 1:4].all()
    assert bricks.sum() == 60
    assert describe_backend(env) == backend
    env.close()


@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="the extra atari is not installed")
@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_atari_needs_no_import_of_its_package(backend):
    env = make_vect_envs("ALE/Pong-v5", 1, backend=backend)
    assert env.single_observation_space == gym.spaces.Box(0, 255, (210, 160, 3), np.uint8)
    assert env.reset(seed=1)[0].shape == (1, 210, 160, 3)
    env.close()
