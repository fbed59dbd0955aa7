"""Evaluation envs: the same episodes, and no step after their ends."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from agilerl_like.envs import VecEnvAdapter, make_vect_envs
from agilerl_like.envs.cartpole import SeededCartPole
from agilerl_like.envs.evaluation_envs import SingleEpisode, make_eval_env

SEEDS = [11, 5, 11, 400]


def balance(obs, row):
    """Row 0 balances the pole to the end, row 1 for a while; the others push one way and let it fall."""
    if row > 1:
        return row % 2
    return int(obs[2] + 0.5 * obs[3] + (0.1 * obs[1] + 0.05 * obs[0] if row == 0 else 0.04) > 0)


def single_cartpoles(make):
    """(observations, rewards, last flags) of one episode for each seed, by gymnasium's own env."""
    episodes = []
    for row, seed in enumerate(SEEDS):
        env = make()
        observations, rewards, over = [env.reset(seed=seed)[0]], [], (False, False)
        while not any(over):
            obs, reward, *over, _ = env.step(balance(observations[-1], row))
            observations.append(obs)
            rewards.append(reward)
        episodes.append((np.array(observations), rewards, tuple(map(bool, over))))
    return episodes


@pytest.mark.parametrize("backend", ["vector", "sync", "workers"])
@pytest.mark.parametrize("limit", [500, 60])
def test_cartpole_episodes_are_bit_identical_to_gymnasiums(backend, limit):
    env = make_vect_envs("CartPole-v1", 2, backend=backend, max_episode_steps=limit)
    expected = single_cartpoles(lambda: gym.make("CartPole-v1", max_episode_steps=limit))
    trial = make_eval_env(env, len(SEEDS))
    assert isinstance(trial, SeededCartPole) == (backend == "vector")
    adapter = VecEnvAdapter(trial)
    for _ in range(2):  # the same seeds again
        obs = adapter.reset(SEEDS)
        lengths = [len(rewards) for _, rewards, _ in expected]
        for t in range(max(lengths)):
            for row, (observations, _, _) in enumerate(expected):
                if t < lengths[row]:
                    np.testing.assert_array_equal(obs[row], observations[t])
            step = adapter.step(np.array([balance(one, row) for row, one in enumerate(obs)]))
            obs = step.obs
            for row, (observations, rewards, over) in enumerate(expected):
                if t < lengths[row]:
                    assert step.reward[row] == rewards[t]
                    np.testing.assert_array_equal(step.next_obs[row], observations[t + 1])
                    assert (step.terminated[row], step.truncated[row]) == (over if t + 1 == lengths[row] else (0, 0))
    assert max(lengths) == limit
    assert min(lengths) < limit
    trial.close()


class Counted(gym.Env):
    """Its seed is the length of its episodes; counts its calls."""

    observation_space = Box(0, 100, (1,))
    action_space = Discrete(2)
    resets = steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        self.left = seed
        return np.array([self.left], np.float32), {}

    def step(self, action):
        self.steps += 1
        self.left -= 1
        return np.array([self.left], np.float32), 1.0, self.left == 0, False, {"left": self.left}


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_no_step_and_no_reset_after_an_episodes_end(mode):
    singles = [Counted() for _ in range(3)]
    env = gym.vector.SyncVectorEnv([lambda one=one: SingleEpisode(one) for one in singles], autoreset_mode=mode)
    adapter = VecEnvAdapter(env)
    for seeds in ([2, 9, 1], [4, 1, 6]):
        before = [(one.resets, one.steps) for one in singles]
        adapter.reset(seeds)
        rewards = sum(adapter.step(np.zeros(3, int)).reward for _ in range(10))
        np.testing.assert_array_equal(rewards, seeds)  # nothing is paid for standing still
        done = [(one.resets - r, one.steps - s) for one, (r, s) in zip(singles, before, strict=True)]
        assert done == [(1, seed) for seed in seeds]


def test_the_last_observation_is_repeated_after_the_end():
    env = SingleEpisode(Counted())
    env.reset(seed=1)
    last, _, terminated, _, info = env.step(0)
    assert terminated
    assert info == {"left": 0}
    for obs, *rest in (env.reset(), env.step(1), env.reset()):
        np.testing.assert_array_equal(obs, last)
        assert rest in ([{}], [0.0, False, False, {}])
    assert env.reset(seed=3)[0] == 3
