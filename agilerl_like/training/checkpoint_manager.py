"""Saves a run's checkpoints, its last population and its best agent, and reads checkpoints to resume.

Saving is collective: members are gathered on the main process, which writes. A save that fails gives a warning and
leaves earlier files as they were.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from agilerl_like.algorithms.evolvable_algorithm import UnsavedState
from agilerl_like.algorithms.population import BasePopulation, population_documents
from agilerl_like.algorithms.serialization import to_builtin, without_learning_state
from agilerl_like.distributed.process_group import SerializedAgent, Transfer
from agilerl_like.envs.array_backend import resolve_device
from agilerl_like.errors import CheckpointError, ConfigurationError, short_repr
from agilerl_like.hpo.history import History
from agilerl_like.reporting.callback import CallbackList
from agilerl_like.reporting.records import OffspringRecord, offspring_from_json
from agilerl_like.storage import safe_folder
from agilerl_like.storage.checkpoint_folder import CHECKPOINTS, HISTORY, HISTORY_ENTRY, Checkpoint, Checkpoints
from agilerl_like.storage.run_names import BEST_DOCUMENT
from agilerl_like.storage.validation import Flag, NonNegativeInt, Score, Seconds, Text, validate_record
from agilerl_like.training.best_agent import BestAgent
from agilerl_like.training.evaluator import Opponent
from agilerl_like.training.run_settings import CHANGEABLE, DEVICE
from agilerl_like.training.sharding import ShardedPopulation
from agilerl_like.training.training_arguments import OutputPaths

IDENTITY = "identity"
"""Name of the document with the settings that a run keeps (`run_settings.run_identity`)."""
EXPERIENCE = "memory"
"""Prefix of the names of the files with each member's experience."""
INTERRUPTED, STOPPED, CALLBACK_FAILED = "interrupted", "stopped", "a callback failed"
"""Outcomes of runs that a signal or a callback ended; `STOPPED` precedes the reason, `CALLBACK_FAILED` for an error."""
MAX_RECORDS = 200
"""Most records of one kind in one document, whose size is limited to 8 MiB: births with 40 hyperparameters and a team's
architectures have 10 kB each. A long run has a birth for each generation and more."""
MAX_FAILED_SAVES = 3
"""Consecutive failed saves after which a run stops, since it could be resumed from an old checkpoint at best."""


@dataclass
class Progress:
    """The counters of a run; its fields are keys of checkpoints."""

    next_uid: NonNegativeInt
    generation: NonNegativeInt = 0
    ticks: NonNegativeInt = 0
    """Vector steps of each member in the population; `ticks` is their key in checkpoints, so the field keeps it."""
    evaluation_steps: NonNegativeInt = 0
    saved_at: NonNegativeInt = 0
    """Env steps of each member when the last checkpoint was due."""
    seconds: Seconds = 0.0
    seconds_by_part: dict[str, Seconds] = field(default_factory=dict)
    evolved: Flag = True
    """Whether evolution after this generation has been carried out."""
    outcome: Text = ""
    """Why the run ended; "" if it has not."""
    restorations: NonNegativeInt = 0
    """Restarts from a checkpoint because all members had diverged."""
    removed: NonNegativeInt = 0
    """Members that selection has removed from the population."""
    ticks_of_removed: NonNegativeInt = 0
    """Vector steps of the removed members together, likewise."""
    updates_before: NonNegativeInt = 0
    """Updates that all groups of the member with the most had made before the run."""
    unreplaced: list[NonNegativeInt] = field(default_factory=list)
    """Slots of members that have diverged and are replaced by evolution after this generation."""
    tracked: dict[Text, tuple[Score, NonNegativeInt]] = field(default_factory=dict)
    """Sum and count of the values that callbacks have tracked for the next generation, by tag."""

    @classmethod
    def from_json(cls, data: Any, where: str = "progress") -> Progress:
        """Read what `to_json` wrote; `where` names the data in errors.

        Raises:
            CheckpointError: a field is missing, unknown, or not what its annotation allows. Earlier versions did not
                write `removed`, `ticks_of_removed` and `updates_before`; `unreplaced` and `tracked` are left out if
                they are empty.
        """
        later = {"removed", "ticks_of_removed", "updates_before", "unreplaced", "tracked"}
        names = {known.name for known in fields(cls)} - later
        missing = sorted(names - data.keys()) if isinstance(data, dict) else []
        if missing:
            raise CheckpointError(f"{where}.{missing[0]} is missing")
        return validate_record(cls, data, where)

    @property
    def is_stopped(self) -> bool:
        """Whether `run.stop` of a callback ended the run after this generation."""
        return self.outcome.startswith(STOPPED) and self.outcome != f"{STOPPED}: {CALLBACK_FAILED}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        return {name: value for name, value in asdict(self).items() if name not in ("unreplaced", "tracked") or value}

    def vector_steps_of_all(self, members: int) -> int:
        """Return the vector steps of all members, with those that have left; `members` are in the population."""
        return self.ticks * members + self.ticks_of_removed

    def vector_steps_left(self, members: int, vector_steps: int) -> int:
        """Return the vector steps that each member has left, if the run has so many of each initial one."""
        return (vector_steps * (members + self.removed) - self.vector_steps_of_all(members)) // members


