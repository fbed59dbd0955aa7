"""`evolution="auto"`: the selection and the explorer that need no settings, because they adapt to members and budget.

In the first half of the budget members with different hyperparameters train side by side, without clones: twice the
worse half starts again with other hyperparameters, and after a quarter the worse half is removed. In the second half
clones of better members replace worse ones, and the learning rate falls. The best agent returns where all members have
lost what it can do, and fresh members replace others where no member earns more than a constant policy.

`tutorials/why_auto.md` has the measurements for and against each part; `python -m benchmarks.auto_parts` repeats those
on toy problems.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agilerl_like.errors import ConfigurationError, check_init_names, set_tuple_field
from agilerl_like.hpo.blended_fitness import blended
from agilerl_like.hpo.gated_selection import GatedSelection, share_of_generations
from agilerl_like.hpo.genome import WeightMix
from agilerl_like.hpo.history import History
from agilerl_like.hpo.pb2 import ENOUGH_MEMBERS, PB2
from agilerl_like.hpo.schedules import Schedule
from agilerl_like.hpo.selection import PopulationView, Selection, SlotForBest, SlotPlan, error_of_mean, ranking
from agilerl_like.registry import register

AUTO = "auto"
"""The value of `evolution` that selects both classes."""
LEAST_GENERATIONS = 10
"""Generations of a run from which on members are removed after shares of the budget."""
FINAL_LR = 0.05
"""Factor of the learning rate at the end of a run."""
PATIENCE, PATIENCE_SHARE = 2, 0.1
"""Generations without more than a constant policy after which members start again, and between two such starts: at
least 2, and in longer runs a share of them."""


@register("selection", AUTO)
@check_init_names
@dataclass(frozen=True)
class AutoSelection(GatedSelection):
    """`GatedSelection` for any run: with a single member, or in a single generation, nothing evolves.

    Where all members begin with the same hyperparameters, all but the best quarter start again with others after the
    first generation (`spread_equals`).

    For a share `warm_up` of the budget, no clones replace members whose hyperparameters differ, unless they have
    diverged, no member earns more than a constant policy, or the best agent of the run returns (below). Selection in
    the first generations would prefer members that learn fast at first: their clones take all slots within three
    generations, while others that learn more slowly would earn more. Where the budget is not known, or all members keep
    the same hyperparameters, there is no warm-up.

    After a share `restart_worse` of the budget, and after twice that share, the worse half of the members starts again
    with other hyperparameters, as far as the warm-up still lasts and they are behind the best by more than the gate:
    of many draws from wide ranges most learn nothing. These members have the grace of fresh ones, but the second start
    and the halving compare them with all others. 0 leaves all as they were drawn, and so do runs of fewer than ten
    generations.

    After each share `halve_at` of the budget the worse half of the members is removed for good, as in successive
    halving, as long as more than two are left, and the others take its env steps: four of eight members train 1.75
    times as long. Members are removed only where fitness is of use, and in runs of at least ten generations;
    `halve_at=()` keeps all.

    Where all members have been behind the best agent of the run for a tenth of the budget, by more than the gate and on
    the same env seeds, a clone of that agent replaces the worst of them, with other hyperparameters during the warm-up
    (`return_best`): the member that it was has trained on and lost what it could do.

    The learning rate of members without a schedule of their own falls from the share `anneal_from` of `max_steps` on,
    whatever other limit ends the run, in a straight line to a twentieth; 1 leaves it constant. It is a factor on each
    member's hyperparameter `lr`, which evolution changes as before.

    In a run of members that were trained before none starts again with initial weights, by whichever rule.
    """

    final_share: float = 0.5
    warm_up: float = 1 / 2
    restart_worse: float = 0.1
    halve_at: tuple[float, ...] = (1 / 4,)
    return_best: bool = True
    anneal_from: float = 1 / 2

    needs_baseline = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("warm_up", "restart_worse", "anneal_from"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must lie between 0 and 1")
        set_tuple_field(self, "halve_at")
        if not all(isinstance(share, int | float) and 0 < share < 1 for share in self.halve_at):
            raise ConfigurationError(f"halve_at={self.halve_at!r}; allowed are shares of the budget between 0 and 1")

    def schedules(self) -> Mapping[str, Schedule]:
        """Return the schedule of lr: constant up to `anneal_from` of the budget, then a line down to a twentieth."""
        return {"lr": ((self.anneal_from, 1.0), (1.0, FINAL_LR))} if self.anneal_from < 1 else {}

    def slot_for_best(self, view: PopulationView) -> SlotForBest | None:
        """Return the slot of the worst member where all have been behind the best agent for a tenth of the budget."""
        state = view.state
        if not self.return_best:
            return None
        state["behind"] = state.get("behind", 0) + 1 if is_behind(view, self.gate) else 0
        patience = share_of_generations(view, PATIENCE_SHARE, PATIENCE)
        if state["behind"] < patience or view.generations < LEAST_GENERATIONS or len(view) < 2:
            return None
        healthy, staying = ranking(view.fitness, view.uids).tolist(), self.in_grace(view)
        worst_first = [*(slot for slot in range(len(view)) if slot not in healthy), *reversed(healthy)]
        found = next((slot for slot in worst_first if slot not in staying), None)
        if found is None:
            return None
        state["behind"], state["returned"] = 0, [found, view.generation]
        return SlotForBest(found, explore=self.warms_up(view))

    @staticmethod
    def least_after_halving(size: int) -> int:
        """Return how many members stay of `size`: the better half, and at least two."""
        return min(size, max(2, math.ceil(size / 2)))

    def least_left(self, size: int) -> int:
        for _ in self.halve_at:
            size = self.least_after_halving(size)
        return size

    def removed(self, view: PopulationView) -> Sequence[int]:
        """Return the slots of the worse half of the members after each share `halve_at` of the budget."""
        due = sum(view.progress >= share for share in self.halve_at)
        if due <= view.state.get("halvings", 0) or view.generations < LEAST_GENERATIONS or is_constant(view):
            return []
        size = max(self.least_after_halving(len(view)), view.least_members)
        fitness = blended(view).fitness if self.blend_training else view.fitness
        healthy = ranking(fitness, view.uids).tolist()
        kept = sorted([*healthy, *(slot for slot in range(len(view)) if slot not in healthy)][:size])
        view.state["halvings"] = view.state.get("halvings", 0) + 1
        self.in_grace(view)
        noted = view.state["restarted"]
        view.state["restarted"] = [[kept.index(slot), *more] for slot, *more in noted if slot in kept]
        if (clone := returned_clone(view)) is not None:
            view.state["returned"] = [kept.index(clone) if clone in kept else None, view.generation]
        return [slot for slot in range(len(view)) if slot not in kept]

    def plan(self, view: PopulationView, rng: np.random.Generator) -> Sequence[SlotPlan]:
        """Return a row for every slot.

        While the best member earns about what a constant policy does, fitness is of no use, and `_rows_of_failure`
        takes the place of selection.
        """
        warms_up = self.warms_up(view)  # which generation 1 decides, whatever happens in it
        is_due = self._second_draw_is_due(view)  # one that another rule prevents is left out
        if equals := self.equals_to_restart(view):
            return self._rows_of_restart(view, equals)
        view.state["idle"] = view.state.get("idle", 0) + 1 if is_constant(view) else 0
        if view.state["idle"]:
            return self._rows_of_failure(view)
        return self._rows_of_warm_up(view, is_due=is_due) if warms_up else super().plan(view, rng)

    def in_doubt(self, view: PopulationView) -> Sequence[int]:
        """Return the members whose replacement further episodes may decide otherwise.

        There are none during the warm-up, none in generation 1, before `plan` has found out whether there is one, and
        none while fitness does not decide, because the best member earns what a constant policy does.
        """
        is_decided = view.generation == 1 or self.warms_up(view) or is_constant(view)
        return [] if is_decided else super().in_doubt(view)

    def warms_up(self, view: PopulationView) -> bool:
        """Whether members with different hyperparameters are still in their share `warm_up` of the budget.

        A warm-up that has ended does not begin again where a larger budget lowers the share.
        """
        if view.generation == 1:
            drawn = [trial.hyperparameters for trial in view.history.trials if trial.generation == 1]
            view.state["warms_up"] = bool(self.equals_to_restart(view)) or any(values != drawn[0] for values in drawn)
        if not view.generations or view.progress > self.warm_up:
            view.state["warms_up"] = False
        return bool(view.state.get("warms_up"))

    def _second_draw_is_due(self, view: PopulationView) -> bool:
        """Whether the run has passed a share at which the worse half starts again since the last generation.

        These are counted, because the expected number of generations varies where seconds or updates limit the run.
        """
        due = [round(turn * self.restart_worse * view.generations) for turn in (1, 2)]
        is_long = due[0] > 0 and view.generations >= LEAST_GENERATIONS
        before = view.state.get("second_draws", 0)
        view.state["second_draws"] = max(before, sum(view.generation >= its for its in due) * is_long)
        return view.state["second_draws"] > before

    def _rows_of_warm_up(self, view: PopulationView, *, is_due: bool) -> list[SlotPlan]:
        """Return a row for every slot in the warm-up: all stay, but the worse half starts again where it is due.

        A member stays, too, if it earns more in training than the best does in the evaluation, and all do if they were
        trained before the run.
        """
        by_rank = ranking(view.fitness, view.uids).tolist()
        best, num_better = by_rank[0], len(view) - len(view) // 2
        worse = by_rank[num_better:] if is_due and not view.trained_before else []
        if view.train_returns is not None:
            worse = [slot for slot in worse if not view.train_returns[slot] > view.fitness[best]]
        return self._rows_of_restart(view, [slot for slot in worse if self.differs(view, best, slot)])

    def _rows_of_restart(self, view: PopulationView, slots: Sequence[int]) -> list[SlotPlan]:
        """Return a row for every slot: these start again with other hyperparameters, and all other members stay."""
        rows = self._rows_without_selection(view)
        for slot in slots:
            rows[slot] = SlotPlan(slot, slot, explore=True, start=WeightMix())
        if slots:
            self.in_grace(view)
            self.begin_grace(view, slots)
        return rows

    def _rows_without_selection(self, view: PopulationView) -> list[SlotPlan]:
        """Return a row for every slot: all members stay, but diverged ones become clones of the best."""
        by_rank = ranking(view.fitness, view.uids).tolist()
        sources = [slot if slot in by_rank else by_rank[0] for slot in range(len(view))]
        return [SlotPlan(source, source, explore=source != slot) for slot, source in enumerate(sources)]

    def _rows_of_failure(self, view: PopulationView) -> list[SlotPlan]:
        """Return a row for every slot where no member earns more than a constant policy.

        Members that earn more in training, with noise, stay, and so does a clone of the best agent in the generation in
        which it returned. Up to half of the members, the oldest of the others, are
        replaced, in turn by clones of members that earn more in training and by fresh members: a higher training return
        may be luck, and the networks of that member may be saturated, so that no clone learns. Where none earns more in
        training, fresh members alone replace them, after every tenth of the budget (`PATIENCE`). Fresh members explore
        more, and have a fifth of it to learn (`GRACE`). They replace no member that was trained before the run.
        """
        rows, finders = self._rows_without_selection(view), finders_of(view)
        patience = share_of_generations(view, PATIENCE_SHARE, PATIENCE)
        best = int(ranking(view.fitness, view.uids)[0])
        staying = {*self.in_grace(view), *(finders or [best]), returned_clone(view)}
        healthy = [slot for slot in range(len(view)) if math.isfinite(view.fitness[slot])]
        by_age = sorted((slot for slot in healthy if slot not in staying), key=lambda slot: view.uids[slot])
        oldest = by_age[: len(view) // 2] if finders or view.state["idle"] % patience == 0 else []
        cloned = oldest[::2] if finders else []
        for number, slot in enumerate(cloned):
            source = finders[number % len(finders)]
            rows[slot] = SlotPlan(source, source, explore=True)
        fresh = [] if view.trained_before else [slot for slot in oldest if slot not in cloned]
        for slot in fresh:
            rows[slot] = SlotPlan(slot, slot, explore=True, start=WeightMix(), wider=True)
        self.begin_grace(view, fresh)
        return rows

    def validate(self, population_size: int) -> None:
        """Accept every population."""
        Selection.validate(self, population_size)

    def check_budget(self, generations: int, where: str = "") -> None:
        """Accept every budget."""


def is_behind(view: PopulationView, gate: float) -> bool:
    """Whether each member is behind the best agent of the run by more than `gate` standard errors, on equal seeds.

    A member without a common seed is not known to be behind, such as one whose worst instance is another. No member is
    behind an agent that earns what a constant policy does.
    """
    if view.best_returns is None or view.returns is None or not np.isfinite(view.best_returns).any():
        return False
    if _is_of_constant(view, float(np.nanmean(view.best_returns)), error_of_mean(view.best_returns)):
        return False
    for own, score in zip(view.returns, view.fitness, strict=True):
        gaps = view.best_returns - own[: len(view.best_returns)]
        gaps = gaps[np.isfinite(gaps)]
        if math.isfinite(score) and not (len(gaps) > 0 and gaps.mean() > gate * error_of_mean(gaps)):
            return False
    return True


def is_constant(view: PopulationView) -> bool:
    """Whether the best member earns what a constant policy does.

    A clone of the best agent that has just taken a slot does not count: it has that agent's fitness, and no member of
    this generation has earned it.
    """
    by_rank = [slot for slot in ranking(view.fitness, view.uids).tolist() if slot != returned_clone(view)]
    return bool(by_rank) and _is_of_constant(view, float(view.fitness[by_rank[0]]), view.own_error(by_rank[0]))


def returned_clone(view: PopulationView) -> int | None:
    """Return the slot that a clone of the best agent has taken in this generation; None if there is none."""
    slot, generation = view.state.get("returned", (None, 0))
    return slot if generation == view.generation else None


def _is_of_constant(view: PopulationView, fitness: float, error: float) -> bool:
    """Whether a fitness is that of a constant policy, up to 2 % of their spread, two standard errors and rounding.

    The standard errors count up to a tenth of the spread: returns that vary more are not those of a constant policy.
    """
    baseline, spread = view.state.get("baseline", (math.nan, math.nan))
    return bool(abs(fitness - baseline) <= 0.02 * spread + min(2 * error, 0.1 * spread) + _rounding_of(baseline))


def _rounding_of(baseline: float) -> float:
    """Return the difference up to which a return is that of a constant policy, because means are rounded."""
    return 1e-9 * max(1.0, abs(baseline))


def finders_of(view: PopulationView) -> list[int]:
    """Return the slots of members that earn more in training than any constant policy, best first."""
    if view.train_returns is None:
        return []
    baseline, spread = view.state["baseline"]
    scores = {slot: score for slot, score in enumerate(view.train_returns.tolist()) if math.isfinite(score)}
    found = [slot for slot, score in scores.items() if score > baseline + 0.1 * spread + _rounding_of(baseline)]
    return sorted((slot for slot in found if math.isfinite(view.fitness[slot])), key=lambda slot: -scores[slot])


@register("explorer", AUTO)
@check_init_names
@dataclass(frozen=True)
class AutoExplorer(PB2):
    """`PB2` for any run: normal steps in populations of fewer than 16 members, whose trials are too few for it.

    The process sees at most one trial of each member in a generation. With few members most of its box is unexplored,
    and the bonus for uncertainty leads to the corners of the box, generation after generation in the same direction.
    """

    def uses_process(self, history: History) -> bool:
        """Whether the population is large enough for the process."""
        return history.population_size >= ENOUGH_MEMBERS

    def validate(self, population_size: int) -> None:
        """Accept every population."""
