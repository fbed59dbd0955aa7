"""The scripted player of connect_four, and the rank correlation."""

import numpy as np
import pytest

from benchmarks.game_players import LINES, complete_line, complete_or_prevent, winning_columns
from benchmarks.games import ranks, spearman

RNG = np.random.default_rng(0)


def board(*rows):
    """Read a board of "x" (own), "o" (other) and "."; rows above are empty."""
    lines = ["." * 7] * (6 - len(rows)) + list(rows)
    own, other = (np.array([[square == mark for square in line] for line in lines], np.int8) for mark in "xo")
    return np.stack([own, other], -1), ~(own[0] | other[0]).astype(bool)


def test_there_are_69_lines_of_four():
    """24 horizontal, 21 vertical and 24 diagonal ones."""
    assert len(LINES) == len({tuple(sorted(line)) for line in LINES.tolist()}) == 69


@pytest.mark.parametrize(
    ("rows", "column"),
    [
        (["xxx.o.o"], 3),  # completes a row
        (["x......", "x......", "x....oo"], 0),  # completes a column
        (["..xo...", ".xoo...", "xoxo..."], 3),  # completes a diagonal, and prevents a column
        (["x......", "ox.....", "xox....", "oxo...."], 3),  # completes the other diagonal
        (["ooo.x.x"], 3),  # prevents a row
        (["ooo.x.x", "xxo.xxo"], None),  # the square for it is not the lowest empty one
    ],
)
def test_a_line_is_completed_or_prevented(rows, column):
    observation, mask = board(*rows)
    own, other = observation[..., 0], observation[..., 1]
    found = {*np.flatnonzero(winning_columns(own, other)), *np.flatnonzero(winning_columns(other, own))}
    assert found == (set() if column is None else {column})
    assert column is None or complete_or_prevent(observation, mask, RNG) == column


def test_winning_comes_before_preventing():
    observation, mask = board("xxx.ooo")
    assert complete_or_prevent(observation, mask, RNG) == 3
    observation, mask = board("x.....o", "x.....o", "x.....o")
    assert complete_or_prevent(observation, mask, RNG) == 0


def test_one_move_ahead_prevents_nothing():
    observation, mask = board("ooo.x.x")
    assert {complete_line(observation, mask, RNG) for _ in range(100)} == {*range(7)}
    observation, mask = board("xxx.ooo")
    assert complete_line(observation, mask, RNG) == 3


def test_full_columns_are_not_chosen():
    observation, mask = board(*["xxooxx.", "ooxxoo."] * 3)
    assert mask.tolist() == [False] * 6 + [True]
    assert complete_or_prevent(observation, mask, RNG) == 6


def test_ranks_of_equal_numbers_are_their_mean():
    assert ranks([3.0, 1.0, 3.0]).tolist() == [1.5, 0.0, 1.5]
    assert spearman([1, 2, 3], [10, 20, 15]) == pytest.approx(0.5)  # 1 - 6 (0 + 1 + 1) / (3 * 8)