@dataclass
class SearchState:
    """The state of a selection strategy besides the history; its fields are keys of checkpoints."""

    selection: Text = "none"
    """Class name of the strategy that wrote `state`."""
    state: dict[str, Any] = field(default_factory=dict)
    """Plain data that the strategy writes and reads."""
    returns: list[list[Score]] = field(default_factory=list)
    """Returns of the last evaluation's episodes, by slot; empty lists if fitness is not a mean return."""
    best_returns: list[Score] = field(default_factory=list)
    """Returns of the best agent of the run on the seeds of the first round; empty if it did not play them, because a
    member leads."""
    episodes: int = 0
    """Episodes of each member in the first round of the last evaluation; 0 if an earlier version wrote the state."""

    @classmethod
    def from_json(cls, data: Any, where: str = "search") -> SearchState:
        """Read what `dataclasses.asdict` wrote; None, as earlier versions wrote it, gives an empty state.

        Raises:
            CheckpointError: it is of another form.
        """
        return cls() if data is None else validate_record(cls, data, where)

    def for_selection(self, name: str) -> SearchState:
        """Return the state for a strategy: without the data of another one."""
        return self if name == self.selection else replace(self, selection=name, state={})

    def paired_returns(self) -> np.ndarray | None:
        """Return the returns `[P, K]`, nan where a member did not play a seed; None if there are none."""
        length = max(map(len, self.returns), default=0)
        rows = [[*its, *[math.nan] * (length - len(its))] for its in self.returns]
        return np.array(rows) if length else None


class RunState(NamedTuple):
    """The state of a run besides its members."""

    progress: Progress
    best: BestAgent
    births: Sequence[OffspringRecord]
    """The offspring that led to the current members."""
    fitness: Sequence[float]
    """The last fitness of each member, by slot."""
    opponent_pool: Sequence[Opponent] = ()
    """Agents of earlier generations that members are rated against."""
    history: History = History()
    """Each member's hyperparameters and fitness in each generation."""
    search: SearchState = SearchState()
    """The state of the selection strategy."""
    experience: Sequence[Mapping[str, Tensor]] = ()
    """Each member's stored experience, by slot; empty if it is not saved."""


class RunFinished(Exception):
    """The run that was to be resumed has ended; `population` are its members."""

    def __init__(self, message: str, population: BasePopulation, limits: Sequence[str]) -> None:
        """`limits` are the settings by which the run has ended."""
        super().__init__(message)
        self.population, self.limits = population, tuple(limits)


def ignore_warning(warning: str) -> None:
    """Ignore a warning about a checkpoint, because the run that is resumed from it repeats the warning."""


