"""Counted episodes: what each member scores on each seed, whatever steps the env and however many at once."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from evaluated_envs import Deadly

from agilerl_like import PPO, make_vect_envs
from agilerl_like.algorithms import episode_guard
from agilerl_like.algorithms.episode_guard import EvaluationStopped
from agilerl_like.algorithms.evaluation import MAX_RETRIES, Episodes, in_rounds
from agilerl_like.envs import VecEnvAdapter, evaluation_env
from agilerl_like.envs.evaluation_envs import make_eval_env
from agilerl_like.errors import ConfigurationError, EnvStepError

SEEDS = [3, 1, 4, 1, 5]


def population_of(env_id, size=3):
    env, mlp = gym.make(env_id), {"hidden_size": [16]}
    net = {"encoder_config": mlp, "head_config": mlp, "latent_dim": 16}
    return PPO.population(size, env.observation_space, env.action_space, net_config=net, seed=2)


def by_hand(env_id, population, max_steps=10_000):
    """Returns and lengths [P, K] of single envs, one member and one seed after the other."""
    returns, lengths = np.zeros((2, len(population), len(SEEDS)))
    for p, agent in enumerate(population):
        for k, seed in enumerate(SEEDS):
            env = gym.make(env_id)
            obs, over = env.reset(seed=seed)[0], False
            while not over and lengths[p, k] < max_steps:
                action, _ = agent.learner.best_actions(
                    agent.learner.encode(obs), None, agent.learner.initial_hidden_state
                )
                obs, reward, terminated, truncated, _ = env.step(action[0])
                returns[p, k] += reward
                lengths[p, k] += 1
                over = terminated or truncated
    return returns, lengths


@pytest.mark.parametrize("backend", ["vector", "sync", "workers"])
@pytest.mark.parametrize("envs", [5, 2])  # at once, and in three rounds of which the last is not full
@pytest.mark.parametrize("make", [make_eval_env, evaluation_env])
def test_every_member_plays_every_seed_once(backend, envs, make):
    population = population_of("CartPole-v1")
    returns, lengths = by_hand("CartPole-v1", population)
    env = make(make_vect_envs("CartPole-v1", 2, backend=backend), 3 * envs)
    played = population.run_episodes(VecEnvAdapter(env), SEEDS)
    np.testing.assert_array_equal(played.returns, returns)
    np.testing.assert_array_equal(played.lengths, lengths)
    assert played.steps == lengths.sum()
    alone = population[1].run_episodes(VecEnvAdapter(env), SEEDS)  # all rows are one member's
    np.testing.assert_array_equal(alone.returns, returns[1:2])
    env.close()


@pytest.mark.parametrize("make", [gym.make, partial(make_vect_envs, num_envs=2)])
def test_an_env_of_other_spaces_is_named_before_it_is_played(make):
    population, env = population_of("CartPole-v1"), make("Acrobot-v1")
    for players in (population, population[0]):
        with pytest.raises(ConfigurationError, match=r"env='Acrobot-v1' has .*; the agent was made for"):
            players.test(env)
    env.close()


def test_max_steps_truncates_long_episodes():
    population = population_of("Pendulum-v1", size=2)
    returns, _ = by_hand("Pendulum-v1", population, max_steps=7)
    played = population.run_episodes(
        VecEnvAdapter(make_eval_env(make_vect_envs("Pendulum-v1", 1, backend="sync"), 4)), SEEDS, 7
    )
    np.testing.assert_allclose(played.returns, returns, rtol=1e-5)
    assert (played.lengths == 7).all()


def test_episodes_of_a_dead_worker_do_not_count(tmp_path):
    make = partial(Deadly, {4}, str(tmp_path / "died"))
    env = make_vect_envs(make_env=make, num_envs=4, backend="workers", num_workers=2)
    agent = PPO(env.single_observation_space, env.single_action_space, seed=0)
    with pytest.warns(RuntimeWarning, match="exit code 3"):
        played = agent.run_episodes(VecEnvAdapter(env), [1, 2, 3, 4])
    env.close()
    assert played.lost.any()
    assert not played.lost.all()
    assert (played.returns[~played.lost] == 5).all()
    assert (played.returns[played.lost] < 5).all()
    assert played.mean.tolist() == [5.0]


def test_members_whose_episodes_were_all_lost_play_again(tmp_path):
    make = partial(Deadly, {1, 2}, str(tmp_path / "died"))
    env = make_vect_envs(make_env=make, num_envs=2, backend="workers", num_workers=1)
    agent = PPO(env.single_observation_space, env.single_action_space, seed=0)
    with pytest.warns(RuntimeWarning, match="exit code 3"):
        played = agent.run_episodes(VecEnvAdapter(env), [1, 2])
    env.close()
    assert not played.lost.any()
    assert played.returns.tolist() == [[5.0, 5.0]]


def test_lost_episodes_are_retried_a_limited_number_of_times():
    """Of two members the second loses all it plays, the first one episode."""
    lost = np.array([[True, False], [True, True]])
    tries: list[list[int]] = []

    def run_episodes(seeds):
        tries.append(list(seeds))
        return np.full((2, 2), float(len(tries))), np.full((2, 2), len(tries)), lost

    returns, lengths, still = in_rounds(run_episodes, [3, 4], 2)
    assert len(tries) == 1 + MAX_RETRIES
    assert len({tuple(seeds) for seeds in tries}) == len(tries)  # other seeds each time
    assert returns.tolist() == [[1, 1], [4, 4]]
    assert lengths.tolist() == [[1, 1], [4, 4]]
    assert (still == lost).all()


def test_instances_of_a_retry_share_their_seeds():
    tries = []

    def run_episodes(seeds):
        tries.append(list(seeds))
        return np.zeros((1, 4)), np.zeros((1, 4)), np.ones((1, 4), bool)

    in_rounds(run_episodes, [3, 3, 4, 4], 4, instances=2)
    assert len(tries) == 1 + MAX_RETRIES
    for first, second, third, fourth in tries:
        assert (first, third) == (second, fourth)
        assert first != third


def test_mean_is_nan_if_all_episodes_were_lost():
    initial_hidden_state = Episodes(np.ones((2, 2)), np.ones((2, 2), int), np.array([[True, True], [True, False]]))
    np.testing.assert_array_equal(initial_hidden_state.mean, [np.nan, 1.0])


# ---- what ends an evaluation


class Spoiling(gym.Env):
    """Episodes of eight steps; in the third step of an episode of seed 4 one number is wrong."""

    observation_space = gym.spaces.Dict({"x": gym.spaces.Box(-1, 1, (2,), np.float32)})
    action_space = gym.spaces.Discrete(2)

    def __init__(self, what):
        self.what = what

    def reset(self, *, seed=None, options=None):
        self.steps, self.is_wrong = 0, seed == 4
        return {"x": np.zeros(2, np.float32)}, {}

    def step(self, action):
        self.steps += 1
        wrong = self.is_wrong and self.steps == 3
        observation = np.array([0, np.nan if wrong and self.what == "observation" else 0], np.float32)
        reward = np.inf if wrong and self.what == "reward" else 1.0
        return {"x": observation}, reward, self.steps == 8, False, {}


def spoiling(what):
    env = make_vect_envs(make_env=partial(Spoiling, what), num_envs=4, backend="sync")
    return env, PPO.population(2, env.single_observation_space, env.single_action_space, seed=0)


@pytest.mark.parametrize(
    ("what", "message"), [("observation", r"observation\['x'\]\[1\]=nan"), ("reward", "reward=inf")]
)
def test_non_finite_observations_and_rewards_raise_env_step_error(what, message):
    env, population = spoiling(what)
    place = r"partial, member 0, env 1 of its own, in evaluation: "  # what made it has no name
    with pytest.raises(EnvStepError, match=f"{place}{message} is not finite"):
        population.run_episodes(VecEnvAdapter(env), [3, 4])
    with pytest.raises(EnvStepError, match=f"partial, env 3, in evaluation: {message} is not finite"):
        population[0].run_episodes(VecEnvAdapter(env), [1, 2, 3, 4])


def test_very_long_episodes_give_a_warning(monkeypatch):
    monkeypatch.setattr(episode_guard, "LONG_EPISODE", 5)
    env, population = spoiling("nothing")
    with pytest.warns(RuntimeWarning, match=r"4 episodes of an evaluation have not ended after 5 steps; eval_steps"):
        population.run_episodes(VecEnvAdapter(env), [1, 2])
    population.run_episodes(VecEnvAdapter(env), [1, 2], 7)  # a warning would be an error


def test_an_evaluation_can_be_stopped_at_every_step():
    env, population = spoiling("nothing")
    asked = iter([False, False, True])
    with pytest.raises(EvaluationStopped):
        population.run_episodes(VecEnvAdapter(env), [1, 2], should_stop=lambda: next(asked))
    assert [one.unwrapped.steps for one in env.envs] == [2] * 4
