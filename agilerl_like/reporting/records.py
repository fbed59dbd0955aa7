"""Frozen records that the training loop passes to reporters, so that reporters do not depend on agents.

Steps are env steps. A missing number (no episode ended, the fitness is not confirmed) is nan and never 0, because 0 is
a possible return.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from agilerl_like.errors import CheckpointError, short_repr
from agilerl_like.storage.validation import (
    Flag,
    HyperparameterValue,
    NonNegativeInt,
    Score,
    Text,
    is_plain_value,
    validate_record,
)

NO_PARENT = -1
"""The `parent_uid` of initial members, and of fresh ones, with initial weights, that replace others later."""
TIMED_PHASES = ("env", "act", "learn", "evaluate", "evolve", "report")
"""The parts of a generation whose times are measured."""


ParentUid = Annotated[int, Field(strict=True, ge=NO_PARENT, lt=2**63)]
MUTATION_KEYS = {"kind", "operator", "details"}


def _checked_mutation(change: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a mutation; ValueError unless it can be printed."""
    kind, operator, details = change.get("kind"), change.get("operator", ""), change.get("details", {})
    if not (isinstance(kind, str) and isinstance(operator, str) and isinstance(details, Mapping)):
        raise ValueError("allowed is a mapping of kind (text), operator (text) and details (a mapping)")
    if change.keys() - MUTATION_KEYS:
        raise ValueError(f"allowed keys are {', '.join(sorted(MUTATION_KEYS))}")
    pairs = details.values() if kind == "rl_hp" else ()
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 and is_plain_value(pair) for pair in pairs):
        raise ValueError("allowed are details of [value before, value after] for each hyperparameter")
    return change


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The start of a run. `max_env_steps` is summed over all members, as are all step counts outside `MemberRecord`."""

    name: str
    env: str
    algorithm: str
    population_size: int
    num_envs: int
    seed: int
    max_env_steps: int
    target: float | None = None
    backend: str = ""
    """How the envs are stepped, and why."""
    run_dir: Path | None = None
    generation_env_steps: int = 0
    """Env steps of a generation, but the last, which may be shorter; 0: unknown."""
    max_seconds: float | None = None
    """Time after which the run ends with the generation that is running then."""
    max_updates: int | None = None
    """Updates of a member with which the run ends, after the generation in which they are reached."""
    processes: int = 1
    layout: str = ""
    """Processes and threads, and why they were chosen; "" if they were set."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    equal_start: Mapping[str, Any] = field(default_factory=dict)
    """The hyperparameters that all members begin with although evolution has ranges for them; empty if they differ."""
    steps_before: int = 0
    """Env steps that the member with most had been trained for before this process began."""


@dataclass(frozen=True, kw_only=True)
class MemberRecord:
    """One member at the end of one generation, before selection.

    `fitness` is the mean return of `episodes` evaluation episodes with `evaluation_steps` steps in total, without the
    effects of the seeds where members played different ones; against functions, the games from each side on a seed are
    one episode, unless the env has instances or `info_keys`; `fitness_std` is the standard deviation of the episodes,
    of a rating its standard error, and `standard_error` that of the fitness, nan if it is not known; `train_return` is
    the mean return of the training episodes that ended in this generation; `hyperparameters` are its own, which
    schedules multiply, and `inactive` are the names of those whose condition (`when`) is not met; `mutation` is the
    label of the mutation that produced it ("None", "lr", "encoder.add_node", …); `losses` have Stable-Baselines3's
    names (policy_gradient_loss, value_loss, approx_kl, …); `parameters` is the number of weights; `legend` explains the
    parts of `architecture`; `measures` are further results of the evaluation: "info/NAME",
    "fitness_by_instance/NUMBER", and "return" where the fitness is an info.
    """

    slot: NonNegativeInt
    uid: NonNegativeInt
    parent_uid: ParentUid
    env_steps: NonNegativeInt
    fitness: Score
    fitness_std: Score
    episodes: NonNegativeInt
    train_return: Score
    hyperparameters: Mapping[str, HyperparameterValue]
    architecture: Text
    parameters: NonNegativeInt
    mutation: Text
    losses: Mapping[str, Score]
    evaluation_steps: NonNegativeInt = 0
    legend: Text = ""
    measures: Mapping[str, Score] = field(default_factory=dict)
    standard_error: Score = math.nan
    inactive: Sequence[Text] = ()


@dataclass(frozen=True, kw_only=True)
class BestRecord(MemberRecord):
    """The best agent of a run so far, found in `generation`.

    `fitness`, `fitness_std`, `standard_error` and `episodes` are of fresh episodes, which selection does not use. The
    error is nan if an interrupt came before the fresh episodes: `fitness` is then the evaluation's.
    """

    generation: NonNegativeInt

    @property
    def is_confirmed(self) -> bool:
        """Whether the fitness was measured on fresh episodes."""
        return math.isfinite(self.fitness) and math.isfinite(self.standard_error)


