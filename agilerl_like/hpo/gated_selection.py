"""Truncation selection for noisy fitness: a member is replaced only by one that is better beyond doubt.

Population Based Training (Jaderberg et al. 2017) replaces a fixed share of the members, however little their fitness
differs. Here as many as half of them may be replaced, but a copy is made only if the difference in fitness exceeds its
standard error, estimated over the env seeds that both members played. So the share follows from the noise: without
noise half of the members are replaced, and where all differences are noise about a third, because the best and the
worst of many noisy values differ by more than the error of one difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from agilerl_like.errors import ConfigurationError, check_init_names, check_scalar_fields
from agilerl_like.hpo.blended_fitness import blended
from agilerl_like.hpo.genome import NO_PARENT, WeightMix
from agilerl_like.hpo.selection import (
    PopulationView,
    Selection,
    SlotPlan,
    ranking,
    require_generations,
    require_members,
)
from agilerl_like.registry import register

STALLED_GENERATIONS = 3
"""Generations without a rise of the best fitness after which the worst members start again."""
GRACE, GRACE_SHARE = 4, 0.2
"""Generations for which a restarted member is not compared with others, which had more time to learn: at least 4, and
in longer runs a share of them, because short generations leave little time in each."""


@register("selection", "gated")
@check_init_names
@dataclass(frozen=True)
class GatedSelection(Selection):
    """Each of the worst `share` members is compared with a member drawn from the best `donors` of them.

    It becomes a clone of that one if the difference in fitness is above `gate` standard errors; of members with equal
    fitness and no noise the older one is preferred while fitness rises (`wins_tie`). From `gentle_from` of
    the budget on, `final_share` takes the place of `share`: many members are replaced early, when most of them are far
    from good, and fewer later, when greed costs diversity. The best member is never replaced; a member whose fitness is
    not finite always is. If the best fitness has not risen by more than the gate for three generations, the worst
    quarter starts again, with initial weights and hyperparameters drawn from the ranges, and is not compared with
    others for a fifth of the budget, at least four generations (`restart_stalled`): clones of one parent that learns
    nothing cannot leave its values by small steps. None starts again from `gentle_from` of the budget on, because it
    would not have time to learn. In a population whose members have all the same hyperparameters there is nothing to
    select, so all but the best quarter start again after the first generation (`spread_equals`). None starts again in a
    run of members that were trained before, because it would lose that training. With `blend_training` the fitness is a
    weighted mean of the evaluation and the training return (see `blended_fitness`).
    """

    title: ClassVar[str] = "selection 'gated'"
    """Its name in errors."""
    share: float = 0.5
    final_share: float = 0.25
    gentle_from: float = 2 / 3
    donors: float = 0.25
    gate: float = 1.0
    restart_stalled: bool = True
    spread_equals: bool = True
    blend_training: bool = True

    def __post_init__(self) -> None:
        check_scalar_fields(self)
        for name in ("share", "final_share", "donors"):
            if not 0 < getattr(self, name) <= 0.5:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be greater than 0 and at most 0.5")
        if not 0 <= self.gentle_from <= 1:
            raise ConfigurationError(f"gentle_from={self.gentle_from!r} must lie between 0 and 1")
        if not self.gate >= 0:
            raise ConfigurationError(f"gate={self.gate!r} must not be negative")

    def parents(
        self, fitness: np.ndarray, rng: np.random.Generator, *, uids: Sequence[int] | np.ndarray | None = None
    ) -> np.ndarray:
        """Return the best member, and the sources of the other slots; without knowledge of the noise."""
        names = range(len(fitness)) if uids is None else [int(uid) for uid in uids]
        sources, best = self.sources(PopulationView(fitness, names, (), 0), rng), ranking(fitness, names)[0]
        return np.array([best, *np.delete(sources, best)])

    def plan(self, view: PopulationView, rng: np.random.Generator) -> Sequence[SlotPlan]:
        """Return a row for every slot; only clones are explored."""
        view = blended(view) if self.blend_training else view
        sources = self.sources(view, rng).tolist()
        rows = [SlotPlan(source, source, explore=source != slot) for slot, source in enumerate(sources)]
        self._keep_restarted(view, rows)
        for slot in self._to_restart(view):
            rows[slot] = SlotPlan(slot, slot, explore=True, start=WeightMix())
        return rows

    def sources(self, view: PopulationView, rng: np.random.Generator) -> np.ndarray:
        """Return the slot that each member's weights and hyperparameters come from: its own, or a donor's."""
        size = len(view)
        by_rank, donors, first = self._ranks(view)
        drawn = donors[rng.integers(len(donors), size=size)]  # one for each rank, so that slots have no influence
        sources = np.arange(size)
        for slot in np.setdiff1d(np.arange(size), by_rank):
            sources[slot] = by_rank[0]
        for rank in range(first, len(by_rank)):
            slot, donor = by_rank[rank], drawn[rank]
            if self.differs(view, donor, slot) or self.wins_tie(view, donor, slot):
                sources[slot] = donor
        return sources

    def wins_tie(self, view: PopulationView, first: int, other: int) -> bool:
        """Whether a member that ranks before another one is preferred although both have the same fitness.

        Without noise the rank decides, as in plain truncation, but only while the fitness rises. Where all members earn
        the same and gain nothing, which is best is not known yet, and a copy would cost the progress that fitness does
        not show: in a toy problem with such a plateau, copies by rank earn 24 of 40, and none 32.
        """
        if view.fitness[first] != view.fitness[other] or self.gate * view.standard_error(first, other) > 0:
            return False
        trials = [trial for trial in view.history.trials if trial.generation == view.generation]
        return any(trial.uid == view.uids[first] and trial.fitness > trial.fitness_before for trial in trials)

    def _ranks(self, view: PopulationView) -> tuple[np.ndarray, np.ndarray, int]:
        """Return the members best first, the donors among them, and the first rank that may be replaced."""
        size, by_rank = len(view), ranking(view.fitness, view.uids)
        share = self.share if view.progress < self.gentle_from or not view.generations else self.final_share
        donors = by_rank[: max(1, math.ceil(self.donors * size))]
        return by_rank, donors, max(1, size - max(1, math.floor(share * size)))

    def in_doubt(self, view: PopulationView) -> Sequence[int]:
        """Return the members whose replacement further episodes may decide otherwise, and the donors.

        The difference to the worst donor is then less than a standard error away from the gate. Members that started
        again a short time ago stay anyway.
        """
        view = blended(view) if self.blend_training else view
        by_rank, donors, first = self._ranks(view)
        doubtful, staying = [], self.in_grace(view)
        for slot in (slot for slot in by_rank[first:].tolist() if slot not in staying):
            difference = view.fitness[donors[-1]] - view.fitness[slot]
            error = view.standard_error(donors[-1], slot)
            if slot not in donors and abs(difference - self.gate * error) < error:
                doubtful.append(slot)
        return [*donors.tolist(), *doubtful] if doubtful else []

    def differs(self, view: PopulationView, better: int, worse: int) -> bool:
        """Whether a member is better than another one by more than `gate` standard errors."""
        difference = view.fitness[better] - view.fitness[worse]
        return bool(difference > 0 and difference > self.gate * view.standard_error(better, worse))

    def _keep_restarted(self, view: PopulationView, rows: list[SlotPlan]) -> None:
        """Let members that started again a short time ago keep their slots."""
        for slot in self.in_grace(view):
            if math.isfinite(view.fitness[slot]):
                rows[slot] = SlotPlan(slot, slot, explore=False)

    def in_grace(self, view: PopulationView) -> list[int]:
        """Return the slots of members that started again within the grace, and forget earlier ones.

        The uid of such a member, which has no parent, is noted as soon as the history has it, so that a clone in its
        slot has no grace.
        """
        recent = []
        for slot, end, *noted in view.state.get("restarted", []):
            uid = int(view.uids[slot])
            trials = view.history.of(uid)
            is_same = noted == [uid] if noted else not trials or trials[-1].parent_uid == NO_PARENT
            if end > view.generation and is_same:
                recent.append([slot, end, *([uid] if trials else noted)])
        view.state["restarted"] = recent
        return [slot for slot, *_ in recent]

    def begin_grace(self, view: PopulationView, slots: Sequence[int]) -> None:
        """Note that members start again in the next generation."""
        end = view.generation + 1 + share_of_generations(view, GRACE_SHARE, GRACE)
        earlier = [noted for noted in view.state["restarted"] if noted[0] not in slots]
        view.state["restarted"] = earlier + [[slot, end] for slot in slots]

    def _to_restart(self, view: PopulationView) -> list[int]:
        """Return the slots of `equals_to_restart`, the worst quarter if the best fitness has stalled, else no slot."""
        state, worst_first = view.state, ranking(view.fitness, view.uids)[:0:-1].tolist()  # without the best
        slots = self.equals_to_restart(view)
        if self._has_stalled(view) and self._may_restart(view):
            diverged = len(view) - len(worst_first) - 1  # which `sources` replaces
            slots = slots or worst_first[: max(0, len(view) // 4 - diverged)]
        if slots:
            state.update(stalled=0)
            self.begin_grace(view, slots)
        return slots

    def equals_to_restart(self, view: PopulationView) -> list[int]:
        """Return the slots of equal members that start again after the first generation: all but the best quarter.

        There are none where other values do not exist, where members were trained before the run, and in runs too short
        for members to learn after it.
        """
        is_short = 0 < view.generations <= GRACE
        if not self.spread_equals or is_short or view.trained_before or not are_equal(view):
            return []
        kept = ranking(view.fitness, view.uids)[: max(1, len(view) // 4)].tolist()
        return [slot for slot in range(len(view)) if slot not in kept]

    def _may_restart(self, view: PopulationView) -> bool:
        """Whether members of a stalled search may start again.

        They may where there is time to learn, none has just done so, and none was trained before the run.
        """
        has_time = not view.generations or view.progress < self.gentle_from
        return self.restart_stalled and has_time and not view.trained_before and not view.state["restarted"]

    def _has_stalled(self, view: PopulationView) -> bool:
        """Whether the best fitness has not risen by more than the gate for `STALLED_GENERATIONS`."""
        state, best = view.state, int(ranking(view.fitness, view.uids)[0])
        if view.fitness[best] > state.get("best", -math.inf) + self.gate * view.own_error(best):
            state.update(best=float(view.fitness[best]), stalled=0)
        else:
            state["stalled"] = state.get("stalled", 0) + 1
        return state["stalled"] >= STALLED_GENERATIONS

    def validate(self, population_size: int) -> None:
        """Raise `ConfigurationError` for a single member, which nothing can replace."""
        super().validate(population_size)
        require_members(self.title, population_size, 2)

    def check_budget(self, generations: int, where: str = "") -> None:
        """Raise `ConfigurationError` unless there are two generations, with one selection between them."""
        require_generations(self.title, generations, 2, where)


def share_of_generations(view: PopulationView, share: float, least: int) -> int:
    """Return a share of the run's generations, at least `least`, which is the result where the budget is unknown."""
    return max(least, int(share * view.generations))


def are_equal(view: PopulationView) -> bool:
    """Whether all members have trained one generation with the same values of hyperparameters that can have others."""
    if view.generation != 1 or len(view) < 2:
        return False
    values = [
        {name: genome.hyperparameters[name] for name in hp_config}
        for genome, hp_config in zip(view.genomes, view.hp_configs, strict=False)
    ]
    has_others = any(hp_config.has_several_values for hp_config in view.hp_configs)
    return bool(values) and has_others and all(found == values[0] for found in values)
