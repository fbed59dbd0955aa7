"""Searches that are simulated on learning curves: who trains how long, and what is found."""

from dataclasses import replace

import numpy as np
import pytest

from agilerl_like.hpo.auto import AutoSelection
from benchmarks.halving import ALLOCATIONS, DRAWS, THRICE, Curves, simulate, tables
from benchmarks.search.protocol import ENVS

STEPS = 100
RANDOM = ENVS["cartpole"].random


def curves_of(slopes) -> Curves:
    """Curves that rise by a slope each 10 env steps, without noise."""
    steps = np.arange(10, 2_000, 10)
    fitness = [(slope * steps).tolist() for slope in slopes]
    return Curves("cartpole", 0, "", steps.tolist(), fitness, np.zeros((len(slopes), len(steps))).tolist())


def longest(selection) -> float:
    """Return for how many env steps the best agent trained, where all draws learn equally fast."""
    return simulate(curves_of([1.0] * DRAWS), selection, STEPS, 0)


def test_independent_members_share_the_budget_equally():
    assert longest(None) == STEPS - 10  # the mean of the last three evaluations


def test_the_last_four_of_eight_train_1_75_times_as_long_and_the_last_two_2_75_times():
    halved = AutoSelection(warm_up=1.0, restart_worse=0.0)
    assert longest(halved) == pytest.approx(1.75 * STEPS, abs=20)
    assert longest(replace(halved, halve_at=THRICE)) == pytest.approx(2.75 * STEPS, abs=20)


def test_the_draw_that_learns_fastest_stays():
    slopes = [1.0] * 7 + [2.0]
    halved = AutoSelection(warm_up=1.0, restart_worse=0.0, halve_at=THRICE)
    assert simulate(curves_of(slopes), halved, STEPS, 0) == pytest.approx(2 * 2.75 * STEPS, abs=40)


def test_draws_that_start_again_are_others():
    """Each draw earns the same from the beginning, so that more draws find more: 16 of 48 more than 8."""
    curves = curves_of([0.0] * DRAWS)
    curves.fitness = [[float(draw)] * len(curves.steps) for draw in range(DRAWS)]
    again = AutoSelection(warm_up=1.0, halve_at=())
    found = [[simulate(curves, its, STEPS, seed) for seed in range(20)] for its in (None, again)]
    assert all(one <= other for one, other in zip(*found, strict=True))
    assert np.mean(found[1]) > np.mean(found[0]) + 1


def test_members_that_begin_as_one_draw_draw_others():
    """The starting point earns nothing, all other draws learn: only a search whose members draw others finds more."""
    curves = curves_of([1.0] * (DRAWS - 1) + [0.0])
    assert curves.worst == DRAWS - 1
    stays = AutoSelection(spread_equals=False, restart_stalled=False)
    assert simulate(curves, stays, STEPS, 0, curves.worst) == RANDOM
    assert simulate(curves, AutoSelection(), STEPS, 0, curves.worst) > 1.5 * STEPS


def test_tables_compare_with_independent_members(monkeypatch):
    monkeypatch.setattr("benchmarks.halving.SEARCHES", 3)
    lines = tables([curves_of([1.0] * DRAWS)])
    head, _, columns, _, alone, *_ = lines
    assert head.startswith("**cartpole**, 48 draws")
    assert columns.startswith("| steps of a member, if all stay | mean | 1,024 |")
    assert alone.startswith("| independent members | 0.50 | 0.50 (")
    assert lines[-2].startswith("| **the default** | 1.00 (")  # equal curves reach 475 of CartPole in any budget here


@pytest.mark.parametrize("name", ALLOCATIONS)
def test_no_search_reads_an_evaluation_that_its_members_have_not_come_to(name):
    """The last two of eight members train 2.75 times as long as 400 steps, so none comes to its first evaluation."""
    steps = np.arange(1_200, 10_000, 500)
    fitness = [[100.0 + draw] * len(steps) for draw in range(DRAWS)]
    curves = Curves("cartpole", 0, "", steps.tolist(), fitness, np.zeros((DRAWS, len(steps))).tolist())
    assert simulate(curves, ALLOCATIONS[name], 400, 0) == RANDOM


def test_an_evaluation_counts_once_its_steps_are_trained():
    curves = curves_of([1.0])
    assert [curves.evaluations(steps) for steps in (0.0, 9.0, 10 - 1e-9, 19.0, 20.0, 1e9)] == [0, 0, 1, 1, 2, 199]
    assert curves.best_so_far[0, :5].tolist() == pytest.approx([RANDOM] * 4 + [30.0])  # (20 + 30 + 40) / 3
