"""Carrying tensors along unit maps, and the ridge refit: small cases whose answer can be written down."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from agilerl_like.modules.morphism import RIDGE, carry, grown, kept, refit_, transplant_


def test_a_grown_group_appends_and_a_kept_one_drops_the_lowest():
    assert grown(3, 2).tolist() == [0, 1, 2, -1, -1]
    assert kept(torch.tensor([0.5, 0.1, 0.9, 0.3]), 2).tolist() == [0, 2]


def test_carry_copies_survivors_and_fills_the_new():
    old = torch.tensor([[1.0, 2], [3, 4]])
    fresh = torch.arange(9.0).view(3, 3) + 10
    maps = [torch.tensor([1, -1, 0]), torch.tensor([0, -1, 1])]
    result = carry(old, fresh, maps, new_outputs=fresh, new_inputs=0.0)
    # rows come from 1, nowhere, 0; the middle column is new: 0 in every row, the newborn row's too
    assert result.tolist() == [[3, 0, 4], [13, 0, 15], [1, 0, 2]]


@given(rows=st.lists(st.integers(-1, 3), min_size=1, max_size=6), columns=st.lists(st.integers(-1, 4), max_size=6))
def test_carry_of_any_map_entry_by_entry(rows, columns):
    old = torch.arange(20.0).view(4, 5) + 1
    fresh = -torch.arange(float(len(rows) * len(columns))).view(len(rows), len(columns)) - 1
    result = carry(old, fresh, [torch.tensor(rows), torch.tensor(columns).long()], new_outputs=fresh, new_inputs=0.0)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            fills = {True: 0.0, False: float(fresh[i, j])}[column < 0]
            assert result[i, j] == (old[row, column] if row >= 0 and column >= 0 else fills)


def moved(role):
    parent = {"w": torch.tensor([[3.0, 4], [6, 8]]), "b": torch.tensor([1.0, 3])}
    child = {"w": torch.full((3, 2), 2.0), "b": torch.full((3,), 9.0)}
    transplant_(
        child,
        parent,
        sources={"w": "w", "b": "b"},
        axes={"w": ("u", "in"), "b": ("u",)},
        maps={"u": grown(2, 1)},
        role=role,
    )
    return child["w"].tolist(), child["b"].tolist()


def test_a_newborn_row_is_as_long_as_the_median_of_the_others():
    # rows of length 5 and 10, whose (lower) median is 5; the fresh row [2, 2] is 2 sqrt(2) long
    (*survivors, newborn), bias = moved("value")
    assert survivors == [[3, 4], [6, 8]]
    np.testing.assert_allclose(newborn, [5 / np.sqrt(2)] * 2, rtol=1e-6)
    assert bias == [1, 3, 9]


def test_new_entries_of_moments_are_zero_and_the_mean():
    assert moved("first") == ([[3, 4], [6, 8], [0, 0]], [1, 3, 0])
    # (3 + 4 + 6 + 8) / 4 and (1 + 3) / 2
    assert moved("second") == ([[3, 4], [6, 8], [5.25, 5.25]], [1, 3, 2])


def test_a_newborn_unit_does_not_count_in_a_normalisation():
    child = {"norms.0.counted": torch.ones(3)}
    transplant_(
        child,
        {"norms.0.counted": torch.tensor([1.0, 0.0])},
        sources={"norms.0.counted": "norms.0.counted"},
        axes={"norms.0.counted": ("u",)},
        maps={"u": grown(2, 1)},
    )
    assert child["norms.0.counted"].tolist() == [1, 0, 0]


def test_a_tensor_without_a_source_stays_fresh():
    child = {"w": torch.ones(2)}
    transplant_(child, {"w": torch.zeros(2)}, sources={}, axes={}, maps={})
    assert child["w"].tolist() == [1, 1]


@given(seed=st.integers(0, 2**31))
def test_refit_is_the_ridge_solution_around_the_old_weights(seed):
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


def test_refit_leaves_alone_what_the_data_do_not_show():
    inputs = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inputs[:, 2] = 4.0  # never varies
    weight, bias = torch.tensor([[1.0, 2.0, 5.0]], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    targets = inputs @ torch.tensor([[3.0], [-1.0], [5.0]], dtype=torch.float64) + 7.0
    refit_(weight, bias, inputs, targets)
    torch.testing.assert_close(weight[0, 2], torch.tensor(5.0, dtype=torch.float64))
    torch.testing.assert_close(inputs @ weight.T + bias, targets, rtol=0, atol=0.02)  # ridge: within 1e-3 of the slopes
