"""Exceptions of environments: how messages describe them, and which of them are defects of the environment.

An exception that an environment raises, in this process or in a worker process, becomes an `EnvStepError` that names
the environment and the line of its code. Worker processes import this module without torch.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from agilerl_like.errors import ConfigurationError, EnvStepError, Terminated, short_repr

EXTERNAL_ERRORS = (OSError, EOFError, MemoryError)
"""Exceptions with causes outside of an environment's code, such as a simulator server that does not answer."""

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = ("site-packages", str(Path(traceback.__file__).parent))


class BaseEnvConfig:
    """Base class of `VecEnvConfig`, for modules that it imports: an env's `env_config` may also be its own."""

    env: Any
    backend: str
    env_kwargs: Mapping[str, Any]


class ReportedException(NamedTuple):
    """An exception of an environment, as a worker process reports it to its parent."""

    kind: str
    """Equal for two exceptions of the same type at the same line; "" for one with an external cause."""
    summary: str
    """One line: type, message and place."""
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> ReportedException:
        """Describe an exception that is being handled."""
        kind = "" if isinstance(error, EXTERNAL_ERRORS) else f"{type(error).__qualname__} {_frames(error)[-1:]}"
        return cls(kind, describe_exception(error), "".join(traceback.format_exception(error)))


def describe_exception(error: BaseException) -> str:
    """Return type and message of an exception, and the last line of the environment's own code in its traceback."""
    error = _of_worker(error)
    message = " ".join(str(error).split())
    if isinstance(error, EnvStepError):
        return message
    name, place = type(error).__name__, _noted_place(error) or _innermost_place(error)
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith("<"):
        # of a source file: the line that cannot be read is no frame of the traceback
        message, place = error.msg, f'File "{error.filename}", line {error.lineno}'
    what = f"{name}: {message}" if message else name
    return f"{what} ({place})" if place else what


def note_place(error: BaseException) -> None:
    """Add the last line of the environment's own code in its traceback to an exception, as a note."""
    error.add_note(_innermost_place(error))


@contextmanager
def env_errors(env: Any, action: str) -> Iterator[None]:
    """Convert any exception that an environment raises in this block into an EnvStepError that names it.

    `env` is a vector environment or its name; `action` is the call, such as "step". `sys.exit` counts as an exception
    of the environment; Ctrl-C, a second SIGTERM and our own errors are raised unchanged.
    """
    try:
        yield
    except (ConfigurationError, EnvStepError, gym.error.ResetNeeded, gym.error.ClosedEnvironmentError):
        raise
    except BaseException as error:
        if isinstance(error, Terminated) or not isinstance(error, (Exception, SystemExit)):
            raise
        text = _mismatch_in(env) or f"{_row_of(error)}{action} failed with {describe_exception(error)}"
        raise EnvStepError(f"{env_name_of(env)}: {text}") from error


def close_quietly(env: Any) -> None:
    """Close an env, and warn if that fails: the exception would replace the result or the error of an ended run."""
    try:
        env.close()
    except Exception as error:
        warnings.warn(
            f"{env_name_of(getattr(env, 'vector', env))}: close failed with {describe_exception(error)}; its "
            "processes, files or connections may stay open until this process ends",
            RuntimeWarning,
            stacklevel=2,
        )


def env_name_of(env: Any) -> str:
    """Return the name of an environment, single or vector, for messages: its id, or its factory or class."""
    if isinstance(env, str):
        return env
    env_config = vars(env).get("env_config") if hasattr(env, "__dict__") else None
    if isinstance(env_config, BaseEnvConfig):
        return env_name_of_config(env_config)
    env_id = getattr(getattr(env, "spec", None), "id", None)
    if isinstance(env_id, str):
        return env_id
    core = getattr(env, "unwrapped", env)
    singles = getattr(core, "envs", None)
    return env_name_of(singles[0]) if isinstance(singles, (list, tuple)) and singles else type(core).__name__


def env_name_of_config(env_config: BaseEnvConfig) -> str:
    """Return the name of the environment of a VecEnvConfig: its id or import path, or its factory's name."""
    source = env_config.env_kwargs.get("source", env_config.env)  # "source": of a multi-agent environment
    return source if isinstance(source, str) else getattr(source, "__name__", type(source).__name__)


