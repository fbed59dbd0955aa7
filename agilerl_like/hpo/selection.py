"""Selection: fitness goes in, a plan of parents comes out.

Only ranks count, so rescaling the fitness changes nothing. Random draws refer to ranks and not to slots, so the order
in which members are stored changes nothing either. A member whose fitness is not finite has no rank: it takes part in
no tournament, is never a parent, and never survives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from inspect import signature
from typing import Any, ClassVar, NamedTuple

import numpy as np

from agilerl_like.errors import (
    ConfigurationError,
    PopulationDivergedError,
    check_init_names,
    check_scalar_fields,
    set_count_field,
)
from agilerl_like.hpo.genome import Genome, WeightMix
from agilerl_like.hpo.history import History
from agilerl_like.hpo.hyperparameters import HyperparameterConfig
from agilerl_like.hpo.schedules import Schedule
from agilerl_like.registry import register
from agilerl_like.seeding import Purpose, fresh_seed, generator

BASELINE_GENERATION = 3
"""Before, members have hardly learned."""


@dataclass(frozen=True, eq=False)
class PopulationView:
    """What a selection strategy may base its plan on; members are in the order of their slots."""

    fitness: np.ndarray  # [P], nan or infinite for a member that diverged
    uids: Sequence[int]  # [P]
    genomes: Sequence[Genome]  # [P]
    generation: int
    """The generation that has just been evaluated; the first is 1."""
    history: History = field(default_factory=History)
    """Trials of all generations so far, this one included."""
    returns: np.ndarray | None = None
    """Returns of evaluation episodes `[P, K]`, of which fitness is the mean: a column is one env seed, nan where a
    member did not play it, or its result on another instance decides; None if fitness is not a mean return."""
    generations: int = 0
    """Generations that the run's budget allows; 0 if it is not known."""
    hp_configs: Sequence[HyperparameterConfig] = ()
    """The ranges of each member; `next_generation` sets them."""
    train_returns: np.ndarray | None = None
    """Mean return of each member's training episodes that ended in the generation `[P]`; nan where none did. None if
    fitness is another measure: an info, a rating, the lowest or the median of instances, part of an episode
    (`eval_steps`), the return in another env (`eval_env`), where training wrappers may change the reward, or members
    train against opponents other than each other."""
    state: dict[str, Any] = field(default_factory=dict)
    """What the strategy wrote into it in earlier generations: plain data, which checkpoints hold: text, numbers, True,
    False, None, lists, dictionaries whose keys are text, and arrays and numbers of numpy, which come back as lists and
    numbers, as keys come back sorted. Other data is an error after `plan`. Every process has the same, because every
    process makes the same plan."""
    least_members: int = 1
    """The members that `removed` must leave: one for each process, or all where the population cannot shrink."""
    best_returns: np.ndarray | None = None
    """Returns of the best agent of the run on the env seeds of the first columns of `returns`; None if it did not play
    them, because a member leads it, or if fitness is not a mean return."""
    trained_before: bool = False
    """Whether members were trained before the run, so that one with initial weights would lack more than the others."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fitness", np.asarray(self.fitness, dtype=float))
        for name in ("returns", "train_returns", "best_returns"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=float))

    def __len__(self) -> int:
        return len(self.fitness)

    @property
    def progress(self) -> float:
        """The share of the budget that is spent, in [0, 1]; 0 if the budget is not known."""
        return min(1.0, self.generation / self.generations) if self.generations else 0.0

    def standard_error(self, one: int, other: int) -> float:
        """Return the standard error of the difference in fitness of two members, over the env seeds both played.

        With fewer than two common seeds, as where the worst instance of each decides, it follows from the errors of
        both; it is 0 where one of them played fewer than two.
        """
        if self.returns is None:
            return 0.0
        played = np.isfinite(self.returns[[one, other]])
        if played.all(0).sum() > 1:
            return error_of_mean(self.returns[one] - self.returns[other])
        return math.hypot(self.own_error(one), self.own_error(other)) if (played.sum(1) > 1).all() else 0.0

    def own_error(self, slot: int) -> float:
        """Return the standard error of a member's fitness, 0 where it cannot be estimated."""
        return 0.0 if self.returns is None else error_of_mean(self.returns[slot])


def error_of_mean(values: np.ndarray) -> float:
    """Return the standard error of the mean of the finite values, 0 of fewer than two."""
    known = values[np.isfinite(values)]
    return float(known.std(ddof=1) / math.sqrt(len(known))) if len(known) > 1 else 0.0


