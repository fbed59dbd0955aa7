"""What runs in a worker process: some envs of a vector env, which step when the parent says so.

Numbers go through shared memory, and one small message each way says that they are there. The memory has no name: its
file descriptor is handed down, so nothing is left behind however a process ends. This module and what it imports stay
clear of torch, which would cost every worker seconds and hundreds of megabytes.
"""

from __future__ import annotations

import ctypes
import faulthandler
import math
import mmap
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from threading import Thread
from typing import Any, NamedTuple, NoReturn, cast

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from agilerl_like.envs.env_errors import ReportedException, check_step_result, space_mismatch
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.errors import EnvStepError

CLOSE_TIMEOUT = 2.0  # seconds that a worker has for closing its envs
ENVS_READY, EPISODES_RESTARTED, FAILED = "made", "revived", "fault"  # the keys of messages that answer no request
NO_ROW = -1
_SET_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


class StepInfo(NamedTuple):
    """What one env told beside its numbers; `final` is (last observation, its info) of an episode that just ended."""

    row: int
    info: dict[str, Any]
    final: tuple[Any, dict[str, Any]] | None = None


class RemoteError(NamedTuple):
    """The answer to a call that failed, after which the envs go on."""

    traceback: str


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker is told at its start."""

    worker: int
    env_groups: tuple[tuple[int, ...], ...]  # the rows that are its own, part by part
    env_fns: Mapping[int, Callable[[], gym.Env]]  # by row
    autoreset_mode: AutoresetMode
    observation_space: gym.Space
    action_space: gym.Space
    num_envs: int
    num_workers: int
    attributes: Mapping[int, Mapping[str, Any]]  # by row, that were set in envs in whose place these come


class SharedBuffers:
    """The arrays that the parent and all workers see; axis 0 is the row of the vector env.

    Observations have two slots that take turns, so that a worker that dies while it writes one leaves the observations
    before in the other.
    """

    def __init__(
        self, take: SharedAllocator, observation_space: gym.Space, action_space: gym.Space, envs: int, workers: int
    ):
        self.observations: tuple[Tree, Tree] = (
            create_empty_array(observation_space, envs, take),
            create_empty_array(observation_space, envs, take),
        )
        self.actions: Tree = create_empty_array(action_space, envs, take)
        self.rewards = take((envs,), np.float64)
        self.terminated = take((envs,), np.bool_)
        self.truncated = take((envs,), np.bool_)
        self.stepping = take((workers,), np.int64)  # [workers], the row that each works on, or NO_ROW


class SharedAllocator:
    """Hands out arrays that lie side by side in a buffer; without one it only adds up their bytes."""

    def __init__(self, buffer: mmap.mmap | None = None) -> None:
        self.buffer = buffer
        self.size = 0

    def __call__(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return the next array."""
        start = -(-self.size // 64) * 64
        self.size = start + math.prod(shape) * np.dtype(dtype).itemsize
        return np.empty(0, dtype) if self.buffer is None else np.ndarray(shape, dtype, self.buffer, start)


def fits_shared_memory(space: gym.Space) -> bool:
    """Say whether samples of this space are arrays of one size."""
    if isinstance(space, (Dict, Tuple)):
        env_groups = space.spaces.values() if isinstance(space, Dict) else space.spaces
        return all(map(fits_shared_memory, env_groups))
    return isinstance(space, (Box, Discrete, MultiDiscrete, MultiBinary))


def serve(pipe_fd: int, memory_fd: int, log_fd: int, parent: int, *, dies_with_parent: bool) -> NoReturn:
    """Do what the parent says until it hangs up; an exception is reported and ends the process.

    `dies_with_parent` lets Linux kill the process when the thread that started it ends, which also reaches a process
    that is stopped or whose environment holds the interpreter's lock; only the parent's main thread may ask for it.
    """
    if dies_with_parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, who ends its workers in order
    faulthandler.enable(log_fd, all_threads=False)
    faulthandler.register(signal.SIGUSR1, log_fd, all_threads=False)  # asked for before a worker that hangs is killed
    Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    pipe = Connection(pipe_fd)
    try:
        _serve_requests(pipe, mmap.mmap(memory_fd, 0))
    except BaseException as error:
        _send(pipe, (FAILED, ReportedException.of(error)))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # whatever threads an env has started
    sys.exit(0)


def _serve_requests(pipe: Connection, memory: mmap.mmap) -> None:
    envs = _WorkerEnvs(pipe.recv().fn, memory)
    going_on = _send(pipe, (ENVS_READY, None))
    while going_on:
        try:
            key, method, arguments = pipe.recv()
        except (EOFError, OSError):
            break
        going_on = _send(pipe, (key, getattr(envs, method)(*arguments)))
    envs.close()


def _send(pipe: Connection, message: tuple[str | int, Any]) -> bool:
    """Send, and say whether somebody is still there."""
    try:
        pipe.send(message)
    except OSError:
        return False
    return True


def _exit_with_parent(parent: int) -> None:
    """End this process soon after the parent's end, even while an env hangs.

    Standard input is a pipe that the parent alone can write to and never does, so it ends when the parent does; where
    the parent has forked, a copy lives on, and the parent's process id tells.
    """
    while os.getppid() == parent and not select.select([0], [], [], 1.0)[0]:
        pass
    time.sleep(CLOSE_TIMEOUT)
    os._exit(1)


class _WorkerEnvs:
    """The envs of one worker, by row; its methods are what the parent can ask for."""

    def __init__(self, spec: WorkerSpec, memory: mmap.mmap) -> None:
        self.buffers = SharedBuffers(
            SharedAllocator(memory), spec.observation_space, spec.action_space, spec.num_envs, spec.num_workers
        )
        self.worker, self.mode, self.observation_space = spec.worker, spec.autoreset_mode, spec.observation_space
        self.env_groups = [np.array(rows, dtype=np.int64) for rows in spec.env_groups]
        self.action_spaces = [batch_space(spec.action_space, len(rows)) for rows in spec.env_groups]
        self.group_of = {row: group for group, rows in enumerate(spec.env_groups) for row in rows}
        self.ended = dict.fromkeys(self.group_of, False)
        self.envs: dict[int, gym.Env] = {}
        for row, make in spec.env_fns.items():
            self.buffers.stepping[self.worker] = row
            self.envs[row] = _checked(make(), spec, self.envs.values())
            for name, value in spec.attributes[row].items():
                self.envs[row].set_wrapper_attr(name, value)
        self.buffers.stepping[self.worker] = NO_ROW

    def step(self, steps: list[tuple[int, int, Tree | None]]) -> list[list[StepInfo]]:
        """Step the rows of some parts; for each the slot is said, and actions if shared memory does not hold them."""
        return [self._step(*step) for step in steps]

    def _step(self, group: int, slot: int, actions: Tree | None) -> list[StepInfo]:
        """Step the rows of a part as SyncVectorEnv does."""
        buffers, rows = self.buffers, self.env_groups[group]
        if actions is None:
            actions = tree_map(lambda shared: shared[rows], buffers.actions)
        step_infos, observations, rewards, terminations, truncations = [], [], [], [], []
        for row, action in zip(rows.tolist(), iterate(self.action_spaces[group], actions), strict=True):
            buffers.stepping[self.worker] = row
            observation, reward, terminated, truncated, info = self._step_one(row, action)
            final = None
            self.ended[row] = bool(terminated or truncated)
            if self.ended[row] and self.mode is AutoresetMode.SAME_STEP:
                self._check(observation)
                final = deepcopy((observation, info))  # for an env may write its next episode into the same arrays
                observation, info = self.envs[row].reset()
                self.ended[row] = False
            if info or final is not None:
                step_infos.append(StepInfo(row, info, final))
            observations.append(observation)
            rewards.append(reward)
            terminations.append(terminated)
            truncations.append(truncated)
        self._write(slot, rows, observations)
        buffers.rewards[rows], buffers.terminated[rows], buffers.truncated[rows] = rewards, terminations, truncations
        buffers.stepping[self.worker] = NO_ROW
        return step_infos

    def reset(
        self, seeds: Mapping[int, int | None], slots: Sequence[int], options: dict[str, Any] | None
    ) -> list[StepInfo]:
        """Reset some rows; the observations of each part go into a slot."""
        step_infos: list[StepInfo] = []
        for rows, slot in zip(self.env_groups, slots, strict=True):
            observations = []
            for row in [row for row in rows.tolist() if row in seeds]:
                self.buffers.stepping[self.worker] = row
                observation, info = self.envs[row].reset(seed=seeds[row], options=options)
                self.ended[row] = False
                observations.append(observation)
                step_infos.append(StepInfo(row, info))
            self._write(slot, rows[[row in seeds for row in rows.tolist()]], observations)
        self.buffers.stepping[self.worker] = NO_ROW
        return step_infos

    def restart_episodes(self, seeds: Mapping[int, int | None], slots: Sequence[int]) -> list[StepInfo]:
        """Begin new episodes in the place of those that a worker took with it when it died."""
        step_infos = self.reset(seeds, slots, None)
        # the parent will report that these episodes ended, which in the other modes comes before the reset
        self.ended = dict.fromkeys(self.ended, self.mode is not AutoresetMode.SAME_STEP)
        return step_infos

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Any] | RemoteError:
        """Call a method of each env, or get an attribute."""
        results = {}
        try:
            for row, env in self.envs.items():
                found = env.get_wrapper_attr(name)
                results[row] = found(*args, **kwargs) if callable(found) else found
            ForkingPickler.dumps(results)  # fails here if they cannot travel
        except Exception:
            return RemoteError(traceback.format_exc())
        return results

    def set_attr(self, name: str, values: Mapping[int, Any]) -> RemoteError | None:
        """Set an attribute of each env."""
        try:
            for row, env in self.envs.items():
                env.set_wrapper_attr(name, values[row])
        except Exception:
            return RemoteError(traceback.format_exc())
        return None

    def close(self) -> None:
        """Close every env."""
        for env in self.envs.values():
            env.close()

    def _step_one(self, row: int, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self.ended[row] and self.mode is AutoresetMode.NEXT_STEP:
            observation, info = self.envs[row].reset()
            return observation, 0.0, False, False, info
        outcome = self.envs[row].step(action)
        check_step_result(outcome)
        return outcome

    def _check(self, observation: Any) -> None:
        """Raise EnvStepError if an observation does not fit its space."""
        if fault := space_mismatch(self.observation_space, observation):
            raise EnvStepError(fault)

    def _write(self, slot: int, rows: np.ndarray, observations: list[Any]) -> None:
        """Put observations into shared memory, cast as SyncVectorEnv casts them."""
        if not observations:
            return
        shared = self.buffers.observations[slot]
        together = create_empty_array(self.observation_space, len(rows), np.empty)
        try:
            concatenate(self.observation_space, observations, cast(Any, together))
        except (ValueError, TypeError, LookupError):
            for row, observation in zip(rows.tolist(), observations, strict=True):
                self.buffers.stepping[self.worker] = row
                self._check(observation)
            raise
        tree_map(lambda place, new: place.__setitem__(rows, new), shared, together)


def _checked(env: gym.Env, spec: WorkerSpec, others: Any) -> gym.Env:
    if any(env.unwrapped is other.unwrapped for other in others):
        raise EnvStepError("the env's function returned one and the same env twice; it must make new ones")
    if (env.observation_space, env.action_space) != (spec.observation_space, spec.action_space):
        raise EnvStepError(
            f"the env has {env.observation_space} and {env.action_space}; "
            f"the first one has {spec.observation_space} and {spec.action_space}"
        )
    return env
