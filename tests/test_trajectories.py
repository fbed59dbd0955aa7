"""`export_trajectories`: an episode's seed and actions give it again, and its rewards are those of `evaluate`."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_runs import SMALL

from agilerl_like import DQN, IPPO, PPO, ConfigurationError, EnvStepError, evaluate, export_trajectories, make_vect_envs
from agilerl_like.evaluation.eval_envs import evaluation_env_of, single_env_spec_of


def agents_for(env_id, size=2, **settings):
    env = gym.make(env_id)
    return PPO.population(size, env.observation_space, env.action_space, **{"net_config": SMALL, "seed": 2, **settings})


def replayed(env_id, data, number):
    """The observations and rewards of one episode in a fresh env."""
    with_actions = data["actions"][data["episode"] == number]
    env = gym.make(env_id)
    observations, rewards = [env.reset(seed=int(data["episode_seed"][number]))[0]], []
    for step, action in enumerate(with_actions, 1):
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(observation)
        rewards.append(reward)
        assert (terminated or truncated) == (step == len(with_actions)) or env_id == "Pendulum-v1"  # cut after 100
    return np.stack(observations), np.array(rewards, np.float32)


@pytest.mark.parametrize(("env_id", "num_envs"), [("CartPole-v1", 1), ("CartPole-v1", 3), ("Pendulum-v1", 3)])
def test_replayed_by_seed_and_action(tmp_path, env_id, num_envs):
    agents = agents_for(env_id)
    path = export_trajectories(agents, env_id, tmp_path / "t.npz", steps=100, num_envs=num_envs, seed=5)
    data = np.load(path)
    assert set(data["episode_agent"]) == {0, 1}
    for number in range(len(data["episode_seed"])):
        here = data["episode"] == number
        observations, rewards = replayed(env_id, data, number)
        np.testing.assert_array_equal(data["observations"][here], observations[:-1])
        np.testing.assert_array_equal(data["next_observations"][here], observations[1:])
        np.testing.assert_array_equal(data["rewards"][here], rewards)
        assert data["step"][here].tolist() == [*range(data["episode_length"][number])]
    for agent in (0, 1):
        lengths = data["episode_length"][data["episode_agent"] == agent]
        assert lengths.sum() >= 100 > lengths[:-1].sum()


@pytest.mark.parametrize("sampling", ["greedy", "sample", "temperature(2)"])
def test_sums_equal_the_returns_of_evaluate(tmp_path, sampling):
    agents = agents_for("CartPole-v1")
    path = export_trajectories(agents, "CartPole-v1", tmp_path / "t.npz", 120, 2, sampling, seed=9)
    data = np.load(path)
    returns = evaluate(agents, "CartPole-v1", 20, 9, sampling).returns
    for agent in (0, 1):
        its = data["episode_agent"] == agent
        count = int(its.sum())
        np.testing.assert_array_equal(data["episode_return"][its], returns[agent, :count])
        sums = [data["rewards"][data["episode"] == number].sum() for number in np.flatnonzero(its)]
        np.testing.assert_array_equal(sums, returns[agent, :count])


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize(
    ("env_id", "settings"),
    [
        ("CartPole-v1", {}),
        ("Pendulum-v1", {"action_std_init": 1.0}),  # of which many actions are clipped
        ("Pendulum-v1", {"action_std_init": 1.0, "squash_output": True}),
    ],
)
def test_log_probabilities_and_values_are_the_agents(tmp_path, env_id, settings, recurrent):
    """Those of `get_action`'s network, step by step along the first episode."""
    agent = agents_for(env_id, 1, recurrent=recurrent, **settings)[0]
    data = np.load(export_trajectories(agent, env_id, tmp_path / "t.npz", 20, seed=1, generation=np.int64(7)))
    assert set(data["episode_generation"]) == {7}
    if settings.get("squash_output") is None and env_id == "Pendulum-v1":
        assert (np.abs(data["actions"]) == 2).any()
    state = agent.get_initial_hidden_state(1) if recurrent else None
    agent.set_training_mode(False)
    for step in range(int(data["episode_length"][0])):
        observation = data["observations"][step : step + 1]
        log_prob = agent.evaluate_actions(observation, data["actions"][step : step + 1], state)[0]
        _, _, _, value, *after = agent.get_action(observation, hidden_state=state)
        assert data["log_probs"][step] == pytest.approx(float(log_prob.detach()), abs=1e-6)
        assert data["values"][step] == pytest.approx(float(value[0]), abs=1e-6)
        state = after[0] if recurrent else None


