"""gymnasium's vectorised CartPole with one generator per row."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agilerl_like.envs import VecEnvAdapter, make_vect_envs
from agilerl_like.envs.cartpole import STARTS_PER_DRAW, SeededCartPole, is_native_cartpole, with_per_env_seeds
from agilerl_like.envs.evaluation_envs import make_eval_env
from agilerl_like.envs.factory import describe_backend, with_num_envs
from agilerl_like.errors import ConfigurationError

STEPS = 2000


def seeded_cartpole(num_envs, limit=500):
    return SeededCartPole(CartPoleVectorEnv(num_envs, limit))


def played(env, seeds, *, rows=slice(None), steps=STEPS):
    """Observations and results of some rows of an env of 9 under random actions."""
    actions = np.random.default_rng(5).integers(0, 2, (steps, 9))[:, rows]
    observations = [env.reset(seed=seeds)[0]]
    outcomes = []
    for action in actions:
        observation, *outcome, _ = env.step(action)
        observations.append(observation)
        outcomes.append(np.array(outcome, dtype=np.float64))
    return np.array(observations), np.array(outcomes)


def test_a_row_does_not_depend_on_the_other_rows():
    seeds, limit = list(range(100, 109)), 13  # some fall, some do not
    whole = played(seeded_cartpole(9, limit), seeds)
    ends = whole[1][:, 1:].sum(axis=(0, 1))
    assert ends.min() > STARTS_PER_DRAW  # beginnings were drawn more than once
    assert (whole[1][:, 1:].sum(axis=(0, 2)) > 100).all()  # terminated, truncated
    for rows in (slice(0, 2), slice(2, 9), slice(4, 5), slice(None, None, -1)):
        part = played(seeded_cartpole(len(seeds[rows]), limit), seeds[rows], rows=rows)
        np.testing.assert_array_equal(part[0], whole[0][:, rows])
        np.testing.assert_array_equal(part[1], whole[1][:, :, rows])


@pytest.mark.parametrize("limit", [500, 12])
def test_a_row_equals_gymnasiums_single_cartpole_with_its_seed(limit):
    def single():
        return gym.make("CartPole-v1", max_episode_steps=limit)

    theirs = SyncVectorEnv([single] * 9, autoreset_mode=AutoresetMode.NEXT_STEP)
    for seeds in ([3, 1, 4, 1, 5, 9, 2, 6, 5], 7):
        for ours, expected in zip(
            played(seeded_cartpole(9, limit), seeds, steps=500), played(theirs, seeds, steps=500), strict=True
        ):
            np.testing.assert_array_equal(ours, expected)


def test_without_a_seed_a_row_continues_its_generator():
    first, again = seeded_cartpole(3), seeded_cartpole(3)
    begun = [[env.reset(seed=[1, 2, 3])[0], env.reset()[0], env.reset()[0]] for env in (first, again)]
    np.testing.assert_array_equal(*begun)
    assert len(np.unique(begun[0])) == 3 * 3 * 4
    unseeded = [seeded_cartpole(3).reset()[0] for _ in range(2)]
    assert len(np.unique(unseeded)) == 2 * 3 * 4
    low, high = 0.1, 0.2
    obs, _ = first.reset(options={"low": low, "high": high})
    assert ((obs > low) & (obs < high)).all()


def tilted(num_envs):
    """A user's native CartPole."""
    env = CartPoleVectorEnv(num_envs, max_episode_steps=30)
    env.gravity = 12.0
    return env


@pytest.mark.parametrize(
    ("make", "limit", "expected_backend"),
    [
        (lambda: make_vect_envs("CartPole-v1", 2), 500, "vector, because gymnasium has one for this env"),
        (lambda: make_vect_envs("CartPole-v1", 2, backend="vector", max_episode_steps=40), 40, "vector"),
        (lambda: gym.make_vec("CartPole-v0", 2, vectorization_mode="vector_entry_point"), 200, "vector"),
        (lambda: make_vect_envs(tilted, 2, backend="vector"), 30, "vector"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*CartPole-v0 is out of date")
def test_seeding_a_native_cartpole_keeps_its_settings(make, limit, expected_backend):
    env = make()
    assert is_native_cartpole(env)
    seeded = with_per_env_seeds(env, 3)
    for one in (seeded, with_per_env_seeds(seeded, 3), make_eval_env(env, 3), make_eval_env(seeded, 3)):
        assert type(one) is SeededCartPole
        assert (one.num_envs, one.unwrapped.max_episode_steps, one.unwrapped.gravity) == (
            3,
            limit,
            getattr(env, "gravity", 9.8),
        )
        assert describe_backend(one) == expected_backend
        assert one.env_config.env_kwargs == seeded.env_config.env_kwargs
        adapter = VecEnvAdapter(one)
        alone = seeded_cartpole(1, limit)
        np.testing.assert_array_equal(adapter.reset([8, 9, 7])[1], alone.reset(seed=[9])[0][0])
    wide = with_num_envs(seeded, 5)
    assert (type(wide), wide.num_envs, wide.max_episode_steps) == (CartPoleVectorEnv, 5, limit)


def test_other_envs_are_made_again_unchanged():
    env = make_vect_envs("CartPole-v1", 2, backend="sync")
    assert not is_native_cartpole(env)
    wide = with_per_env_seeds(env, 3)
    assert isinstance(wide, SyncVectorEnv)
    assert wide.num_envs == 3
    for made in (wide, env):
        made.close()
    with pytest.raises(ConfigurationError, match="cannot be made again"):
        with_per_env_seeds(CartPoleVectorEnv(2), 4)
