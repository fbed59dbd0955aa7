"""The worker process: some envs of a `SubprocVectorEnv`, which step on the parent's request.

Arrays are exchanged through shared memory, and one small message each way announces them. The memory has no name: its
file descriptor is inherited, so nothing remains after the processes end in any way. This module and its imports do not
use torch, which would cost every worker seconds and hundreds of megabytes.
"""

from __future__ import annotations

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
from agilerl_like.envs.import_warnings import import_warnings_ignored
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.envs.wrapper_specs import core_env
from agilerl_like.errors import EnvStepError
from agilerl_like.processes import request_signal_at_parents_end

CLOSE_TIMEOUT = 2.0  # seconds that a worker has for closing its envs
ENVS_READY, EPISODES_RESTARTED, FAILED = "envs ready", "episodes restarted", "failed"  # keys of unrequested messages
NO_ROW = -1


class UnsendableInfoError(EnvStepError):
    """An env's info holds an object that cannot be pickled, so only one process can step the env."""


class StepInfo(NamedTuple):
    """One env's info; `final` is (last observation, its info) of an episode that just ended."""

    row: int
    info: dict[str, Any]
    final: tuple[Any, dict[str, Any]] | None = None


class RemoteError(NamedTuple):
    """The reply to a call that failed without damage to the envs."""

    traceback: str


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker receives at its start."""

    worker: int
    env_groups: tuple[tuple[int, ...], ...]  # the worker's rows of each group
    env_fns: Mapping[int, Callable[[], gym.Env]]  # by row
    autoreset_mode: AutoresetMode
    observation_space: gym.Space
    action_space: gym.Space
    num_envs: int
    num_workers: int
    attributes: Mapping[int, Mapping[str, Any]]  # by row, to be set on the new envs


class SharedBuffers:
    """The arrays that the parent and all workers share; axis 0 is the row of the vector env.

    Observations have two slots that are written alternately, so a worker that exits while writing one leaves the
    previous observations intact in the other.
    """

    def __init__(
        self, allocate: SharedAllocator, observation_space: gym.Space, action_space: gym.Space, envs: int, workers: int
    ) -> None:
        self.observations: tuple[Tree, Tree] = (
            create_empty_array(observation_space, envs, allocate),
            create_empty_array(observation_space, envs, allocate),
        )
        self.actions: Tree = create_empty_array(action_space, envs, allocate)
        self.rewards = allocate((envs,), np.float64)
        self.terminated = allocate((envs,), np.bool_)
        self.truncated = allocate((envs,), np.bool_)
        self.stepping = allocate((workers,), np.int64)  # [workers], the row that each steps now, or NO_ROW


class SharedAllocator:
    """Places arrays one after the other in a buffer; without a buffer it only adds up their sizes."""

    def __init__(self, buffer: mmap.mmap | None = None) -> None:
        self.buffer = buffer
        self.size = 0

    def __call__(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return the next array."""
        start = -(-self.size // 64) * 64
        self.size = start + math.prod(shape) * np.dtype(dtype).itemsize
        return np.empty(0, dtype) if self.buffer is None else np.ndarray(shape, dtype, self.buffer, start)


def fits_shared_memory(space: gym.Space) -> bool:
    """Return whether samples of this space are arrays of fixed size."""
    if isinstance(space, (Dict, Tuple)):
        children = space.spaces.values() if isinstance(space, Dict) else space.spaces
        return all(map(fits_shared_memory, children))
    return isinstance(space, (Box, Discrete, MultiDiscrete, MultiBinary))


def serve(pipe_fd: int, memory_fd: int, log_fd: int, parent: int, *, dies_with_parent: bool) -> NoReturn:
    """Answer the parent's requests until it closes the pipe; an exception is reported and ends the process.

    With `dies_with_parent`, Linux kills the process when the thread that started it ends, even if the process is
    stopped or an env holds the interpreter's lock; only the parent's main thread may request it.
    """
    if dies_with_parent:
        request_signal_at_parents_end(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent, which shuts its workers down
    faulthandler.enable(log_fd, all_threads=False)
    faulthandler.register(signal.SIGUSR1, log_fd, all_threads=False)  # sent before a hanging worker is killed
    Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    pipe = Connection(pipe_fd)
    try:
        _serve_requests(pipe, mmap.mmap(memory_fd, 0))
    except BaseException as error:
        _send(pipe, (FAILED, ReportedException.of(error)))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # even if an env has started threads
    sys.exit(0)


def _serve_requests(pipe: Connection, memory: mmap.mmap) -> None:
    envs = _WorkerEnvs(pipe.recv().fn, memory)
    is_open = _send(pipe, (ENVS_READY, None))
    while is_open:
        try:
            key, method, arguments = pipe.recv()
        except (EOFError, OSError):
            break
        is_open = _send(pipe, (key, getattr(envs, method)(*arguments)))
    envs.close()


def _send(pipe: Connection, message: tuple[str | int, Any]) -> bool:
    """Send a message, and return whether the parent still has the pipe open.

    Raises:
        UnsendableInfoError: an info in it cannot be pickled.
    """
    try:
        pipe.send(message)
    except OSError:
        return False
    except Exception as error:
        raise UnsendableInfoError(
            f"an info cannot be sent to another process ({error}); allowed are plain data and objects of classes in a "
            "module, or backend='sync'"
        ) from error
    return True


def _exit_with_parent(parent: int) -> None:
    """End this process shortly after its parent has ended, even while an env hangs.

    Standard input is a pipe to which only the parent could write, so it ends with the parent. If the parent has forked,
    the copy keeps the pipe open; then the changed parent id shows it.
    """
    while os.getppid() == parent and not select.select([0], [], [], 1.0)[0]:
        pass
    time.sleep(CLOSE_TIMEOUT)
    os._exit(1)


class _WorkerEnvs:
    """The envs of one worker, by row; its public methods are the parent's requests."""

    def __init__(self, spec: WorkerSpec, memory: mmap.mmap) -> None:
        self.buffers = SharedBuffers(
            SharedAllocator(memory), spec.observation_space, spec.action_space, spec.num_envs, spec.num_workers
        )
        self.worker, self.mode, self.observation_space = spec.worker, spec.autoreset_mode, spec.observation_space
        self.env_groups = [np.array(rows, dtype=np.int64) for rows in spec.env_groups]
        self.action_spaces = [batch_space(spec.action_space, len(rows)) for rows in spec.env_groups]
        self.ended = {row: False for rows in spec.env_groups for row in rows}
        self.envs: dict[int, gym.Env] = {}
        with import_warnings_ignored():
            for row, env_fn in spec.env_fns.items():
                self.buffers.stepping[self.worker] = row
                self.envs[row] = _checked(env_fn(), spec, self.envs.values())
                for name, value in spec.attributes[row].items():
                    self.envs[row].set_wrapper_attr(name, value)
        self.buffers.stepping[self.worker] = NO_ROW

    def step(self, steps: list[tuple[int, int, Tree | None]]) -> list[list[StepInfo]]:
        """Step the rows of some groups: (group, observation slot, actions unless they are in shared memory) each."""
        return [self._step(*step) for step in steps]

    def _step(self, group: int, slot: int, actions: Tree | None) -> list[StepInfo]:
        """Step the rows of one group as SyncVectorEnv does."""
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
                final = deepcopy((observation, info))  # an env may write its next episode into the same arrays
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
        """Reset the rows of `seeds`; each group's observations are written to its slot."""
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
        """Start new episodes in place of those that were lost with the previous process."""
        step_infos = self.reset(seeds, slots, None)
        # the parent reports that the lost episodes ended, which in the other modes comes before the reset
        self.ended = dict.fromkeys(self.ended, self.mode is not AutoresetMode.SAME_STEP)
        return step_infos

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Any] | RemoteError:
        """Call a method of each env, or get an attribute."""
        results = {}
        try:
            for row, env in self.envs.items():
                found = env.get_wrapper_attr(name)
                results[row] = found(*args, **kwargs) if callable(found) else found
            ForkingPickler.dumps(results)  # raises here if they cannot be sent
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
        result = self.envs[row].step(action)
        check_step_result(result)
        return result

    def _check(self, observation: Any) -> None:
        """Raise EnvStepError if an observation does not fit its space."""
        if text := space_mismatch(self.observation_space, observation):
            raise EnvStepError(text)

    def _write(self, slot: int, rows: np.ndarray, observations: list[Any]) -> None:
        """Write observations into shared memory, cast as SyncVectorEnv casts them."""
        if not observations:
            return
        batch = create_empty_array(self.observation_space, len(rows), np.empty)
        try:
            concatenate(self.observation_space, observations, cast(Any, batch))
        except (ValueError, TypeError, LookupError):
            for row, observation in zip(rows.tolist(), observations, strict=True):
                self.buffers.stepping[self.worker] = row
                self._check(observation)
            raise
        tree_map(lambda shared, new: shared.__setitem__(rows, new), self.buffers.observations[slot], batch)


def _checked(env: gym.Env, spec: WorkerSpec, others: Any) -> gym.Env:
    if any(core_env(env) is core_env(other) for other in others):
        raise EnvStepError("the env's function returned one and the same env twice; it must make new ones")
    if (env.observation_space, env.action_space) != (spec.observation_space, spec.action_space):
        raise EnvStepError(
            f"the env has {env.observation_space} and {env.action_space}; "
            f"the first one has {spec.observation_space} and {spec.action_space}"
        )
    return env