@pytest.mark.parametrize("dueling", [False, True])
def test_action_values(tmp_path, dueling):
    """DQN chooses the largest value; it has no probabilities to draw from."""
    env = gym.make("CartPole-v1")
    agent = DQN(env.observation_space, env.action_space, net_config=SMALL, dueling=dueling, seed=0)
    data = np.load(export_trajectories(agent, "CartPole-v1", tmp_path / "t.npz", 20, sampling="greedy", seed=1))
    learner = agent.learner
    with torch.no_grad():
        x = learner.network.observation_norm(learner.encode(data["observations"]))
        values = learner.network.q_values(x)
    np.testing.assert_array_equal(data["actions"], values.argmax(-1))
    np.testing.assert_allclose(data["values"], values.amax(-1), rtol=1e-5)
    assert (data["log_probs"] == 0).all()
    with pytest.raises(ConfigurationError, match=r"sampling=.sample. needs a policy of probabilities"):
        export_trajectories(agent, "CartPole-v1", tmp_path / "t.npz", 20)


class Dials(gym.Env):
    """The critic reads `state`, the policy `policy`; ends after 4 steps."""

    observation_space = spaces.Dict({"policy": spaces.Box(-1, 1, (3,)), "state": spaces.Box(-1, 1, (2,))})
    action_space = spaces.Discrete(2)

    def _look(self):
        return {name: self.np_random.uniform(-1, 1, n).astype(np.float32) for name, n in (("policy", 3), ("state", 2))}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {}

    def step(self, action):
        self.steps += 1
        return self._look(), 1.0, self.steps == 4, False, {}


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_critic_with_observations_of_its_own_gives_the_values(tmp_path, recurrent):
    spaces_of = Dials.observation_space, Dials.action_space
    settings = {"recurrent": recurrent, "normalize_observation": True, "net_config": SMALL, "seed": 1}
    agent = PPO(*spaces_of, critic_observation="state", **settings)
    env = make_vect_envs(Dials, num_envs=1)
    data = np.load(export_trajectories(agent, env, tmp_path / "t.npz", 4, seed=1))
    env.close()
    state = agent.get_initial_hidden_state(1) if recurrent else None
    agent.set_training_mode(False)
    for step in range(4):
        observation = {name: data[f"observations/{name}"][step : step + 1] for name in ("policy", "state")}
        _, _, _, value, *after = agent.get_action(observation, hidden_state=state)
        assert data["values"][step] == pytest.approx(float(value[0]), abs=1e-6)
        state = after[0] if recurrent else None


