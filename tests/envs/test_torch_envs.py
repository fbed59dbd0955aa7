"""Envs of tensors: gymnasium's dynamics, seeds of each row, NEXT_STEP autoreset, and episodes equal on every device."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from agilerl_like import make_vect_envs
from agilerl_like.envs import VecEnvAdapter, describe_backend, evaluation_env, with_num_envs
from agilerl_like.envs.tensor_envs import TENSOR_ENVS, TensorCartPole, TensorPendulum, hashed, uniform_of
from agilerl_like.errors import ConfigurationError

N = 64


def states_of(env_id, rng):
    """Return random states `[N, S]`, some of them terminal, none within rounding of a threshold."""
    if env_id == "Pendulum-v1":
        return rng.uniform((-np.pi, -8), (np.pi, 8), (N, 2))
    states = rng.uniform(-1, 1, (N, 4)) * (2.6, 3.0, 0.22, 3.0)
    moved = np.abs(states[:, ::2] + 0.02 * states[:, 1::2]) - (2.4, np.radians(12))
    return states[(np.abs(moved) > 1e-4).all(1)]


@pytest.mark.parametrize("env_id", TENSOR_ENVS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_equal_states_and_actions_give_gymnasiums_next_states_rewards_and_terminations(env_id, seed):
    rng = np.random.default_rng(seed)
    states, single = states_of(env_id, rng), gym.make(env_id).unwrapped
    env = TENSOR_ENVS[env_id](len(states))
    actions = rng.integers(2, size=len(states)) if env_id == "CartPole-v1" else rng.uniform(-3, 3, (len(states), 1))
    after, reward, terminated = env.transition(torch.tensor(states.T).float(), torch.tensor(actions))
    observations = env.observe(after)
    for row, (state, action) in enumerate(zip(states, actions, strict=True)):
        single.reset()
        single.state = state
        observation, its_reward, its_end, _, _ = single.step(action)
        np.testing.assert_allclose(observations[row], observation, rtol=1e-5, atol=1e-5)
        assert float(reward[row]) == pytest.approx(float(its_reward), rel=1e-5, abs=1e-5)
        assert bool(terminated[row]) == its_end


@pytest.mark.parametrize("env_id", TENSOR_ENVS)
def test_spaces_and_time_limit_are_gymnasiums(env_id):
    single, env = gym.make(env_id), make_vect_envs(env_id, 3, backend="torch")
    assert (env.single_observation_space, env.single_action_space) == (single.observation_space, single.action_space)
    assert env.max_episode_steps == single.spec.max_episode_steps
    assert describe_backend(env) == "torch"


def test_a_time_limit_truncates_and_the_next_step_begins_an_episode():
    adapter = VecEnvAdapter(make_vect_envs("Pendulum-v1", 2, backend="torch", max_episode_steps=3))
    adapter.reset([5, 6])
    steps = [adapter.step(torch.zeros(2, 1)) for _ in range(8)]
    assert adapter.autoreset_mode is AutoresetMode.NEXT_STEP
    assert [bool(step.truncated.all()) for step in steps] == [False, False, True, False, False, False, True, False]
    assert [bool(step.valid.all()) for step in steps] == [True, True, True, False, True, True, True, False]
    assert not any(step.terminated.any() for step in steps)
    assert [bool((step.reward == 0).all()) for step in steps] == [not bool(step.valid.all()) for step in steps]
    assert torch.equal(steps[2].next_obs, steps[2].obs)  # the true last observation


def test_a_fallen_pole_terminates_with_its_reward():
    adapter = VecEnvAdapter(TensorCartPole(4))
    adapter.reset([1, 2, 3, 4])
    total = torch.zeros(4)
    for _ in range(12):
        step = adapter.step(torch.ones(4, dtype=torch.int64))
        total += step.reward * (total >= 0)
        angles = step.obs[:, 2].abs()
        assert torch.equal(step.terminated, (angles > np.radians(12)) & step.valid)
        total = torch.where(step.ended, -total, total)
    assert ((total < -7) & (total > -12)).all()  # gymnasium's poles fall in 8 to 11 steps of one push


def starts_of(env, seeds, steps, action):
    """Return the first observations of each row's episodes."""
    observation, _ = env.reset(seed=seeds)
    starts = [[row] for row in observation.tolist()]
    ended = torch.zeros(env.num_envs, dtype=torch.bool)
    for _ in range(steps):
        observation, _, terminated, truncated, _ = env.step(action)
        for row in torch.nonzero(ended)[:, 0].tolist():
            starts[row].append(observation[row].tolist())
        ended = terminated | truncated
    return starts


