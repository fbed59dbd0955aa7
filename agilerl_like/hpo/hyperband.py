"""Hyperband (Li et al. 2018) on the slots of a population: a slot trains one job after the other.

A job is a fresh member with hyperparameters of its own. At its rungs (a number of generations that grows by the factor
`eta`) it continues if it is among the best 1/`eta` of all jobs that have reached that rung, else the slot starts the
next job. Brackets differ in their first rung: later first rungs stop fewer jobs. Decisions are made as results arrive,
as in ASHA (Li et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agilerl_like.errors import ConfigurationError, check_init_names, set_count_field
from agilerl_like.hpo.genome import NO_PARENT, WeightMix
from agilerl_like.hpo.selection import PopulationView, Selection, SlotPlan, ranking, require_generations
from agilerl_like.registry import register

MAX_RESULTS = 1000
"""Most results of a rung that are kept, so that checkpoints of a long search stay below the limit of a document; of a
thousand, the share of better ones is known to 0.015."""


@register("selection", "hyperband")
@check_init_names
@dataclass(frozen=True)
class HyperbandSelection(Selection):
    """Jobs that are stopped early; the explorer's `draw` gives each its hyperparameters (`tpe`, or uniform draws).

    `min_generations` is the first rung of the first bracket, `max_generations` the length of a job, by default the
    budget of the run; `brackets` is their number, by default as many as the length allows; 1 is successive halving.
    A job is compared with those of its own generation and the last `MAX_RESULTS` before. A job that no time is left for
    is not started: the slot's job continues instead.
    """

    eta: int = 3
    min_generations: int = 1
    max_generations: int | None = None
    brackets: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("eta", 2), ("min_generations", 1), ("max_generations", 1), ("brackets", 1)):
            if getattr(self, name) is not None:
                set_count_field(self, name, least)
        if self.max_generations is not None and self.max_generations <= self.min_generations:
            raise ConfigurationError(
                f"max_generations={self.max_generations!r} must be greater than "
                f"min_generations={self.min_generations!r}"
            )

    def rungs(self, bracket: int, length: int) -> list[int]:
        """Return the generations of a job after which it may be stopped."""
        found, rung = [], self.min_generations * self.eta**bracket
        while rung < length:
            found.append(rung)
            rung *= self.eta
        return found

    def num_brackets(self, length: int) -> int:
        """Return the number of brackets for jobs of a length, of which each has a rung."""
        possible = max(1, len(self.rungs(0, length)))
        return possible if self.brackets is None else min(self.brackets, possible)

    def plan(self, view: PopulationView, rng: np.random.Generator) -> Sequence[SlotPlan]:
        """Return a row for every slot; nothing is drawn at random."""
        ranking(view.fitness, view.uids)  # raises if no fitness is finite
        length = self.max_generations or view.generations or 10**9
        left = view.generations - view.generation if view.generations else length
        known = view.state.get("jobs", {})
        parents = {trial.uid: trial.parent_uid for trial in view.history.trials}
        # a run replaces diverged members by clones, whose fitness is not that of a job of their age
        clones = [uid for uid in view.uids if str(uid) not in known and parents.get(uid, NO_PARENT) != NO_PARENT]
        jobs = self._jobs(view, length)
        stopped = self._stopped(view, jobs, view.state.setdefault("rungs", {}), length, clones)
        rows = []
        for slot, uid in enumerate(view.uids):
            is_over = slot in stopped or uid in clones
            is_new = not math.isfinite(view.fitness[slot]) or (is_over and left >= self.min_generations)
            rows.append(SlotPlan(slot, slot, explore=is_new, start=WeightMix() if is_new else None))
            if is_new:
                del jobs[str(uid)]
        return rows

    def _jobs(self, view: PopulationView, length: int) -> dict[str, Any]:
        """Return [bracket, age] of the present jobs by uid, this generation included; jobs join brackets in turn."""
        before, state = view.state.get("jobs", {}), view.state
        jobs = {}
        for uid in map(str, view.uids):
            if uid not in before:
                state["started"] = state.get("started", 0) + 1
            bracket, age = before.get(uid, [(state.get("started", 0) - 1) % self.num_brackets(length), 0])
            jobs[uid] = [bracket, age + 1]
        state["jobs"] = jobs
        return jobs

    def _stopped(
        self,
        view: PopulationView,
        jobs: dict[str, Any],
        rungs: dict[str, list[float]],
        length: int,
        clones: Sequence[int],
    ) -> set[int]:
        """Return the slots whose job has ended, or is not among the best of its rung; record the new results.

        The uids `clones` are no jobs.
        """
        ended, at_rung = set(), []
        for slot, uid in enumerate(map(str, view.uids)):
            bracket, age = jobs[uid]
            if age >= length:
                ended.add(slot)
            elif (
                age in self.rungs(bracket, length)
                and math.isfinite(view.fitness[slot])
                and view.uids[slot] not in clones
            ):
                at_rung.append((slot, f"{bracket}/{age}"))
                rungs.setdefault(f"{bracket}/{age}", []).append(float(view.fitness[slot]))
        least = {}
        for rung in {rung for _, rung in at_rung}:
            results = sorted(rungs[rung], reverse=True)
            least[rung] = results[math.ceil(len(results) / self.eta) - 1]
            del rungs[rung][:-MAX_RESULTS]
        return ended | {slot for slot, rung in at_rung if view.fitness[slot] < least[rung]}

    def check_budget(self, generations: int, where: str = "") -> None:
        """Raise `ConfigurationError` unless a job can be followed by another: both need `min_generations`."""
        require_generations("selection 'hyperband'", generations, 2 * self.min_generations, where)
