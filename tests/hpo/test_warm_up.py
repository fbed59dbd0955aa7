"""The warm-up of `evolution="auto"`: members that were drawn have time to learn before selection compares them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import (
    AutoSelection,
    GaussianSteps,
    Genome,
    History,
    HyperparameterConfig,
    PopulationView,
    RLParameter,
    SlotPlan,
    Trial,
    WeightMix,
)
from benchmarks.toy_problems import Toy, fragile, hasty, narrow, search, uniform_starts

FITNESS = np.arange(4.0)
RATES = [1e-5, 1e-4, 1e-3, 1e-2]


def view_of(generation, state, fitness=FITNESS, rates=RATES, generations=9) -> PopulationView:
    trials = [
        Trial(1, uid, -1, {"lr": rate}, "none", "", np.nan, float(found), 1)
        for uid, (rate, found) in enumerate(zip(rates, fitness, strict=True))
    ]
    history = History(tuple(trials) if generation == 1 else ())  # a long run drops its first trials
    returns = np.repeat(np.asarray(fitness)[:, None], 3, axis=1)
    uids = range(len(fitness))
    return PopulationView(fitness, uids, (), generation, history, returns=returns, generations=generations, state=state)


def replaced(selection=None, **settings) -> list[int]:
    """Return how many members are replaced after each of the first eight generations."""
    state, found = {}, []
    for generation in range(1, 9):
        view = view_of(generation, state, fitness=FITNESS + 10 * generation, **settings)
        rows = (selection or AutoSelection()).plan(view, np.random.default_rng(0))
        found.append(sum(row.weights_from != slot for slot, row in enumerate(rows)))
    return found


def test_drawn_members_train_for_half_of_the_budget_before_any_is_replaced() -> None:
    assert replaced() == [0, 0, 0, 0, 2, 2, 2, 2]
    assert replaced(AutoSelection(warm_up=2 / 3)) == [0, 0, 0, 0, 0, 0, 2, 2]
    assert replaced(AutoSelection(warm_up=0.0)) == [2] * 8
    assert replaced(AutoSelection(final_share=0.25)) == [0, 0, 0, 0, 2, 1, 1, 1]


def test_equal_members_without_ranges_and_runs_of_unknown_length_have_no_warm_up() -> None:
    assert replaced(rates=[1e-4] * 4) == replaced(generations=0) == [2] * 8


@pytest.mark.parametrize("fitness", [np.arange(8.0), np.array([*[np.nan] * 5, 5.0, 6.0, 7.0]), np.zeros(8)])
def test_equal_members_draw_others_after_the_first_generation_and_warm_up_as_drawn_ones(layers, fitness) -> None:
    """All but the best quarter, whether they diverged, differ, or earn what a constant policy does (0)."""
    ranges = [HyperparameterConfig(lr=RLParameter(min=1e-5, max=1e-2))] * 8
    equals = [Genome({"lr": 1e-4}, layers())] * 8
    state = {"baseline": (0.0, 10.0)}
    first = replace(view_of(1, state, fitness=fitness, rates=[1e-4] * 8), genomes=equals, hp_configs=ranges)
    rows = AutoSelection().plan(first, np.random.default_rng(0))
    again = [slot for slot, row in enumerate(rows) if row == SlotPlan(slot, slot, True, WeightMix())]
    assert len(again) == 6
    assert set(range(8)) - {*again} == ({6, 7} if fitness.any() else {0, 1})
    later = view_of(4, state, fitness=np.arange(8.0) + 40, rates=[1e-4] * 8)
    assert AutoSelection().plan(later, np.random.default_rng(0)) == [SlotPlan(s, s, explore=False) for s in range(8)]


def test_drawn_members_that_earn_what_a_constant_policy_does_at_first_warm_up_later() -> None:
    state = {"baseline": (0.0, 10.0)}
    AutoSelection().plan(view_of(1, state, fitness=np.zeros(4)), np.random.default_rng(0))
    rows = AutoSelection().plan(view_of(3, state, fitness=FITNESS + 40), np.random.default_rng(0))
    assert rows == [SlotPlan(slot, slot, explore=False) for slot in range(4)]


def test_a_warm_up_that_has_ended_does_not_begin_again_with_a_larger_budget() -> None:
    state = {}
    for generation, generations in [(1, 9), (7, 9), (8, 60)]:
        view = view_of(generation, state, fitness=FITNESS + 10 * generation, generations=generations)
        rows = AutoSelection().plan(view, np.random.default_rng(0))
    assert sum(row.weights_from != slot for slot, row in enumerate(rows)) == 2


def test_a_diverged_member_becomes_a_clone_of_the_best_during_the_warm_up() -> None:
    view = view_of(1, {}, fitness=np.array([0.0, np.nan, 5.0, 1.0]))
    rows = AutoSelection().plan(view, np.random.default_rng(0))
    assert list(rows) == [
        SlotPlan(0, 0, explore=False),
        SlotPlan(2, 2, explore=True),
        SlotPlan(2, 2, explore=False),
        SlotPlan(3, 3, explore=False),
    ]


@pytest.mark.parametrize(("trained_before", "started"), [(False, [2, 4]), (True, [])])
def test_the_worse_half_of_members_that_were_trained_before_does_not_start_again(trained_before, started) -> None:
    state, found = {}, []
    for generation in range(1, 9):
        view = view_of(generation, state, fitness=FITNESS + 10 * generation, generations=20)
        rows = AutoSelection().plan(replace(view, trained_before=trained_before), np.random.default_rng(0))
        found += [generation for row in rows[:1] if row.start is not None]
    assert found == started


def test_no_further_episodes_are_played_during_the_warm_up() -> None:
    state, selection = {}, AutoSelection(gentle_from=1.0)
    selection.plan(view_of(1, state), np.random.default_rng(0))
    noise = np.array([1.0, -1.0])
    returns = np.array([[10.0] * 2, *[(10.0 - gap + noise).tolist() for gap in (0.5, 1.5, 5.0)]])
    views = [replace(view_of(one, state, fitness=returns.mean(axis=1)), returns=returns) for one in (1, 3, 4, 5)]
    assert [list(selection.in_doubt(view)) for view in views] == [[], [], [], [0, 2]]


def reached(toy: Toy, selection: AutoSelection | None) -> float:
    """Return the mean over 20 searches of the best of 8 members in any of 21 generations."""
    runs = [
        search(toy, uniform_starts(toy, 8, seed), 21, selection, GaussianSteps(architecture=0.0), seed)
        for seed in range(20)
    ]
    return float(np.mean([max(max(scores) for scores in run.scores) for run in runs]))


def test_the_warm_up_keeps_members_that_learn_slowly_and_reach_more() -> None:
    """Means of the best of 8 members: 0.88 without selection, 0.78 with it from the first generation on, else 0.86."""
    toy = hasty(noise=0.01)
    assert reached(toy, None) > 0.85
    assert reached(toy, AutoSelection(warm_up=0.0)) < 0.79
    assert reached(toy, AutoSelection()) > 0.85


def test_gains_that_all_members_have_lost_come_back_with_the_best_agent() -> None:
    """Means of the best of 8 members: 4.4 without selection, 8.7 without the return of the best agent, with it 9.5."""
    toy = fragile()
    assert reached(toy, None) < 4.8
    assert reached(toy, AutoSelection(return_best=False)) < 9.0
    assert reached(toy, AutoSelection()) > 9.2


def restarted(generations: int, selection: AutoSelection) -> list[list[int]]:
    """Return the slots that start again after each of the first seven generations; all others stay."""
    state, found = {}, []
    for generation in range(1, 8):
        view = view_of(generation, state, fitness=FITNESS + 10 * generation, generations=generations)
        rows = selection.plan(view, np.random.default_rng(0))
        found.append([slot for slot, row in enumerate(rows) if row == SlotPlan(slot, slot, True, WeightMix())])
        assert all(row == SlotPlan(slot, slot, False) for slot, row in enumerate(rows) if slot not in found[-1])
    assert sorted(selection.in_grace(view)) == sorted({slot for slots in found for slot in slots})
    return found


def test_the_worse_half_starts_again_twice_during_the_warm_up_and_has_time_to_learn() -> None:
    assert restarted(21, AutoSelection()) == [[], [0, 1], [], [0, 1], [], [], []]
    assert restarted(19, AutoSelection()) == [[], [0, 1], [], [0, 1], [], [], []]
    assert restarted(14, AutoSelection(warm_up=1.0)) == [[0, 1], [], [0, 1], [], [], [], []]
    assert restarted(30, AutoSelection()) == [[], [], [0, 1], [], [], [0, 1], []]
    assert restarted(9, AutoSelection(warm_up=1.0)) == restarted(21, AutoSelection(restart_worse=0.0)) == [[]] * 7


def test_the_worse_half_starts_again_twice_where_the_expected_number_of_generations_varies() -> None:
    """As with `max_seconds` and `max_updates`, whose estimates jump over a share or come back to it."""
    for expected in ([58, 39, 44, 39, 42, 39, 39, 39], [17, 20, 22, 23, 23, 24, 24, 24]):
        state, found = {}, []
        for generation, generations in enumerate(expected, 1):
            view = view_of(generation, state, fitness=FITNESS + 10 * generation, generations=generations)
            found.append(any(row.start for row in AutoSelection().plan(view, np.random.default_rng(0))))
        assert sum(found) == 2


def test_diverged_members_count_as_the_worse_ones() -> None:
    state, fitness = {}, np.array([8.0, 7.0, 6.0, 5.0, 4.0, *[np.nan] * 3])
    rates = np.geomspace(1e-5, 1e-2, 8).tolist()
    for generation in (1, 2):
        view = view_of(generation, state, fitness=fitness, rates=rates, generations=20)
        rows = AutoSelection().plan(view, np.random.default_rng(0))
    assert [slot for slot, row in enumerate(rows) if row.start] == [4]
    assert [row.weights_from for row in rows[5:]] == [0, 0, 0]  # clones of the best


def test_members_that_are_not_behind_beyond_noise_do_not_start_again() -> None:
    state, noise = {}, np.array([0.0, 2.0, -2.0, 0.0])
    returns = np.array([[5.0] * 4, *[(5.0 + gap + noise).tolist() for gap in (-9.0, -0.5, 0.0)]])
    for generation in (1, 2):
        view = replace(view_of(generation, state, fitness=returns.mean(axis=1), generations=21), returns=returns)
        rows = AutoSelection().plan(view, np.random.default_rng(0))
    assert [slot for slot, row in enumerate(rows) if row.start is not None] == [1]


def test_second_draws_find_values_that_the_first_have_missed() -> None:
    """Means of the best of 8 members: 10.6 without second draws, 13.0 with them."""
    assert reached(narrow(0.5), AutoSelection(restart_worse=0.0)) < 11.5
    assert reached(narrow(0.5), AutoSelection()) > 12.0


@pytest.mark.parametrize("name", ["warm_up", "restart_worse"])
@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_outside_of_0_and_1_is_an_error(name, share) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name}=.* must lie between 0 and 1"):
        AutoSelection(**{name: share})
