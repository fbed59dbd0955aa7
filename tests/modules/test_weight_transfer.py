"""Copying tensors along unit maps, pruning, and the ridge refit: small cases with known answers."""

import numpy as np
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from agilerl_like.modules.weight_transfer import (
    RIDGE,
    WeightMap,
    append_units,
    copy_along_axes_,
    copy_units_,
    prune_by_refit_error,
    refit_,
)


def test_append_units():
    assert append_units(3, 2).tolist() == [0, 1, 2, -1, -1]


def error_without(inputs, weight, units):
    """The squared error of the best refit of `inputs @ weight.T` without these units, up to a constant."""
    x = inputs - inputs.mean(0)
    others = np.delete(x, units, axis=1)
    target = x @ weight.T
    return np.square(target - others @ np.linalg.lstsq(others, target, rcond=None)[0]).sum()


@given(seed=st.integers(0, 2**31), removed=st.integers(0, 4))
def test_pruned_units_leave_the_smallest_error_after_a_refit(seed, removed):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(2.0, 1.0, (200, 6)) @ rng.normal(size=(6, 6))
    weight = rng.normal(size=(3, 6))
    gone: list[int] = []
    for _ in range(removed):  # the same greedy choice, with a least-squares problem solved for every candidate
        others = [unit for unit in range(6) if unit not in gone]
        gone.append(min(others, key=lambda unit: error_without(inputs, weight, [*gone, unit])))

    map_ = prune_by_refit_error(torch.tensor(inputs), torch.tensor(weight), removed).tolist()
    assert map_ == sorted(set(map_))
    assert len(map_) == 6 - removed
    # ridge moves an error by about a thousandth of the target's own variance, and may turn a near tie
    slack = 0.02 * np.square((inputs - inputs.mean(0)) @ weight.T).sum()
    mine = error_without(inputs, weight, [unit for unit in range(6) if unit not in map_])
    assert mine <= 1.2 * error_without(inputs, weight, gone) + slack


def test_one_of_two_redundant_units_stays():
    x = torch.randn(500, 4, generator=stream(), dtype=torch.float64)
    inputs = torch.cat([x, x[:, :1], 7 * torch.ones(500, 1)], 1)  # unit 4 is unit 0 again; unit 5 never moves
    weight = torch.tensor([[1.0, 1, 1, 1, 1, 1]], dtype=torch.float64)
    # units 1, 2, 3 are needed, of 0 and 4 one is, and 5 is not
    assert {1, 2, 3} < set(prune_by_refit_error(inputs, weight, 2).tolist())
    assert 5 not in prune_by_refit_error(inputs, weight, 1).tolist()


def stream():
    return torch.Generator().manual_seed(0)


def ways(*maps):
    return [np.array(unit_map, int) for unit_map in maps]


def test_copy_along_axes_copies_survivors_and_fills_new_units():
    old = np.array([[[1.0, 2], [3, 4]], [[5, 6], [7, 8]]])  # weights, and moments of the same shape
    new = np.array([[[13.0, 14, 15]], [[23, 24, 25]]])
    result = np.full((2, 3, 3), np.nan)
    copy_along_axes_(result, old, ways([1, -1, 0], [0, -1, 1]), new_outputs=new, new_inputs=np.array([0.0, 9]))
    # rows come from 1, nowhere, 0; the middle column is new: in every row, the new row's too
    assert result.tolist() == [[[3, 0, 4], [13, 0, 15], [1, 0, 2]], [[7, 9, 8], [23, 9, 25], [5, 9, 6]]]
    assert old.tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]


@example(rows=[0, 1, 2, 3, -1, -1], columns=[0, 1, 2, 3, 4, -1])
@example(rows=[0, 1, -1], columns=[1, 0, -1])
@given(rows=st.lists(st.integers(-1, 3), min_size=1, max_size=6), columns=st.lists(st.integers(-1, 4), max_size=6))
def test_copy_along_axes_of_random_maps(rows, columns):
    old = np.arange(20.0).reshape(1, 4, 5) + 1
    new = np.full((1, rows.count(-1), len(columns)), -7.0)
    result = np.full((1, len(rows), len(columns)), np.nan)
    copy_along_axes_(result, old, ways(rows, columns), new_outputs=new, new_inputs=np.zeros(1))
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            expected = 0.0 if column < 0 else -7.0 if row < 0 else old[0, row, column]
            assert result[0, i, j] == expected


PARENT = {"a.weight": np.array([[[3.0, 4], [6, 8]]]), "a.bias": np.array([[1.0, 3]])}
WAYS = {
    "sources": {name: name for name in PARENT},
    "unit_axes": {"a.weight": ("u", "in"), "a.bias": ("u",)},
    "maps": {"u": append_units(2, 1)},
}


def test_new_rows_have_the_median_length():
    child = {"a.weight": np.full((1, 3, 2), np.nan), "a.bias": np.full((1, 3), 9.0)}
    copy_units_(child, PARENT, WeightMap(**WAYS), generator=stream())
    # rows of length 5 and 10, whose (lower) median is 5; its direction is that of two Gaussian draws
    direction = torch.randn(2, generator=stream())
    expected = [[3.0, 4], [6, 8], (5 * direction / direction.norm()).tolist()]
    np.testing.assert_allclose(child["a.weight"], [expected], rtol=1e-6)
    assert child["a.bias"].tolist() == [[1, 3, 9]]


