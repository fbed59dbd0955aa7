"""Searches in toy problems with and without the parts of `evolution="auto"`: which strategies, and what is marked."""

import numpy as np

from agilerl_like.hpo.auto import AutoExplorer, AutoSelection
from benchmarks.auto_parts import PROBLEMS, VARIANTS, cell, found, strategy, tables


def test_a_variant_is_the_method_of_the_search_benchmark():
    assert strategy("ours") == (AutoSelection(), AutoExplorer())
    assert strategy("ours_no_gate") == (AutoSelection(gate=0.0), AutoExplorer())
    assert strategy("no_evolution")[0] is None


def test_a_mean_is_bold_where_the_paired_difference_exceeds_two_standard_errors():
    own = np.array([1.0, 5.0, 9.0, 13.0])
    assert cell(own, own) == "7.00"
    assert cell(own + np.array([0.9, 1.0, 1.1, 1.0]), own) == "**8.00**"
    assert cell(own + np.array([9.0, -7.0, 5.0, -3.0]), own) == "8.00"


def test_two_searches_of_a_variant_differ_by_their_seed_alone():
    first, again, other = (found("ours", "narrow", seed) for seed in (3, 3, 4))
    assert first == again != other


def test_the_table_has_a_row_for_each_variant_and_a_column_for_each_problem():
    scores = {name: [np.array([0.0, 1.0])] * len(PROBLEMS) for name in VARIANTS}
    rows = [line for line in tables(scores) if line.startswith("| ")]
    assert [row.count("|") for row in rows] == [len(PROBLEMS) + 2] * (len(VARIANTS) + 2)
