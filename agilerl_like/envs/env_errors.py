"""Failures of an environment: how they are described, and when one is a defect of the environment.

An exception that an environment raises, in this process or in a worker process, becomes an `EnvStepError` that
names the environment and the line of its code. Worker processes import this module, so it stays clear of torch.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from agilerl_like.errors import ConfigurationError, EnvStepError, Terminated

EXTERNAL_ERRORS = (OSError, EOFError, MemoryError)
"""Exceptions that come from outside of an environment's code, such as a simulator server that does not answer."""

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = ("site-packages", str(Path(traceback.__file__).parent))


class ReportedException(NamedTuple):
    """An exception of an environment, as a worker process reports it to its parent."""

    kind: str
    """Equal for two failures if they have the same type at the same line; "" for one that comes from outside."""
    summary: str
    """One line: type, message and place."""
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> ReportedException:
        """Describe an exception that is being handled."""
        kind = "" if isinstance(error, EXTERNAL_ERRORS) else f"{type(error).__qualname__} {_frames(error)[-1:]}"
        return cls(kind, describe_exception(error), "".join(traceback.format_exception(error)))


def describe_exception(error: BaseException) -> str:
    """Return type and message of an exception, and the last line of the environment's own code that it passed."""
    message = " ".join(str(error).split())
    name = type(error).__name__
    place = _place(error)
    what = message if isinstance(error, EnvStepError) else f"{name}: {message}" if message else name
    return f"{what} ({place})" if place and not isinstance(error, EnvStepError) else what


@contextmanager
def env_errors(env: Any, action: str) -> Iterator[None]:
    """Turn whatever an environment raises in this block into an EnvStepError that names it.

    `env` is a vector environment, or its name; `action` is what it is asked to do ("step", "reset"). `sys.exit` counts
    as an exception of the environment; Ctrl-C, a second SIGTERM and our own errors pass.
    """
    try:
        yield
    except (ConfigurationError, EnvStepError, gym.error.ResetNeeded, gym.error.ClosedEnvironmentError):
        raise
    except BaseException as error:
        if isinstance(error, Terminated) or not isinstance(error, (Exception, SystemExit)):
            raise
        space_mismatch = _misfit_in(env)
        text = space_mismatch or f"{_row_of(error)}{action} failed with {describe_exception(error)}"
        raise EnvStepError(f"{env_name_of(env)}: {text}") from error


def env_name_of(env: Any) -> str:
    """Return the name of an environment, single or vector, for messages: its id, or its factory or class."""
    if isinstance(env, str):
        return env
    env_config = vars(env).get("env_config") if hasattr(env, "__dict__") else None
    if env_config is not None:
        return env_name_of_config(env_config)
    env_id = getattr(getattr(env, "spec", None), "id", None)
    if isinstance(env_id, str):
        return env_id
    core = getattr(env, "unwrapped", env)
    singles = getattr(core, "envs", None)
    return env_name_of(singles[0]) if isinstance(singles, (list, tuple)) and singles else type(core).__name__


def env_name_of_config(env_config: Any) -> str:
    """Return the name of the environment that a recipe makes: its id or import path, or its factory's name."""
    source = env_config.env_kwargs.get("source", env_config.env)  # of a multi-agent environment
    return source if isinstance(source, str) else getattr(source, "__name__", type(source).__name__)


def space_mismatch(space: gym.Space, observation: Any) -> str:
    """Say how an observation differs from its space in structure, shape or dtype; "" if it does not."""
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(observation, Mapping) or any(key not in observation for key in space.spaces):
            return f"an observation is {_short(observation)}; its space has the keys {list(space.spaces)}"
        return next(filter(None, (space_mismatch(part, observation[key]) for key, part in space.spaces.items())), "")
    if isinstance(space, gym.spaces.Tuple):
        if not isinstance(observation, (tuple, list)) or len(observation) != len(space.spaces):
            return f"an observation is {_short(observation)}; its space has {len(space.spaces)} parts"
        return next(filter(None, map(space_mismatch, space.spaces, observation)), "")
    if space.shape is None or space.dtype is None:
        return ""
    try:
        given = np.asarray(observation)
    except ValueError:  # nested sequences of unequal lengths
        return f"an observation is {_short(observation)}; its space has shape {space.shape} and dtype {space.dtype}"
    if given.shape == space.shape and np.can_cast(given.dtype, space.dtype, "same_kind"):
        return ""
    return (
        f"an observation has shape {given.shape} and dtype {given.dtype}; "
        f"its space has shape {space.shape} and dtype {space.dtype}"
    )


def check_step_result(outcome: Any) -> None:
    """Raise EnvStepError unless a step returned (observation, reward, terminated, truncated, info) of these types.

    The observation is left to `space_mismatch`.
    """
    if not isinstance(outcome, tuple) or len(outcome) != 5:
        raise EnvStepError(
            f"step returned {_short(outcome)}; allowed is (observation, reward, terminated, truncated, info)"
        )
    _, reward, terminated, truncated, info = outcome
    if type(reward) is not float:
        check_reward("reward", reward)
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if type(flag) is not bool and not _is_scalar(flag, "biu"):
            raise EnvStepError(f"{name}={_short(flag)}; allowed is True or False")
    if not isinstance(info, dict):
        raise EnvStepError(f"info={_short(info)}; allowed is a dict")


def check_reward(name: str, reward: Any) -> None:
    """Raise EnvStepError unless a reward is one real number."""
    if not _is_scalar(reward, "biuf"):
        shape = getattr(reward, "shape", None)
        of_shape = f" of shape {shape}" if shape else ""
        raise EnvStepError(f"{name}={_short(reward)}{of_shape}; allowed is one real number")


def _is_scalar(value: Any, kinds: str) -> bool:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        return False
    return array.ndim == 0 and array.dtype.kind in kinds


def _short(value: Any) -> str:
    return f"{value!r:.80}"


def _misfit_in(env: Any) -> str:
    """Describe the first observation of a SyncVectorEnv that does not fit its space; "" if all fit."""
    core = getattr(env, "unwrapped", env)
    if not isinstance(core, gym.vector.SyncVectorEnv):
        return ""
    for row, observation in enumerate(core._env_obs):
        if observation is not None and (text := space_mismatch(core.single_observation_space, observation)):
            return f"env {row}: {text}"
    return ""


def _row_of(error: BaseException) -> str:
    """Name the environment of a SyncVectorEnv that raised, by the loop variable of its step or reset; "" elsewhere."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        its_own = frame.f_locals
        if isinstance(its_own.get("self"), gym.vector.SyncVectorEnv) and isinstance(its_own.get("i"), int):
            return f"env {its_own['i']}: "
    return ""


def _frames(error: BaseException) -> list[tuple[str, int, str]]:
    """File, line and function of the frames of a traceback behind our own last one; of all if there are none."""
    found = [(_file(frame), line, frame.f_code.co_name) for frame, line in traceback.walk_tb(error.__traceback__)]
    last = max((place for place, (file, *_) in enumerate(found) if file.startswith(_PACKAGE)), default=-1)
    return found[last + 1 :] or found


def _place(error: BaseException) -> str:
    """Name the innermost line outside of installed libraries, or of all if every line is theirs."""
    frames = _frames(error)
    own = [frame for frame in frames if not any(library in frame[0] for library in _LIBRARIES)]
    for file, line, function in reversed(own or frames):
        return f'File "{file}", line {line}, in {function}'
    return ""


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename
