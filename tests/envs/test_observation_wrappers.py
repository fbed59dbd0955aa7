"""Observation wrappers with every backend and in evaluation."""

from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agilerl_like import PPO
from agilerl_like.config import load
from agilerl_like.envs import (
    VecEnvAdapter,
    describe_backend,
    envpool,
    evaluation_env,
    make_vect_envs,
    with_num_envs,
)
from agilerl_like.envs.cartpole import SeededCartPole, is_native_cartpole, with_per_env_seeds
from agilerl_like.envs.envpool import EnvPoolVectorEnv
from agilerl_like.envs.evaluation_envs import make_eval_env
from agilerl_like.envs.observation_wrappers import ConcatenateFrames, PastActionReward, RenderedPole, SelectEntries
from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.envs.wrapper_specs import innermost_env
from agilerl_like.errors import ConfigurationError

KEEP = {"name": "agilerl_like.envs.observation_wrappers:SelectEntries"}
POSITIONS = {**KEEP, "entries": [0, 2]}
DRAWN = "agilerl_like.envs.views:DrawnPole"  # the former path and name


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_selecting_entries_changes_observations_only(backend):
    whole = make_vect_envs("CartPole-v1", 3, backend="sync")
    partial = make_vect_envs("CartPole-v1", 3, backend=backend, wrappers=[POSITIONS])
    space, seen = whole.single_observation_space, partial.single_observation_space
    assert isinstance(space, Box)
    assert seen == Box(space.low[[0, 2]], space.high[[0, 2]])
    np.testing.assert_array_equal(whole.reset(seed=5)[0][:, [0, 2]], partial.reset(seed=5)[0])
    for step in range(40):  # long enough for falls, so for resets
        actions = np.array([step % 2, 1, 0])
        full, *outcome, _ = whole.step(actions)
        some, *same, _ = partial.step(actions)
        np.testing.assert_array_equal(full[:, [0, 2]], some)
        np.testing.assert_array_equal(outcome, same)
    whole.close()
    partial.close()


@pytest.mark.parametrize(
    ("wrappers", "see"),
    [
        ([POSITIONS], lambda whole: whole[:, [0, 2]]),
        ([POSITIONS, {**KEEP, "entries": [1]}], lambda whole: whole[:, [2]]),  # the first is inside
        (
            [{"name": DRAWN, "size": 8}],
            lambda whole: {name: np.stack([drawn_from(row, 8)[name] for row in whole]) for name in ("cart", "pole")},
        ),
    ],
)
def test_wrappers_of_a_native_vector_env_equal_those_of_single_envs(wrappers, see):
    whole = make_vect_envs("CartPole-v1", 3, backend="vector")
    seen = make_vect_envs("CartPole-v1", 3, wrappers=wrappers)
    assert describe_backend(seen) == "vector, because gymnasium has one for this env"
    single = make_vect_envs("CartPole-v1", 3, backend="sync", wrappers=wrappers)
    assert seen.single_observation_space == single.single_observation_space
    assert seen.observation_space == single.observation_space
    equal(see(whole.reset(seed=5)[0]), seen.reset(seed=5)[0])
    for step in range(40):
        actions = np.array([step % 2, 1, 0])
        full, *outcome, _ = whole.step(actions)
        some, *same, _ = seen.step(actions)
        assert seen.observation_space.contains(some)
        equal(see(full), some)
        np.testing.assert_array_equal(outcome, same)


def test_a_wrapped_native_cartpole_has_per_row_seeds():
    env = make_vect_envs("CartPole-v1", 2, wrappers=[POSITIONS, {**KEEP, "entries": [1]}])
    assert is_native_cartpole(env)
    expected = SeededCartPole(CartPoleVectorEnv(3)).reset(seed=[7, 5, 7])[0][:, [2]]
    for made in (with_per_env_seeds(env, 3), make_eval_env(env, 3), make_eval_env(with_per_env_seeds(env, 2), 3)):
        assert isinstance(innermost_env(made), SeededCartPole)
        assert describe_backend(made) == describe_backend(env)
        adapter = VecEnvAdapter(made)
        np.testing.assert_array_equal(adapter.reset([7, 5, 7]), expected)
        assert not np.shares_memory(adapter.step(np.array([0, 1, 0])).obs, adapter.step(np.array([0, 1, 0])).obs)
    wide = with_num_envs(with_per_env_seeds(env, 3), 4)
    assert type(innermost_env(wide)) is CartPoleVectorEnv
    assert wide.reset(seed=0)[0].shape == (4, 1)
    singles = evaluation_env(env, 2)
    assert isinstance(singles, SyncVectorEnv)
    assert singles.single_observation_space == env.single_observation_space


