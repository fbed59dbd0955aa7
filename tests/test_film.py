"""`record_film`: a film of an episode of T steps has T + 1 frames."""

import subprocess
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.vector import SyncVectorEnv

from agilerl_like import (
    IPPO,
    PPO,
    ConfigurationError,
    evaluate,
    make_multi_agent_vect_envs,
    make_vect_envs,
    record_film,
)
from agilerl_like.evaluation.film import Film, display_episodes, tiled
from agilerl_like.networks.sampling import Sampling

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")


class Fading(gym.Env):
    """37 steps; a frame of 30 x 41 pixels is as bright as the step's number; with `member_ends` after its action's."""

    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, render_mode=None, length=37):
        self.render_mode, self.length = render_mode, length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == (self.length if action == 0 else 11), False, {}

    def render(self):
        assert self.render_mode == "rgb_array"
        return np.full((30, 41, 3), 5 * self.steps, np.uint8)


class Texts(Fading):
    metadata = {"render_modes": ["human", "ansi"]}  # noqa: RUF012


class Window(CartPoleEnv):
    """Counts what a window would show."""

    metadata = {"render_modes": ["human"]}  # noqa: RUF012
    shown: ClassVar[list] = []

    def reset(self, *, seed=None, options=None):
        if self.render_mode == "human":
            self.shown.append(0)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.render_mode == "human":
            self.shown[-1] += 1
        return super().step(action)

    def render(self):
        return None


class Blind(CartPoleEnv):
    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012


def choosing(action, env=Fading, **settings):
    """An agent that always chooses one action."""
    space = env.observation_space, env.action_space
    agent = PPO(*space, seed=0, **settings)
    head = [x for name, x in agent.actor.named_parameters() if name.endswith("bias")][-1]
    head.data[action] += 100
    return agent


def frames_of(path, height, width):
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    data = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(data, np.uint8).reshape(-1, height, width, 3)


def test_37_steps_give_38_frames(tmp_path):
    path = record_film(choosing(0), make_vect_envs(Fading, 1), tmp_path / "films" / "f.mp4", seed=1)
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
    assert frames == 38
    assert seconds == pytest.approx(38 / 20, abs=0.06)
    found = frames_of(path, 180, 246)  # enlarged by 6, because 5 times 30 is less than 160
    assert len(found) == 38
    np.testing.assert_allclose(found.mean((1, 2, 3)), 5.0 * np.arange(38), atol=4)
    assert [its.name for its in path.parent.iterdir()] == ["f.mp4"]


class Levels(Fading):
    """Has an argument named as the key of an instance's environment."""

    def __init__(self, render_mode=None, id=0):
        super().__init__(render_mode, length=3 + id)


def test_an_argument_id_of_the_env_is_its_own(tmp_path):
    path = record_film(choosing(0), make_vect_envs(Levels, 1, id=4), tmp_path / "f.mp4", seed=1)
    assert imageio_ffmpeg.count_frames_and_secs(str(path))[0] == 8


def test_of_several_instances_the_first_is_filmed(tmp_path):
    env = make_vect_envs(Fading, 2, instances=[{"length": 5}, {"length": 9}])
    path = record_film([choosing(0), choosing(0, index=1)], env, tmp_path / "f.mp4", seed=1)
    assert imageio_ffmpeg.count_frames_and_secs(str(path))[0] == 6
    env.close()


def test_tiles_of_several_agents(tmp_path):
    """A member that ends after 11 steps keeps its last frame."""
    agents = [choosing(0), choosing(1, index=1), choosing(1, index=2)]
    found = frames_of(record_film(agents, make_vect_envs(Fading, 1), tmp_path / "f.mp4", seed=1), 360, 492)
    assert len(found) == 38
    places = {(0, 0): 5 * 37, (0, 1): 55, (1, 0): 55, (1, 1): 0}
    for (row, column), brightness in places.items():
        tile = found[-1, 180 * row + 8 : 180 * row + 172, 246 * column + 8 : 246 * column + 238]
        assert tile.mean() == pytest.approx(brightness, abs=4)


