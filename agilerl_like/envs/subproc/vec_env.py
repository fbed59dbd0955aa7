"""A vector env whose envs run in a few worker processes, each with many envs: for envs that are slow in Python.

Results are the same bits as `SyncVectorEnv`'s, for any number of workers. The envs can be stepped in two groups
(`step_async`, `step_wait`), so that one group steps while the caller computes the actions of the other. Every worker
has envs of both groups: when it has stepped one, its actions for the other are already there, and no core is idle.

A worker that exits or hangs is restarted. Its episodes are lost, so each is reported as truncated after its last known
observation: reward 0, that observation once more as the final one, and `info["worker_lost"]` True. The pending action
has no reported effect, and no member learns from it. If `reset_mask` restarts an env after its worker was lost and
before a step has reported the loss, that step is `worker_lost` without truncation, and the new episode continues. An
exception that an environment raises again in the same way is a defect of the environment and ends the run with one
error.
"""

from __future__ import annotations

import itertools
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from mmap import mmap
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from typing import IO, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import CloudpickleWrapper, batch_space

from agilerl_like.envs.env_errors import env_name_of
from agilerl_like.envs.multi_agent.packed_env import time_limit
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.envs.subproc.handle import WorkerExit, WorkerHandle, anonymous_file, shutdown
from agilerl_like.envs.subproc.worker import (
    ENVS_READY,
    EPISODES_RESTARTED,
    NO_ROW,
    RemoteError,
    SharedAllocator,
    SharedBuffers,
    StepInfo,
    UnsendableInfoError,
    WorkerSpec,
    fits_shared_memory,
)
from agilerl_like.envs.vector_infos import add_info
from agilerl_like.errors import ConfigurationError, EnvStepError
from agilerl_like.resources import available_cores

MAX_RESTARTS = 3  # of one worker in a row
STEP_TIMEOUT = 60.0  # seconds for a step
POLL_INTERVAL = 0.5  # seconds between checks that silent workers are alive