class SlotPlan(NamedTuple):
    """The content of one slot in the next generation; the first two are slots of this generation.

    A member whose weights come from its own slot survives, without `start`: it keeps its uid and is not a clone.
    """

    weights_from: int
    """Weights, Adam moments, normalizers and architecture."""
    hyperparameters_from: int
    """Another slot than `weights_from` where a member takes over another one's hyperparameters (MF-PBT), within the
    ranges and choices that come with the weights; other settings are those of the weights."""
    explore: bool
    """Whether the explorer changes the genome."""
    start: WeightMix | None = None
    """`WeightMix()` for a fresh member: initial weights, and a genome that the explorer draws from the ranges;
    `WeightMix(0.2, 0.1)` for weights that are shrunk and perturbed, with moments of 0; None: the parent's weights."""
    wider: bool = False
    """Whether what governs exploration is drawn from the upper half of its ranges (see `exploration`)."""


class SlotForBest(NamedTuple):
    """The slot that a clone of the best agent of the run takes."""

    slot: int
    explore: bool
    """Whether the explorer changes the clone's genome."""


class Selected(NamedTuple):
    """The result of selection by hand: the best agent, and the next population; with elitism it comes first."""

    elite: Any
    population: Any


@dataclass(frozen=True)
class Selection:
    """A selection strategy: a subclass overrides `parents`, or `plan` if it needs more than fitness.

    `seed` is for selection by hand alone; a run passes its own random generators.
    """

    seed: int | None = field(default=None, kw_only=True)

    @cached_property
    def _manual_rng(self) -> np.random.Generator:
        return generator(fresh_seed() if self.seed is None else self.seed, Purpose.MANUAL, Purpose.SELECTION)

    def parents(
        self, fitness: np.ndarray, rng: np.random.Generator, *, uids: Sequence[int] | np.ndarray | None = None
    ) -> np.ndarray:
        """Return as many indices of parents as there are members; ties go to the smaller uid (or index).

        Raises `PopulationDivergedError` if no fitness is finite.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither parents() nor plan()")

    def plan(self, view: PopulationView, rng: np.random.Generator) -> Sequence[SlotPlan]:
        """Return a row for every slot.

        By default the parents keep their slots, and clones of them, which are explored, replace the other members. All
        random draws must come from `rng`, so that every process gets the same plan.
        """
        sources = assign_slots(self._checked_parents(view.fitness, rng, view.uids)).tolist()
        return [SlotPlan(source, source, explore=source != slot) for slot, source in enumerate(sources)]

    def _checked_parents(
        self, fitness: np.ndarray, rng: np.random.Generator, uids: Sequence[int] | np.ndarray
    ) -> np.ndarray:
        """Return the parents; raise `ConfigurationError` unless they are indices of members."""
        found = self.parents(fitness, rng, uids=uids)
        parents, size = np.asarray(found), len(fitness)
        is_whole = parents.shape == (size,) and parents.dtype.kind in "iu"
        if not is_whole or not ((parents >= 0) & (parents < size)).all():
            raise ConfigurationError(
                f"{type(self).__name__}.parents returned {found!r:.100}; allowed are {size} whole numbers from 0 to "
                f"{size - 1}, an index for each member"
            )
        return parents

    def slot_for_best(self, view: PopulationView) -> SlotForBest | None:
        """Return the slot of a member that a clone of the best agent of the run is to replace; by default none.

        It is called after each generation of a run, before `removed` and `plan`, which see the clone as a member with
        the fitness of the best agent on the same seeds. Where `view.best_returns` is None it must be None. Runs whose
        members keep experience do not call it, because the best agent has none.
        """
        return None

    def removed(self, view: PopulationView) -> Sequence[int]:
        """Return the slots of members to remove for good, before `plan` sees the others; by default none.

        The others move up to the first slots, in their order, and what the strategy noted by slot in `view.state` it
        changes accordingly. They take the env steps that were left to all, in as many generations as before. The
        population never has fewer members than `view.least_members`.
        """
        return ()

    def least_left(self, size: int) -> int:
        """Return how many of `size` members a run keeps at least, by default all: `removed` may remove the others.

        `processes="auto"` starts at most so many processes, since each keeps a member.
        """
        return size

    def in_doubt(self, view: PopulationView) -> Sequence[int]:
        """Return the slots whose members should be evaluated in more episodes before `plan`; by default none."""
        return ()

    def schedules(self) -> Mapping[str, Schedule]:
        """Return schedules by hyperparameter, during a run, for members that have none of their own; by default none.

        They are points or registered names, which checkpoints can hold. Runs whose members keep experience do not call
        it.
        """
        return {}

    needs_baseline: ClassVar[bool] = False
    """Whether `view.state["baseline"]` is to have the largest return of a constant policy and the spread of several,
    from generation `BASELINE_GENERATION` on; measured once, by an episode of each."""

    def validate(self, population_size: int) -> None:
        """Raise `ConfigurationError` if this strategy cannot be used for a population of this size."""
        if population_size < 1:
            raise ConfigurationError(f"population_size={population_size!r} must be at least 1")
        arguments = signature(self.parents)
        try:
            arguments.bind(None, None, uids=None)
        except TypeError as error:
            raise ConfigurationError(
                f"{type(self).__name__}.parents{arguments} cannot be called ({error}); allowed is "
                "parents(self, fitness, rng, *, uids=None)"
            ) from error

    def check_budget(self, generations: int, where: str = "") -> None:
        """Raise `ConfigurationError` if this strategy has no use in a run of so many generations.

        `where` names the settings that they follow from.
        """

    def select(self, population: Any) -> Selected:
        """Return the best agent and the next population, from the last entry of each agent's `fitness`.

        A list of agents gives a list of clones with new indices; only the best keeps its own index, if it comes first.

        Raises:
            ConfigurationError: an agent has no fitness; or the strategy overrides `plan` alone, which needs a run.
        """
        if type(self).parents is Selection.parents and type(self).plan is not Selection.plan:
            raise ConfigurationError(
                f"{type(self).__name__} plans the generations of a run, and cannot select by hand; allowed are "
                "strategies that choose parents, such as TournamentSelection, and train_on_policy(selection_strategy=…)"
            )
        agents = list(population)
        self.validate(len(agents))
        fitness = _last_fitness(agents)
        uids = [agent.index for agent in agents]
        parents = self._checked_parents(fitness, self._manual_rng, uids)
        best = ranking(fitness, uids)[0]
        if hasattr(population, "clone_selected"):
            return Selected(agents[best], population.clone_selected(parents))
        spare = range(max(uids) + 1, max(uids) + 1 + len(parents))
        if parents[0] == best:
            return Selected(agents[best], [agents[best].clone(), *_clones(agents, parents[1:], spare)])
        return Selected(agents[best], _clones(agents, parents, spare))


@register("selection", "tournament")
@check_init_names
@dataclass(frozen=True)
class TournamentSelection(Selection):
    """Each parent is the best of `tournament_size` different members drawn at random.

    A tournament holds at most all members with a finite fitness, so a large one always finds the best; of size 1 it is
    a uniform draw. With `elitism` the best member is the first parent. `population_size` is AgileRL's and may be left
    out. `eval_loop` is from AgileRL's older releases, where that many last fitnesses are averaged; here only the last
    one counts.
    """

    tournament_size: int = 2
    elitism: bool = True
    population_size: int | None = None
    eval_loop: InitVar[int] = 1

    def __post_init__(self, eval_loop: int) -> None:
        check_scalar_fields(self)
        if eval_loop != 1:
            raise ConfigurationError(
                f"eval_loop={eval_loop!r}; allowed is 1, because only the last fitness counts: the mean over the "
                "episodes of train_on_policy(eval_loop=…) or test(loop=…)"
            )
        set_count_field(self, "tournament_size")

    def parents(
        self, fitness: np.ndarray, rng: np.random.Generator, *, uids: Sequence[int] | np.ndarray | None = None
    ) -> np.ndarray:
        """Return the elite, if it is protected, and the winners of one tournament for every other slot."""
        by_rank = ranking(fitness, uids)
        elite = by_rank[: int(self.elitism)]
        shuffled_ranks = rng.random((len(fitness) - len(elite), len(by_rank))).argsort(axis=1)
        winners = shuffled_ranks[:, : self.tournament_size].min(axis=1)
        return np.concatenate([elite, by_rank[winners]])

    def validate(self, population_size: int) -> None:
        """Raise `ConfigurationError` if a tournament does not fit into the population."""
        super().validate(population_size)
        if self.population_size not in (None, population_size):
            raise ConfigurationError(
                f"population_size={self.population_size!r} differs from the population's {population_size}; omit it"
            )
        if self.tournament_size > population_size:
            alone = (
                "; a population of one trains with evolution='auto' (in YAML `evolution: auto`) or without selection "
                "and mutation (in YAML `mutation: null`)"
            )
            raise ConfigurationError(
                f"tournament_size={self.tournament_size!r} must not be greater than the population's {population_size}"
                f"{alone if population_size == 1 else ''}"
            )


@register("selection", "truncation")
@check_init_names
@dataclass(frozen=True)
class TruncationSelection(Selection):
    """Copies of members drawn from the best `fraction` replace the worst `fraction` (Jaderberg et al. 2017)."""

    fraction: float = 0.25

    def __post_init__(self) -> None:
        check_scalar_fields(self)
        if not 0 < self.fraction <= 0.5:
            raise ConfigurationError(f"fraction={self.fraction!r} must be greater than 0 and at most 0.5")

    def parents(
        self, fitness: np.ndarray, rng: np.random.Generator, *, uids: Sequence[int] | np.ndarray | None = None
    ) -> np.ndarray:
        """Return the survivors, best first, and a draw from the top for every member that is replaced.

        At least one member is replaced where there are two. Members without a finite fitness count as the worst and are
        all replaced.
        """
        by_rank = ranking(fitness, uids)
        share = max(1, int(self.fraction * len(fitness)))
        survivors = by_rank[: max(1, len(fitness) - share)]
        top = by_rank[:share]
        return np.concatenate([survivors, rng.choice(top, len(fitness) - len(survivors))])


def best_of(agents: Sequence[Any]) -> Any:
    """Return the agent with the highest last entry of `fitness`; ties go to the smaller `index`.

    Raises:
        ConfigurationError: an agent has no fitness.
    """
    return agents[ranking(_last_fitness(agents), [agent.index for agent in agents])[0]]


def _last_fitness(agents: Sequence[Any]) -> np.ndarray:
    for agent in agents:
        if not agent.fitness:
            raise ConfigurationError(f"agent {agent.index} has no fitness yet: call its test() first")
    return np.array([agent.fitness[-1] for agent in agents], dtype=float)


def ranking(fitness: np.ndarray, uids: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
    """Return the indices of the members with finite fitness, best first; ties go to the smaller uid (or index)."""
    fitness = np.asarray(fitness, dtype=float)
    healthy = np.flatnonzero(np.isfinite(fitness))
    if not len(healthy):
        raise PopulationDivergedError(f"no member has a finite fitness: {fitness.tolist()}")
    names = np.arange(len(fitness)) if uids is None else np.asarray(uids)
    return healthy[np.lexsort((names[healthy], -fitness[healthy]))]


def assign_slots(parents: np.ndarray) -> np.ndarray:
    """Return the source of each slot: every parent keeps its own slot, its further copies fill the free slots.

    A member whose slot holds its own index survives.
    """
    sources = np.full(len(parents), -1)
    sources[parents] = parents
    _, first = np.unique(parents, return_index=True)
    sources[sources < 0] = np.delete(parents, first)
    return sources


def check_plan(plan: Any, population_size: int, selection: Selection) -> None:
    """Raise `ConfigurationError` unless a plan has a legal row for every slot, and names slots that exist."""
    name, last = type(selection).__name__, population_size - 1
    if not isinstance(plan, list | tuple):
        raise ConfigurationError(f"{name}.plan returned {plan!r:.100}; allowed is a list with a SlotPlan for each slot")
    if len(plan) != population_size:
        raise ConfigurationError(f"{name} planned {len(plan)} slots; the population has {population_size}")
    for slot, row in enumerate(plan):
        if not isinstance(row, SlotPlan) or not all(
            isinstance(its, bool | np.bool_) for its in (row.explore, row.wider)
        ):
            raise ConfigurationError(
                f"{name} planned {row!r:.200} for slot {slot}; allowed is SlotPlan(weights_from, hyperparameters_from, "
                "explore, start=None, wider=False), where explore and wider are True or False"
            )
        for source in (row.weights_from, row.hyperparameters_from):
            if not isinstance(source, int | np.integer) or not 0 <= source <= last:
                raise ConfigurationError(f"{name} fills slot {slot} from slot {source!r}; allowed are 0 to {last}")
        if row.start is not None and not _is_legal_mix(row.start):
            raise ConfigurationError(
                f"{name} planned start={row.start!r:.100} for slot {slot}; allowed are None and WeightMix(parent, "
                "initial) of finite numbers that are not negative, with initial=1 where parent is 0"
            )


def _is_legal_mix(start: Any) -> bool:
    """Return whether a mix is of legal shares; a fresh member has initial weights as they are drawn."""
    are_shares = isinstance(start, WeightMix) and all(
        isinstance(share, int | float) and 0 <= share < math.inf for share in start
    )
    return are_shares and (not start.is_fresh or start.initial == 1)


def check_state(state: Mapping[Any, Any], selection: Selection) -> None:
    """Raise `ConfigurationError` unless a checkpoint returns the state of a strategy as it is."""
    for key, value in state.items():
        if not isinstance(key, str) or not _is_storable(value):
            raise ConfigurationError(
                f"{type(selection).__name__} wrote view.state[{key!r:.100}]={value!r:.200}; allowed are keys that are "
                "text and, as values, text, numbers, True, False, None, arrays, lists, and dictionaries of such "
                "whose keys are text, because a checkpoint returns others changed"
            )


def _is_storable(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_storable(its) for key, its in value.items())
    if isinstance(value, list):
        return all(map(_is_storable, value))
    return value is None or isinstance(value, str | int | float | np.generic | np.ndarray)


def saved_form(value: Any) -> Any:
    """Return a value of a strategy's state as a checkpoint returns it: keys sorted, data of numpy as numbers and lists.

    Strategies receive this form in every run, so that a resumed run makes the same plans as an uninterrupted one.
    """
    if isinstance(value, dict):
        return {key: saved_form(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list):
        return [saved_form(part) for part in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def check_slots(name: str, found: Any, size: int, *, different: bool = False) -> list[int]:
    """Return the slots that a strategy's method, called `name`, has returned, which may be an array.

    Raises:
        ConfigurationError: they are not slots of a population of this size, or not `different` ones.
    """
    slots: list[Any] = [*found] if isinstance(found, Iterable) else [None]
    is_legal = all(isinstance(its, int | np.integer) and not isinstance(its, bool) and 0 <= its < size for its in slots)
    if not is_legal or (different and len({*slots}) < len(slots)):
        raise ConfigurationError(
            f"{name} returned {found!r:.100}; allowed is a list of {'different ' * different}slots from 0 to {size - 1}"
        )
    return slots


def check_removed(removed: Any, view: PopulationView, selection: Selection) -> list[int]:
    """Return the slots to remove.

    Raises:
        ConfigurationError: they are not different slots, or not enough members stay.
    """
    name, size = type(selection).__name__, len(view)
    slots = check_slots(f"{name}.removed", removed, size, different=True)
    if size - len(slots) < view.least_members:
        raise ConfigurationError(
            f"{name}.removed leaves {size - len(slots)} of {size} members; allowed are at least {view.least_members}"
        )
    return slots


def check_slot_for_best(row: SlotForBest, view: PopulationView, selection: Selection) -> None:
    """Raise `ConfigurationError` unless a clone of the best agent can take this slot."""
    name = type(selection).__name__
    is_row = isinstance(row, SlotForBest) and isinstance(row.slot, int | np.integer)
    if not is_row or not 0 <= row.slot < len(view):
        raise ConfigurationError(
            f"{name}.slot_for_best returned {row!r:.100}; allowed are SlotForBest with a slot from 0 to "
            f"{len(view) - 1}, and None"
        )
    if view.best_returns is None:
        raise ConfigurationError(
            f"{name}.slot_for_best returned {row!r}; allowed is None, because the best agent has not played the seeds "
            "of this generation (view.best_returns is None)"
        )


def require_members(strategy: str, size: int, least: int) -> None:
    """Raise `ConfigurationError` if a population has fewer members than a strategy needs."""
    if size < least:
        raise ConfigurationError(f"population_size={size!r} is too small for {strategy}; it needs at least {least}")


def require_generations(strategy: str, generations: int, least: int, where: str) -> None:
    """Raise `ConfigurationError` if a budget has fewer generations than a strategy needs."""
    if generations < least:
        raise ConfigurationError(
            f"{where or f'{generations} generations'}: {strategy} needs a budget of at least {least} generations; "
            "lower evo_steps or raise max_steps"
        )


def _clones(agents: list[Any], parents: np.ndarray, indices: range) -> list[Any]:
    return [agents[parent].clone(index=index) for parent, index in zip(parents, indices, strict=False)]
