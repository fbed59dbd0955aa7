"""A vector env whose envs live in a few worker processes, each of which steps many: for envs that are slow in Python.

Results are `SyncVectorEnv`'s, bit for bit, whatever the number of workers. The envs can be stepped in two halves
(`send`, `receive`), so that one half steps while the caller thinks about the other. Every worker serves both halves in
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

from agilerl_like.envs.env_errors import name_of
from agilerl_like.envs.pytree import Tree, tree_map
from agilerl_like.envs.subproc.handle import Death, Worker, anonymous_file, dismiss
from agilerl_like.envs.subproc.worker import (
    MADE,
    NOBODY,
    REVIVED,
    Arena,
    Board,
    Refusal,
    Report,
    Task,
    fits_shared_memory,
)
from agilerl_like.errors import ConfigurationError, EnvironmentFault
from agilerl_like.room import cores

RESTARTS = 3  # of one worker in a row
TIMEOUT = 60.0  # seconds for a step
WATCH = 0.5  # seconds between looks at whether silent workers live

Reset = tuple[Any, dict[str, Any]]
Step = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class WorkerVectorEnv(VectorEnv[Any, Any, np.ndarray]):
    """Envs in `num_workers` processes (one for each core, if left out); processes start at the first reset.

    `blocks` says that the rows are those of so many members, one block behind the other: errors name members, and each
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
        blocks: int = 1,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        timeout: float = TIMEOUT,
    ) -> None:
        self.env_fns = tuple(env_fns)
        self.num_envs = len(self.env_fns)
        self.num_workers = number_of_workers(num_workers, self.num_envs)
        self.wanted_workers, self.timeout = num_workers, timeout
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        one = self.env_fns[0]()
        self.metadata = {**one.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = one.render_mode
        self.single_observation_space, self.single_action_space = one.observation_space, one.action_space
        self._name = name_of(one)
        one.close()
        if obstacle := hindrance(self.env_fns[0], self.single_observation_space, self.single_action_space):
            raise ConfigurationError(f"backend='workers': {obstacle}; allowed for any env is 'sync'")
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._memory = anonymous_file()
        self._board = self._make_board()
        self._crew: list[Worker] = []
        self._end = weakref.finalize(self, _end, self._crew, self._memory, os.getpid())
        self._tickets = itertools.count()
        self._attributes: dict[str, list[Any]] = {}  # that were set, by name, of each env
        self._ready = False
        self._kinds_seen: set[str] = set()  # of exceptions that environments raised, in any worker
        self.divide(blocks)

    # ---- stepping

    def divide(self, blocks: int) -> None:
        """Take the rows for those of so many members; to be called before a reset, for running episodes end.

        There are two parts if there are two workers to share them and every member has two envs.
        """
        if blocks < 1 or self.num_envs % blocks:
            raise ConfigurationError(f"blocks={blocks}; allowed are the divisors of num_envs={self.num_envs}")
        dismiss(self._crew)
        self._ready = False
        self.blocks = blocks
        rows = np.arange(self.num_envs, dtype=np.int64).reshape(blocks, -1)
        each = rows.shape[1]
        halves = (rows[:, : -(-each // 2)], rows[:, -(-each // 2) :])
        divided = self.num_workers > 1 and each > 1
        self.parts = tuple(half.ravel() for half in halves) if divided else (rows.ravel(),)
        self._shares = [self._share(worker) for worker in range(self.num_workers)]
        self._places = [dict(zip(rows.tolist(), range(len(rows)), strict=True)) for rows in self.parts]
        self._infos = [_Infos(len(rows)) for rows in self.parts]
        self._seeds: list[int | None] = [None] * self.num_envs
        self._slots = [0] * len(self.parts)  # in which slot the observations are that were last handed out
        self._in_flight: set[int] = set()
        self._over = np.zeros(self.num_envs, dtype=np.bool_)  # whose episode has ended; kept for DISABLED only

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Begin new episodes everywhere, or where `options["reset_mask"]` says; what was in flight is forgotten."""
        seeds = self._one_seed_each(seed)
        mask = np.ones(self.num_envs, dtype=np.bool_)
        if options is not None and "reset_mask" in options:
            mask = _checked_mask(options["reset_mask"], self.num_envs)
            options = {key: value for key, value in options.items() if key != "reset_mask"}
        if self._in_flight and not mask.all():
            raise gym.error.AlreadyPendingCallError("a reset of some rows comes after receive() of all parts", "reset")
        self._start()
        self._seeds = [old if new is None else new for old, new in zip(self._seeds, seeds, strict=True)]

        def request(worker: Worker) -> tuple[Any, ...]:
            return {row: seeds[row] for row in worker.rows if mask[row]}, tuple(self._slots), options

        reports = self._ask("reset", request)
        if mask.all():
            for worker in self._crew:
                worker.answers.clear()  # to steps that nobody waits for any more
            self._in_flight.clear()
            self._ready = True
        reports = list(itertools.chain.from_iterable(reports))
        self._begin_after_loss({report.row: report.info for report in reports})
        self._over[mask] = False
        return self._observed(), self._merged(reports)

    def step(self, actions: Any) -> Step:
        """Take one action in each env."""
        self._check_ready()
        given = self._checked_actions(actions, self.num_envs)
        self._send({part: tree_map(lambda one, rows=rows: one[rows], given) for part, rows in enumerate(self.parts)})
        reports = list(itertools.chain.from_iterable([self._collect(part) for part in range(len(self.parts))]))
        board = self._board
        numbers = board.rewards.copy(), board.terminated.copy(), board.truncated.copy()
        return self._observed(), *numbers, self._merged(reports)

    def send(self, part: int, actions: Any) -> None:
        """Begin to step the rows `parts[part]`."""
        self._check_ready()
        self._send({part: self._checked_actions(actions, len(self.parts[part]))})

    def receive(self, part: int) -> Step:
        """Wait for the rows `parts[part]`, and return what they did; the arrays belong to the receiver."""
        if part not in self._in_flight:
            raise gym.error.NoAsyncCallError(f"part {part} is not being stepped; send({part}, …) comes first", "step")
        reports = self._collect(part)
        rows, board = self.parts[part], self._board
        observations = tree_map(lambda shared: shared[rows], board.observations[self._slots[part]])
        numbers = board.rewards[rows], board.terminated[rows], board.truncated[rows]
        return observations, *numbers, self._infos[part].merged(reports, self._places[part])

    # ---- everything else that SyncVectorEnv has

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or get an attribute; the results travel here."""
        self._start()
        answers = self._ask("call", lambda _: (name, args, kwargs))
        results = {row: result for answer in answers for row, result in answer.items()}
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
        self._ask("set_attr", lambda worker: (name, {row: each[row] for row in worker.rows}))
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
        if self._crew:
            return
        try:
            for index, share in enumerate(self._shares):
                worker = Worker(index, share, self.timeout)
                self._let_work(worker)
                self._crew.append(worker)
        except BaseException:
            dismiss(self._crew)
            raise
        self._gather(MADE)

    def _let_work(self, worker: Worker) -> None:
        self._board.stepping[worker.index] = NOBODY
        task = Task(
            worker.index,
            tuple(tuple(rows) for rows in worker.share),
            {row: self.env_fns[row] for row in worker.rows},
            self.autoreset_mode,
            self.single_observation_space,
            self.single_action_space,
            self.num_envs,
            self.num_workers,
            {row: {name: each[row] for name, each in self._attributes.items()} for row in worker.rows},
        )
        worker.start(task, self._memory)

    def _share(self, worker: int) -> list[list[int]]:
        """Say which rows of each part a worker has; who got one more of the first part gets one less of the second."""
        order = [worker, self.num_workers - 1 - worker]
        return [
            np.array_split(rows, self.num_workers)[place].tolist()
            for rows, place in zip(self.parts, order, strict=False)
        ]

    def _ask(self, method: str, request: Callable[[Worker], tuple[Any, ...]]) -> list[Any]:
        """Let every worker do something, and return their answers."""
        key = f"{method} {next(self._tickets)}"
        for worker in self._crew:
            worker.post(key, method, *request(worker))
        self._gather(key, lambda worker: worker.post(key, method, *request(worker)))
        answers = [worker.answers.pop(key) for worker in self._crew]
        for refusal in answers:
            if isinstance(refusal, Refusal):
                raise EnvironmentFault(f"{method} failed in an env:\n{refusal.traceback}")
        return answers

    def _check_ready(self) -> None:
        if self.closed:
            raise gym.error.ClosedEnvironmentError("the vector env is closed")
        if not self._ready:
            raise gym.error.ResetNeeded("reset() comes before step()")

    def _check_going_on(self, parts: Iterable[int]) -> None:
        over = [row for part in parts for row in self.parts[part].tolist() if self._over[row]]
        if over:
            raise gym.error.ResetNeeded(
                f"episodes of envs {sorted(over)} have ended; reset(options={{'reset_mask': …}}) comes before step()"
            )

    def _send(self, actions: Mapping[int, Tree]) -> None:
        """Let every worker step its rows of some parts, with one message; the answer will be that of each part."""
        if pending := self._in_flight & actions.keys():
            raise gym.error.AlreadyPendingCallError(f"parts {pending} are being stepped; receive comes first", "step")
        if self.autoreset_mode is AutoresetMode.DISABLED:
            self._check_going_on(actions.keys())
        rest = {part: self._share_actions(part, given) for part, given in actions.items()}
        self._in_flight |= actions.keys()
        for worker in self._crew:
            # a part whose episodes were lost with a worker has its answer already
            steps = [
                (part, 1 - self._slots[part], self._its_own(worker, part, rest[part]))
                for part in actions
                if worker.share[part] and part not in worker.answers
            ]
            if steps:
                worker.post(tuple(part for part, *_ in steps), "step", steps)

    def _collect(self, part: int) -> list[Report]:
        """Wait until a part has stepped, and return what was told beside the numbers."""
        self._gather(part)
        self._in_flight.remove(part)
        self._slots[part] = 1 - self._slots[part]
        if self.autoreset_mode is AutoresetMode.DISABLED:
            rows = self.parts[part]
            self._over[rows] = self._board.terminated[rows] | self._board.truncated[rows]
        return [report for worker in self._crew if worker.share[part] for report in worker.answers.pop(part)]

    def _gather(self, key: str | int, ask_again: Callable[[Worker], None] = lambda _: None) -> None:
        """Wait until every worker that `key` concerns has answered it; replace those that die or hang meanwhile.

        The answer to a step that was lost comes from `_declare_lost`; any other request is made again by `ask_again`.
        """
        concerned = [worker for worker in self._crew if not isinstance(key, int) or worker.share[key]]
        for worker in concerned:
            if worker.is_up:
                worker.renew(self.timeout)
        while silent := [worker for worker in concerned if key not in worker.answers]:
            speaking = wait([worker.pipe for worker in silent], min(WATCH, self.timeout))
            for worker in silent:
                if worker.pipe in speaking:
                    heard = worker.listen()
                    lives = heard is not None
                    if heard == REVIVED:
                        self._declare_lost(worker, worker.answers.pop(REVIVED))
                else:
                    lives = worker.is_in_time()
                if not lives:
                    self._replace(worker)
                    ask_again(worker)

    def _replace(self, worker: Worker) -> None:
        """Start a new process in the place of one that died or hangs."""
        death, place = worker.end_at_once(), self._place(worker)
        worker.failures += 1
        is_defect = bool(death.kind) and (death.hopeless or death.kind in self._kinds_seen)
        if is_defect or death.hopeless or worker.failures > RESTARTS:
            self.close()
            raise EnvironmentFault(f"{place}: {_final(worker, death, is_defect=is_defect)}")
        self._kinds_seen |= {death.kind} - {""}
        warnings.warn(
            f"{place}: worker {worker.index} {death.cause} ({death.summary}); its {len(worker.rows)} envs begin "
            f"new episodes (restart {worker.failures}, allowed are {RESTARTS} in a row)",
            RuntimeWarning,
            stacklevel=5,
        )
        self._let_work(worker)
        seeds = {row: _derived(self._seeds[row], worker.starts - 1) for row in worker.rows}
        worker.post(REVIVED, "revive", seeds, tuple(1 - slot for slot in self._slots))

    def _declare_lost(self, worker: Worker, fresh: list[Report]) -> None:
        """Answer the next step of a worker's envs, sent or not, with the end of the episodes that died with it."""
        board, new = self._board, {report.row: report.info for report in fresh}
        for part, rows in enumerate(worker.share):
            before, after = board.observations[self._slots[part]], board.observations[1 - self._slots[part]]
            board.rewards[rows], board.terminated[rows], board.truncated[rows] = 0.0, False, True
            last = [tree_map(lambda shared, row=row: shared[row].copy(), before) for row in rows]
            if self.autoreset_mode is AutoresetMode.SAME_STEP:
                reports = [
                    Report(row, {**new[row], "worker_lost": True}, (observation, {}))
                    for row, observation in zip(rows, last, strict=True)
                ]
            else:  # the reset comes later, and what it finds then is told then
                tree_map(lambda new, old, rows=rows: new.__setitem__(rows, old[rows]), after, before)
                reports = [Report(row, {"worker_lost": True}) for row in rows]
            worker.answers[part] = reports

    def _begin_after_loss(self, begun: Mapping[int, dict[str, Any]]) -> None:
        """Take rows that have begun anew, and what was told then, out of the losses that wait to be reported.

        Such a row lost no episode with its worker, only the step that has been answered already.
        """
        board = self._board
        for worker in self._crew:
            for part in [key for key in worker.answers if isinstance(key, int)]:
                rows = [row for row in worker.share[part] if row in begun]
                before, after = board.observations[self._slots[part]], board.observations[1 - self._slots[part]]
                tree_map(lambda new, old, rows=rows: new.__setitem__(rows, old[rows]), after, before)
                board.truncated[rows] = False
                worker.answers[part] = [
                    Report(report.row, {**begun[report.row], "worker_lost": True}) if report.row in begun else report
                    for report in worker.answers[part]
                ]

    def _place(self, worker: Worker) -> str:
        row = int(self._board.stepping[worker.index])
        if row == NOBODY:
            return f"{self._name}, envs {worker.rows[0]} to {worker.rows[-1]}"
        member, env = divmod(row, self.num_envs // self.blocks)
        named = f"{self._name}, " + (f"member {member}, env {env} of its own" if self.blocks > 1 else f"env {row}")
        return named if self._seeds[row] is None else f"{named} (seeded with {self._seeds[row]})"

    # ---- shared memory

    def _make_board(self) -> Board:
        spaces = (self.single_observation_space, self.single_action_space, self.num_envs, self.num_workers)
        arena = Arena()
        Board(arena, *spaces)
        self._memory.truncate(arena.size)
        return Board(Arena(mmap(self._memory.fileno(), arena.size)), *spaces)

    def _checked_actions(self, actions: Any, count: int) -> Tree:
        """Actions as arrays of as many rows."""

        def checked(_: np.ndarray, given: Any) -> np.ndarray:
            one = np.asarray(given)
            check_rows(one, count)
            return one

        return tree_map(checked, self._board.actions, actions)

    def _share_actions(self, part: int, given: Tree) -> Tree | None:
        """Put actions into shared memory; return them if they do not fit there as they are, and None if they do."""
        rows = self.parts[part]
        fits: list[bool] = []

        def compare(shared: np.ndarray, one: np.ndarray) -> None:
            fits.append((one.dtype, one.shape[1:]) == (shared.dtype, shared.shape[1:]))

        tree_map(compare, self._board.actions, given)
        if not all(fits):
            return given
        tree_map(lambda shared, one: shared.__setitem__(rows, one), self._board.actions, given)
        return None

    def _its_own(self, worker: Worker, part: int, actions: Tree | None) -> Tree | None:
        if actions is None:
            return None
        places = [self._places[part][row] for row in worker.share[part]]
        return tree_map(lambda given: given[places], actions)

    def _observed(self) -> Tree:
        """Return a copy of the observations of all rows."""
        slots = [self._board.observations[slot] for slot in self._slots]
        observations = tree_map(np.copy, slots[0])
        for rows, slot in zip(self.parts[1:], slots[1:], strict=True):
            if slot is not slots[0]:
                tree_map(lambda into, shared, rows=rows: into.__setitem__(rows, shared[rows]), observations, slot)
        return observations

    def _merged(self, reports: list[Report]) -> dict[str, Any]:
        return _Infos(self.num_envs).merged(reports, range(self.num_envs))

    def _one_seed_each(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            return [int(seed) + row for row in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ConfigurationError(f"seed has {len(seed)} entries; allowed is one for each of {self.num_envs} envs")
        return [None if one is None else int(one) for one in seed]


def _final(worker: Worker, death: Death, *, is_defect: bool) -> str:
    """Describe the failure of a worker that is not restarted, and how to reproduce a defect of the environment."""
    trace = f"Its last traceback:\n{death.traceback}" if death.traceback else "It left no traceback."
    if not is_defect:
        often = f" {worker.failures} times in a row, the last time" if worker.failures > 1 else ""
        return f"worker {worker.index} failed{often}: it {death.cause}. {trace}"
    again = "" if death.hopeless else " again, as before a restart"
    return (
        f"worker {worker.index} failed{again}: {death.summary}. This is a defect of the environment; to reproduce it "
        f"in one process, use backend='sync' with the same seed. {trace}"
    )


class _Infos(VectorEnv):
    """Merges the infos of single envs in gymnasium's own way, which is a method of vector envs."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def merged(self, reports: list[Report], places: Mapping[int, int] | Sequence[int]) -> dict[str, Any]:
        """Return what SyncVectorEnv would tell."""
        infos: dict[str, Any] = {}
        for row, info, final in sorted(reports, key=lambda report: report.row):
            if final is not None:
                infos = self._add_info(infos, {"final_obs": final[0], "final_info": final[1]}, places[row])
            infos = self._add_info(infos, info, places[row])
        return infos


def number_of_workers(wanted: int | None, num_envs: int) -> int:
    """Return how many workers so many envs have: as wanted, or one for each of our cores, but never more than envs."""
    if wanted is None:
        return min(cores(), num_envs)
    if isinstance(wanted, bool) or not isinstance(wanted, (int, np.integer)) or wanted < 1:
        raise ConfigurationError(f"num_workers={wanted!r}; allowed are whole numbers from 1")
    return min(int(wanted), num_envs)


def check_rows(actions: np.ndarray, num_envs: int) -> None:
    """Raise ConfigurationError unless there is one action for each env."""
    if actions.shape[:1] != (num_envs,):
        rows = len(actions) if actions.ndim else "no"
        raise ConfigurationError(f"actions has {rows} rows; allowed is one for each of {num_envs} envs")


def hindrance(env_fn: Callable[[], gym.Env], *spaces: gym.Space) -> str:
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


def _derived(seed: int | None, restarts: int) -> int | None:
    """Return the seed of the episode that takes the place of one that was lost."""
    if seed is None:
        return None
    return int(np.random.SeedSequence(seed, spawn_key=(restarts,)).generate_state(1)[0] >> 1)


def _end(crew: list[Worker], memory: IO[bytes], owner: int) -> None:
    if os.getpid() == owner:  # and not in a fork of the process that the workers belong to
        dismiss(crew)
    memory.close()
