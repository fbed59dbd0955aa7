"""Restarts with doubled generations (iterated PBT, 2025), for long runs that stall.

The hyperparameters that a search prefers depend on how long it trains between two selections. A round that has stopped
improving is followed by one that selects half as often.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from agilerl_like.errors import check_init_names, set_count_field
from agilerl_like.hpo.gated_selection import GatedSelection
from agilerl_like.hpo.gaussian_process import GaussianProcess
from agilerl_like.hpo.genome import WeightMix
from agilerl_like.hpo.selection import PopulationView, SlotPlan, ranking, require_generations
from agilerl_like.registry import register

STALLED_ACTS = 15
"""Selections within which the best fitness must gain one standard deviation."""
SHRUNK = WeightMix(0.2, 0.1)


@register("selection", "ipbt")
@check_init_names
@dataclass(frozen=True)
class RestartingSelection(GatedSelection):
    """A gated selection that restarts the population after `patience` selections without progress.

    Progress is a rise of the smoothed best fitness of a selection. After a restart half the members have initial
    weights and hyperparameters drawn from the ranges, and half are clones of the best quarter, explored, with weights
    shrunk and perturbed; selection then takes place half as often. No restart happens if fewer than two such longer
    rounds would be left. The best agent of the whole run is handed over in any case.
    """

    title: ClassVar[str] = "selection 'ipbt'"
    patience: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        set_count_field(self, "patience")

    def plan(self, view: PopulationView, rng: np.random.Generator) -> Sequence[SlotPlan]:
        """Return a row for every slot."""
        state = view.state
        state.setdefault("start", 0)
        state.setdefault("every", 1)
        state.setdefault("bests", [])
        state.setdefault("fails", 0)
        by_rank = ranking(view.fitness, view.uids)
        if (view.generation - state["start"]) % state["every"]:
            healthy, best = set(by_rank.tolist()), int(by_rank[0])
            sources = [slot if slot in healthy else best for slot in range(len(view))]
            return [SlotPlan(source, source, explore=source != slot) for slot, source in enumerate(sources)]
        state["bests"].append(float(view.fitness[by_rank[0]]))
        state["fails"] = state["fails"] + 1 if has_failed(state["bests"]) else 0
        left = view.generations - view.generation if view.generations else math.inf
        stalls = state["fails"] >= self.patience or has_stalled(state["bests"])
        if stalls and left >= 4 * state["every"]:
            state.update(start=view.generation, every=2 * state["every"], bests=[], fails=0)
            state.update(best=-math.inf, stalled=0, restarted=[])  # what a gated selection notes of earlier members
            return self._restart(by_rank, len(view))
        return super().plan(view, rng)

    def in_doubt(self, view: PopulationView) -> Sequence[int]:
        """Return the members in doubt, in generations with a selection."""
        is_between = (view.generation - view.state.get("start", 0)) % view.state.get("every", 1)
        return [] if is_between else super().in_doubt(view)

    def _restart(self, by_rank: np.ndarray, size: int) -> list[SlotPlan]:
        top = by_rank[: max(1, math.ceil(self.donors * size))].tolist()
        shrunk = [SlotPlan(top[i % len(top)], top[i % len(top)], explore=True, start=SHRUNK) for i in range(size)]
        rows = [SlotPlan(slot, slot, explore=True, start=WeightMix()) for slot in range(size)]
        for place, slot in enumerate(by_rank[: size // 2].tolist()):
            rows[slot] = shrunk[place]
        return rows

    def check_budget(self, generations: int, where: str = "") -> None:
        """Raise `ConfigurationError` unless there is time for a restart."""
        first = min(self.patience + 2, STALLED_ACTS)  # the first failure needs three selections
        require_generations(self.title, generations, first + 4, where)


def smoothed(bests: Sequence[float]) -> np.ndarray:
    """Return the posterior mean of a Gaussian process at each of the values."""
    places = np.arange(len(bests), dtype=float)[:, None] / max(len(bests) - 1, 1)
    times = np.zeros(len(bests))
    return GaussianProcess(places, times, np.array(bests)).predict(places, times)[0]


def has_failed(bests: Sequence[float]) -> bool:
    """Whether the smoothed best fitness did not rise at the last selection."""
    if len(bests) < 3:
        return False
    smooth = smoothed(bests)
    return bool(smooth[-1] <= smooth[-2])


def has_stalled(bests: Sequence[float]) -> bool:
    """Whether the last 15 selections gained less than one standard deviation of all."""
    if len(bests) < STALLED_ACTS:
        return False
    smooth = smoothed(bests)
    return bool(smooth[-1] - smooth[-STALLED_ACTS] < np.std(bests))