@pytest.mark.skipif(not envpool.is_installed(), reason="the extra envpool is not installed")
def test_wrappers_of_envpool():
    plain, seen = (make_vect_envs("Acrobot-v1", 2, wrappers=wrappers) for wrappers in ([], [POSITIONS]))
    assert isinstance(innermost_env(seen), EnvPoolVectorEnv)
    speakers = [VecEnvAdapter(env) for env in (plain, seen)]
    np.testing.assert_array_equal(speakers[0].reset([3, 4])[:, [0, 2]], speakers[1].reset([3, 4]))
    whole, some = (adapter.step(np.array([0, 1])) for adapter in speakers)
    np.testing.assert_array_equal(whole.obs[:, [0, 2]], some.obs)
    for env in (plain, seen):
        env.close()


class Upside(gym.ObservationWrapper):
    """Does not support batches."""

    def observation(self, observation):
        return -observation


class SameStep(CartPoleVectorEnv):
    metadata: ClassVar = {**CartPoleVectorEnv.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}


def test_wrappers_without_batch_support_wrap_single_envs():
    env = make_vect_envs("CartPole-v1", 2, wrappers=[POSITIONS, Upside])
    assert isinstance(env, SyncVectorEnv)
    with pytest.raises(ConfigurationError, match=r"Upside.* wraps single envs; allowed with backend='sync'"):
        make_vect_envs("CartPole-v1", 2, wrappers=[POSITIONS, Upside], backend="vector")


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, "SameStep"])
def test_wrappers_of_batches_refuse_an_env_that_resets_in_the_same_step(monkeypatch, mode):
    monkeypatch.setitem(SameStep.metadata, "autoreset_mode", mode)
    with pytest.raises(ConfigurationError, match="resets in the same step; allowed are NEXT_STEP"):
        make_vect_envs(SameStep, 2, wrappers=[POSITIONS], backend="vector")


def test_pendulum_without_velocity():
    env = make_vect_envs("Pendulum-v1", 2, backend="sync", wrappers=[{**KEEP, "entries": [1, 0]}])
    assert env.single_observation_space == Box(-1.0, 1.0, (2,))
    sine, cosine = env.reset(seed=1)[0].T  # in the order of the entries
    np.testing.assert_allclose(sine**2 + cosine**2, 1, atol=1e-6)
    whole = make_vect_envs("Pendulum-v1", 2, backend="sync")
    np.testing.assert_array_equal(whole.reset(seed=1)[0][:, 1], sine)


def test_wrappers_apply_in_evaluation_and_from_yaml(tmp_path):
    (tmp_path / "run.yaml").write_text(
        "environment:\n  id: CartPole-v1\n"
        "  wrappers: [{name: 'agilerl_like.envs.observation_wrappers:SelectEntries', entries: [0, 2]}]\n"
    )
    env_config = load(tmp_path / "run.yaml").environment.env_config
    env = evaluation_env(env_config.make(), 2)
    np.testing.assert_array_equal(
        env.reset(seed=3)[0], make_vect_envs("CartPole-v1", 2, backend="sync").reset(seed=3)[0][:, [0, 2]]
    )


def test_a_wrapped_env_can_be_made_from_its_spec():
    env = SelectEntries(RenderedPole(gym.make("CartPole-v1"), size=8), ["pole"])
    spec = env.spec
    assert spec is not None
    assert gym.make(spec).observation_space == env.observation_space == Dict(pole=Box(0, 255, (1, 8, 8), np.uint8))


def drawn(angle, size=16):
    return drawn_from(np.array([0.1, 0.2, angle, 0.3], dtype=np.float32), size)