@dataclass(frozen=True, kw_only=True)
class OffspringRecord:
    """One decision of evolution, taken at the end of `generation`, and one line of lineage.jsonl.

    Each mutation has the keys kind, operator and details (of hyperparameters: `{"lr": [before, after]}`). A survivor
    keeps its uid and is its own parent. Initial members, of generation 0, and fresh ones have `parent_uid == NO_PARENT`
    and no parent's values. `reason` is given when a member had to be replaced ("replaced: fitness is nan").
    `parent_generation` is given for a clone of the best agent of the run: the generation that this agent is of.
    `shrunk` is true, and a key of the line, where the weights are the parent's, shrunk and perturbed. `donor_uid` is a
    key of the line where the member begins with the hyperparameters of another member than its parent.
    """

    generation: NonNegativeInt
    slot: NonNegativeInt
    uid: NonNegativeInt
    parent_uid: ParentUid
    survives: Flag
    mutations: tuple[Annotated[Mapping[str, Any], AfterValidator(_checked_mutation)], ...]
    hyperparameters: Mapping[str, HyperparameterValue]
    architecture: Text
    parent_hyperparameters: Mapping[str, HyperparameterValue]
    parent_architecture: Text
    parent_fitness: Score
    reason: Text = ""
    parent_generation: NonNegativeInt | None = None
    shrunk: Flag = False
    donor_uid: NonNegativeInt | None = None

    @property
    def trained_from(self) -> int:
        """The generation after which the weights that the member begins with were taken from its parent."""
        return self.generation if self.parent_generation is None else self.parent_generation

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `from_json`; a number that is not finite is null."""
        is_absent = {"shrunk": not self.shrunk, "donor_uid": self.donor_uid is None}
        names = [field.name for field in fields(self) if not is_absent.get(field.name, False)]
        return plain_data({name: getattr(self, name) for name in names})

    @classmethod
    def from_json(cls, data: Any, where: str = "birth") -> OffspringRecord:
        """Read the output of `to_json`.

        Raises:
            CheckpointError: a field is missing, unknown or invalid; `where` names the source.
        """
        if isinstance(data, Mapping):
            fitness, mutations = data.get("parent_fitness"), data.get("mutations")
            data = {**data, "parent_fitness": math.nan if fitness is None else fitness}
            data["mutations"] = tuple(mutations) if isinstance(mutations, list) else mutations
        birth = validate_record(cls, data, where)
        if not (birth.parent_uid == birth.uid if birth.survives else birth.parent_uid < birth.uid):
            raise CheckpointError(
                f"{where}: parent_uid={birth.parent_uid} of uid={birth.uid}; allowed is "
                f"{'the same' if birth.survives else 'a smaller'} one, because survives={birth.survives}"
            )
        if birth.trained_from > birth.generation:
            raise CheckpointError(
                f"{where}: parent_generation={birth.parent_generation}; allowed are null and generations up to this "
                f"record's {birth.generation}"
            )
        return birth


def offspring_from_json(data: Any, where: str) -> tuple[OffspringRecord, ...]:
    """Read a list of records; CheckpointError names the one that is wrong."""
    if not isinstance(data, list):
        raise CheckpointError(f"{where}={short_repr(data)}; allowed is a list of births")
    return tuple(OffspringRecord.from_json(birth, f"{where}.{number}") for number, birth in enumerate(data))


@dataclass(frozen=True, kw_only=True)
class UpdateRecord:
    """One learning update of one member.

    `number` counts the member's updates, `env_steps` are its env steps so far, and `train_return` is the mean return of
    its training episodes that ended since its last update, on the process that trains it.
    """

    slot: NonNegativeInt
    uid: NonNegativeInt
    number: NonNegativeInt
    env_steps: NonNegativeInt
    train_return: Score
    metrics: Mapping[str, Score]


@dataclass(frozen=True, kw_only=True)
class GenerationRecord:
    """The end of one generation: generations count from 1, steps and seconds from the start of the run.

    `env_steps` and `evaluation_steps` are the steps of all members so far in training and in evaluation,
    `steps_per_second` is the speed of this generation. `seconds_by_part` is the time since the start spent in env, act,
    learn, evaluate, evolve and report. `best` is the best agent of the run so far, this generation included.
    """

    generation: int
    env_steps: int
    evaluation_steps: int
    max_env_steps: int
    seconds: float
    steps_per_second: float
    seconds_by_part: Mapping[str, float]
    members: tuple[MemberRecord, ...]
    best: BestRecord
    target: float | None = None
    updates: tuple[UpdateRecord, ...] = ()
    """The updates of this generation, in the order of their steps, if they are logged one by one."""
    most_updates: int = 0
    """The most updates that a member has made in the run so far."""
    tracked: Mapping[str, float] = field(default_factory=dict)
    """The means of the numbers that callbacks tracked in this generation, by tag; reporters alone receive them."""


@dataclass(frozen=True, kw_only=True)
class SummaryRecord:
    """The end of a run, with the best agent of all generations.

    `reason` is "target reached", "budget spent", "max_updates reached", "max_seconds over", "interrupted", "disk full"
    or "stopped", with the reason that a callback gave. `resume` is the command that resumes the run, empty if it cannot
    be resumed. `ancestry` holds the ancestors of `best`, oldest first, without survivals that changed nothing.
    """

    reason: str
    best: BestRecord
    ancestry: tuple[OffspringRecord, ...]
    env_steps: int
    evaluation_steps: int
    seconds: float
    seconds_by_part: Mapping[str, float]
    saved_to: Path | None = None
    resume: str = ""

    @property
    def confirmed_fitness(self) -> float:
        """Fitness of the best agent on fresh episodes, nan if there were none."""
        return self.best.fitness if self.best.is_confirmed else math.nan


def plain_data(value: Any) -> Any:
    """Return a value as plain data; a number that is not finite is None."""
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(item) for item in value]
    if hasattr(value, "item"):  # a numpy scalar
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rank(fitness: float, uid: float, generation: float = 0) -> tuple[float, float, float]:
    """Return the sort key of the best agent: at equal fitness the later generation wins, within one the smaller uid.

    A fitness that is not finite is the lowest.
    """
    return (fitness if math.isfinite(fitness) else -math.inf, generation, -uid)


def fitness_order(member: MemberRecord) -> tuple[float, float, float]:
    """Return the `rank` of a member of one generation."""
    return rank(member.fitness, member.uid)


def fittest(members: Iterable[MemberRecord]) -> MemberRecord:
    """Return the best member in `fitness_order`."""
    return max(members, key=fitness_order)