def space_mismatch(space: gym.Space, given: Any, rows: int | None = None, name: str = "an observation") -> str:
    """Return how an observation differs from its space in structure, shape or dtype; "" if it does not.

    With `rows`, `given` holds the observations of that many envs.
    """
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(given, Mapping) or any(key not in given for key in space.spaces):
            keys = sorted(map(str, given)) if isinstance(given, Mapping) else short_repr(given)
            return f"{name} is {keys}; its space has the keys {list(space.spaces)}"
        children = ((child, given[key], f"{name}[{key!r}]") for key, child in space.spaces.items())
        return next(filter(None, (space_mismatch(child, one, rows, path) for child, one, path in children)), "")
    if isinstance(space, gym.spaces.Tuple):
        is_sequence = isinstance(given, tuple) or (rows is None and isinstance(given, list))
        if not is_sequence or len(given) != len(space.spaces):
            return f"{name} is {short_repr(given)}; its space is a tuple of {len(space.spaces)}"
        children = zip(space.spaces, given, range(len(given)), strict=True)
        return next(filter(None, (space_mismatch(child, one, rows, f"{name}[{i}]") for child, one, i in children)), "")
    if space.shape is None or space.dtype is None:
        return ""
    shape = space.shape if rows is None else (rows, *space.shape)
    allowed = f"its space has shape {shape} and dtype {space.dtype}"
    try:
        array = np.asarray(given)
    except ValueError:
        return f"{name} is {short_repr(given)}, rows of unequal shape; {allowed}"
    if array.shape == shape and np.can_cast(array.dtype, space.dtype, "same_kind"):
        return ""
    return f"{name} has shape {array.shape} and dtype {array.dtype}; {allowed}"


def check_step_result(result: Any) -> None:
    """Raise EnvStepError unless a step returned (observation, reward, terminated, truncated, info) of these types.

    The observation is not checked; `space_mismatch` does that.
    """
    if not isinstance(result, tuple) or len(result) != 5:
        raise EnvStepError(
            f"step returned {short_repr(result)}; allowed is (observation, reward, terminated, truncated, info)"
        )
    _, reward, terminated, truncated, info = result
    if type(reward) is not float:
        check_reward("reward", reward)
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if type(flag) is not bool and not _is_scalar(flag, "biu"):
            raise EnvStepError(f"{name}={short_repr(flag)}; allowed is True or False")
    if not isinstance(info, dict):
        raise EnvStepError(f"info={short_repr(info)}; allowed is a dict")


def check_reward(name: str, reward: Any) -> None:
    """Raise EnvStepError unless a reward is one real number."""
    if not _is_scalar(reward, "biuf"):
        shape = getattr(reward, "shape", None)
        of_shape = f" of shape {shape}" if shape else ""
        raise EnvStepError(f"{name}={short_repr(reward)}{of_shape}; allowed is one real number")


def _is_scalar(value: Any, kinds: str) -> bool:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        return False
    return array.ndim == 0 and array.dtype.kind in kinds


def _mismatch_in(env: Any) -> str:
    """Describe the first observation of a SyncVectorEnv that does not fit its space; "" if all fit."""
    core = getattr(env, "unwrapped", env)
    if not isinstance(core, gym.vector.SyncVectorEnv):
        return ""
    for row, observation in enumerate(core._env_obs):
        if observation is not None and (text := space_mismatch(core.single_observation_space, observation)):
            return f"env {row}: {text}"
    return ""


def _row_of(error: BaseException) -> str:
    """Return "env ROW: " for an exception in a step or reset of gymnasium's vector envs, by a local; else ""."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        local = frame.f_locals
        for kind, name in ((gym.vector.SyncVectorEnv, "i"), (gym.vector.AsyncVectorEnv, "index")):
            if isinstance(local.get("self"), kind) and isinstance(local.get(name), int):
                return f"env {local[name]}: "
    return ""


def _frames(error: BaseException) -> list[tuple[str, int, str]]:
    """Return file, line and function of the traceback's frames after our own last one; of all if there are none."""
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    last = max((index for index, (file, *_) in enumerate(frames) if file.startswith(_PACKAGE)), default=-1)
    return frames[last + 1 :] or frames


def _of_worker(error: BaseException) -> BaseException:
    """Return the exception of a worker of gymnasium's AsyncVectorEnv, which raises another of its type around it."""
    inner = error.args[0] if len(error.args) == 1 else None
    return inner if isinstance(inner, BaseException) and type(inner) is type(error) else error


def _noted_place(error: BaseException) -> str:
    return next((note for note in getattr(error, "__notes__", ()) if note.startswith('File "')), "")


def _innermost_place(error: BaseException) -> str:
    """Return the innermost line outside of installed libraries, or of all if every line is theirs."""
    frames = _frames(error)
    own = [frame for frame in frames if not any(library in frame[0] for library in _LIBRARIES)]
    for file, line, function in reversed(own or frames):
        return f'File "{file}", line {line}, in {function}'
    return ""