def drawn_from(state, size):
    return RenderedPole(gym.make("CartPole-v1"), size).observation(state)


def equal(expected, found):
    if isinstance(expected, dict):
        assert expected.keys() == found.keys()
    for one, other in zip(*(x.values() if isinstance(x, dict) else [x] for x in (expected, found)), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


class TestDrawnPole:
    def test_stays_in_its_space_to_the_end_of_an_episode(self):
        env, over = RenderedPole(gym.make("CartPole-v1")), False
        obs, _ = env.reset(seed=0)
        while not over:  # pushed one way, it falls fast
            assert env.observation_space.contains(obs)
            obs, _, over, _, _ = env.step(1)
        assert env.observation_space.contains(obs)

    def test_cart_has_no_pole_state(self):
        np.testing.assert_array_equal(drawn(0.1)["cart"], np.array([0.1, 0.2], np.float32))

    def test_an_upright_pole_is_between_the_two_middle_columns(self):
        picture = drawn(0.0)["pole"]
        expected = np.zeros((1, 16, 16), np.uint8)
        expected[..., 7:9] = 128  # half of 255, rounded to even
        np.testing.assert_array_equal(picture, expected)

    def test_at_the_edge_angle_the_tip_is_at_the_border(self):
        for angle, column in ((RenderedPole.EDGE, 15), (-RenderedPole.EDGE, 0)):
            picture = drawn(angle)["pole"][0]
            assert picture[0].argmax() == column
            assert picture[0, column] == 255
            np.testing.assert_array_equal(picture[-1], drawn(0.0)["pole"][0, -1])

    def test_every_image_row_has_the_brightness_of_one_pixel(self):
        size, angle = 16, 0.13
        picture = drawn(angle)["pole"][0].astype(float)
        np.testing.assert_allclose(picture.sum(axis=1), 255, atol=1)
        centres = (picture * np.arange(size)).sum(axis=1) / picture.sum(axis=1)
        np.testing.assert_allclose(centres, np.linspace(7.5 + 7.5 * angle / 0.25, 7.5, size), atol=0.01)

    def test_the_angle_can_be_read_from_the_image_to_a_thousandth(self):
        for angle in (-0.2, -0.01, 0.0, 0.003, 0.21):
            tip = drawn(angle)["pole"][0, 0].astype(float)
            assert ((tip * np.arange(16)).sum() / tip.sum() - 7.5) * 0.25 / 7.5 == pytest.approx(angle, abs=1e-3)

    def test_either_entry_can_be_dropped(self):
        whole = make_vect_envs("CartPole-v1", 2, wrappers=[DRAWN], backend="sync")
        for part in ("cart", "pole"):
            env = make_vect_envs("CartPole-v1", 2, wrappers=[DRAWN, {**KEEP, "entries": [part]}], backend="sync")
            assert list(env.single_observation_space) == [part]
            np.testing.assert_array_equal(env.reset(seed=2)[0][part], whole.reset(seed=2)[0][part])


class TestMistakes:
    @pytest.mark.parametrize(
        ("entries", "message"),
        [
            ([0, 4], "4 is no place; allowed are 0 to 3"),
            ([-1], "-1 is no place"),
            ([True], "True is no place"),
            (["x"], "'x' is no place"),
            ([0, 0], "names one twice"),
            ([], "at least one"),
            ("0", "must be a list"),
            (2, "must be a list"),
        ],
    )
    def test_of_a_vector(self, entries, message):
        with pytest.raises(ConfigurationError, match=message):
            make_vect_envs("CartPole-v1", wrappers=[{**KEEP, "entries": entries}])

    def test_of_a_dict(self):
        with pytest.raises(ConfigurationError, match="'pol' is unknown; did you mean 'pole'"):
            make_vect_envs("CartPole-v1", wrappers=[DRAWN, {**KEEP, "entries": ["pol"]}])

    def test_of_other_spaces(self):
        with pytest.raises(ConfigurationError, match="has no entries to keep; allowed are vectors and Dict"):
            make_vect_envs("Taxi-v4", wrappers=[POSITIONS])
        with pytest.raises(ConfigurationError, match="is not CartPole's"):
            make_vect_envs("Pendulum-v1", wrappers=[DRAWN])
        with pytest.raises(ConfigurationError, match="size=3 must be an integer of at least 4"):
            make_vect_envs("CartPole-v1", wrappers=[{"name": DRAWN, "size": 3}])


class Echo(gym.Env):
    """Returns what it was given as reward."""

    def __init__(self, space, actions):
        self.observation_space, self.action_space, self.calls = space, actions, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), float(np.sum(action)), False, False, {}


