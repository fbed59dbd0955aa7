"""Fitness blended with the training return: an example by hand, laws, and what it gains where the truth is known."""

from __future__ import annotations

from math import nan, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agilerl_like.hpo import GatedSelection, PopulationView
from agilerl_like.hpo.blended_fitness import LARGEST_SHARE, blended


def returns_of(view: PopulationView) -> np.ndarray:
    assert view.returns is not None
    return view.returns


def view_of(returns, train_returns) -> PopulationView:
    returns = np.asarray(returns, dtype=float)
    fitness = np.nanmean(returns, axis=1)
    return PopulationView(fitness, range(len(returns)), (), 1, returns=returns, train_returns=train_returns)


def test_an_example_by_hand():
    # Members have means 2, 6 and 10, seeds 4 and 8, all 6. Residuals: -1, 1 | 1, -1 | 0, 0.
    # Their variance is 4 / (2 * 1) = 2, and that of a mean of two 1. Training returns are 12, 6 and 0 below fitness,
    # with variance 36.
    view = view_of([[-1.0, 5.0], [5.0, 7.0], [8.0, 12.0]], [-10.0, 0.0, 10.0])
    share = 1 / (1 + 36 - 1)
    found = blended(view)
    assert found.fitness == pytest.approx([2 - 6 * share, 6.0, 10 + 6 * share])  # drawn towards -4, 6 and 16
    assert returns_of(found)[0] == pytest.approx(found.fitness[0] + np.array([-3.0, 3.0]) * sqrt(1 - share))
    assert found.standard_error(0, 2) == pytest.approx(view.standard_error(0, 2) * sqrt(1 - share))


def test_a_training_return_that_differs_by_a_constant_has_the_largest_share():
    view = view_of([[1.0, 4.0], [3.0, 2.0], [9.0, 7.0]], [2.5 - 50, 2.5 - 50, 8.0 - 50])
    assert blended(view).fitness == pytest.approx(view.fitness)  # both agree
    other = view_of([[1.0, 4.0], [3.0, 2.0], [9.0, 7.0]], [2.6 - 50, 2.4 - 50, 8.0 - 50])
    assert blended(other).fitness == pytest.approx(np.array([2.5, 2.5, 8.0]) + LARGEST_SHARE * np.array([0.1, -0.1, 0]))


@pytest.mark.parametrize(
    ("returns", "train_returns"),
    [
        ([[1.0, 2.0], [2.0, 1.0], [4.0, 3.0]], None),
        ([[1.0, 2.0], [2.0, 1.0], [4.0, 3.0]], [1.0, nan, 3.0]),  # two members are not enough
        ([[1.0], [2.0], [3.0]], [3.0, 2.0, 1.0]),  # the noise of one episode is unknown
        ([[5.0, 5.0], [2.0, 2.0], [4.0, 4.0]], [3.0, 2.0, 1.0]),  # no noise
        ([[1.0, nan], [nan, 2.0], [3.0, 4.0]], [3.0, 2.0, 1.0]),  # no seed that all played
    ],
)
def test_fitness_stays_where_its_noise_is_unknown(returns, train_returns):
    view = view_of(returns, train_returns)
    assert blended(view) is view


def test_a_rating_and_a_diverged_member_stay():
    rating = PopulationView(np.array([1.0, 2.0, 3.0]), range(3), (), 1, train_returns=np.ones(3))
    assert blended(rating) is rating
    returns, trained = np.array([[1.0, 2.0], [2.0, 1.0], [4.0, 3.0], [5.0, 2.0]]), np.arange(4.0)
    view = PopulationView(np.array([1.5, 1.5, 3.5, nan]), range(4), (), 1, returns=returns, train_returns=trained)
    found = blended(view)
    assert np.isnan(found.fitness[3])
    infinite = PopulationView(
        np.array([1.5, 1.5, 3.5, -np.inf]), range(4), (), 1, returns=returns, train_returns=trained
    )
    assert blended(infinite).fitness[3] == -np.inf
    assert (found.fitness[:3] != view.fitness[:3]).any()