def newest_checkpoint(output_paths: OutputPaths, warn: Callable[[str], None] = ignore_warning) -> Checkpoint | None:
    """Return the newest intact checkpoint of a run; None if it has none, or no folder.

    Raises:
        CheckpointError: none is intact, or their content is not the state of a run.
    """
    checkpoint = None if output_paths.run_dir is None else Checkpoints(output_paths.run_dir / CHECKPOINTS).newest(warn)
    if checkpoint is not None:
        _join_records(checkpoint)
        _check_run(checkpoint)
    return checkpoint


def _records(run: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the lists with records in a document of the run, by the prefix of the documents with the rest of each."""
    returns = (run.get("search") or {}).get("returns", [])
    births = {"births": run["births"], "ancestry": run["best"]["ancestry"]}
    return {**births, "history": run.get("history", []), "returns": returns}


def _split_records(run: dict[str, Any]) -> dict[str, list[Any]]:
    """Move the records beyond `MAX_RECORDS` out of a document of the run; return them as further documents."""
    further: dict[str, list[Any]] = {}
    for prefix, records in _records(run).items():
        for number, start in enumerate(range(MAX_RECORDS, len(records), MAX_RECORDS), 1):
            further[f"{prefix}-{number:03d}"] = records[start : start + MAX_RECORDS]
        del records[MAX_RECORDS:]
    return further


def _join_records(checkpoint: Checkpoint) -> None:
    """Move records of further documents back into that of the run; a wrong document is left for `_check_run`."""
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        for prefix, records in _records(checkpoint.documents["run"]).items():
            names = [name for name in checkpoint.documents if name.startswith(f"{prefix}-")]
            for name in sorted(names, key=lambda name: (len(name), name)):
                records += checkpoint.documents[name]


RUN_KEYS = {"progress", "births", "fitness", "rivals", "best"}
"""Keys of a checkpoint's document of the run."""
LATER_RUN_KEYS = {"history", "search"}
"""Further keys, which earlier versions did not write."""


def _check_run(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError unless a checkpoint's document of the run is valid; its digest does not ensure that."""
    run, where = checkpoint.documents.get("run"), f"path={str(checkpoint.path / 'run.json')!r}: run"
    if not isinstance(run, dict) or set(run) - LATER_RUN_KEYS != RUN_KEYS:
        raise CheckpointError(
            f"{where}={short_repr(run)} is not the state of a run; it has {', '.join(sorted(RUN_KEYS))}"
        )
    progress = Progress.from_json(run["progress"], f"{where}.progress")
    births = offspring_from_json(run["births"], f"{where}.births")
    History.from_json(run.get("history", []), f"{where}.history")
    SearchState.from_json(run.get("search"), f"{where}.search")
    best = BestAgent.from_json(run["best"], None, f"{where}.best")
    if progress.generation != checkpoint.generation:
        raise CheckpointError(
            f"{where}.progress.generation={progress.generation}; the checkpoint is of {checkpoint.generation}"
        )
    members = [document for name, document in checkpoint.documents.items() if name.startswith("member-")]
    uids = [document["index"] for document in members if isinstance(document, dict) and "index" in document]
    for uid in (best.record.uid, *(birth.uid for birth in (*births, *best.ancestry)), *uids):
        if isinstance(uid, int) and uid >= progress.next_uid:
            raise CheckpointError(
                f"{where}.progress.next_uid={progress.next_uid}; allowed are numbers above every uid, such as {uid}"
            )
    _check_scores(run, checkpoint, where)


def _check_scores(run: Mapping[str, Any], checkpoint: Checkpoint, where: str) -> None:
    """Raise CheckpointError unless each member has a fitness, and each opponent a rating and a network."""
    fitness, opponent_pool = run["fitness"], run["rivals"]
    size = sum(name.startswith("member-") for name in checkpoint.documents)
    if not isinstance(fitness, list) or len(fitness) != size or any(type(one) not in (int, float) for one in fitness):
        raise CheckpointError(
            f"{where}.fitness={short_repr(fitness)}; allowed is one number for each of {size} members"
        )
    if (unreplaced := {*run["progress"].get("unreplaced", ())}) and not unreplaced < {*range(size)}:
        raise CheckpointError(
            f"{where}.progress.unreplaced={sorted(unreplaced)!s:.100}; allowed are slots of some of {size} members"
        )
    if not isinstance(opponent_pool, list):
        raise CheckpointError(f"{where}.rivals={short_repr(opponent_pool)}; allowed is a list of [rating, generation]")
    for number, rating in enumerate(opponent_pool):
        is_rating = isinstance(rating, list) and [*map(type, rating[:2])] == [float, int] and math.isfinite(rating[0])
        if not is_rating or not _are_games(rating[2:]):
            raise CheckpointError(
                f"{where}.rivals.{number}={short_repr(rating)}; allowed is [rating, generation], and behind it games "
                "[[generation, score, count], …]"
            )
    for name in (BEST_DOCUMENT, *(f"rival-{number:03d}" for number in range(len(opponent_pool)))):
        if name not in checkpoint.documents or name not in checkpoint.tensors:
            raise CheckpointError(f"path={str(checkpoint.path)!r} has no {name}.json and {name}.safetensors")


def _are_games(found: Sequence[Any]) -> bool:
    """Return whether this is empty, or one list of [generation, score, count]."""
    return not found or (
        len(found) == 1
        and isinstance(found[0], list)
        and all(
            isinstance(game, list) and len(game) == 3 and all(type(one) in (int, float) for one in game)
            for game in found[0]
        )
        and all(math.isfinite(one) for game in found[0] for one in game)
    )


def load_population(
    checkpoint: Checkpoint,
    kind: type[BasePopulation],
    like: BasePopulation | None,
    warn: Callable[[str], None] = ignore_warning,
) -> BasePopulation:
    """Return the population of a checkpoint, with the class, device, hooks and custom networks of `like`.

    Without `like` it is on the device that `load_device` returns.

    Raises:
        ConfigurationError: the members of `like` have different functions or hooks.
    """
    unsaved = None if like is None else UnsavedState.shared(like)
    population = kind.from_documents(
        checkpoint.documents,
        checkpoint.tensors,
        device=load_device(checkpoint, warn) if like is None else like.device,
        where=str(checkpoint.path),
        networks=None if unsaved is None else unsaved.networks,
        class_for=None if unsaved is None else unsaved.class_for,
    )
    if unsaved is not None:
        for agent in (*population, *filter(None, [population.best_of_run])):
            unsaved.set_in(agent)
    return population


def load_device(checkpoint: Checkpoint, warn: Callable[[str], None] = ignore_warning) -> torch.device:
    """Return the device of a run's members; the CPU, with a warning, if this machine lacks it.

    It is the CPU, too, if an earlier version wrote the checkpoint, which then does not have the device.
    """
    changeable = load_identity(checkpoint).get(CHANGEABLE) or {}
    try:
        return resolve_device(changeable.get(DEVICE) or "cpu")
    except ConfigurationError as error:
        warn(f"the run continues on the CPU, because its {error}")
        return torch.device("cpu")


def load_identity(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the settings that the run was started with; none if an earlier version wrote the checkpoint.

    Raises:
        CheckpointError: they are not valid.
    """
    identity = checkpoint.documents.get(IDENTITY) or {"environment": {}}
    is_valid = isinstance(identity, dict) and isinstance(identity.get("environment"), dict)
    if not is_valid or not isinstance(identity.get(CHANGEABLE) or {}, dict):
        raise CheckpointError(f"path={str(checkpoint.path)!r}: {identity!r:.100} does not hold the settings of a run")
    return identity


def load_opponents(checkpoint: Checkpoint) -> list[SerializedAgent]:
    """Return the agents of earlier generations that members are rated against."""
    names = [f"rival-{i:03d}" for i in range(len(checkpoint.documents["run"]["rivals"]))]
    return [SerializedAgent(checkpoint.documents.get(name), checkpoint.tensors.get(name, {})) for name in names]


def take_experience(checkpoint: Checkpoint, members: int) -> list[Mapping[str, Tensor]]:
    """Remove the members' experience from a checkpoint and return it, by slot; empty if there is none.

    Raises:
        CheckpointError: the checkpoint has the experience of other members.
    """
    tensors = cast("dict[str, Mapping[str, Tensor]]", checkpoint.tensors)
    names = sorted((name for name in tensors if name.startswith(f"{EXPERIENCE}-")), key=lambda name: (len(name), name))
    if names and names != [f"{EXPERIENCE}-{slot:03d}" for slot in range(members)]:
        raise CheckpointError(f"path={str(checkpoint.path)!r} has {', '.join(names)} for {members} members")
    return [tensors.pop(name) for name in names]


class CheckpointManager:
    """Writes the files of a run to `output_paths`."""

    def __init__(
        self,
        output_paths: OutputPaths,
        members: ShardedPopulation,
        callbacks: CallbackList,
        resume: str = "",
        identity: Mapping[str, Any] | None = None,
        *,
        restart: str = "",
    ) -> None:
        """`resume` is the command that resumes the run, `identity` the settings that it keeps.

        `restart` is what takes the place of `resume` before the first checkpoint.
        """
        self.restart = restart or resume
        self.identity = dict(identity or {})
        self.output_paths, self.members, self.callbacks, self.resume = output_paths, members, callbacks, resume
        self.checkpoints = None if output_paths.run_dir is None else Checkpoints(output_paths.run_dir / CHECKPOINTS)
        self.has_run_dir = members.process_group.broadcast(output_paths.run_dir is not None)
        """Whether the main process has a folder for the history."""
        self.saves = 0
        self.failures = 0
        """Consecutive saves that failed: without a checkpoint, or with anything unwritten if they have none."""
        self.saved_generation = 0
        """The generation of the newest checkpoint; 0 without one. The same on all processes."""

    def save(self, run_state: RunState, *, last: bool = False, is_complete: bool = True) -> None:
        """Write the best agent; the population if this is the last save; a checkpoint if the generation is complete.

        Records are written to the disk first, so that after a power cut they have all generations of a checkpoint. The
        checkpoint is written although other folders could not be, unless this is the last save: a run whose checkpoint
        marks it as ended has written everything.
        """
        process_group = self.members.process_group
        serialized_agents, best = self.members.gather_to_main(), self._gather_best(run_state.best)
        if process_group.is_main:
            self.callbacks.sync()
            jobs = self._write_jobs(run_state, serialized_agents, best, last=last, is_complete=is_complete)
            is_done = True
            for job in jobs:
                is_done = self._is_written(job) and is_done
                if last and not is_done:
                    break
            has_checkpoint = not last and self.saved_generation == run_state.progress.generation
            self.failures = 0 if is_done or has_checkpoint else self.failures + 1
        self.failures, self.saved_generation = process_group.broadcast([self.failures, self.saved_generation])
        if self.saved_generation == run_state.progress.generation:
            process_group.monitor.record_checkpoint(self.saved_generation, self.resume)

    def save_best_after_error(self, best: BestAgent) -> list[Path]:
        """Write the best agent and return its folders; none if another process has it, which may have left the run."""
        if best.agent is None:
            return []
        document, tensors = best.agent.to_documents()
        agent = {"agent": document}, {"agent": tensors}
        return [
            path
            for path in self.output_paths.best_agent_paths()
            if self._is_written(lambda path=path: safe_folder.write_folder(path, "agent", *agent))
        ]

    def save_weights_entry(self, progress: Progress, fitness: Sequence[float], *, max_steps: int) -> None:
        """Write the weights of all members, of which each has a budget of `max_steps`, to a folder that is kept.

        An entry is a population without the state of learning.
        """
        if not self.has_run_dir:
            return
        serialized_agents, run_dir = self.members.gather_to_main(), self.output_paths.run_dir
        if run_dir is None:
            return
        stored = [without_learning_state(*one) for one in serialized_agents]
        documents, tensors = population_documents(stored, fitness)
        envs = self.members.first.num_envs
        steps = progress.ticks * envs
        documents[HISTORY] = {
            "generation": progress.generation,
            "env_steps": steps,
            "max_steps": max_steps,
            "members": len(stored),
            "removed": progress.removed,
            "steps_of_removed": progress.ticks_of_removed * envs,
        }
        path = run_dir / HISTORY / f"steps-{steps:012d}"
        self._is_written(lambda: safe_folder.write_folder(path, "population", documents, tensors))

    def remove_weights_after(self, progress: Progress) -> None:
        """Remove the history's entries of a continuation that the run, which resumes at `progress`, has left."""
        run_dir, steps = self.output_paths.run_dir, progress.ticks * self.members.first.num_envs
        for path in (run_dir / HISTORY).glob("steps-*") if run_dir is not None else ():
            named = HISTORY_ENTRY.fullmatch(path.name)
            if named and int(named[1]) > steps and safe_folder.is_replaceable(path):
                safe_folder.remove_folder(path)

    def _write_jobs(
        self,
        run_state: RunState,
        serialized_agents: Sequence[SerializedAgent],
        best: SerializedAgent,
        *,
        last: bool,
        is_complete: bool,
    ) -> Iterator[Callable[[], Path]]:
        documents, tensors = population_documents(serialized_agents, run_state.fitness, best)
        progress = run_state.progress
        for path in self.output_paths.populations(progress.ticks * self.members.first.num_envs, last=last):
            yield lambda path=path: safe_folder.write_folder(path, "population", documents, tensors)
        agent = {"agent": best.document}, {"agent": best.tensors}
        for path in self.output_paths.best_agent_paths():
            yield lambda path=path: safe_folder.write_folder(path, "agent", *agent)
        checkpoints = self.checkpoints
        if checkpoints is not None and is_complete:
            pool = [opponent.player.to_documents() for opponent in run_state.opponent_pool]
            run = {
                "progress": progress.to_json(),
                "births": [offspring.to_json() for offspring in run_state.births],
                "fitness": list(run_state.fitness),
                "rivals": [
                    [one.rating, one.generation, *([[*map(list, one.games)]] if one.games else [])]
                    for one in run_state.opponent_pool
                ],
                "best": run_state.best.to_json(),
                "history": run_state.history.to_json(),
                "search": to_builtin(asdict(run_state.search)),
            }
            documents |= {IDENTITY: self.identity, "run": run, **_split_records(run)}
            documents |= {f"rival-{i:03d}": document for i, (document, _) in enumerate(pool)}
            tensors |= {f"rival-{i:03d}": named for i, (_, named) in enumerate(pool)}
            tensors |= {f"{EXPERIENCE}-{slot:03d}": named for slot, named in enumerate(run_state.experience)}
            yield lambda: self._write_checkpoint(checkpoints, run_state, documents, tensors)

    def _write_checkpoint(
        self, checkpoints: Checkpoints, run_state: RunState, documents: dict[str, Any], tensors: dict[str, Any]
    ) -> Path:
        generation, score = run_state.progress.generation, run_state.best.record.fitness
        written = checkpoints.write(generation, documents, tensors, score=score)
        self.saved_generation = generation
        checkpoints.write_marker()
        with contextlib.suppress(OSError):  # the checkpoint is written; the free space is checked after the next one
            checkpoints.warn_if_disk_nearly_full(self.callbacks.on_warning)
        return written

    def _is_written(self, job: Callable[[], Path]) -> bool:
        self.callbacks.check_folder()
        try:
            job()
        except CheckpointError as error:
            self.callbacks.on_warning(str(error))
            return False
        except OSError as error:  # a file system that is out of reach for a moment, while a folder is listed
            self.callbacks.on_warning(f"a save failed ({error}); what was saved before is untouched")
            return False
        self.saves += 1
        return True

    def _gather_best(self, best: BestAgent) -> SerializedAgent:
        """Return the best agent on the main process; other processes get an empty document."""
        agent = best.agent
        own = SerializedAgent({}, {}) if agent is None else SerializedAgent(*agent.to_documents())
        if best.rank == 0:
            return own
        return self.members.process_group.send_recv([Transfer(0, best.rank, 0)], lambda _: own).get(
            0, SerializedAgent({}, {})
        )