@pytest.mark.parametrize(
    ("actions", "action", "past"),
    [
        (gym.spaces.Discrete(3), 2, [0, 0, 1, 2]),
        (Box(-1.0, 1.0, (2,)), np.array([0.5, -0.25], np.float32), [0.5, -0.25, 0.25]),
        (gym.spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0, 1, 1, 0, 0, 1]),
    ],
)
def test_the_past_follows_a_vector(actions, action, past):
    env = PastActionReward(Echo(Box(-1.0, 1.0, (2,)), actions))
    first, _ = env.reset(seed=0)
    assert first[2:].tolist() == [0.0] * len(past)
    second = env.step(action)[0]
    assert second[2:].tolist() == past
    assert env.observation_space.contains(second)
    assert env.observation_space.contains(first)
    assert env.reset()[0][2:].tolist() == [0.0] * len(past)


def test_the_past_is_an_entry_beside_an_image_and_in_a_dict():
    image, inside = Box(0, 255, (1, 4, 4), dtype=np.uint8), Dict({"x": Box(-1.0, 1.0, (2,))})
    for space, names in ((image, {"observation", "past"}), (inside, {"x", "past"})):
        env = PastActionReward(Echo(space, gym.spaces.Discrete(2)))
        env.reset(seed=0)
        observation = env.step(1)[0]
        assert set(observation) == names
        assert observation["past"].tolist() == [0.0, 1.0, 1.0]
        assert env.observation_space.contains(observation)
    with pytest.raises(ConfigurationError, match="has an entry 'past'"):
        PastActionReward(Echo(Dict({"past": Box(-1.0, 1.0, (2,))}), gym.spaces.Discrete(2)))


def test_the_past_is_part_of_a_vector_env():
    env = make_vect_envs(
        "CartPole-v1", num_envs=2, wrappers=["agilerl_like.envs.observation_wrappers:PastActionReward"]
    )
    observations, _ = env.reset(seed=1)
    assert observations.shape == (2, 7)
    assert env.step(np.array([0, 1]))[0][:, 4:].tolist() == [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]
    env.close()


@pytest.mark.parametrize(
    "memory",
    [{"cell": "LSTM"}, {"cell": "GRU"}, {"cell": "minGRU"}, {"cell": "transformer", "d_model": 16, "context": 4}],
    ids=lambda memory: memory["cell"],
)
def test_every_memory_reads_the_past(memory):
    env = make_vect_envs(
        "CartPole-v1", num_envs=2, wrappers=["agilerl_like.envs.observation_wrappers:PastActionReward"]
    )
    spaces = env.single_observation_space, env.single_action_space
    agent = PPO(*spaces, num_envs=2, seed=1, recurrent=True, max_seq_len=8, net_config={"memory_config": memory})
    observations, _ = env.reset(seed=1)
    hidden = agent.get_action(observations, hidden_state=agent.get_initial_hidden_state(2))[4]
    after = env.step(np.array([0, 1]))[0]
    other = after.copy()
    other[:, 4:6] = after[:, 5:3:-1]  # the other action
    values = [agent.get_action(seen, hidden_state=hidden)[3] for seen in (after, other)]
    assert bool((np.abs(values[0] - values[1]) > 1e-4).all())
    env.close()