@pytest.mark.filterwarnings("ignore:overflow")
def test_returns_whose_variance_overflows_stay():
    view = view_of(np.array([[1.0, 2.0], [2.0, 1.0], [4.0, 3.0]]) * 1e200, [1e200, 2e200, 4e200])
    assert blended(view) is view


def test_a_member_without_spread_keeps_its_fitness():
    returns = [[500.0, 500.0], [500.0, 500.0], [100.0, 300.0], [90.0, 120.0], [300.0, 340.0]]
    found = blended(view_of(returns, [300.0, 200.0, 90.0, 80.0, 150.0]))
    assert found.fitness[:2].tolist() == [500.0, 500.0]
    assert (returns_of(found)[:2] == 500).all()
    fractions = view_of([[0.1, 0.1, 0.1], [0.0, 0.2, 0.5], [0.3, 0.1, 0.6], [0.4, 0.2, 0.3]], [0.5, 0.2, 0.3, 0.3])
    assert blended(fractions).fitness[0] == fractions.fitness[0]  # although the rounded deviation is 1.4e-17


numbers = st.integers(-50, 50).map(float)
views = st.integers(3, 7).flatmap(
    lambda size: st.tuples(
        st.lists(st.lists(numbers, min_size=4, max_size=4), min_size=size, max_size=size),
        st.lists(numbers, min_size=size, max_size=size),
    )
)


@given(views, st.integers(-100, 100), st.randoms())
def test_neither_the_level_of_training_returns_nor_the_order_of_members_matters(drawn, level, random):
    returns, trained = map(np.array, drawn)
    found = blended(view_of(returns, trained)).fitness
    np.testing.assert_allclose(blended(view_of(returns, trained + level)).fitness, found, atol=1e-9)
    order = list(range(len(returns)))
    random.shuffle(order)
    np.testing.assert_allclose(blended(view_of(returns[order], trained[order])).fitness, found[order], atol=1e-9)


@given(views)
def test_fitness_moves_by_at_most_a_quarter_of_the_way_and_the_error_never_grows(drawn):
    returns, trained = map(np.array, drawn)
    view = view_of(returns, trained)
    found = blended(view)
    used = returns.std(axis=1) > 0
    if used.sum() >= 3:
        predicted = trained + (view.fitness - trained)[used].mean()
        moved, way = found.fitness - view.fitness, predicted - view.fitness
        assert (np.abs(moved) <= LARGEST_SHARE * np.abs(way) + 1e-9).all()
        assert (moved * way >= -1e-9).all()
    assert (returns_of(found).std(axis=1) <= returns.std(axis=1) + 1e-9).all()


def errors(spread_of_training: float) -> tuple[float, float]:
    """Return the mean squared errors of fitness and of the blend, up to a constant of each generation."""
    rng = np.random.default_rng(0)
    sums = np.zeros(2)
    for _ in range(400):
        truth = rng.normal(0, 10, 8)
        returns = truth[:, None] + rng.normal(0, 20, (8, 4))
        view = view_of(returns, truth - 30 + rng.normal(0, spread_of_training, 8))
        for number, fitness in enumerate((view.fitness, blended(view).fitness)):
            sums[number] += np.var(fitness - truth)
    return tuple(sums / 400)


def test_an_accurate_training_return_removes_forty_percent_of_the_error():
    # a share of a quarter leaves (3/4)^2 = 0.56 of the variance, and adds 1/16 of that of the training return (1)
    plain, blend = errors(spread_of_training=1.0)
    assert plain == pytest.approx(20**2 / 4 * 7 / 8, rel=0.1)
    assert 0.54 < blend / plain < 0.62


def test_an_uninformative_training_return_does_no_harm():
    plain, blend = errors(spread_of_training=200.0)
    assert blend / plain < 1.03


def test_the_gate_sees_the_blend():
    # The best and the last member differ by 4 and 0, so by 2 with a standard error of 2, which is not beyond the gate.
    view = view_of([[10.0, 14.0], [9.0, 14.0], [10.0, 13.0], [6.0, 14.0]], [10.0, 9.5, 9.5, 6.0])
    for blends, source in ((False, 3), (True, 0)):
        rows = GatedSelection(share=0.25, blend_training=blends).plan(view, np.random.default_rng(0))
        assert [row.weights_from for row in rows] == [0, 1, 2, source]