def test_new_rows_among_huge_ones_do_not_overflow():
    parent = {"a.weight": np.array([[[3e25, 4e25], [6e25, 8e25]]], np.float32)}  # their squares are no float32
    child = {"a.weight": np.zeros((1, 3, 2), np.float32)}
    copy_units_(child, parent, WeightMap(**WAYS), generator=stream())
    np.testing.assert_allclose(np.linalg.norm(child["a.weight"][0, 2].astype(float)), 5e25, rtol=1e-6)


def test_new_rows_among_zero_ones_are_nonzero():
    child, parent = {"a.weight": np.zeros((1, 3, 2))}, {"a.weight": np.zeros((1, 2, 2))}
    copy_units_(child, parent, WeightMap(**WAYS), generator=stream())
    np.testing.assert_allclose(np.linalg.norm(child["a.weight"], axis=2), [[0, 0, 2**0.5]], rtol=1e-6)


def test_new_noise_has_the_median_length():
    # the child's entries are 1: a length of sqrt(2) becomes the median's 5
    ways = {key: {k.replace("weight", "weight_sigma"): v for k, v in part.items()} for key, part in WAYS.items()}
    ways["sources"] = {"a.weight_sigma": "a.weight"}
    child = {"a.weight_sigma": np.ones((1, 3, 2))}
    copy_units_(child, PARENT, WeightMap(**ways), generator=stream())
    np.testing.assert_allclose(child["a.weight_sigma"][0, 2], [5 / 2**0.5] * 2)


def test_moments_of_new_entries_are_zero_and_the_mean():
    parent = {name: np.concatenate([x, 10 * x, 100 * x]) for name, x in PARENT.items()}
    child = {"a.weight": np.full((3, 3, 2), 2.0), "a.bias": np.full((3, 3), 9.0)}
    copy_units_(child, parent, WeightMap(**WAYS), generator=stream())
    usual = 100 * (3 + 4 + 6 + 8) / 4
    assert child["a.weight"][1:].tolist() == [[[30, 40], [60, 80], [0, 0]], [[300, 400], [600, 800], [usual, usual]]]
    assert child["a.bias"].tolist() == [[1, 3, 9], [10, 30, 0], [100, 300, 100 * (1 + 3) / 2]]


def test_new_units_do_not_count_in_a_normalisation():
    name, child = "norms.0.counted", {"norms.0.counted": np.ones((1, 3))}
    ways = {"sources": {name: name}, "unit_axes": {name: ("u",)}, "maps": {"u": append_units(2, 1)}}
    copy_units_(child, {name: np.array([[1.0, 0.0]])}, WeightMap(**ways), generator=stream())
    assert child[name].tolist() == [[1, 0, 0]]


def test_tensors_without_a_source_are_unchanged():
    child = {"w": np.ones((1, 2))}
    copy_units_(child, {"w": np.zeros((1, 2))}, WeightMap({}, {}, {}), generator=stream())
    assert child["w"].tolist() == [[1, 1]]


@given(seed=st.integers(0, 2**31))
def test_refit_equals_the_ridge_solution_around_the_old_weights(seed):
    rng = np.random.default_rng(seed)
    inputs, targets, weight = rng.normal(1.0, 2.0, (40, 5)), rng.normal(size=(40, 3)), rng.normal(size=(3, 5))
    # minimise |Xc D' - R|^2 / n + ridge |D|^2 over the change D as one least-squares problem with rows for the penalty
    x, y = inputs - inputs.mean(0), targets - targets.mean(0)
    strength = RIDGE * np.mean(x.var(0))
    stacked = np.vstack([x / np.sqrt(40), np.sqrt(strength) * np.eye(5)])
    wanted = np.vstack([(y - x @ weight.T) / np.sqrt(40), np.zeros((5, 3))])
    change = np.linalg.lstsq(stacked, wanted, rcond=None)[0].T
    expected = weight + change

    w, b = torch.tensor(weight), torch.zeros(3, dtype=torch.float64)
    refit_(w, b, torch.tensor(inputs), torch.tensor(targets))
    np.testing.assert_allclose(w, expected, rtol=1e-8, atol=1e-10)
    # the bias takes what is left on average
    np.testing.assert_allclose(b, (targets - inputs @ expected.T).mean(0), rtol=1e-8, atol=1e-10)


def test_refit_keeps_directions_without_variance():
    inputs = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inputs[:, 2] = 4.0  # never varies
    weight, bias = torch.tensor([[1.0, 2.0, 5.0]], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    targets = inputs @ torch.tensor([[3.0], [-1.0], [5.0]], dtype=torch.float64) + 7.0
    refit_(weight, bias, inputs, targets)
    torch.testing.assert_close(weight[0, 2], torch.tensor(5.0, dtype=torch.float64))
    torch.testing.assert_close(
        inputs @ weight.T + bias, targets, rtol=0, atol=0.02
    )  # ridge: within 1e-3 of the coefficients
