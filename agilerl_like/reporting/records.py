"""What a run tells the people who watch it: plain frozen records, so that a sink needs no knowledge of agents.

The training loop fills them and every sink reads the same ones. Steps are env steps. A number that does not exist (no
episode ended, nobody confirmed the fitness) is nan and never 0, for 0 is a return that an agent may really have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from agilerl_like.errors import CheckpointError
from agilerl_like.storage.validation import Flag, NonNegativeInt, Number, Score, Text, short_repr, validate_record

NO_PARENT = -1
"""The `parent_uid` of a member that nobody begot: the first population."""


ParentUid = Annotated[int, Field(strict=True, ge=NO_PARENT, lt=2**63)]
MUTATION_KEYS = {"kind", "operator", "details"}


def _checked_mutation(change: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a mutation of a birth; ValueError unless it can be printed."""
    kind, operator, details = change.get("kind"), change.get("operator", ""), change.get("details", {})
    if not (isinstance(kind, str) and isinstance(operator, str) and isinstance(details, Mapping)):
        raise ValueError("allowed is a mapping of kind (text), operator (text) and details (a mapping)")
    if change.keys() - MUTATION_KEYS:
        raise ValueError(f"allowed keys are {', '.join(sorted(MUTATION_KEYS))}")
    pairs = details.values() if kind == "rl_hp" else ()
    if not all(
        isinstance(pair, list | tuple) and [type(n) in (int, float) for n in pair] == [True] * 2 for pair in pairs
    ):
        raise ValueError("allowed are details of [value before, value after] for each hyperparameter")
    return change


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The start of a run. `max_env_steps` is summed over all members, as is every step count that names no member."""

    name: str
    env: str
    algorithm: str
    population_size: int
    num_envs: int
    seed: int
    max_env_steps: int
    target: float | None = None
    backend: str = ""
    """What steps the envs, and why."""
    run_dir: Path | None = None
    processes: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MemberRecord:
    """One member at the end of one generation, before selection.

    `fitness` is the mean return of its `episodes` evaluation episodes (of `evaluation_steps` in all) and `fitness_std`
    their standard deviation;
    `train_return` the mean return of the training episodes that ended in this generation; `hyperparameters` those that
    it trained with; `mutation` the label of what made it ("None", "lr", "encoder.add_node", …); `losses` have
    Stable-Baselines3's names (policy_gradient_loss, value_loss, approx_kl, …); `parameters` counts its weights;
    `legend` says what stands at each place of `architecture`.
    """

    slot: NonNegativeInt
    uid: NonNegativeInt
    parent_uid: ParentUid
    env_steps: NonNegativeInt
    fitness: Score
    fitness_std: Score
    episodes: NonNegativeInt
    train_return: Score
    hyperparameters: Mapping[str, Number]
    architecture: Text
    parameters: NonNegativeInt
    mutation: Text
    losses: Mapping[str, Score]
    evaluation_steps: NonNegativeInt = 0
    legend: Text = ""


@dataclass(frozen=True, kw_only=True)
class BestRecord(MemberRecord):
    """The best agent of a run so far, found in `generation`.

    `fitness`, `fitness_std` and `episodes` are those of fresh episodes, which selection does not use, and
    `standard_error` is the standard error of that fitness. It is nan where an interrupt came before the fresh episodes:
    `fitness` is then that of the member's evaluation.
    """

    generation: NonNegativeInt
    standard_error: Score = math.nan

    @property
    def is_confirmed(self) -> bool:
        """Whether the fitness is that of fresh episodes."""
        return math.isfinite(self.fitness) and math.isfinite(self.standard_error)


@dataclass(frozen=True, kw_only=True)
class OffspringRecord:
    """One decision of evolution, taken at the end of `generation`, and one line of lineage.jsonl.

    Each mutation has the keys kind, operator and details (for numbers: `{"lr": [before, after]}`). A survivor keeps its
    uid, and its parent is itself as it was. A founder has `parent_uid == NO_PARENT`, no parent's values, generation 0.
    `reason` is said when selection had no choice ("replaced: fitness is nan").
    """

    generation: NonNegativeInt
    slot: NonNegativeInt
    uid: NonNegativeInt
    parent_uid: ParentUid
    survives: Flag
    mutations: tuple[Annotated[Mapping[str, Any], AfterValidator(_checked_mutation)], ...]
    hyperparameters: Mapping[str, Number]
    architecture: Text
    parent_hyperparameters: Mapping[str, Number]
    parent_architecture: Text
    parent_fitness: Score
    reason: Text = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads; a number that is not finite is null."""
        return _plain({field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def from_json(cls, data: Any, where: str = "birth") -> OffspringRecord:
        """Read what `to_json` wrote.

        Raises:
            CheckpointError: a field is missing, unknown or of no meaning; `where` says what it was read from.
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
        return birth


def offspring_from_json(data: Any, where: str) -> tuple[OffspringRecord, ...]:
    """Read a list of births; CheckpointError says which is wrong."""
    if not isinstance(data, list):
        raise CheckpointError(f"{where}={short_repr(data)}; allowed is a list of births")
    return tuple(OffspringRecord.from_json(birth, f"{where}.{number}") for number, birth in enumerate(data))


@dataclass(frozen=True, kw_only=True)
class GenerationRecord:
    """The end of one generation: generations count from 1, steps and seconds from the start of the run.

    `env_steps` are the training steps of all members so far, `evaluation_steps` those of evaluation, and
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

    @property
    def best_fitness_ever(self) -> float:
        """Fitness of the best agent so far, on fresh episodes."""
        return self.best.fitness


@dataclass(frozen=True, kw_only=True)
class SummaryRecord:
    """The end of a run: its best agent, of whichever generation, and how that came to be.

    `reason` is "target reached", "budget spent", "interrupted" or "disk full". `resume` is what to type to go on, empty
    if there is nothing to go on with.
    `ancestry` holds the births that led to `best`, oldest first, without survivals that changed nothing.
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
        """Fitness of the best agent on fresh episodes, nan if none were played."""
        return self.best.fitness if self.best.is_confirmed else math.nan


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # a numpy scalar
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rank(fitness: float, uid: float, generation: float = 0) -> tuple[float, float, float]:
    """Return what is compared to find the best: of equal fitness the later generation wins, and in one the oldest.

    A fitness that is not finite is the lowest.
    """
    return (fitness if math.isfinite(fitness) else -math.inf, generation, -uid)


def fitness_order(member: MemberRecord) -> tuple[float, float, float]:
    """Return the `rank` of a member of one generation."""
    return rank(member.fitness, member.uid)


def fittest(members: Iterable[MemberRecord]) -> MemberRecord:
    """Return the best member in `fitness_order`."""
    return max(members, key=fitness_order)
