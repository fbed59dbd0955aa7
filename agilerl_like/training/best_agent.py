"""The best agent of a run, which `pop.best`, the summary, the plot, `best/` and all trackers refer to.

The fittest member of a generation was selected by its evaluation, which is therefore biased upwards. It is a candidate
if that is higher than the best agent's fitness by more than its standard error. Otherwise the best agent plays the
seeds of the evaluation too, because they may be harder than those of its fitness: in Pendulum a best agent of easy
seeds would stay although all members are better. There a candidate must lead by more than the standard error of the
paired difference. Candidate and best agent then play the same fresh episodes, and the candidate replaces the best agent
only if its mean is higher by more than that standard error again. The best agent's fitness is the mean of the fresh
episodes that it played last, because those by which it became the best were often lucky. Ratings depend on the
opponents, which get stronger, so with them the best agent is rated again in each generation, by the games of the
candidate.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from agilerl_like.algorithms.episode_summary import summarise_episodes
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.errors import CheckpointError, short_repr
from agilerl_like.reporting.records import BestRecord, MemberRecord, OffspringRecord, offspring_from_json
from agilerl_like.storage.validation import validate_record
from agilerl_like.training.evaluator import EvalResult

CONFIRMATION_EPISODES = 20
"""Fresh episodes of a candidate; an evaluation's number of episodes if that is larger."""


@dataclass(frozen=True)
class BestAgent:
    """The best agent of a run so far, as it was evaluated."""

    record: BestRecord
    ancestry: tuple[OffspringRecord, ...]
    """The offspring records that led to it, oldest first."""
    rank: int = 0
    """The process that has the agent."""
    agent: EvolvableAlgorithm | None = None
    """The agent, on process `rank` and those with a replica of it; None on all others."""

    def to_json(self) -> dict[str, Any]:
        """Return everything but the agent as plain data."""
        return {"record": asdict(self.record), "ancestry": [birth.to_json() for birth in self.ancestry]}

    @classmethod
    def from_json(cls, data: Any, agent: EvolvableAlgorithm | None, where: str = "best") -> BestAgent:
        """Read what `to_json` wrote; `where` names the data in errors.

        Raises:
            CheckpointError: a part is missing or of another type.
        """
        match data:
            case {"record": record, "ancestry": [*births]}:
                return cls(
                    validate_record(BestRecord, record, f"{where}.record"),
                    offspring_from_json(births, f"{where}.ancestry"),
                    0,
                    agent,
                )
        raise CheckpointError(
            f"{where}={short_repr(data)} is not the best agent of a run; allowed are record and ancestry"
        )


def unconfirmed_record(member: MemberRecord, generation: int) -> BestRecord:
    """Return a member's record without fresh episodes: its fitness is that of its evaluation."""
    return BestRecord(**{**_fields(member), "standard_error": math.nan}, generation=generation)


def confirmed_record(member: MemberRecord, generation: int, fresh: EvalResult) -> BestRecord:
    """Return a member's record whose fitness is its result on fresh episodes."""
    (fitness,), (spread,), (error,) = fresh.fitness, fresh.spread, fresh.errors
    return replace(
        unconfirmed_record(member, generation),
        fitness=fitness,
        fitness_std=spread,
        episodes=fresh.episodes_by_member[0],
        evaluation_steps=sum(fresh.steps),
        standard_error=error,
    )


def may_surpass(member: MemberRecord, best: BestRecord, target: float | None) -> bool:
    """Return whether a member's evaluation is high enough for an evaluation on fresh episodes, whatever its seeds."""
    if not best.is_confirmed:
        return True
    return member.fitness > best.fitness + best.standard_error or _reaches(member, best, target)


def surpasses(candidate: BestRecord, best: BestRecord, target: float | None, error: float) -> bool:
    """Return whether a candidate replaces the best agent.

    It does if its mean on fresh episodes is higher by more than the standard `error` of the difference, or is the first
    to reach the target. A result on fresh episodes replaces every result without.
    """
    if not (candidate.is_confirmed and best.is_confirmed):
        return candidate.is_confirmed or not math.isfinite(best.fitness)
    return candidate.fitness - best.fitness > error or _reaches(candidate, best, target)


def difference_error(candidate: EvalResult, best: EvalResult) -> float:
    """Return the standard error of the difference between two agents' results.

    Where fitness is a mean over episodes, it is that of the differences between episodes of equal seeds, in which
    initial states that are easy for both agents cancel out.
    """
    if candidate.returns and best.returns and (candidate.aggregate == "mean" or candidate.instances == 1):
        paired = summarise_episodes(np.subtract(candidate.returns[0], best.returns[0]).tolist()).error
        if math.isfinite(paired):
            return paired
    return math.hypot(candidate.errors[0], best.errors[0])


def _reaches(member: MemberRecord, best: BestRecord, target: float | None) -> bool:
    return target is not None and best.fitness < target <= member.fitness


def _fields(member: MemberRecord) -> dict[str, Any]:
    return {name: getattr(member, name) for name in MemberRecord.__dataclass_fields__}
