from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import comb, exp, inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agilerl_like.errors import ConfigurationError, PopulationDivergedError
from agilerl_like.hpo import (
    HyperbandSelection,
    MultiFrequencySelection,
    RestartingSelection,
    Selection,
    TournamentSelection,
    TruncationSelection,
)
from agilerl_like.hpo.selection import assign_slots

seeds = st.integers(0, 2**32 - 1)
strategies = st.one_of(
    st.builds(TournamentSelection, st.integers(1, 12), st.booleans()),
    st.builds(TruncationSelection, st.floats(0.01, 0.5)),
)
scores = st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=12)
scores_with_nan = st.lists(st.sampled_from([nan, inf, -inf, 0.0, 1.0, 2.0]), min_size=1, max_size=12)


def parents(selection: Selection, fitness: list[float], seed: int = 0, uids: list[int] | None = None) -> list[int]:
    return selection.parents(np.array(fitness), np.random.default_rng(seed), uids=uids).tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
def test_a_member_wins_with_the_probability_from_combinatorics(size: int, assert_frequency) -> None:
    fitness = [3.0, 60.0, -2.0, 10.0, 9.0, 4.0]
    rounds, members = 500, len(fitness)
    rng = np.random.default_rng(size)
    tournament = TournamentSelection(size, elitism=False)
    wins = np.bincount([w for _ in range(rounds) for w in tournament.parents(np.array(fitness), rng)], minlength=6)
    for rank, member in enumerate(np.argsort(fitness)[::-1]):
        # a member wins if it is drawn and all its size - 1 opponents are among the members below it
        probability = comb(members - 1 - rank, size - 1) / comb(members, size)
        if 0 < probability < 1:
            assert_frequency(int(wins[member]), rounds * members, probability)
        else:
            assert wins[member] == rounds * members * probability
    if size == 1:
        assert probability == pytest.approx(1 / members)


@given(scores, st.integers(0, 10**6), st.booleans(), seeds)
def test_a_tournament_of_all_is_argmax(fitness: list[float], extra: int, elitism: bool, seed: int) -> None:
    best = int(np.argmax(fitness))  # the first of equals, as ties go to the smaller index
    assert parents(TournamentSelection(len(fitness) + extra, elitism), fitness, seed) == [best] * len(fitness)


@given(strategies, scores, seeds)
def test_monotone_transforms_of_fitness_change_nothing(selection: Selection, fitness: list[float], seed: int) -> None:
    expected = parents(selection, fitness, seed)
    for transform in (lambda x: 3 * x - 7, lambda x: x**3, lambda x: exp(x / 5), lambda x: x * 1e-200):
        assert parents(selection, [transform(x) for x in fitness], seed) == expected


@given(strategies, scores_with_nan, seeds)
def test_a_member_without_finite_fitness_is_never_a_parent(
    selection: Selection, fitness: list[float], seed: int
) -> None:
    if np.isfinite(fitness).any():
        assert np.isfinite(np.array(fitness)[parents(selection, fitness, seed)]).all()
    else:
        with pytest.raises(PopulationDivergedError, match="no member has a finite fitness"):
            parents(selection, fitness, seed)


@given(st.integers(1, 12), scores_with_nan.filter(lambda f: np.isfinite(f).any()), seeds, st.randoms())
def test_the_elite_comes_first(size: int, fitness: list[float], seed: int, shuffler) -> None:
    uids = list(range(100, 100 + len(fitness)))
    shuffler.shuffle(uids)
    finite = [member for member, score in enumerate(fitness) if np.isfinite(score)]
    elite = min(finite, key=lambda member: (-fitness[member], uids[member]))
    assert parents(TournamentSelection(size), fitness, seed, uids)[0] == elite


@given(strategies, scores, seeds, st.randoms())
def test_the_order_of_members_changes_nothing(selection: Selection, fitness: list[float], seed: int, shuffler) -> None:
    members = list(range(len(fitness)))
    chosen = parents(selection, fitness, seed, members)
    shuffler.shuffle(members)
    again = parents(selection, [fitness[member] for member in members], seed, members)
    assert [members[index] for index in again] == chosen


def test_truncation_replaces_the_worst_quarter_by_the_best() -> None:
    fitness = [5.0, 1.0, 8.0, 3.0, 7.0, 2.0, 6.0, 4.0]
    drawn = set()
    for seed in range(50):
        *survivors, first, second = parents(TruncationSelection(0.25), fitness, seed)
        assert survivors == [2, 4, 6, 0, 7, 3]
        drawn.add((first, second))
    assert drawn == {(2, 2), (2, 4), (4, 2), (4, 4)}


def test_truncation_replaces_all_members_without_finite_fitness() -> None:
    assert parents(TruncationSelection(0.25), [nan, 1.0, inf, nan]) == [1, 1, 1, 1]
    assert parents(TruncationSelection(0.25), [2.0]) == [0]