def test_wide_tiles_are_thinned_out():
    frames = [np.full((400, 600, 3), number, np.uint8) for number in range(9)]
    assert tiled(frames).shape == (3 * 200, 3 * 300, 3)  # 1,800 pixels would be wider than 1,280
    assert tiled(frames[:1]).shape == (400, 600, 3)
    assert tiled([np.zeros((161, 163, 4), np.uint8)]).shape == (162, 164, 3)  # even sizes, no transparency


def test_small_frames_of_floats_are_enlarged_bytes():
    """As MinAtar's: 10 x 10 pixels of colours in [0, 1]; 16 is the first factor that reaches 160."""
    small = np.zeros((10, 10, 3), np.float64)
    small[1, 2] = (1.0, 0.5, 0.1)
    frame = tiled([small])
    assert (frame.shape, frame.dtype) == ((160, 160, 3), np.uint8)
    assert (frame[16:32, 32:48] == (255, 128, 26)).all()
    assert frame.sum() == 16 * 16 * (255 + 128 + 26)


def test_cartpole_recurrent_agents_and_sampling(tmp_path):
    pytest.importorskip("pygame")
    env = make_vect_envs("CartPole-v1", 2)  # gymnasium's native vector env renders no single rows
    spaces_ = env.single_observation_space, env.single_action_space
    for sampling, settings in (("greedy", {}), ("sample", {"recurrent": True})):
        agent = PPO(*spaces_, seed=3, **settings)
        path = record_film(agent, env, tmp_path / f"{sampling}.mp4", seed=4, sampling=sampling)
        length = int(evaluate(agent, env, 1, 4, sampling).lengths[0, 0])
        assert imageio_ffmpeg.count_frames_and_secs(str(path))[0] == length + 1


def test_a_long_episode_is_cut(tmp_path):
    path = record_film(choosing(0), make_vect_envs(Fading, 1), tmp_path / "f.mp4", max_steps=5)
    assert imageio_ffmpeg.count_frames_and_secs(str(path))[0] == 6


def test_teams(tmp_path):
    spread = pytest.importorskip("mpe2.simple_spread_v3")
    env = make_multi_agent_vect_envs(spread.parallel_env, 1, max_cycles=4)
    team = IPPO(env.single_observation_spaces, env.single_action_spaces, seed=0)
    path = record_film(team, env, tmp_path / "f.mp4", seed=1)
    assert imageio_ffmpeg.count_frames_and_secs(str(path))[0] == 5


def test_names_the_rendering_modes_that_exist(tmp_path):
    agent = choosing(0)
    with pytest.raises(ConfigurationError, match=r"has no rendering mode 'rgb_array', .*; its modes: human, ansi$"):
        record_film(agent, make_vect_envs(Texts, 1), tmp_path / "f.mp4")
    with pytest.raises(ConfigurationError, match="its modes: none"):
        record_film(agent, make_vect_envs(Silent, 1), tmp_path / "f.mp4")
    assert list(tmp_path.iterdir()) == []


class Silent(Fading):
    metadata = {}  # noqa: RUF012


class Undrawable(Fading):
    def render(self):
        raise RuntimeError("an OpenGL platform library has not been loaded")


def test_an_env_that_cannot_be_rendered_is_one_error_with_advice(tmp_path):
    message = (
        r"^env=\w*Undrawable\w* cannot be rendered: RuntimeError: an OpenGL platform library has not been loaded; "
        "a machine without a display needs the environment variable MUJOCO_GL=egl$"
    )
    with pytest.raises(ConfigurationError, match=message):
        record_film(choosing(0), make_vect_envs(Undrawable, 1), tmp_path / "f.mp4")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("frame", "shown"), [(None, "None"), (np.zeros((20, 20), np.uint8), r"an array of .*20\)")])