def test_episodes_of_a_row_depend_on_its_own_seed_only():
    left, right = torch.zeros(3, dtype=torch.int64), torch.tensor([1, 0, 0])
    starts = starts_of(TensorCartPole(3), [7, 8, 9], 60, left)
    other = starts_of(TensorCartPole(3), [7, 8, 9], 60, right)  # row 0 has other ends
    assert len(starts[0]) > 4
    assert starts[1:] == other[1:]
    assert starts[0][:4] == other[0][:4]
    assert starts_of(TensorCartPole(3), [9, 8, 7], 60, left)[::-1] == starts
    assert starts_of(TensorCartPole(3), 7, 60, left) == starts  # one seed counts up
    assert len({tuple(start) for row in starts for start in row}) == sum(map(len, starts))


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("env_id", TENSOR_ENVS)
def test_observations_share_no_memory_with_the_states(env_id, num_envs):
    env, unchanged = (TENSOR_ENVS[env_id](num_envs) for _ in range(2))
    actions = torch.as_tensor(env.action_space.sample())
    env.reset(seed=0)[0].fill_(9.0)
    unchanged.reset(seed=0)
    assert torch.equal(env.step(actions)[0], unchanged.step(actions)[0])


def test_a_reset_without_a_seed_goes_to_the_next_episode():
    env = TensorPendulum(2)
    first, again = env.reset(seed=3)[0], env.reset(seed=3)[0]
    assert torch.equal(first, again)
    assert not torch.equal(env.reset()[0], first)
    assert not torch.equal(TensorPendulum(2).reset()[0], TensorPendulum(2).reset()[0])


@pytest.mark.parametrize("env_id", TENSOR_ENVS)
def test_a_device_whose_reads_are_not_free_plays_the_same_episodes(env_id):
    """There, start states are computed in every step and chosen by a mask."""
    read, unread = (TENSOR_ENVS[env_id](5, max_episode_steps=9) for _ in range(2))
    unread._free_reads = False
    assert torch.equal(read.reset(seed=1)[0], unread.reset(seed=1)[0])
    for number in range(40):
        actions = torch.full((5,), number % 2) if env_id == "CartPole-v1" else torch.full((5, 1), number % 5 - 2.0)
        for one, other in zip(read.step(actions)[:4], unread.step(actions)[:4], strict=True):
            assert torch.equal(one, other)


def test_returned_tensors_are_not_overwritten():
    env = TensorCartPole(3)
    kept = [env.reset(seed=0)[0], *env.step(torch.zeros(3, dtype=torch.int64))[:4]]
    copies = [tensor.clone() for tensor in kept]
    for _ in range(30):
        env.step(torch.zeros(3, dtype=torch.int64))
    assert all(map(torch.equal, kept, copies))


def test_start_states_are_uniform():
    seeds = hashed(torch.arange(20_000))
    components = torch.arange(2).view(-1, 1)
    uniform = uniform_of(seeds, torch.zeros_like(seeds), components)
    assert torch.equal(uniform, torch.from_numpy(uniform_of(seeds.numpy(), np.zeros(20_000, int), components.numpy())))
    assert 0 <= uniform.min() < 0.001
    assert 0.999 < uniform.max() < 1
    counts = torch.histc(uniform[0], 20, 0, 1)
    assert ((counts - 1000).abs() < 150).all()  # five standard deviations
    assert abs(torch.corrcoef(uniform)[0, 1]) < 0.035
    assert abs(torch.corrcoef(torch.stack([uniform[0, 1:], uniform[0, :-1]]))[0, 1]) < 0.035


def test_wider_ones_and_those_of_evaluation_are_tensor_envs_too():
    env = make_vect_envs("CartPole-v1", 2, backend="torch", max_episode_steps=20)
    for other in (with_num_envs(env, 6), evaluation_env(env, 6)):
        assert type(other) is TensorCartPole
        assert (other.num_envs, other.max_episode_steps) == (6, 20)


def test_an_env_of_ones_own_is_a_factory():
    class Light(TensorPendulum):
        time_limit = 7

    env = make_vect_envs(Light, 3, backend="torch", g=1.0)
    assert (type(env), env.num_envs, env.max_episode_steps, env._gravity) == (Light, 3, 7, 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env_name": "CartPole-v2"}, r"backend='torch'\)='CartPole-v2' is unknown; did you mean 'CartPole-v1'"),
        ({"wrappers": "NormalizeReward"}, "'NormalizeReward' wraps envs of numpy arrays; .* are none"),
        ({"gravity": 3}, r"env_kwargs=\{'gravity': 3\} do not suit env_name='CartPole-v1'"),
        ({"device": "cuda:99"}, "device='cuda:99' cannot be used: .*; allowed here: 'cpu'"),
        ({"max_episode_steps": -1}, "max_episode_steps=-1; allowed are whole numbers from 1"),
    ],
)
def test_mistakes_are_one_clear_error(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        make_vect_envs(**{"env_name": "CartPole-v1", "num_envs": 2, "backend": "torch", **arguments})


def test_a_list_of_seeds_of_another_length_is_refused():
    with pytest.raises(ConfigurationError, match="seed has 2 entries; allowed is one for each of 3 envs"):
        TensorCartPole(3).reset(seed=[1, 2])