Reset = tuple[Any, dict[str, Any]]
Step = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class SubprocVectorEnv(VectorEnv[Any, Any, np.ndarray]):
    """Envs in `num_workers` processes (default: one per core); processes start at the first reset.

    Rows belong to `num_members` members in consecutive blocks: errors name the member, and each env group has the same
    share of every member. `timeout` is the number of seconds that one env may take before its worker is restarted.

    Raises:
        ConfigurationError: spaces without a fixed size, or a function that cannot be sent to another process.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env]],
        *,
        num_workers: int | None = None,
        num_members: int = 1,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        timeout: float = STEP_TIMEOUT,
    ) -> None:
        self.env_fns = tuple(env_fns)
        self.num_envs = len(self.env_fns)
        self.num_workers = resolve_num_workers(num_workers, self.num_envs)
        self.requested_workers, self.timeout = num_workers, timeout
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        one = self.env_fns[0]()
        self.metadata = {**one.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = one.render_mode
        self.single_observation_space, self.single_action_space = one.observation_space, one.action_space
        self.max_episode_steps = time_limit(one)
        """Time limit of the first env's episodes, in steps; None if it has none, or it is unknown."""
        self._name = env_name_of(one)
        one.close()
        if reason := unsupported_reason(self.env_fns[0], self.single_observation_space, self.single_action_space):
            raise ConfigurationError(f"backend='workers': {reason}; allowed for any env is 'sync'")
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._memory = anonymous_file()
        self._buffers = self._allocate_buffers()
        self._workers: list[WorkerHandle] = []
        self._shutdown = weakref.finalize(self, _shutdown, self._workers, self._memory, os.getpid())
        self._request_ids = itertools.count()
        self._attributes: dict[str, list[Any]] = {}  # set by the user: name -> a value for each env
        self._ready = False
        self._seen_exceptions: set[str] = set()  # kinds of exceptions that environments raised, in any worker
        self.set_num_members(num_members)

    # ---- stepping

    def set_num_members(self, num_members: int) -> None:
        """Divide the rows among so many members and into env groups; call it before a reset, because it ends episodes.

        There are two groups if there are at least two workers and every member has at least two envs.
        """
        if num_members < 1 or self.num_envs % num_members:
            raise ConfigurationError(f"num_members={num_members}; allowed are the divisors of num_envs={self.num_envs}")
        shutdown(self._workers)
        self._ready = False
        self.num_members = num_members
        rows = np.arange(self.num_envs, dtype=np.int64).reshape(num_members, -1)
        each = rows.shape[1]
        halves = (rows[:, : -(-each // 2)], rows[:, -(-each // 2) :])
        divided = self.num_workers > 1 and each > 1
        self.env_groups = tuple(half.ravel() for half in halves) if divided else (rows.ravel(),)
        self._worker_rows = [self._split_rows(worker) for worker in range(self.num_workers)]
        self._index_in_group = [dict(zip(rows.tolist(), range(len(rows)), strict=True)) for rows in self.env_groups]
        self._seeds: list[int | None] = [None] * self.num_envs
        self._slots = [0] * len(self.env_groups)  # the slot of each group's last returned observations
        self._in_flight: set[int] = set()
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)  # episodes that have ended; for DISABLED only

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start new episodes in all rows, or in those of `options["reset_mask"]`; pending steps are discarded."""
        seeds = self._seed_per_env(seed)
        mask = np.ones(self.num_envs, dtype=np.bool_)
        if options is not None and "reset_mask" in options:
            mask = _checked_mask(options["reset_mask"], self.num_envs)
            options = {key: value for key, value in options.items() if key != "reset_mask"}
        if self._in_flight and not mask.all():
            raise gym.error.AlreadyPendingCallError("a reset of some rows comes after step_wait of all groups", "reset")
        self._start()
        self._seeds = [old if new is None else new for old, new in zip(self._seeds, seeds, strict=True)]

        def request(worker: WorkerHandle) -> tuple[Any, ...]:
            return {row: seeds[row] for row in worker.rows if mask[row]}, tuple(self._slots), options

        step_infos = list(itertools.chain.from_iterable(self._request("reset", request)))
        if mask.all():
            for worker in self._workers:
                worker.replies.clear()  # of discarded steps
            self._in_flight.clear()
            self._ready = True
        self._apply_reset_to_lost({step_info.row: step_info.info for step_info in step_infos})
        self._ended[mask] = False
        return self._read_observations(), _merged(step_infos, self.num_envs, range(self.num_envs))

    def step(self, actions: Any) -> Step:
        """Take one action in each env."""
        self._check_ready()
        given = self._checked_actions(actions, self.num_envs)
        self._send(
            {group: tree_map(lambda one, rows=rows: one[rows], given) for group, rows in enumerate(self.env_groups)}
        )
        step_infos = [info for group in range(len(self.env_groups)) for info in self._collect(group)]
        buffers = self._buffers
        results = buffers.rewards.copy(), buffers.terminated.copy(), buffers.truncated.copy()
        return self._read_observations(), *results, _merged(step_infos, self.num_envs, range(self.num_envs))

    def step_async(self, group: int, actions: Any) -> None:
        """Start the step of the rows `env_groups[group]`."""
        self._check_ready()
        self._send({group: self._checked_actions(actions, len(self.env_groups[group]))})

    def step_wait(self, group: int) -> Step:
        """Wait for the rows `env_groups[group]` and return their step; the arrays belong to the caller."""
        if group not in self._in_flight:
            raise gym.error.NoAsyncCallError(
                f"group {group} is not being stepped; step_async({group}, …) comes first", "step"
            )
        step_infos = self._collect(group)
        rows, buffers = self.env_groups[group], self._buffers
        observations = tree_map(lambda shared: shared[rows], buffers.observations[self._slots[group]])
        results = buffers.rewards[rows], buffers.terminated[rows], buffers.truncated[rows]
        return observations, *results, _merged(step_infos, len(rows), self._index_in_group[group])

    # ---- SyncVectorEnv's other methods

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or get an attribute; the results are pickled."""
        self._start()
        replies = self._request("call", lambda _: (name, args, kwargs))
        results = {row: result for reply in replies for row, result in reply.items()}
        return tuple(results[row] for row in range(self.num_envs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Get an attribute of each env."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env, to one value for all or to a list of one for each; restarts preserve it."""
        each = list(values) if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(f"values has {len(each)} entries; allowed is one for each of {self.num_envs} envs")
        self._start()
        self._request("set_attr", lambda worker: (name, {row: each[row] for row in worker.rows}))
        self._attributes[name] = each

    def render(self) -> tuple[Any, ...]:
        """Return a frame of each env."""
        return self.call("render")

    def close_extras(self, **_: Any) -> None:
        """Give the workers some time to close their envs, and end them."""
        self._shutdown()

    # ---- the workers

    def _start(self) -> None:
        """Start the workers if they are not running."""
        if self.closed:
            raise gym.error.ClosedEnvironmentError("the vector env is closed")
        if self._workers:
            return
        try:
            for index, rows_by_group in enumerate(self._worker_rows):
                worker = WorkerHandle(index, rows_by_group, self.timeout)
                self._start_process(worker)
                self._workers.append(worker)
        except BaseException:
            shutdown(self._workers)
            raise
        self._wait_for(ENVS_READY)

    def _start_process(self, worker: WorkerHandle) -> None:
        self._buffers.stepping[worker.index] = NO_ROW
        spec = WorkerSpec(
            worker.index,
            tuple(tuple(rows) for rows in worker.rows_by_group),
            {row: self.env_fns[row] for row in worker.rows},
            self.autoreset_mode,
            self.single_observation_space,
            self.single_action_space,
            self.num_envs,
            self.num_workers,
            {row: {name: each[row] for name, each in self._attributes.items()} for row in worker.rows},
        )
        worker.start(spec, self._memory)

    def _split_rows(self, worker: int) -> list[list[int]]:
        """Return a worker's rows of each group; a worker with one row more of the first has one less of the second."""
        order = [worker, self.num_workers - 1 - worker]
        return [
            np.array_split(rows, self.num_workers)[place].tolist()
            for rows, place in zip(self.env_groups, order, strict=False)
        ]

    def _request(self, method: str, arguments: Callable[[WorkerHandle], tuple[Any, ...]]) -> list[Any]:
        """Send a request to every worker, and return their replies."""
        key = f"{method} {next(self._request_ids)}"

        def send(worker: WorkerHandle) -> None:
            worker.send_request(key, method, *arguments(worker))

        for worker in self._workers:
            send(worker)
        self._wait_for(key, send)
        replies = [worker.replies.pop(key) for worker in self._workers]
        for reply in replies:
            if isinstance(reply, RemoteError):
                raise EnvStepError(f"{method} failed in an env:\n{reply.traceback}")
        return replies

    def _check_ready(self) -> None:
        if self.closed:
            raise gym.error.ClosedEnvironmentError("the vector env is closed")
        if not self._ready:
            raise gym.error.ResetNeeded("reset() comes before step()")

    def _check_not_ended(self, env_groups: Iterable[int]) -> None:
        ended = [row for group in env_groups for row in self.env_groups[group].tolist() if self._ended[row]]
        if ended:
            raise gym.error.ResetNeeded(
                f"episodes of envs {sorted(ended)} have ended; reset(options={{'reset_mask': …}}) comes before step()"
            )

    def _send(self, actions: Mapping[int, Tree]) -> None:
        """Start the step of some groups in every worker, with one message; there will be one reply per group."""
        if pending := self._in_flight & actions.keys():
            raise gym.error.AlreadyPendingCallError(
                f"groups {pending} are being stepped; step_wait comes first", "step"
            )
        if self.autoreset_mode is AutoresetMode.DISABLED:
            self._check_not_ended(actions.keys())
        unshared = {group: self._write_actions(group, given) for group, given in actions.items()}
        self._in_flight |= actions.keys()
        for worker in self._workers:
            # a group whose episodes were lost with a worker already has its reply
            steps = [
                (group, 1 - self._slots[group], self._actions_for(worker, group, unshared[group]))
                for group in actions
                if worker.rows_by_group[group] and group not in worker.replies
            ]
            if steps:
                worker.send_request(tuple(group for group, *_ in steps), "step", steps)

    def _collect(self, group: int) -> list[StepInfo]:
        """Wait until a group has stepped, and return its infos."""
        self._wait_for(group)
        self._in_flight.remove(group)
        self._slots[group] = 1 - self._slots[group]
        if self.autoreset_mode is AutoresetMode.DISABLED:
            rows = self.env_groups[group]
            self._ended[rows] = self._buffers.terminated[rows] | self._buffers.truncated[rows]
        return [info for worker in self._workers if worker.rows_by_group[group] for info in worker.replies.pop(group)]

    def _wait_for(self, key: str | int, resend: Callable[[WorkerHandle], None] = lambda _: None) -> None:
        """Wait for the reply `key` of every worker concerned; replace workers that exit or hang meanwhile.

        The reply to a lost step comes from `_report_lost_episodes`; any other request is sent again by `resend`.
        """
        concerned = [worker for worker in self._workers if not isinstance(key, int) or worker.rows_by_group[key]]
        for worker in concerned:
            if worker.is_ready:
                worker.set_deadline(self.timeout)
        while silent := [worker for worker in concerned if key not in worker.replies]:
            readable = wait([worker.pipe for worker in silent], min(POLL_INTERVAL, self.timeout))
            for worker in silent:
                if worker.pipe in readable:
                    message = worker.read_message()
                    is_alive = message is not None
                    if message == EPISODES_RESTARTED:
                        self._report_lost_episodes(worker, worker.replies.pop(EPISODES_RESTARTED))
                else:
                    worker.note_row(int(self._buffers.stepping[worker.index]))
                    is_alive = worker.is_responsive()
                if not is_alive:
                    self._replace(worker)
                    resend(worker)

    def _replace(self, worker: WorkerHandle) -> None:
        """Start a new process in place of one that exited or hangs."""
        exit_, place = worker.kill_and_report(), self._describe_place(worker)
        worker.failures += 1
        is_defect = bool(exit_.kind) and (exit_.is_fatal or exit_.kind in self._seen_exceptions)
        if is_defect or exit_.is_fatal or worker.failures > MAX_RESTARTS:
            self.close()
            raise EnvStepError(f"{place}: {_describe_failure(worker, exit_, is_defect=is_defect)}")
        self._seen_exceptions |= {exit_.kind} - {""}
        warnings.warn(
            f"{place}: worker {worker.index} {exit_.cause} ({exit_.summary}); its {len(worker.rows)} envs begin "
            f"new episodes (restart {worker.failures}, allowed are {MAX_RESTARTS} in a row)",
            RuntimeWarning,
            stacklevel=5,
        )
        self._start_process(worker)
        seeds = {row: _restart_seed(self._seeds[row], worker.starts - 1) for row in worker.rows}
        worker.send_request(EPISODES_RESTARTED, "restart_episodes", seeds, tuple(1 - slot for slot in self._slots))

    def _report_lost_episodes(self, worker: WorkerHandle, fresh: list[StepInfo]) -> None:
        """Store the reply to the next step of a worker's envs, sent or not: the end of the lost episodes."""
        buffers, new_infos = self._buffers, {step_info.row: step_info.info for step_info in fresh}
        for group, rows in enumerate(worker.rows_by_group):
            before, after = self._slots_of(group)
            buffers.rewards[rows], buffers.terminated[rows], buffers.truncated[rows] = 0.0, False, True
            if self.autoreset_mode is AutoresetMode.SAME_STEP:
                step_infos = [
                    StepInfo(
                        row,
                        {**new_infos[row], "worker_lost": True},
                        (tree_map(lambda shared, row=row: shared[row].copy(), before), {}),
                    )
                    for row in rows
                ]
            else:  # the reset is reported in a later step, with its observation and info
                _copy_rows(before, after, rows)
                step_infos = [StepInfo(row, {"worker_lost": True}) for row in rows]
            worker.replies[group] = step_infos

    def _apply_reset_to_lost(self, reset_infos: Mapping[int, dict[str, Any]]) -> None:
        """Remove the truncation of rows that were reset from the losses that are not reported yet.

        Such a row did not lose an episode with its worker, but only the step that already has a reply.
        """
        for worker in self._workers:
            for group in [key for key in worker.replies if isinstance(key, int)]:
                rows = [row for row in worker.rows_by_group[group] if row in reset_infos]
                _copy_rows(*self._slots_of(group), rows)
                self._buffers.truncated[rows] = False
                worker.replies[group] = [
                    StepInfo(info.row, {**reset_infos[info.row], "worker_lost": True})
                    if info.row in reset_infos
                    else info
                    for info in worker.replies[group]
                ]

    def _slots_of(self, group: int) -> tuple[Tree, Tree]:
        """Return the observations that were last returned for a group, and those that the next step writes."""
        slot, observations = self._slots[group], self._buffers.observations
        return observations[slot], observations[1 - slot]

    def _describe_place(self, worker: WorkerHandle) -> str:
        row = int(self._buffers.stepping[worker.index])
        if row == NO_ROW:
            return f"{self._name}, envs {worker.rows[0]} to {worker.rows[-1]}"
        member, env = divmod(row, self.num_envs // self.num_members)
        named = f"{self._name}, " + (f"member {member}, env {env} of its own" if self.num_members > 1 else f"env {row}")
        return named if self._seeds[row] is None else f"{named} (seeded with {self._seeds[row]})"

    # ---- shared memory

    def _allocate_buffers(self) -> SharedBuffers:
        spaces = (self.single_observation_space, self.single_action_space, self.num_envs, self.num_workers)
        allocator = SharedAllocator()
        SharedBuffers(allocator, *spaces)
        self._memory.truncate(allocator.size)
        return SharedBuffers(SharedAllocator(mmap(self._memory.fileno(), allocator.size)), *spaces)

    def _checked_actions(self, actions: Any, count: int) -> Tree:
        """Return actions as arrays with one row for each of so many envs."""

        def checked(_: np.ndarray, given: Any) -> np.ndarray:
            array = np.asarray(given)
            check_num_actions(array, count)
            return array

        return tree_map(checked, self._buffers.actions, actions)

    def _write_actions(self, group: int, given: Tree) -> Tree | None:
        """Write actions into shared memory and return None, or return them if their dtype or shape differs."""
        rows = self.env_groups[group]
        fits: list[bool] = []

        def compare(shared: np.ndarray, one: np.ndarray) -> None:
            fits.append((one.dtype, one.shape[1:]) == (shared.dtype, shared.shape[1:]))

        tree_map(compare, self._buffers.actions, given)
        if not all(fits):
            return given
        tree_map(lambda shared, one: shared.__setitem__(rows, one), self._buffers.actions, given)
        return None

    def _actions_for(self, worker: WorkerHandle, group: int, actions: Tree | None) -> Tree | None:
        if actions is None:
            return None
        indices = [self._index_in_group[group][row] for row in worker.rows_by_group[group]]
        return tree_map(lambda given: given[indices], actions)

    def _read_observations(self) -> Tree:
        """Return a copy of the observations of all rows."""
        slots = [self._buffers.observations[slot] for slot in self._slots]
        observations = tree_map(np.copy, slots[0])
        for rows, slot in zip(self.env_groups[1:], slots[1:], strict=True):
            if slot is not slots[0]:
                _copy_rows(slot, observations, rows)
        return observations

    def _seed_per_env(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            return [int(seed) + row for row in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ConfigurationError(f"seed has {len(seed)} entries; allowed is one for each of {self.num_envs} envs")
        return [None if one is None else int(one) for one in seed]


def _describe_failure(worker: WorkerHandle, exit_: WorkerExit, *, is_defect: bool) -> str:
    """Describe the failure of a worker that is not restarted, and how to reproduce a defect of the environment."""
    trace = f"Its last traceback:\n{exit_.traceback}" if exit_.traceback else "It left no traceback."
    if not is_defect:
        often = f" {worker.failures} times in a row, the last time" if worker.failures > 1 else ""
        return f"worker {worker.index} failed{often}: it {exit_.cause}. {trace}"
    if exit_.kind.startswith(UnsendableInfoError.__name__):
        return f"worker {worker.index} failed: {exit_.summary}"
    again = "" if exit_.is_fatal else " again, as before a restart"
    return (
        f"worker {worker.index} failed{again}: {exit_.summary}. This is a defect of the environment; to reproduce it "
        f"in one process, use backend='sync' with the same seed. {trace}"
    )


def _merged(step_infos: list[StepInfo], num_envs: int, index: Mapping[int, int] | Sequence[int]) -> dict[str, Any]:
    """Return the infos of so many envs as SyncVectorEnv would; `index` maps rows to positions."""
    infos: dict[str, Any] = {}
    for row, info, final in sorted(step_infos, key=lambda step_info: step_info.row):
        if final is not None:
            add_info(infos, {"final_obs": final[0], "final_info": final[1]}, index[row], num_envs)
        add_info(infos, info, index[row], num_envs)
    return infos


def resolve_num_workers(requested: int | None, num_envs: int) -> int:
    """Return the number of workers for so many envs: as requested, else one per available core, at most one per env."""
    if requested is None:
        return min(available_cores(), num_envs)
    if isinstance(requested, bool) or not isinstance(requested, (int, np.integer)) or requested < 1:
        raise ConfigurationError(f"num_workers={requested!r}; allowed are whole numbers from 1")
    return min(int(requested), num_envs)


def check_num_actions(actions: np.ndarray, num_envs: int) -> None:
    """Raise ConfigurationError unless there is one action for each env."""
    if actions.shape[:1] != (num_envs,):
        rows = len(actions) if actions.ndim else "no"
        raise ConfigurationError(f"actions has {rows} rows; allowed is one for each of {num_envs} envs")


def unsupported_reason(env_fn: Callable[[], gym.Env], *spaces: gym.Space) -> str:
    """Return why workers cannot run this env, or "" if they can."""
    for space in spaces:
        if not fits_shared_memory(space):
            return f"workers share Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple of these, but not {space}"
    try:
        ForkingPickler.dumps(CloudpickleWrapper(env_fn))
    except Exception as fault:
        return f"{env_fn!r} cannot be sent to a worker process: {fault}"
    return ""


def unsendable_reason(infos: Sequence[dict[str, Any]]) -> str:
    """Return why workers cannot send these infos of an env, or "" if they can."""
    try:
        # a worker gets a class of the user's script by value, and cannot send its objects back by that name
        is_of_script = b"__main__" in bytes(ForkingPickler.dumps(infos))
    except Exception as fault:
        return f"an info cannot be sent to another process: {fault}"
    return "an info has an object of a class in the script, which workers cannot send" if is_of_script else ""


def _copy_rows(source: Tree, target: Tree, rows: Any) -> None:
    tree_map(lambda into, array: into.__setitem__(rows, array[rows]), target, source)


def _checked_mask(mask: Any, num_envs: int) -> np.ndarray:
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        raise ConfigurationError(f"reset_mask={mask!r}; allowed are arrays of {num_envs} bools, some of them True")
    return mask


def _restart_seed(seed: int | None, restarts: int) -> int | None:
    """Return the seed of the episode that replaces a lost one."""
    if seed is None:
        return None
    return int(np.random.SeedSequence(seed, spawn_key=(restarts,)).generate_state(1)[0] >> 1)


def _shutdown(workers: list[WorkerHandle], memory: IO[bytes], owner: int) -> None:
    if os.getpid() == owner:  # a fork of the owner must not end its workers
        shutdown(workers)
    memory.close()