def test_a_frame_without_colors_is_one_error(tmp_path, monkeypatch, frame, shown):
    monkeypatch.setattr(Fading, "render", lambda self: frame)
    with pytest.raises(
        ConfigurationError, match=rf"cannot be rendered: render\(\) returned {shown}.*; allowed are arr"
    ):
        record_film(choosing(0), make_vect_envs(Fading, 1, backend="sync"), tmp_path / "f.mp4")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("backend", ["vector", "torch"])
def test_a_factory_of_vector_envs_cannot_be_rendered(tmp_path, backend):
    env = make_vect_envs(lambda num_envs: SyncVectorEnv([Fading] * num_envs), 2, backend=backend)
    because = rf"cannot be rendered, because its factory makes vector envs \(backend='{backend}'\); allowed"
    with pytest.raises(ConfigurationError, match=because):
        record_film(choosing(0), env, tmp_path / "f.mp4")


def test_refuses(tmp_path, monkeypatch):
    agent, env = choosing(0), make_vect_envs(Fading, 1)
    with pytest.raises(ConfigurationError, match=r"allowed is a file that ends in \.mp4"):
        record_film(agent, env, tmp_path / "f.avi")
    with pytest.raises(ConfigurationError, match="max_steps=0 must be at least 1"):
        record_film(agent, env, tmp_path / "f.mp4", max_steps=0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'agilerl-like\[video\]'"):
        record_film(agent, env, tmp_path / "f.mp4")


def test_no_file_is_left_if_the_env_or_ffmpeg_fails(tmp_path):
    frame = np.zeros((4, 4, 3), np.uint8)

    def fail_after_a_frame(film):
        film.add([frame])
        raise KeyError

    with pytest.raises(KeyError), Film(tmp_path / "f.mp4", 20) as film:
        fail_after_a_frame(film)
    with pytest.raises(OSError, match="could not be written"), Film(tmp_path / "none" / "f.mp4", 20) as film:
        film.add([frame])
    with Film(tmp_path / "f.mp4", 20):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_episodes_of_an_evaluation_are_displayed(tmp_path):
    agent = choosing(1, CartPoleEnv())
    env = make_vect_envs(Window, num_envs=1)
    Window.shown.clear()
    display_episodes(agent, env, 3, 5, Sampling.parse("greedy"))
    shown = [steps for steps in Window.shown if steps]
    assert shown == evaluate(agent, env, episodes=3, seed=5).lengths[0].tolist()
    with pytest.raises(ConfigurationError, match=r"has no rendering mode 'human', which --display needs; its modes: a"):
        display_episodes(agent, make_vect_envs(Blind, num_envs=1), 1, 5, Sampling.parse("greedy"))


@pytest.mark.parametrize("options", [{}, {"backend": "torch", "device": "cpu"}])
def test_rendering_modes_are_those_of_single_envs(monkeypatch, tmp_path, options):
    """Gymnasium's native vector env has no window, and an env of tensors no modes."""
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = make_vect_envs("CartPole-v1", 2, **options)
    agent = choosing(1, CartPoleEnv())
    display_episodes(agent, env, 1, 5, Sampling.parse("greedy"), max_steps=1)
    path = record_film(agent, env, tmp_path / "f.mp4", seed=1, max_steps=np.int64(2))
    assert imageio_ffmpeg.count_frames_and_secs(str(path))[0] == 3


@pytest.mark.parametrize(
    ("env", "more", "message"),
    [
        (Fading, {}, "cannot be rendered, because it is unknown how it was made; allowed are an id and envs of make_v"),
        (lambda: make_vect_envs(Fading, 1), {"fps": -5}, "fps=-5; allowed are finite numbers above 0"),
        (lambda: make_vect_envs(Fading, 1), {"fps": "x"}, "fps='x'; allowed are finite numbers above 0"),
        (lambda: make_vect_envs(Fading, 1), {"seed": -1}, "seed=-1; allowed are whole numbers from 0"),
    ],
)
def test_arguments_that_do_not_fit_are_named(tmp_path, env, more, message):
    with pytest.raises(ConfigurationError, match=message):
        record_film(choosing(0), env(), tmp_path / "f.mp4", **more)
