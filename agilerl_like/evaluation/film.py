"""`record_film`: episodes of agents as a video file, one agent or several as tiles (extra `video`)."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np

from agilerl_like.algorithms.evaluation import EvalEnv
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.envs.distinct_envs import OF_SINGLE_ENVS
from agilerl_like.envs.env_errors import env_name_of
from agilerl_like.envs.env_ids import resolve_source
from agilerl_like.envs.factory import VecEnvConfig, env_config_of
from agilerl_like.errors import ConfigurationError, short_repr
from agilerl_like.evaluation.eval_envs import EvaluationEnv, check_spaces, is_source, setup_of
from agilerl_like.evaluation.policies import SeededEpisodes, play_side_by_side
from agilerl_like.evaluation.returns import agents_of, count_of, seed_of
from agilerl_like.networks.sampling import Sampling
from agilerl_like.seeding import Purpose, integers
from agilerl_like.storage.durable_io import make_folder

MODE, WINDOW = "rgb_array", "human"
MAX_STEPS = 1000
"""Steps after which a film ends if the episode does not."""
MAX_WIDTH = 1280
"""Pixels of a film with tiles; frames are thinned out to fit."""
MIN_HEIGHT = 160
"""Pixels of a frame; smaller ones, such as MinAtar's 10 x 10, are enlarged by a whole factor."""
FPS = 30
"""Frames a second where the env's metadata have none."""
RENDERED = "an id and envs of make_vect_envs(…) or make_multi_agent_vect_envs(…)"
"""Envs that can be made again with a rendering mode."""
HEADLESS = "the environment variable MUJOCO_GL=egl"
"""What lets MuJoCo draw without a display."""


def record_film(
    agents: EvolvableAlgorithm | Iterable[EvolvableAlgorithm],
    env: EvaluationEnv,
    path: Path | str,
    *,
    seed: int | None = None,
    sampling: str | Sampling = "greedy",
    max_steps: int = MAX_STEPS,
    fps: float | None = None,
) -> Path:
    """Write one episode of an agent, or of several at once as tiles, to an .mp4 file; return its path.

    An episode of T steps has T + 1 frames. All agents play the same seed; the tile of a finished episode keeps its last
    frame. `env` is as in `evaluate`, but is made again with `render_mode="rgb_array"`; of one whose backend is "torch",
    "gymnax" or "envpool", gymnasium's single env is filmed, whose episodes of a seed are others than in `evaluate`; an
    env of your own factory of vector envs, of tensors for example, has no single env and is refused.
    `max_steps` is the number of env steps after which the film ends if an episode does not. `fps` are the frames per
    second; None: those of the env's metadata, or 30.

    Raises:
        ConfigurationError: the env has no such rendering mode (the message has those that exist), cannot be rendered, a
            package is missing, or an argument does not fit.
    """
    players, rule, path = agents_of(agents), Sampling.parse(sampling), Path(path)
    if path.suffix != ".mp4":
        raise ConfigurationError(f"path={str(path)!r}; allowed is a file that ends in .mp4")
    max_steps = count_of("max_steps", max_steps)
    if fps is not None and not (isinstance(fps, Real) and 0 < fps < math.inf):
        raise ConfigurationError(f"fps={fps!r}; allowed are finite numbers above 0")
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise ConfigurationError("a film needs more packages: pip install 'agilerl-like[video]'")
    file = path.absolute()  # the env may change the directory
    (episode_seed,) = integers(1, seed_of(seed), Purpose.CONFIRMATION_ENVS)
    with _rendered_env(env, len(players), players[0]) as (adapter, metadata):
        make_folder(file.parent)
        with Film(file, fps or metadata.get("render_fps") or FPS) as film:
            play_side_by_side(players, FilmedEpisodes(adapter, film), episode_seed, rule, max_steps=max_steps)
    return path


@contextlib.contextmanager
def _rendered_env(
    env: EvaluationEnv, rows: int, agent: EvolvableAlgorithm, mode: str = MODE
) -> Iterator[tuple[EvalEnv, dict[str, Any]]]:
    """Give the adapter of an env like `env` with `rows` rows and a rendering mode, and its metadata."""
    setup = setup_of(env, agent)
    with contextlib.ExitStack() as stack:
        if is_source(env):
            stack.callback(setup.env.close)
        check_spaces(setup, agent)
        given = env_config_of(setup.vec_env, "be rendered", RENDERED)
        if given.backend in ("vector", "torch") and callable(resolve_source(given.env)):
            raise ConfigurationError(
                f"env={env_name_of(setup.vec_env)} cannot be rendered, because its factory makes vector envs "
                f"(backend={given.backend!r}); allowed are an id and a factory of single envs"
            )
        config, metadata = given.single_env_config(), dict(setup.vec_env.metadata)
        if given.backend not in OF_SINGLE_ENVS:  # vector envs of other kinds may have other modes, or none
            silent = type(setup).from_config(config)
            metadata = dict(silent.vec_env.metadata)
            silent.env.close()
        check_render_modes(env_name_of(setup.vec_env), metadata, mode)
        made = type(setup).from_config(_with_render_mode(config, mode))
        stack.callback(made.env.close)
        eval_env = made.make_eval_env(rows)
        stack.callback(eval_env.close)
        yield made.adapt(eval_env), metadata


