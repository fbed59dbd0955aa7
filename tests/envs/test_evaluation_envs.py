"""Evaluation envs: the same episodes, and no step after their ends."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from scripted_envs import Counted

from agilerl_like.algorithms import PPO
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


def test_no_episode_starts_without_a_seed():
    single = Counted()
    env = SingleEpisode(single)
    first, _ = env.reset()
    for obs, *rest in (env.step(1), env.reset(), env.step(1)):
        np.testing.assert_array_equal(obs, first)
        assert rest in ([{}], [0.0, False, False, {}])
    env.reset(seed=3)
    env.step(0)
    env.reset()  # in the midst of an episode
    assert env.step(0)[1] == 0.0
    assert single.steps == 1


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_rows_without_an_episode_take_no_steps(backend, mode):
    env = make_vect_envs(make_env=Counted, num_envs=2, backend=backend, num_workers=1, autoreset=mode)
    trial = make_eval_env(env, 8)
    agent = PPO(env.single_observation_space, env.single_action_space, seed=0)
    before = 0
    for seeds in ([5, 9], [5, 4, 6, 3, 1, 2, 8, 9], [5, 9], [*range(1, 11)]):
        played = agent.run_episodes(VecEnvAdapter(trial), seeds)
        assert played.returns.tolist() == played.lengths.tolist() == [seeds]
        taken = sum(trial.call("steps"))
        assert taken - before == sum(seeds)
        before = taken
    trial.close()


def test_all_rows_of_other_envs_are_seeded():
    """An env that resumes after its episode would play other ones in each run."""
    seeds = []

    class Seeded(Counted):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed or 4)

    env = gym.vector.SyncVectorEnv([Seeded] * 4)
    agent = PPO(env.single_observation_space, env.single_action_space, seed=0)
    agent.run_episodes(VecEnvAdapter(env), [5, 9])
    assert [seed for seed in seeds if seed] == [5, 9, 5, 9]
