"""`TransitionBuffer`: the replay of a hand-written loop holds the transitions of the envs, and no others."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from small_runs import SMALL

from agilerl_like import DQN, SAC, ConfigurationError, QLearning, TransitionBuffer


def counted(row):
    """Return a transition without what follows a termination, which has no effect."""
    return row[:4] if row[3] else row


class Walk(gym.Env):
    """A walk along ten places, ended by the last one; every transition is written into a log."""

    observation_space, action_space = Discrete(10), Discrete(3)

    def __init__(self, log, masked):
        self.log, self.masked = log, masked

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(8)), 0
        return self.place, self._info()

    def step(self, action):
        before, self.steps = self.place, self.steps + 1
        self.place = int(np.clip(self.place + action - 1, 0, 9))
        is_last, ends = self.steps == 6, self.place == 9
        legal = [self.place % 2, 1, 1]
        self.log.append(
            counted((before, int(action), float(before), ends, self.place, *(legal if self.masked else ())))
        )
        return self.place, float(before), ends, is_last, self._info()

    def _info(self):
        return {"action_mask": np.array([self.place % 2, 1, 1], np.int8)} if self.masked else {}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("mode", [*AutoresetMode])
def test_the_transitions_are_those_of_the_envs(mode, masked):
    logs = [[] for _ in range(3)]
    env = SyncVectorEnv([lambda log=log: Walk(log, masked) for log in logs], autoreset_mode=mode)
    agent = QLearning(env.single_observation_space, env.single_action_space, num_envs=3, seed=1)
    buffer = TransitionBuffer(agent, env, capacity=400)
    rng = np.random.default_rng(0)
    obs, _ = env.reset(seed=1)
    for _ in range(100):
        action = rng.integers(3, size=3)
        before = [len(log) for log in logs]
        next_obs, reward, terminated, truncated, infos = env.step(action)
        added = buffer.add(obs, action, reward, terminated, truncated, next_obs, infos)
        taken = [log[-1] for log, count in zip(logs, before, strict=True) if len(log) > count]
        assert added == len(taken)
        if added:
            assert _rows(buffer.newest()) == taken
        obs = next_obs
        if mode is AutoresetMode.DISABLED and (ended := terminated | truncated).any():
            obs, _ = env.reset(options={"reset_mask": ended})
    stored = [row for log in logs for row in log]
    assert len(buffer) == len(stored)
    assert any(row[3] for row in stored)
    samples = _rows(buffer.sample(4_000))
    assert {*samples} == {*stored}


def _rows(batch):
    columns = [np.asarray(batch[name]).tolist() for name in ("obs", "action", "reward", "done", "next_obs")]
    masks = batch.get("next_action_mask")
    columns += [] if masks is None else masks.astype(int).T.tolist()
    return [counted(row) for row in zip(*columns, strict=True)]


class Two(gym.Env):
    """Pays 1 in its second state, in which it stays; episodes have two steps and never terminate."""

    observation_space, action_space = Discrete(2), Discrete(1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.steps = 0
        return 0, {}

    def step(self, action):
        reward, self.place, self.steps = float(self.place), 1, self.steps + 1
        return 1, reward, False, self.steps == 2, {}


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_values_at_time_limits_are_those_of_an_endless_episode(mode):
    env = SyncVectorEnv([Two, Two], autoreset_mode=mode)
    agent = QLearning(Two.observation_space, Two.action_space, num_envs=2, lr=0.2, gamma=0.9, seed=1)
    buffer = TransitionBuffer(agent, env)
    obs, _ = env.reset(seed=1)
    for _ in range(800):
        action = agent.get_action(obs)
        next_obs, *outcome = env.step(action)
        if buffer.add(obs, action, *outcome[:3], next_obs, outcome[3]):
            agent.learn(buffer.newest())
        obs = next_obs
    np.testing.assert_allclose(agent.table.ravel(), [9, 10], atol=1e-2)


def test_the_oldest_transitions_are_replaced_and_samples_follow_from_the_seed():
    space = Dict({"a": Box(-1, 1, (2,)), "b": Discrete(3)})
    settings = {"num_envs": 2, "memory_size": 6, "learning_starts": 1}
    agents = [DQN(space, Discrete(2), seed=seed, **settings) for seed in (1, 1, 2)]
    buffers = [TransitionBuffer(agent, autoreset="NextStep") for agent in agents]
    for step in range(5):
        rows = {"a": np.full((2, 2), step / 8, np.float32), "b": np.array([step % 3, 0])}
        for buffer in buffers:
            buffer.add(rows, np.zeros(2, int), [step, step], [False, False], [False, False], rows)
    assert [len(buffer) for buffer in buffers] == [buffer.capacity for buffer in buffers] == [6, 6, 6]
    samples = [buffer.sample() for buffer in buffers]
    assert len(samples[0]["reward"]) == agents[0].batch_size
    assert {*samples[0]["reward"].tolist()} == {2, 3, 4}
    np.testing.assert_array_equal(samples[0]["obs"]["b"], samples[1]["obs"]["b"])
    assert (samples[0]["obs"]["b"] != samples[2]["obs"]["b"]).any()
    assert np.isfinite(agents[0].learn(samples[0]))


@pytest.mark.parametrize("first", [np.zeros((1, 2), int), np.zeros((1, 2), np.uint8), np.zeros((1, 2), bool)])
def test_later_numbers_are_stored_unrounded_whatever_the_dtype_of_the_first(first):
    agent = SAC(Box(-1, 1, (2,)), Box(-1, 1, (1,)), num_envs=1, net_config=SMALL, seed=1)
    buffer = TransitionBuffer(agent, autoreset="SameStep", capacity=np.int64(3))
    later, outcome = np.full((1, 2), 0.7), ([1.0], [False], [False])
    buffer.add(first, np.zeros((1, 1), int), *outcome, later)
    buffer.add(later, np.full((1, 1), 0.3), *outcome, later)
    newest = buffer.newest()
    assert (newest["obs"].tolist(), newest["action"].tolist()) == ([[0.7, 0.7]], [[0.3]])
    last = {"final_obs": np.full((1, 2), 0.5)}
    buffer.add(later, np.zeros((1, 1)), [1.0], [False], [True], first, last)
    assert buffer.newest()["next_obs"].tolist() == [[0.5, 0.5]]


def test_a_continuous_agent_learns_from_samples():
    agent = SAC(Box(-1, 1, (3,)), Box(0, 3, (2,)), num_envs=2, net_config=SMALL, seed=1)
    buffer = TransitionBuffer(agent, autoreset="SameStep")
    obs = np.zeros((2, 3), np.float32)
    last = {"final_obs": np.array([np.ones(3, np.float32), None], object)}
    buffer.add(obs, agent.get_action(obs), [1.0, 2.0], [False, False], [True, False], obs, last)
    assert buffer.newest()["next_obs"].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert np.isfinite(agent.learn(buffer.sample(8)))


@pytest.mark.parametrize("capacity", [100, 20])
def test_running_statistics_count_each_observation_once_however_often_it_is_sampled(capacity):
    agent = DQN(Box(-9, 9, (3,)), Discrete(2), num_envs=2, net_config=SMALL, normalize_observation=True, seed=1)
    buffer, rng, seen = TransitionBuffer(agent, autoreset="Disabled", capacity=capacity), np.random.default_rng(0), []
    for _ in range(3):
        for _ in range(10):
            obs = rng.normal(size=(2, 3)).astype(np.float32)
            buffer.add(obs, np.zeros(2, int), [0.0, 0.0], [False, False], [False, False], obs)
            seen += [*obs]
        for _ in range(100):
            agent.learn(buffer.sample(32))
        norm = agent.network.observation_norm
        assert norm.count.item() == len(seen)
        np.testing.assert_allclose(norm.mean.flatten(), np.mean(seen, 0), atol=1e-5)
    batch = {name: value for name, value in buffer.sample(32).items() if name != "is_new"}
    agent.learn(batch)
    assert agent.network.observation_norm.count.item() == len(seen) + 32
    with pytest.raises(ConfigurationError, match="is_new has 1 flags; allowed are 32"):
        agent.learn({**batch, "is_new": [True]})


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda agent: TransitionBuffer(agent), "autoreset is missing"),
        (lambda agent: TransitionBuffer(agent, autoreset="NextStep", capacity=0), "capacity=0 must be a positive int"),
        (lambda agent: TransitionBuffer(agent, autoreset="NextStep", capacity=True), "capacity=True must be"),
        (lambda agent: TransitionBuffer("DQN", autoreset="NextStep"), "agent='DQN'; allowed is an agent of one policy"),
        (lambda agent: TransitionBuffer(agent, autoreset="NextStep").sample(4), "the buffer is empty"),
        (lambda agent: TransitionBuffer(agent, autoreset="NextStep").sample(0), "batch_size=0 must be a positive int"),
        (lambda agent: TransitionBuffer(agent, autoreset="NextStep").newest(), "the last step has no transition"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(use, message):
    with pytest.raises(ConfigurationError, match=message):
        use(DQN(Box(-1, 1, (3,)), Discrete(2), net_config=SMALL, seed=1))
