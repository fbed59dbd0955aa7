"""Multiple-Frequencies PBT (Doulazmi et al. 2025): groups that select at different frequencies.

Selection after short training prefers hyperparameters that pay off at once. A group that selects rarely gives the
others time, and members migrate between the groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agilerl_like.errors import ConfigurationError, check_init_names, is_count, set_tuple_field
from agilerl_like.hpo.selection import PopulationView, Selection, SlotPlan, ranking, require_generations
from agilerl_like.registry import register


@register("selection", "mf_pbt")
@check_init_names
@dataclass(frozen=True)
class MultiFrequencySelection(Selection):
    """Groups of equal size, a multiple of 4; group j selects every `frequencies[j]` generations.

    Within a group the worst quarter takes weights and hyperparameters of the best quarter, rank by rank, and is
    explored. A member of the third quarter, best first, is replaced by the best member of the other groups that has not
    been taken yet, if that one is strictly better: the migrant brings its hyperparameters if it comes from a group that
    selects less often, else it gets those of the best of its new group. The better half stays as it is. Every decision
    refers to the members before selection. Slots belong to the groups in turn: slot s to group s modulo their number.

    `frequencies` may be left out: [1] with fewer than 8 members, [1, 5] with up to 31, then [1, 2, 5, 10].
    """

    frequencies: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        set_tuple_field(self, "frequencies")
        if not all(map(is_count, self.frequencies)):
            raise ConfigurationError(f"frequencies={self.frequencies!r} must be whole numbers of at least 1")
        object.__setattr__(self, "frequencies", tuple(map(int, self.frequencies)))
        if list(self.frequencies) != sorted(self.frequencies):
            raise ConfigurationError(f"frequencies={self.frequencies!r} must be in ascending order")

    def frequencies_for(self, size: int) -> tuple[int, ...]:
        """Return the generations between two selections of each group."""
        if self.frequencies:
            return self.frequencies
        return (1, 2, 5, 10) if size >= 32 else (1, 5) if size >= 8 else (1,)

    def plan(self, view: PopulationView, rng: np.random.Generator) -> Sequence[SlotPlan]:
        """Return a row for every slot; nothing is drawn at random."""
        size, frequencies = len(view), self.frequencies_for(len(view))
        ranks = ranking(view.fitness, view.uids).tolist()
        ranks += sorted(set(range(size)) - set(ranks))  # diverged members are the worst
        group_of = [slot % len(frequencies) for slot in range(size)]
        rows = [SlotPlan(slot, slot, explore=False) for slot in range(size)]
        for group, frequency in enumerate(frequencies):
            if view.generation % frequency == 0:
                self._select(view, group, ranks, group_of, frequencies, rows)
        for slot in np.flatnonzero(~np.isfinite(view.fitness)).tolist():
            source = rows[slot].weights_from
            if not np.isfinite(view.fitness[source]):  # of a group that does not select now, or that has no better one
                rows[slot] = SlotPlan(ranks[0], ranks[0], explore=True)
        return rows

    def _select(
        self,
        view: PopulationView,
        group: int,
        ranks: list[int],
        group_of: list[int],
        frequencies: tuple[int, ...],
        rows: list[SlotPlan],
    ) -> None:
        own = [slot for slot in ranks if group_of[slot] == group]
        others = [slot for slot in ranks if group_of[slot] != group]
        scores = np.where(np.isfinite(view.fitness), view.fitness, -np.inf)
        quarter = len(own) // 4
        for winner, loser in zip(own[:quarter], own[-quarter:], strict=True):
            rows[loser] = SlotPlan(winner, winner, explore=True)
        for slot in own[2 * quarter : len(own) - quarter]:
            if not others or not scores[others[0]] > scores[slot]:
                continue
            donor = others.pop(0)
            is_slower = frequencies[group_of[donor]] > frequencies[group]
            brings_own = is_slower or not np.isfinite(view.fitness[own[0]])  # the whole group has diverged
            rows[slot] = SlotPlan(donor, donor if brings_own else own[0], explore=False)

    def validate(self, population_size: int) -> None:
        """Raise `ConfigurationError` unless the members can be divided into groups of a multiple of 4."""
        super().validate(population_size)
        groups = len(self.frequencies_for(population_size))
        if population_size % (4 * groups):
            raise ConfigurationError(
                f"population_size={population_size!r} cannot be used by selection 'mf_pbt' with {groups} "
                f"group{'s' * (groups > 1)}; allowed are multiples of {4 * groups}: 4 members or more in each group"
            )

    def check_budget(self, generations: int, where: str = "") -> None:
        """Raise `ConfigurationError` unless the slowest group selects at least once.

        With the default frequencies, which depend on the population's size, it is the fastest group.
        """
        slowest = max(self.frequencies, default=1)
        require_generations("selection 'mf_pbt'", generations, slowest + 1, where)