def display_episodes(
    agent: EvolvableAlgorithm,
    env: EvaluationEnv,
    episodes: int,
    seed: int,
    sampling: Sampling,
    *,
    max_steps: int | None = None,
) -> None:
    """Show the episodes that `evaluate` plays with this seed, one after the other, in the window of the env.

    `max_steps` cuts longer episodes. Of an env with several instances only those of the first are shown. Of one whose
    backend is "torch", "gymnax" or "envpool", gymnasium's single env is shown, whose episodes of a seed are others.

    Raises:
        ConfigurationError: the env has no rendering mode "human" (the message has those that exist).
    """
    with _rendered_env(env, 1, agent, WINDOW) as (adapter, _):
        for episode_seed in integers(episodes, seed, Purpose.CONFIRMATION_ENVS):
            play_side_by_side([agent], SeededEpisodes(adapter), episode_seed, sampling, max_steps=max_steps)


def check_render_modes(name: str, metadata: dict[str, Any], mode: str = MODE) -> None:
    """Raise ConfigurationError, with the modes that an env has, unless the wanted one is among them."""
    modes = list(metadata.get("render_modes") or ())
    if mode not in modes:
        there = ", ".join(map(str, modes)) or "none"
        need = "a film" if mode == MODE else "--display"
        raise ConfigurationError(f"env={name} has no rendering mode {mode!r}, which {need} needs; its modes: {there}")


def _with_render_mode(config: VecEnvConfig, mode: str) -> VecEnvConfig:
    """Return the config of one env with a rendering mode."""
    kwargs: dict[str, Any] = dict(config.env_kwargs)
    if "source" in kwargs and "extra_wrappers" in kwargs:  # of teams: `multi_agent_env_config`
        kwargs["env_kwargs"] = {**kwargs["env_kwargs"], "render_mode": mode}
    else:
        kwargs["render_mode"] = mode
    return replace(config, env_kwargs=kwargs)


class FilmedEpisodes(SeededEpisodes):
    """An env adapter that adds a frame of all rows to a film after every step."""

    def __init__(self, env: EvalEnv, film: Film) -> None:
        super().__init__(env)
        self._film = film

    def reset(self, seeds: Any = None) -> Any:
        observations = super().reset(seeds)
        self._add_frame()
        return observations

    def step(self, actions: Any) -> Any:
        transition = super().step(actions)
        self._add_frame()
        return transition

    def _add_frame(self) -> None:
        try:
            frames = self.env.render()
        except Exception as error:  # of the env, or of the library that draws: MuJoCo's without OpenGL
            known = isinstance(error, gymnasium.error.DependencyNotInstalled)
            reason = str(error) if known else f"{type(error).__name__}: {error!s:.300}"
            hint = f"; a machine without a display needs {HEADLESS}" if "OpenGL" in reason else ""
            raise ConfigurationError(f"env={env_name_of(self.env)} cannot be rendered: {reason}{hint}") from error
        for frame in frames:
            shape = np.shape(frame)
            if len(shape) != 3 or shape[-1] < 3:
                raise ConfigurationError(
                    f"env={env_name_of(self.env)} cannot be rendered: render() returned {short_repr(frame)}; allowed "
                    "are arrays [height, width, 3]"
                )
        self._film.add(frames)


class Film:
    """A video file that grows by frames, which ffmpeg encodes; it appears under its name when it is finished."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._fps = path, fps
        self._part = path.with_name(f".{path.name}.part.mp4")
        self._ffmpeg: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Film:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._ffmpeg is not None:
            errors = self._ffmpeg.communicate()[1]
            failed = self._ffmpeg.returncode != 0
            if failed or kind is not None:
                self._part.unlink(missing_ok=True)
            else:
                self._part.replace(self._path)
            if failed and kind is None:
                raise OSError(f"path={str(self._path)!r} could not be written: {errors.decode(errors='replace'):.300}")

    def add(self, frames: Sequence[np.ndarray]) -> None:
        """Add one frame: the frames `[H, W, 3]` of all envs as tiles."""
        frame = tiled(frames)
        if self._ffmpeg is None:
            self._ffmpeg = self._start(*frame.shape[:2])
        with contextlib.suppress(BrokenPipeError):  # ffmpeg has failed, which `__exit__` reports
            cast(Any, self._ffmpeg.stdin).write(frame.tobytes())

    def _start(self, height: int, width: int) -> subprocess.Popen[bytes]:
        import imageio_ffmpeg

        source = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{self._fps:g}", "-i", "-")
        target = ("-vcodec", "libx264", "-pix_fmt", "yuv420p", str(self._part))
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error", *source, *target]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def tiled(frames: Sequence[np.ndarray]) -> np.ndarray:
    """Return frames `[H, W, 3]` of equal size as tiles of one frame, row by row, with even height and width."""
    frames = [_as_bytes(np.asarray(frame)[..., :3]) for frame in frames]
    columns = math.ceil(math.sqrt(len(frames)))
    rows = -(-len(frames) // columns)
    thin = max(1, -(-frames[0].shape[1] * columns // MAX_WIDTH)) if len(frames) > 1 else 1
    height, width = frames[0][::thin, ::thin].shape[:2]
    canvas = np.zeros((rows * height, columns * width, 3), np.uint8)
    for number, frame in enumerate(frames):
        row, column = divmod(number, columns)
        canvas[row * height : (row + 1) * height, column * width : (column + 1) * width] = frame[::thin, ::thin]
    return np.pad(canvas, ((0, canvas.shape[0] % 2), (0, canvas.shape[1] % 2), (0, 0)), mode="edge")


def _as_bytes(frame: np.ndarray) -> np.ndarray:
    """Return a frame as bytes, enlarged to `MIN_HEIGHT`; colours that are not whole numbers are shares of 255."""
    if np.issubdtype(frame.dtype, np.floating):
        frame = np.rint(255 * frame.clip(0, 1))
    factor = -(-MIN_HEIGHT // frame.shape[0])
    return frame.astype(np.uint8).repeat(factor, 0).repeat(factor, 1)
