"""A vector env whose envs live in a few worker processes, each of which steps many: for envs that are slow in Python.

Results are `SyncVectorEnv`'s, bit for bit, whatever the number of workers. The envs can be stepped in two halves
(`step_async`, `step_wait`), so that one half steps while the caller thinks about the other. Every worker serves both halves in
turn: when it has stepped one, its actions for the other wait already, and no core stands idle.

A worker that dies or hangs is restarted. How its episodes would have gone on is unknown, so each is reported as
truncated where it was last seen: reward 0, the last observation once more as the final one, and `info["worker_lost"]`
True. The action that was asked for has no consequence in any report, and no member learns from it. Envs that are reset
by a mask between such a loss and its report lose that step alone: their episode goes on after it. An exception that an
environment raises once more in the same way is a defect of the environment: it ends the run with one error.
"""

from __future__ import annotations

import itertools
import os
import sys
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
    WorkerSpec,
    fits_shared_memory,
)
from agilerl_like.errors import ConfigurationError, EnvStepError
from agilerl_like.resources import available_cores

MAX_RESTARTS = 3  # of one worker in a row
STEP_TIMEOUT = 60.0  # seconds for a step
POLL_INTERVAL = 0.5  # seconds between looks at whether silent workers live

Reset = tuple[Any, dict[str, Any]]
Step = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class SubprocVectorEnv(VectorEnv[Any, Any, np.ndarray]):
    """Envs in `num_workers` processes (one for each core, if left out); processes start at the first reset.

    `num_members` says that the rows are those of so many members, one block behind the other: errors name members, and each
    half has the same share of every member. `timeout` is how many seconds a worker may take for a step before it counts
    as dead.

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
        self._name = env_name_of(one)
        one.close()
        if obstacle := unsupported_reason(self.env_fns[0], self.single_observation_space, self.single_action_space):
            raise ConfigurationError(f"backend='workers': {obstacle}; allowed for any env is 'sync'")
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._memory = anonymous_file()
        self._buffers = self._allocate_buffers()
        self._workers: list[WorkerHandle] = []
        self._end = weakref.finalize(self, _end, self._workers, self._memory, os.getpid())
        self._tickets = itertools.count()
        self._attributes: dict[str, list[Any]] = {}  # that were set, by name, of each env
        self._ready = False
        self._seen_exceptions: set[str] = set()  # of exceptions that environments raised, in any worker
        self.set_num_members(num_members)

    # ---- stepping

    def set_num_members(self, num_members: int) -> None:
        """Take the rows for those of so many members; to be called before a reset, for running episodes end.

        There are two parts if there are two workers to share them and every member has two envs.
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
        self._places = [dict(zip(rows.tolist(), range(len(rows)), strict=True)) for rows in self.env_groups]
        self._infos = [_InfoMerger(len(rows)) for rows in self.env_groups]
        self._seeds: list[int | None] = [None] * self.num_envs
        self._slots = [0] * len(self.env_groups)  # in which slot the observations are that were last handed out
        self._in_flight: set[int] = set()
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)  # whose episode has ended; kept for DISABLED only

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Begin new episodes everywhere, or where `options["reset_mask"]` says; what was in flight is forgotten."""
        seeds = self._seed_per_env(seed)
        mask = np.ones(self.num_envs, dtype=np.bool_)
        if options is not None and "reset_mask" in options:
            mask = _checked_mask(options["reset_mask"], self.num_envs)
            options = {key: value for key, value in options.items() if key != "reset_mask"}
        if self._in_flight and not mask.all():
            raise gym.error.AlreadyPendingCallError("a reset of some rows comes after receive() of all parts", "reset")
        self._start()
        self._seeds = [old if new is None else new for old, new in zip(self._seeds, seeds, strict=True)]

        def request(worker: WorkerHandle) -> tuple[Any, ...]:
            return {row: seeds[row] for row in worker.rows if mask[row]}, tuple(self._slots), options

        step_infos = self._request("reset", request)
        if mask.all():
            for worker in self._workers:
                worker.replies.clear()  # to steps that nobody waits for any more
            self._in_flight.clear()
            self._ready = True
        step_infos = list(itertools.chain.from_iterable(step_infos))
        self._apply_reset_to_lost({step_info.row: step_info.info for step_info in step_infos})
        self._ended[mask] = False
        return self._read_observations(), self._merged(step_infos)

    def step(self, actions: Any) -> Step:
        """Take one action in each env."""
        self._check_ready()
        given = self._checked_actions(actions, self.num_envs)
        self._send(
            {group: tree_map(lambda one, rows=rows: one[rows], given) for group, rows in enumerate(self.env_groups)}
        )
        step_infos = list(
            itertools.chain.from_iterable([self._collect(group) for group in range(len(self.env_groups))])
        )
        buffers = self._buffers
        numbers = buffers.rewards.copy(), buffers.terminated.copy(), buffers.truncated.copy()
        return self._read_observations(), *numbers, self._merged(step_infos)

    def step_async(self, group: int, actions: Any) -> None:
        """Begin to step the rows `env_groups[group]`."""
        self._check_ready()
        self._send({group: self._checked_actions(actions, len(self.env_groups[group]))})

    def step_wait(self, group: int) -> Step:
        """Wait for the rows `env_groups[group]`, and return what they did; the arrays belong to the receiver."""
        if group not in self._in_flight:
            raise gym.error.NoAsyncCallError(f"part {group} is not being stepped; send({group}, …) comes first", "step")
        step_infos = self._collect(group)
        rows, buffers = self.env_groups[group], self._buffers
        observations = tree_map(lambda shared: shared[rows], buffers.observations[self._slots[group]])
        numbers = buffers.rewards[rows], buffers.terminated[rows], buffers.truncated[rows]
        return observations, *numbers, self._infos[group].merged(step_infos, self._places[group])

    # ---- everything else that SyncVectorEnv has

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or get an attribute; the results travel here."""
        self._start()
        replies = self._request("call", lambda _: (name, args, kwargs))
        results = {row: result for answer in replies for row, result in answer.items()}
        return tuple(results[row] for row in range(self.num_envs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Get an attribute of each env."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env, to one value for all or to a list of one for each.

        The envs that take the place of some that were lost have it, too.
        """
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
        """Let the workers close their envs, for a while, and end them."""
        self._end()

    # ---- the workers

    def _start(self) -> None:
        """Start the workers unless they run."""
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
        """Say which rows of each part a worker has; who got one more of the first part gets one less of the second."""
        order = [worker, self.num_workers - 1 - worker]
        return [
            np.array_split(rows, self.num_workers)[place].tolist()
            for rows, place in zip(self.env_groups, order, strict=False)
        ]

    def _request(self, method: str, request: Callable[[WorkerHandle], tuple[Any, ...]]) -> list[Any]:
        """Let every worker do something, and return their answers."""
        key = f"{method} {next(self._tickets)}"
        for worker in self._workers:
            worker.send_request(key, method, *request(worker))
        self._wait_for(key, lambda worker: worker.send_request(key, method, *request(worker)))
        replies = [worker.replies.pop(key) for worker in self._workers]
        for refusal in replies:
            if isinstance(refusal, RemoteError):
                raise EnvStepError(f"{method} failed in an env:\n{refusal.traceback}")
        return replies

    def _check_ready(self) -> None:
        if self.closed:
            raise gym.error.ClosedEnvironmentError("the vector env is closed")
        if not self._ready:
            raise gym.error.ResetNeeded("reset() comes before step()")

    def _check_not_ended(self, env_groups: Iterable[int]) -> None:
        over = [row for group in env_groups for row in self.env_groups[group].tolist() if self._ended[row]]
        if over:
            raise gym.error.ResetNeeded(
                f"episodes of envs {sorted(over)} have ended; reset(options={{'reset_mask': …}}) comes before step()"
            )

    def _send(self, actions: Mapping[int, Tree]) -> None:
        """Let every worker step its rows of some parts, with one message; the answer will be that of each part."""
        if pending := self._in_flight & actions.keys():
            raise gym.error.AlreadyPendingCallError(f"parts {pending} are being stepped; receive comes first", "step")
        if self.autoreset_mode is AutoresetMode.DISABLED:
            self._check_not_ended(actions.keys())
        rest = {group: self._write_actions(group, given) for group, given in actions.items()}
        self._in_flight |= actions.keys()
        for worker in self._workers:
            # a part whose episodes were lost with a worker has its answer already
            steps = [
                (group, 1 - self._slots[group], self._actions_for(worker, group, rest[group]))
                for group in actions
                if worker.rows_by_group[group] and group not in worker.replies
            ]
            if steps:
                worker.send_request(tuple(group for group, *_ in steps), "step", steps)

    def _collect(self, group: int) -> list[StepInfo]:
        """Wait until a part has stepped, and return what was told beside the numbers."""
        self._wait_for(group)
        self._in_flight.remove(group)
        self._slots[group] = 1 - self._slots[group]
        if self.autoreset_mode is AutoresetMode.DISABLED:
            rows = self.env_groups[group]
            self._ended[rows] = self._buffers.terminated[rows] | self._buffers.truncated[rows]
        return [
            step_info
            for worker in self._workers
            if worker.rows_by_group[group]
            for step_info in worker.replies.pop(group)
        ]

    def _wait_for(self, key: str | int, ask_again: Callable[[WorkerHandle], None] = lambda _: None) -> None:
        """Wait until every worker that `key` concerns has answered it; replace those that die or hang meanwhile.

        The answer to a step that was lost comes from `_report_lost_episodes`; any other request is made again by `ask_again`.
        """
        concerned = [worker for worker in self._workers if not isinstance(key, int) or worker.rows_by_group[key]]
        for worker in concerned:
            if worker.is_ready:
                worker.set_deadline(self.timeout)
        while silent := [worker for worker in concerned if key not in worker.replies]:
            speaking = wait([worker.pipe for worker in silent], min(POLL_INTERVAL, self.timeout))
            for worker in silent:
                if worker.pipe in speaking:
                    heard = worker.read_message()
                    lives = heard is not None
                    if heard == EPISODES_RESTARTED:
                        self._report_lost_episodes(worker, worker.replies.pop(EPISODES_RESTARTED))
                else:
                    lives = worker.is_responsive()
                if not lives:
                    self._replace(worker)
                    ask_again(worker)

    def _replace(self, worker: WorkerHandle) -> None:
        """Start a new process in the place of one that died or hangs."""
        exit_, place = worker.kill_and_report(), self._describe_place(worker)
        worker.failures += 1
        is_defect = bool(exit_.kind) and (exit_.hopeless or exit_.kind in self._seen_exceptions)
        if is_defect or exit_.hopeless or worker.failures > MAX_RESTARTS:
            self.close()
            raise EnvStepError(f"{place}: {_final(worker, exit_, is_defect=is_defect)}")
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
        """Answer the next step of a worker's envs, sent or not, with the end of the episodes that died with it."""
        buffers, new = self._buffers, {step_info.row: step_info.info for step_info in fresh}
        for group, rows in enumerate(worker.rows_by_group):
            before, after = buffers.observations[self._slots[group]], buffers.observations[1 - self._slots[group]]
            buffers.rewards[rows], buffers.terminated[rows], buffers.truncated[rows] = 0.0, False, True
            last = [tree_map(lambda shared, row=row: shared[row].copy(), before) for row in rows]
            if self.autoreset_mode is AutoresetMode.SAME_STEP:
                step_infos = [
                    StepInfo(row, {**new[row], "worker_lost": True}, (observation, {}))
                    for row, observation in zip(rows, last, strict=True)
                ]
            else:  # the reset comes later, and what it finds then is told then
                tree_map(lambda new, old, rows=rows: new.__setitem__(rows, old[rows]), after, before)
                step_infos = [StepInfo(row, {"worker_lost": True}) for row in rows]
            worker.replies[group] = step_infos

    def _apply_reset_to_lost(self, begun: Mapping[int, dict[str, Any]]) -> None:
        """Take rows that have begun anew, and what was told then, out of the losses that wait to be reported.

        Such a row lost no episode with its worker, only the step that has been answered already.
        """
        buffers = self._buffers
        for worker in self._workers:
            for group in [key for key in worker.replies if isinstance(key, int)]:
                rows = [row for row in worker.rows_by_group[group] if row in begun]
                before, after = buffers.observations[self._slots[group]], buffers.observations[1 - self._slots[group]]
                tree_map(lambda new, old, rows=rows: new.__setitem__(rows, old[rows]), after, before)
                buffers.truncated[rows] = False
                worker.replies[group] = [
                    StepInfo(step_info.row, {**begun[step_info.row], "worker_lost": True})
                    if step_info.row in begun
                    else step_info
                    for step_info in worker.replies[group]
                ]

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
        arena = SharedAllocator()
        SharedBuffers(arena, *spaces)
        self._memory.truncate(arena.size)
        return SharedBuffers(SharedAllocator(mmap(self._memory.fileno(), arena.size)), *spaces)

    def _checked_actions(self, actions: Any, count: int) -> Tree:
        """Actions as arrays of as many rows."""

        def checked(_: np.ndarray, given: Any) -> np.ndarray:
            one = np.asarray(given)
            check_num_actions(one, count)
            return one

        return tree_map(checked, self._buffers.actions, actions)

    def _write_actions(self, group: int, given: Tree) -> Tree | None:
        """Put actions into shared memory; return them if they do not fit there as they are, and None if they do."""
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
        places = [self._places[group][row] for row in worker.rows_by_group[group]]
        return tree_map(lambda given: given[places], actions)

    def _read_observations(self) -> Tree:
        """Return a copy of the observations of all rows."""
        slots = [self._buffers.observations[slot] for slot in self._slots]
        observations = tree_map(np.copy, slots[0])
        for rows, slot in zip(self.env_groups[1:], slots[1:], strict=True):
            if slot is not slots[0]:
                tree_map(lambda into, shared, rows=rows: into.__setitem__(rows, shared[rows]), observations, slot)
        return observations

    def _merged(self, step_infos: list[StepInfo]) -> dict[str, Any]:
        return _InfoMerger(self.num_envs).merged(step_infos, range(self.num_envs))

    def _seed_per_env(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            return [int(seed) + row for row in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ConfigurationError(f"seed has {len(seed)} entries; allowed is one for each of {self.num_envs} envs")
        return [None if one is None else int(one) for one in seed]


def _final(worker: WorkerHandle, exit_: WorkerExit, *, is_defect: bool) -> str:
    """Describe the failure of a worker that is not restarted, and how to reproduce a defect of the environment."""
    trace = f"Its last traceback:\n{exit_.traceback}" if exit_.traceback else "It left no traceback."
    if not is_defect:
        often = f" {worker.failures} times in a row, the last time" if worker.failures > 1 else ""
        return f"worker {worker.index} failed{often}: it {exit_.cause}. {trace}"
    again = "" if exit_.hopeless else " again, as before a restart"
    return (
        f"worker {worker.index} failed{again}: {exit_.summary}. This is a defect of the environment; to reproduce it "
        f"in one process, use backend='sync' with the same seed. {trace}"
    )


class _InfoMerger(VectorEnv):
    """Merges the infos of single envs in gymnasium's own way, which is a method of vector envs."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def merged(self, step_infos: list[StepInfo], places: Mapping[int, int] | Sequence[int]) -> dict[str, Any]:
        """Return what SyncVectorEnv would tell."""
        infos: dict[str, Any] = {}
        for row, info, final in sorted(step_infos, key=lambda step_info: step_info.row):
            if final is not None:
                infos = self._add_info(infos, {"final_obs": final[0], "final_info": final[1]}, places[row])
            infos = self._add_info(infos, info, places[row])
        return infos


def resolve_num_workers(wanted: int | None, num_envs: int) -> int:
    """Return how many workers so many envs have: as wanted, or one for each of our cores, but never more than envs."""
    if wanted is None:
        return min(available_cores(), num_envs)
    if isinstance(wanted, bool) or not isinstance(wanted, (int, np.integer)) or wanted < 1:
        raise ConfigurationError(f"num_workers={wanted!r}; allowed are whole numbers from 1")
    return min(int(wanted), num_envs)


def check_num_actions(actions: np.ndarray, num_envs: int) -> None:
    """Raise ConfigurationError unless there is one action for each env."""
    if actions.shape[:1] != (num_envs,):
        rows = len(actions) if actions.ndim else "no"
        raise ConfigurationError(f"actions has {rows} rows; allowed is one for each of {num_envs} envs")


def unsupported_reason(env_fn: Callable[[], gym.Env], *spaces: gym.Space) -> str:
    """Say why workers cannot run this env; empty if they can."""
    if sys.platform == "win32":
        return "workers need Linux or macOS"
    for space in spaces:
        if not fits_shared_memory(space):
            return f"workers share Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple of these, but not {space}"
    try:
        ForkingPickler.dumps(CloudpickleWrapper(env_fn))
    except Exception as fault:
        return f"{env_fn!r} cannot be sent to a worker process: {fault}"
    return ""


def _checked_mask(mask: Any, num_envs: int) -> np.ndarray:
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        raise ConfigurationError(f"reset_mask={mask!r}; allowed are arrays of {num_envs} bools, some of them True")
    return mask


def _restart_seed(seed: int | None, restarts: int) -> int | None:
    """Return the seed of the episode that takes the place of one that was lost."""
    if seed is None:
        return None
    return int(np.random.SeedSequence(seed, spawn_key=(restarts,)).generate_state(1)[0] >> 1)


def _end(workers: list[WorkerHandle], memory: IO[bytes], owner: int) -> None:
    if os.getpid() == owner:  # and not in a fork of the process that the workers belong to
        shutdown(workers)
    memory.close()