def test_assign_slots_keeps_parents_in_their_slots() -> None:
    # 0, 2 and 3 keep their slots; the second copy of 3 takes slot 1, which no parent keeps
    assert assign_slots(np.array([3, 3, 0, 2])).tolist() == [0, 3, 2, 3]
    # 0 and 2 keep their slots; the second copies of 2 and of 0 take slots 1 and 3 in this order
    assert assign_slots(np.array([2, 0, 2, 0])).tolist() == [0, 2, 2, 0]


@given(st.integers(1, 10).flatmap(lambda n: st.lists(st.integers(0, n - 1), min_size=n, max_size=n)))
def test_assign_slots_is_a_permutation_of_the_parents(chosen: list[int]) -> None:
    sources = assign_slots(np.array(chosen))
    assert sorted(sources.tolist()) == sorted(chosen)
    assert all(sources[parent] == parent for parent in chosen)


@pytest.mark.parametrize(
    ("arguments", "members", "message"),
    [
        ({"tournament_size": 0}, 4, "tournament_size=0 must be a whole number of at least 1"),
        ({"tournament_size": 2.5}, 4, r"tournament_size=2\.5 must be a whole number"),
        ({"tournament_size": 5}, 4, "tournament_size=5 must not be greater than the population's 4"),
        ({"population_size": 6}, 4, "population_size=6 differs from the population's 4"),
        ({}, 0, "population_size=0 must be at least 1"),
    ],
)
def test_an_invalid_tournament_is_refused(arguments: dict, members: int, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TournamentSelection(**arguments).validate(members)


@pytest.mark.parametrize(
    "made",
    [
        lambda count: TournamentSelection(tournament_size=count),
        lambda count: RestartingSelection(patience=count),
        lambda count: HyperbandSelection(eta=4, min_generations=count),
        lambda count: HyperbandSelection(eta=4, max_generations=count, min_generations=2),
        lambda count: HyperbandSelection(eta=4, brackets=count),
        lambda count: MultiFrequencySelection((count,)),
    ],
)
def test_whole_numbers_of_numpy_are_taken_and_stored_as_int_and_bools_are_refused(made) -> None:
    assert repr(made(np.int64(4))) == repr(made(4))
    with pytest.raises(ConfigurationError, match=r"=\(?True.* must be"):
        made(True)


def test_truncation_refuses_fractions_above_one_half() -> None:
    for fraction in (0.0, 0.6, nan):
        with pytest.raises(ConfigurationError, match=r"fraction=.* must be greater than 0 and at most 0\.5"):
            TruncationSelection(fraction)


@dataclass(frozen=True)
class Agent:
    """The agent of a loop written by hand."""

    index: int
    fitness: list[float] = field(default_factory=list)

    def clone(self, index: int | None = None) -> Agent:
        return replace(self, index=self.index if index is None else index)


def test_selection_by_hand_returns_the_elite_and_clones_with_new_indices() -> None:
    agents = [Agent(4, [9.0, 1.0]), Agent(7, [0.0, 5.0]), Agent(5, [9.0, 3.0])]
    elite, population = TournamentSelection(tournament_size=3, elitism=True, population_size=3).select(agents)
    assert elite is agents[1]  # by the last fitness, not by the first
    assert population == [Agent(7, [0.0, 5.0]), Agent(8, [0.0, 5.0]), Agent(9, [0.0, 5.0])]


@pytest.mark.parametrize("selection", [MultiFrequencySelection(), HyperbandSelection()])
def test_strategies_that_need_a_run_do_not_select_by_hand(selection) -> None:
    message = f"{type(selection).__name__} plans the generations of a run, and cannot select by hand"
    with pytest.raises(ConfigurationError, match=message):
        selection.select([])


def test_eval_loop_of_older_agilerl_releases_must_be_one() -> None:
    assert TournamentSelection(2, True, 6, 1) == TournamentSelection(2, True, population_size=6, eval_loop=1)
    with pytest.raises(ConfigurationError, match=r"eval_loop=3; allowed is 1.*train_on_policy\(eval_loop=…\)"):
        TournamentSelection(2, True, 6, eval_loop=3)


def test_selection_by_hand_repeats_with_its_seed() -> None:
    agents = [Agent(index, [float(index % 7)]) for index in range(20)]

    def three_rounds(seed: int) -> list[list[list[float]]]:
        selection = TournamentSelection(2, seed=seed)
        return [[agent.fitness for agent in selection.select(agents).population] for _ in range(3)]

    first, second, third = three_rounds(1)
    assert [first, second, third] == three_rounds(1) != three_rounds(2)
    assert first != second != third


def test_a_population_with_clone_selected_clones_itself() -> None:
    class Stack(list):
        def clone_selected(self, chosen: np.ndarray) -> list[Agent]:
            return [self[index] for index in chosen]

    agents = Stack([Agent(0, [1.0]), Agent(1, [2.0])])
    elite, population = TournamentSelection(2).select(agents)
    assert elite is agents[1]
    assert population == [agents[1], agents[1]]


def test_an_agent_without_fitness_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="agent 1 has no fitness yet"):
        TournamentSelection(2).select([Agent(0, [1.0]), Agent(1)])