class Rooms(gym.Env):
    """Dict observations and masks: action 1 is illegal; ends after 6 steps, or never with `endless`."""

    observation_space = spaces.Dict({"here": spaces.Discrete(3), "far": spaces.Box(-1, 1, (2,))})
    action_space = spaces.Discrete(2)
    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    def __init__(self, endless=False):
        self.endless = endless

    def _look(self):
        look = {"here": self.steps % 3, "far": np.full(2, self.steps / 10, np.float32)}
        return look, {"action_mask": np.array([1, 0], np.int8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._look()

    def step(self, action):
        assert action == 0
        self.steps += 1
        observation, info = self._look()
        return observation, float(self.steps), self.steps == 6 and not self.endless, False, info


def test_dictionaries_and_masks(tmp_path):
    env = make_vect_envs(Rooms, 2, backend="sync")
    agent = PPO(env.single_observation_space, env.single_action_space, seed=0)
    data = np.load(export_trajectories(agent, env, tmp_path / "t.npz", 12, 2, seed=1))
    assert data["observations/here"].tolist() == [0, 1, 2, 0, 1, 2] * 2
    np.testing.assert_allclose(data["next_observations/far"][:, 0], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6] * 2, rtol=1e-6)
    assert data["terminated"].tolist() == ([False] * 5 + [True]) * 2
    assert data["episode_return"].tolist() == [21.0, 21.0]
    assert (data["log_probs"] == 0).all()  # the only legal action
    env.close()


def test_endless_episodes_are_truncated(tmp_path):
    env = make_vect_envs(Rooms, 1, backend="sync", endless=True)
    agent = PPO(env.single_observation_space, env.single_action_space, seed=0)
    data = np.load(export_trajectories(agent, env, tmp_path / "t.npz", 8, seed=1))
    assert data["episode_length"].tolist() == [8]
    assert data["truncated"].tolist() == [False] * 7 + [True]
    env.close()


class Spoiled(gym.Env):
    """Ends after 3 steps, with an observation that is not finite."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.array([0.0, np.nan if self.steps == 3 else 0.0], np.float32), 1.0, self.steps == 3, False, {}


def test_a_last_observation_that_is_not_finite_is_refused(tmp_path):
    env = Spoiled()  # resets in the step that ends an episode, so that nothing acts on its last observation
    agent = PPO(env.observation_space, env.action_space, net_config=SMALL, seed=0)
    with pytest.raises(EnvStepError, match=r"Spoiled, seed \d+, step 3: observation\[1\]=nan is not finite"):
        export_trajectories(agent, env, tmp_path / "t.npz", 3, seed=1)
    assert not any(tmp_path.iterdir())


def test_minari_reads_them(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    pytest.importorskip("h5py")
    agents = agents_for("CartPole-v1")
    arguments = {"env": "CartPole-v1", "steps": 60, "seed": 3, "generation": [4, 5]}
    data = np.load(export_trajectories(agents, path=tmp_path / "t.npz", **arguments))
    export_trajectories(agents, path=tmp_path / "sets" / "evolved-v0", format="minari", **arguments)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    dataset = minari.load_dataset("evolved-v0")
    assert dataset.total_episodes == len(data["episode_seed"])
    for episode in dataset.iterate_episodes():
        here = data["episode"] == episode.id
        np.testing.assert_array_equal(episode.observations[:-1], data["observations"][here])
        np.testing.assert_array_equal(episode.observations[1:], data["next_observations"][here])
        for name in ("actions", "rewards"):
            np.testing.assert_array_equal(getattr(episode, name), data[name][here])
        np.testing.assert_array_equal(episode.infos["log_prob"], data["log_probs"][here])
        assert set(episode.infos["generation"]) == {data["episode_generation"][episode.id]}
    env = dataset.recover_environment()
    assert env.spec.id == "CartPole-v1"
    with pytest.raises(ConfigurationError, match="allowed is a new name such as evolved-v0"):
        export_trajectories(agents, path=tmp_path / "sets" / "evolved-v0", format="minari", **arguments)


def test_refuses(tmp_path):
    agent = agents_for("CartPole-v1", 1)[0]
    for problem, arguments in (
        ("steps=0 must be at least 1", {"steps": 0}),
        ("num_envs=0 must be at least 1", {"num_envs": 0}),
        ("format='csv' is unknown", {"format": "csv"}),
        (r"allowed is a file that ends in \.npz", {"path": tmp_path / "t"}),
        ("generation has 2 entries", {"generation": [1, 2]}),
        ("generation=None; allowed are a whole number, and one for each agent", {"generation": None}),
        (r"generation=\['a'\]; allowed are a whole number", {"generation": ["a"]}),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            export_trajectories(agent, "CartPole-v1", **{"path": tmp_path / "t.npz", **arguments})
    team = IPPO({"a": agent.observation_space}, {"a": agent.action_space}, net_config=SMALL)
    with pytest.raises(ConfigurationError, match="trajectories of teams are not written"):
        export_trajectories(team, "CartPole-v1", tmp_path / "t.npz")


def test_with_instances_no_episode_is_played_in_vain(tmp_path):
    env = make_vect_envs("Pendulum-v1", num_envs=4, instances=[{"g": 5.0}, {"g": 10.0}], backend="sync")
    agent = PPO(env.single_observation_space, env.single_action_space, num_envs=4, seed=1)
    path = export_trajectories(agent, env, tmp_path / "it.npz", steps=1200, num_envs=2, sampling="greedy", seed=7)
    with np.load(path) as data:
        returns = data["episode_return"]
    assert returns == pytest.approx(evaluate(agent, env, 3, seed=7).returns[0], rel=1e-5)
    with np.load(path) as data:
        assert data["episode_instance"].tolist() == [0, 1, 0, 1, 0, 1]
        first = data["episode"] == 1
        env = gym.make("Pendulum-v1", g=10.0)
        observation, _ = env.reset(seed=int(data["episode_seed"][1]))
        for expected, action in zip(data["observations"][first], data["actions"][first], strict=True):
            np.testing.assert_array_equal(observation, expected)
            observation = env.step(action)[0]


def test_envs_of_tensors(tmp_path):
    env = make_vect_envs("CartPole-v1", 2, backend="torch")
    agent = PPO(env.single_observation_space, env.single_action_space, net_config=SMALL, seed=2)
    data = np.load(export_trajectories(agent, env, tmp_path / "t.npz", 20, 2, seed=7))
    found = evaluate(agent, env, len(data["episode_seed"]), seed=7, sampling="sample", max_steps=20)
    assert data["episode_return"].tolist() == found.returns[0].tolist()
    assert len(data["actions"]) == data["episode_length"].sum()
    assert "episode_instance" not in data


@pytest.mark.parametrize(
    ("env_id", "options", "limit", "kwargs"),
    [
        ("CartPole-v1", {"max_episode_steps": 50, "sutton_barto_reward": True}, 50, {"sutton_barto_reward": True}),
        ("Pendulum-v1", {"backend": "sync", "g": 5.0}, 200, {"g": 5.0}),
        ("CartPole-v1", {"backend": "torch"}, 500, {}),
        ("Pendulum-v1", {"wrappers": [("RescaleAction", {"min_action": -1, "max_action": 1})]}, 200, {}),
    ],
)
def test_the_spec_of_a_data_set_is_that_of_one_env(env_id, options, limit, kwargs):
    env = make_vect_envs(env_id, 2, **options)
    with evaluation_env_of(env, 2, PPO(env.single_observation_space, env.single_action_space)) as adapter:
        spec = single_env_spec_of(adapter)
    assert (spec.id, spec.max_episode_steps) == (env_id, limit)
    assert kwargs.items() <= spec.kwargs.items()
    assert [its.name for its in spec.additional_wrappers] == ["RescaleAction"] * len(options.get("wrappers", []))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda agent, path: evaluate(agent, "CartPole-v1", 1, seed=1, max_steps=0), "max_steps=0 must be at least 1"),
        (lambda agent, path: evaluate(agent, "CartPole-v1", 1, seed=-1), "seed=-1; allowed are whole numbers from 0"),
        (lambda agent, path: evaluate(agent, "CartPole-v1", 1, seed="x"), "seed='x'; allowed are whole numbers from 0"),
        (lambda agent, path: export_trajectories(agent, "CartPole-v1", path, seed=-1), "seed=-1; allowed are whole"),
    ],
)
def test_counts_and_seeds_out_of_range_are_named(tmp_path, call, message):
    with pytest.raises(ConfigurationError, match=message):
        call(agents_for("CartPole-v1", 1)[0], tmp_path / "t.npz")


def test_counts_of_numpy_are_whole_numbers():
    agent = agents_for("CartPole-v1", 1)[0]
    found = evaluate(agent, "CartPole-v1", np.int64(2), seed=np.int64(3), max_steps=np.int32(5))
    assert found.returns.tolist() == evaluate(agent, "CartPole-v1", 2, seed=3, max_steps=5).returns.tolist()
