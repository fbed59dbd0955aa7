"""Gymnax's environments through tensors: no copy, its dynamics, and our contract of episodes."""

import importlib.util

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from agilerl_like import PPO, make_vect_envs, train_on_policy
from agilerl_like.envs import VecEnvAdapter
from agilerl_like.errors import ConfigurationError

IS_INSTALLED = importlib.util.find_spec("gymnax") is not None
needs_gymnax = pytest.mark.skipif(not IS_INSTALLED, reason="gymnax is in an extra that is not installed")


@pytest.mark.skipif(IS_INSTALLED, reason="gymnax is installed")
def test_a_missing_package_is_named_with_its_extra():
    with pytest.raises(ConfigurationError, match=r"pip install 'agilerl-like\[gymnax\]'"):
        make_vect_envs("CartPole-v1", 2, backend="gymnax")


@needs_gymnax
def test_steps_equal_those_of_gymnax():
    import gymnax
    import jax

    jax.config.update("jax_platforms", "cpu")
    env, params = gymnax.make("CartPole-v1")
    ours = make_vect_envs("CartPole-v1", 3, backend="gymnax")
    observations, _ = ours.reset(seed=[1, 2, 3])
    for number in range(6):
        states = ours._state
        actions = torch.tensor([0, 1, number % 2])
        observations, reward, terminated, truncated, _ = ours.step(actions)
        for row in range(3):
            one = jax.tree.map(lambda leaf, row=row: leaf[row], states)
            theirs, _, its_reward, its_end, _ = env.step_env(jax.random.key(0), one, int(actions[row]), params)
            np.testing.assert_allclose(observations[row].numpy(), np.asarray(theirs), rtol=1e-5, atol=1e-5)
            assert (float(reward[row]), bool(terminated[row])) == (float(its_reward), bool(its_end))
        assert not truncated.any()


@needs_gymnax
def test_torch_and_jax_share_their_memory():
    env = make_vect_envs("CartPole-v1", 3, backend="gymnax")
    env.reset(seed=0)
    seen = {}
    step_all = env._step_all

    def spy(*arguments):
        seen["actions"], results = arguments[-1], step_all(*arguments)
        seen["observations"] = results[-1][0]
        return results

    env._step_all = spy
    actions = torch.zeros(64 * 3, dtype=torch.int32)[:3]
    observations, *_ = env.step(actions)
    assert seen["observations"].unsafe_buffer_pointer() == observations.data_ptr()
    assert seen["actions"].unsafe_buffer_pointer() == actions.data_ptr()


@needs_gymnax
def test_a_time_limit_truncates_and_rows_have_their_own_seeds():
    def run(seeds):
        env = make_vect_envs("Pendulum-v1", len(seeds), backend="gymnax", max_episode_steps=3)
        adapter = VecEnvAdapter(env)
        first = adapter.reset(seeds)
        steps = [adapter.step(torch.zeros(len(seeds), 1)) for _ in range(8)]
        assert adapter.autoreset_mode is AutoresetMode.NEXT_STEP
        assert [bool(step.truncated.all()) for step in steps] == [number % 4 == 2 for number in range(8)]
        assert [bool(step.valid.all()) for step in steps] == [number % 4 != 3 for number in range(8)]
        return torch.stack([first, *(step.obs for step in steps)])

    seen = run([5, 2**40 + 6, 7])
    assert torch.equal(run([7, 5, 2**40 + 6]), seen[:, [2, 0, 1]])
    assert not torch.equal(run([5, 6, 7])[:, 1], seen[:, 1])


@needs_gymnax
def test_a_population_learns_in_them():
    env = make_vect_envs("CartPole-v1", 8, backend="gymnax")
    spaces = env.single_observation_space, env.single_action_space
    scores = []
    for _ in range(2):
        population = PPO.population(2, *spaces, num_envs=4, learn_step=64, batch_size=32, seed=1)
        scores.append(train_on_policy(env, pop=population, max_steps=256, evo_steps=128, eval_loop=2, verbose=False)[1])
    assert scores[0] == scores[1]


@needs_gymnax
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env_name": "CartPole-v9"}, r"of gymnax\)='CartPole-v9' is unknown; did you mean 'CartPole-v1'"),
        ({"env_name": None, "make_env": print}, "is a factory; backend='gymnax' needs an id"),
        ({"gravity": 3}, r"env_kwargs=\{'gravity': 3\} do not suit env_name='CartPole-v1'"),
        ({"wrappers": "NormalizeReward"}, "wraps envs of numpy arrays"),
    ],
)
def test_mistakes_are_one_clear_error(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        make_vect_envs(**{"env_name": "CartPole-v1", "num_envs": 2, "backend": "gymnax", **arguments})