class Numbers(gym.Env):
    """Observations of a shape, whose numbers are all the count of steps."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, shape):
        self.observation_space, self.count = Box(0, 255, shape, np.uint8), 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 1
        return self._image(), {}

    def step(self, action):
        self.count += 1
        return self._image(), 0.0, False, False, {}

    def _image(self):
        return np.full(self.observation_space.shape, self.count, np.uint8)


@pytest.mark.parametrize(
    ("shape", "whole", "axis"),
    [((5, 5, 1), (5, 5, 3), -1), ((6, 5, 1), (6, 5, 3), -1), ((2, 7, 7), (6, 7, 7), 0), ((4,), (12,), 0)],
)
def test_frames_are_concatenated_along_their_channels_with_the_oldest_first(shape, whole, axis):
    """As VecFrameStack of Stable-Baselines3, whose stacks begin with zeros."""
    env = ConcatenateFrames(gym.wrappers.FrameStackObservation(Numbers(shape), 3, padding_type="zero"))
    assert env.observation_space == Box(0, 255, whole, np.uint8)
    frames = [np.zeros(shape, np.uint8), np.zeros(shape, np.uint8), np.full(shape, 1, np.uint8)]
    observation = env.reset()[0]
    for count in range(2, 5):
        np.testing.assert_array_equal(observation, np.concatenate(frames, axis))
        frames = [*frames[1:], np.full(shape, count, np.uint8)]
        observation = env.step(0)[0]
    batch = np.stack([np.stack(frames), np.stack(frames) + 10])
    np.testing.assert_array_equal(env.observation(batch)[1], np.concatenate(frames, axis) + 10)


def test_frames_whose_channels_would_not_be_found_become_channels_first():
    env = ConcatenateFrames(gym.wrappers.FrameStackObservation(Numbers((8, 9, 3)), 2))
    assert env.observation_space == Box(0, 255, (6, 8, 9), np.uint8)
    assert ObservationEncoder(env.observation_space).leaves[0].shape == (6, 8, 9)
    frames = np.random.default_rng(0).integers(256, size=(5, 2, 8, 9, 3), dtype=np.uint8)
    for observation, (older, newer) in zip(env.observation(frames), frames, strict=True):
        channels = [image[..., channel] for image in (older, newer) for channel in range(3)]
        np.testing.assert_array_equal(observation, channels)
    np.testing.assert_array_equal(env.observation(frames[0]), env.observation(frames)[0])


@pytest.mark.parametrize(
    ("shape", "channels_last", "whole", "order"),
    [
        ((10, 10, 10), True, (10, 10, 20), (1, 2, 0, 3)),  # as MinAtar's Seaquest
        ((10, 10, 10), False, (20, 10, 10), (0, 1, 2, 3)),
        ((8, 9, 3), True, (6, 8, 9), (0, 3, 1, 2)),
        ((3, 8, 8), False, (6, 8, 8), (0, 1, 2, 3)),
    ],
)
def test_the_argument_sets_where_frames_have_their_channels(shape, channels_last, whole, order):
    env = ConcatenateFrames(gym.wrappers.FrameStackObservation(Numbers(shape), 2), channels_last=channels_last)
    (leaf,) = ObservationEncoder(env.observation_space).leaves
    assert (env.observation_space.shape, leaf.channels_last) == (whole, whole[-1] == 20)
    frames = np.random.default_rng(0).integers(256, size=(5, 2, *shape), dtype=np.uint8)
    for observation, stack in zip(env.observation(frames), frames, strict=True):
        np.testing.assert_array_equal(observation, stack.transpose(order).reshape(whole))


@pytest.mark.parametrize(
    ("shape", "argument", "message"),
    [
        ((10, 10, 10), None, r"images of shape \(10, 10, 10\) do not show .* channels_last=None; allowed are true"),
        ((12, 16, 3), None, r"one of shape \(12, 12, 16\), whose last axis looks like its channels; allowed are"),
        ((3, 12, 16), False, r"one of shape \(12, 12, 16\), whose last axis looks like its channels; allowed are"),
        ((10, 10, 1), "no", "channels_last='no'; allowed are true, false and null"),
        ((4,), True, "channels_last=True has no effect on vectors; allowed is null"),
    ],
)
def test_frames_whose_channels_cannot_be_known_are_refused(shape, argument, message):
    stacked = gym.wrappers.FrameStackObservation(Numbers(shape), 4)
    with pytest.raises(ConfigurationError, match=message):
        ConcatenateFrames(stacked, channels_last=argument)


def test_observations_without_frames_are_refused():
    with pytest.raises(ConfigurationError, match="has no frames to concatenate"):
        ConcatenateFrames(Numbers((5, 5, 3)))
