"""Statistics of the search benchmark, against answers computed by hand."""

import math

import pytest

from benchmarks.search import statistics as stats

ONE = "task"


@pytest.mark.parametrize(
    ("values", "answer"),
    [((1, 2, 3, 100), 2.5), (range(10), 4.5), (range(12), 5.5), ((7,), 7.0), ((1, 2, 3), 2.0)],
)
def test_iqm_drops_a_quarter_at_each_end(values, answer):
    assert stats.iqm({ONE: list(values)}) == answer


def test_as_many_runs_gives_each_task_the_weight_it_has_on_the_other_side():
    one, other = stats.as_many_runs({"a": [1, 2, 3], "b": [4, 5], "c": [6]}, {"b": [7, 8, 9], "a": [0]})
    assert (one, other) == ({"a": [1], "b": [4, 5]}, {"a": [0], "b": [7, 8]})


def test_iqm_pools_the_runs_of_all_tasks():
    assert stats.iqm({"a": [1, 100], "b": [2, 3]}) == 2.5


def test_probability_of_improvement_counts_ties_half():
    assert stats.probability_of_improvement({ONE: [1, 2]}, {ONE: [1, 3]}) == 0.375
    assert stats.probability_of_improvement({ONE: range(10)}, {ONE: [v - 2.5 for v in range(10)]}) == pytest.approx(
        0.72
    )


def test_probability_of_improvement_is_a_mean_over_common_tasks():
    ours, theirs = {"a": [1.0], "b": [0.0], "c": [5.0]}, {"a": [0.0], "b": [1.0, 1.0]}
    assert stats.probability_of_improvement(ours, theirs) == 0.5
    with pytest.raises(ValueError, match="no task in common"):
        stats.probability_of_improvement({"a": [1.0]}, {"b": [1.0]})


def test_pairs_at_target_are_shares_of_all_pairs_in_the_mean_of_common_tasks():
    ours, theirs = {"a": [1.0, 1.2, 0.5, 2.0], "b": [1.0], "c": [0.0]}, {"a": [1.0, 0.0], "b": [0.9]}
    assert stats.pairs_at_target({"a": ours["a"]}, {"a": theirs["a"]}) == (0.375, 0.375, 0.125, 0.125)
    assert stats.pairs_at_target(ours, theirs) == (0.1875, 0.6875, 0.0625, 0.0625)


def test_bootstrap_resamples_within_tasks():
    # task a is always 0 and task b always 1: pooling before resampling would vary
    assert stats.bootstrap_interval(stats.iqm, {"a": [0.0, 0.0], "b": [1.0, 1.0]}, repetitions=50) == (0.5, 0.5)


def test_bootstrap_interval_of_two_runs():
    # means of two draws from {0, 1}: 0 and 1 with probability 1/4 each, so they are the 2.5 and 97.5 percentiles
    assert stats.bootstrap_interval(stats.iqm, {ONE: [0.0, 1.0]}) == (0.0, 1.0)


def test_bootstrap_interval_covers_the_normal_mean():
    values = [math.sin(7.0 * k) for k in range(40)]
    low, high = stats.bootstrap_interval(lambda its: float(sum(its[ONE]) / 40), {ONE: values})
    mean = sum(values) / 40
    sd = math.sqrt(sum((value - mean) ** 2 for value in values) / 40 / 40)
    assert (low, high) == pytest.approx((mean - 1.96 * sd, mean + 1.96 * sd), abs=0.25 * sd)


def test_performance_profile_and_optimality_gap():
    scores = {"a": [0.2, 0.8], "b": [1.0, 2.0]}
    assert stats.performance_profile(scores, [0.0, 0.5, 1.0, 2.0]) == [1.0, 0.75, 0.25, 0.0]
    assert stats.optimality_gap(scores) == pytest.approx((0.8 + 0.2) / 4)


def test_area_under_the_curve_is_weighted_by_steps():
    # 0 for 10 steps, 0.5 for 30, 1 for 60 of 100
    assert stats.area_under_curve([(10, 0.5), (40, 1.0)], 100) == pytest.approx(0.3 * 0.5 + 0.6)
    assert stats.area_under_curve([], 100, before=0.25) == 0.25
    assert stats.area_under_curve([(150, 1.0)], 100) == 0.0


def test_mean_ranks_are_those_of_random_runs_and_share_ties():
    ranks = stats.mean_ranks({"a": {ONE: [3.0, 1.0]}, "b": {ONE: [2.0, 1.0]}, "c": {ONE: [1.0, 0.0]}})
    # of four pairs b wins one against a and ties one, c ties one against each
    assert ranks == {"a": 1 + 1.5 / 4 + 0.5 / 4, "b": 1 + 2.5 / 4 + 0.5 / 4, "c": 1 + 3.5 / 4 + 3.5 / 4}
    every = stats.mean_ranks({"a": {ONE: [2.0] * 5 + [0.0] * 5}, "b": {ONE: [1.0] * 5}})
    assert every == {"a": 1.5, "b": 1.5}  # all ten runs of a count
    assert stats.mean_ranks({"a": {ONE: [1.0]}, "b": {ONE: [1.0]}, "c": {ONE: [1.0]}}) == dict.fromkeys("abc", 2.0)


def test_methods_are_ranked_on_the_tasks_of_which_two_have_enough_runs():
    few, many = [1.0, 2.0], [1.0, 2.0, 3.0]
    scores = {
        "a": {"x": many, "y": many, "z": many},
        "b": {"x": many, "y": many},
        "c": {"x": many, "y": few, "z": few},
        "d": {"x": many},
    }
    assert stats.with_runs(scores, 3) == {"a": {"x": many, "y": many}, "b": {"x": many, "y": many}}
    assert stats.with_runs({"a": {"x": many}, "b": {"x": few}}, 3) == {}


def test_restricted_mean_counts_censored_runs_with_the_horizon():
    assert stats.restricted_mean([10, None, 40, 200], 100) == (10 + 100 + 40 + 100) / 4


def test_permutation_p():
    # of 20 ways to choose three of six, only the observed one has so high a mean: p = 1/20
    p = stats.permutation_p({ONE: [4.0, 5.0, 6.0]}, {ONE: [1.0, 2.0, 3.0]}, repetitions=4_000)
    assert p == pytest.approx(0.05, abs=0.012)
    assert stats.permutation_p({ONE: [1.0]}, {ONE: [1.0]}, repetitions=100) == 1.0


def test_holm():
    adjusted = stats.holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert adjusted == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
