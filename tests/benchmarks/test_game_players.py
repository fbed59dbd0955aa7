"""The scripted players of connect_four and texas_holdem, the rank correlation, and the publication of rows."""

import json

import numpy as np
import pytest

from benchmarks.game_players import LINES, call, complete_line, complete_or_prevent, raise_, winning_columns
from benchmarks.games import GAMES, Case, main, ranks, spearman
from benchmarks.harness import one

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


@pytest.mark.parametrize(
    ("mask", "called", "raised"),
    [([1, 1, 1, 0], 0, 1), ([0, 1, 1, 1], 3, 1), ([1, 0, 1, 0], 0, 0), ([0, 0, 1, 1], 3, 3)],
)
def test_two_players_of_texas_holdem_never_fold(mask, called, raised):
    """Actions are call, raise, fold and check."""
    observation = np.zeros(72)
    assert call(observation, np.array(mask), RNG) == called
    assert raise_(observation, np.array(mask), RNG) == raised


def row(game, seed, won):
    names = ("random", "calls", "untrained")
    result = {
        "game": game,
        "seed": seed,
        "env_steps": 1000,
        "seconds": 1.0,
        "won": {name: [won, 1.0] for name in names},
        "lost": {name: [0.0, 0.0] for name in names},
        "winnings": {name: [0.5, 0.7] for name in names},
        "winnings_error": dict.fromkeys(names, 0.1),
        "untrained": {"random": {"mean": 0.25, "error": 0.1}},
        "spearman": None,
    }
    command = [*one("benchmarks.games", Case(game, GAMES[game], [])), "--threads", "1", "--seed", str(seed)]
    run = {"case": game, "side": "ours", "round": 0, "seed": seed, "threads": 1, "others": 0.0, "result": result}
    return json.dumps({"command": command[1:], **run}) + "\n"


def test_rows_of_runs_that_ended_are_published_together(tmp_path):
    """Of tictactoe the shares lost are a goal, which both seeds reach."""
    rows, page = tmp_path / "rows.jsonl", tmp_path / "page" / "README.md"
    games = ("texas_holdem", "tictactoe")
    rows.write_text("".join(row(game, seed, 0.9 - seed / 10) for game in games for seed in (2, 1)))
    page.parent.mkdir()
    main(["--games", *games, "--seed", "1", "--repetitions", "2", "--rows", str(rows), "--output", str(page)])
    published = [json.loads(line) for line in (page.parent / "results" / "games.jsonl").read_text().splitlines()]
    assert [(its["case"], its["seed"], its["round"]) for its in published] == [
        ("texas_holdem", 1, 0),
        ("texas_holdem", 2, 1),
        ("tictactoe", 1, 0),
        ("tictactoe", 2, 1),
    ]
    text = page.read_text()
    assert "| tictactoe | 1 | 1,000 | random | 80.0% and 100.0% |" in text
    assert "| tictactoe, lost against random | 0% as first, <= 5% as second, 2 of 2 seeds |" in text
    assert "| 0.0% and 0.0% | +0.60 ± 0.20 | +0.25 ± 0.20 |" in text  # a mean of both sides, and 1.96 times 0.1
