"""EnvPool (an extra) obeys the step contract."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agilerl_like.envs import VecEnvAdapter, evaluation_env, make_vect_envs, with_num_envs
from agilerl_like.errors import ConfigurationError

pytest.importorskip("envpool", reason="the extra 'envpool' is not installed")


def test_episodes_equal_gymnasiums_physics():
    # EnvPool's CartPole has its own random starts; set into gymnasium's, every step must follow from the one before
    env = VecEnvAdapter(make_vect_envs("CartPole-v1", 3, backend="envpool", max_episode_steps=12))
    assert env.autoreset_mode is AutoresetMode.NEXT_STEP
    obs = env.reset([3, 1, 4])
    single = gym.make("CartPole-v1").unwrapped
    single.reset(seed=0)
    seen = set()
    for time in range(60):
        actions = np.array([1, time % 2, time // 2 % 2])
        step = env.step(actions)
        for row in range(3):
            if not step.valid[row]:
                assert np.abs(step.obs[row]).max() <= 0.05  # a fresh start
                assert step.reward[row] == 0
                continue
            single.set_wrapper_attr("state", obs[row].astype(np.float64))
            single.set_wrapper_attr("steps_beyond_terminated", None)
            after, reward, terminated, _, _ = single.step(int(actions[row]))
            np.testing.assert_allclose(step.next_obs[row], after, rtol=1e-4, atol=1e-5)
            assert (step.reward[row], step.terminated[row]) == (reward, terminated)
            seen.add((bool(step.terminated[row]), bool(step.truncated[row])))
        obs = step.obs
    env.close()
    assert seen == {(False, False), (True, False), (False, True)}


def test_each_env_follows_its_own_seed_and_an_unseeded_reset_continues():
    env = VecEnvAdapter(make_vect_envs("Acrobot-v1", 3, backend="envpool"))
    first = env.reset([5, 6, 7])
    np.testing.assert_array_equal(env.reset([7, 6, 5]), first[::-1])
    np.testing.assert_array_equal(env.reset(5), first)  # one seed counts up
    assert (env.reset() != first).any()  # without a seed, other starts
    env.close()


def test_spaces_are_gymnasiums():
    env = make_vect_envs("LunarLander-v3", 2, backend="envpool")
    single = gym.make("LunarLander-v3")
    assert env.single_observation_space == single.observation_space
    assert env.single_action_space == single.action_space


def test_an_id_of_envpool_alone_has_infinite_bounds():
    # EnvPool's LunarLander names no bounds, and C++ filled in the limits of its floats, the lower one wrongly
    env = make_vect_envs("LunarLander-v2", 2, backend="envpool")
    assert env.single_observation_space == Box(-np.inf, np.inf, (8,))
    assert evaluation_env(env, 3).num_envs == 3


def test_with_num_envs_and_evaluation_seed_each_env():
    env = make_vect_envs("Acrobot-v1", 2, backend="envpool")
    wide = with_num_envs(env, 5)
    assert (type(wide), wide.num_envs) == (type(env), 5)
    judge = VecEnvAdapter(evaluation_env(env, 4))
    first = judge.reset([9, 8, 7, 9])
    np.testing.assert_array_equal(first[0], first[3])
    assert len(np.unique(first, axis=0)) == 3
    assert isinstance(with_num_envs(env, 2, backend="sync"), SyncVectorEnv)
    judge.close()


@pytest.mark.parametrize(
    ("env_id", "reason"),
    [
        ("Blackjack-v1", "gymnasium observes a Tuple, EnvPool a Box"),
        ("Taxi-v4", "EnvPool has none of this version"),
    ],
)
def test_auto_avoids_envpool_where_it_has_another_env(env_id, reason):
    assert make_vect_envs(env_id, 2).env_config.backend == "sync", reason  # pyright: ignore[reportAttributeAccessIssue]


def test_auto_avoids_envpool_with_another_time_limit(monkeypatch):
    shorter = dataclasses.replace(gym.spec("Acrobot-v1"), max_episode_steps=7)
    monkeypatch.setitem(gym.registry, "Acrobot-v1", shorter)
    assert make_vect_envs("Acrobot-v1", 2).env_config.backend == "sync"  # pyright: ignore[reportAttributeAccessIssue]


def test_errors_name_the_wrong_argument():
    with pytest.raises(ConfigurationError, match=r"Taxi-v4.*Taxi-v3"):
        make_vect_envs("Taxi-v4", backend="envpool")
    with pytest.raises(ConfigurationError, match=r"gravitation.*CartPole-v1"):
        make_vect_envs("CartPole-v1", backend="envpool", gravitation=3)
    with pytest.raises(ConfigurationError, match="is a factory"):
        make_vect_envs(lambda: gym.make("CartPole-v1"), backend="envpool")
    with pytest.raises(gym.error.ResetNeeded):
        make_vect_envs("CartPole-v1", backend="envpool").step(np.array([0]))


# the warning is gymnasium's, about the bounds in EnvPool's spaces; a user's pool emits it
@pytest.mark.filterwarnings("ignore:.*precision lowered by casting to float32:UserWarning")
def test_a_users_pool_is_accepted_but_cannot_be_seeded():
    envpool = pytest.importorskip("envpool", reason="the extra 'envpool' is not installed")
    env = VecEnvAdapter(envpool.make_gymnasium("Acrobot-v1", num_envs=2, seed=3))
    with pytest.warns(UserWarning, match="cannot be seeded"):
        first = env.reset([1, 2])
    assert env.step(np.array([0, 1])).valid.all()
    assert first.shape == (2, 6)
    with pytest.raises(ConfigurationError, match="batch_size"):
        VecEnvAdapter(envpool.make_gymnasium("Acrobot-v1", num_envs=2, batch_size=1, seed=3))
