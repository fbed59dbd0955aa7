"""Fixes defects of gymnasium's vector envs: infos that are cast, last observations that change, exceptions, signals.

Infos are merged by `add_info`, because gymnasium casts the numbers of all envs to the type of the first one.

Vector envs that reset in the same step store only references to the last observation and info of an episode and then
reset. If an env writes all observations into one array, the stored observation becomes the first of the next episode.
Copies are made at episode ends only, so other steps take no longer.

The workers of an AsyncVectorEnv send exceptions without their traceback, and some that the parent cannot read. The line
of the env is added as a note, and those are replaced. Workers also end at a Ctrl-C or SIGTERM to all processes of a
run, although the run still needs them to stop in order.

An AsyncVectorEnv that has lost a worker would wait forever for it in `close`.
Where processes are not forked, each worker imports the script again. Without a main guard it ends in that import, and
the EOFError of the parent does not name the cause.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState, _async_worker

from agilerl_like.envs.env_errors import note_place
from agilerl_like.envs.vector_infos import add_info, copy_info
from agilerl_like.errors import ConfigurationError


def fix_infos(env: VectorEnv) -> None:
    """Make a vector env of gymnasium merge infos by `add_info`, and a SyncVectorEnv copy last observations and infos.

    A class with its own `_add_info` is left unchanged. The method is replaced and not the env wrapped, because a user
    may hold references.
    """
    if isinstance(env, (SyncVectorEnv, AsyncVectorEnv)) and type(env)._add_info is VectorEnv._add_info:
        merge = _add_copied_info if isinstance(env, SyncVectorEnv) else add_info
        env._add_info = partial(merge, num_envs=env.num_envs)


def _add_copied_info(
    vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int, *, num_envs: int
) -> dict[str, Any]:
    """Call `add_info`, which receives last observation and info between an episode's end and the reset."""
    if not env_info:
        return vector_infos
    info = copy_info(env_info) if "final_obs" in env_info else env_info
    return add_info(vector_infos, info, env_num, num_envs)


class CopyFinalObs(gym.Wrapper):
    """Copies an episode's last observation and info, and notes where exceptions are raised, in an AsyncVectorEnv."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        try:
            return self.env.reset(seed=seed, options=options)
        except Exception as error:
            note_place(error)
            _check_sendable(error)
            raise

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action."""
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            note_place(error)
            _check_sendable(error)
            raise
        if terminated or truncated:
            observation, info = deepcopy(observation), copy_info(info)
        return observation, reward, terminated, truncated, info


def _check_sendable(error: Exception) -> None:
    """Raise a RuntimeError with the message of an exception that cannot be sent to the parent process.

    The parent makes another one of its type from it, which fails if the type needs more arguments, and waits forever
    for one that cannot be pickled.
    """
    try:
        ForkingPickler.dumps(error)
        type(error)(deepcopy(error))  # gymnasium raises `exctype(value)` in the parent
    except Exception:
        substitute = RuntimeError(f"{type(error).__name__}: {error}")
        substitute.__notes__ = error.__notes__
        raise substitute from error


def async_worker(*arguments: Any) -> None:
    """Run gymnasium's worker of an AsyncVectorEnv, with signals to its run left to the process that started it.

    The group of processes is another one, because a supervisor's SIGTERM goes to all of a group, and the run needs its
    envs until it is saved. SIGTERM ends the worker all the same, since `close` sends it: a worker that is forked during
    a run inherits the run's handler, which ends nothing.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setpgrp()
    _async_worker(*arguments)


class ClosableAsyncVectorEnv(AsyncVectorEnv):
    """An AsyncVectorEnv that closes after a lost worker, and after an exception while it waited for replies.

    gymnasium's waits for replies to an unfinished call first, of which it may have read some: it would wait forever.
    """

    max_episode_steps: int | None = None
    """Time limit of the first env's episodes, in steps; None if it has none, or it is unknown."""

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]], **options: Any) -> None:
        """Start a process for each env.

        Raises:
            ConfigurationError: a process ended before it had its env, and processes are not forked here, so that each
                imports the script again.
        """
        try:
            super().__init__(env_fns, **options)
        except (EOFError, ConnectionError) as error:  # of the pipe to a process that has ended
            method = multiprocessing.get_start_method()
            processes = getattr(self, "processes", ())  # none yet if the env itself failed in this process
            if method == "fork" or not processes:
                raise
            for process in processes:
                if process.is_alive():
                    process.kill()  # else its traceback could follow this error
            raise ConfigurationError(
                "backend='async': the process of an env ended before it had the env (its own error is above); with "
                f"the start method {method!r} each process imports this script again, so what the script does when run "
                "belongs under: if __name__ == '__main__':"
            ) from error

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the envs and end their processes; end these at once if a call is unfinished or one of them is lost."""
        processes = zip(self.parent_pipes, self.processes, strict=True)
        # without a pipe is one that has sent an exception and ended
        is_lost = any(pipe is not None and not process.is_alive() for pipe, process in processes)
        if is_lost or self._state is not AsyncState.DEFAULT:
            self._state, terminate = AsyncState.DEFAULT, True
        super().close_extras(timeout, terminate)


def lacks_copied_final_obs(env: VectorEnv) -> bool:
    """Return whether an env is a user's AsyncVectorEnv that stores references: only a new one can copy."""
    return (
        type(env) is AsyncVectorEnv
        and env.autoreset_mode is AutoresetMode.SAME_STEP
        and not all(map(_makes_copies, env.env_fns))
    )


def with_copied_final_obs(env_fn: Callable[[], gym.Env]) -> Callable[[], gym.Env]:
    """Return a function that makes the same env in a `CopyFinalObs`."""
    return env_fn if _makes_copies(env_fn) else partial(_make_with_copied_final_obs, env_fn)


def _makes_copies(env_fn: Callable[[], gym.Env]) -> bool:
    return isinstance(env_fn, partial) and env_fn.func is _make_with_copied_final_obs


def _make_with_copied_final_obs(env_fn: Callable[[], gym.Env]) -> gym.Env:
    return CopyFinalObs(env_fn())
