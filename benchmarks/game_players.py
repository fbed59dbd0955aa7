"""Scripted players of the games of `benchmarks.games`: functions of an observation, an action mask and a generator."""

from itertools import product

import numpy as np

ROWS, COLUMNS, LINE = 6, 7, 4


def _lines() -> np.ndarray:
    """Return the squares of all lines of four, `[69, 4]`, numbered row by row."""
    found = []
    for row, column, (down, right) in product(range(ROWS), range(COLUMNS), ((0, 1), (1, 0), (1, 1), (1, -1))):
        last_row, last_column = row + down * (LINE - 1), column + right * (LINE - 1)
        if last_row < ROWS and 0 <= last_column < COLUMNS:
            found.append([(row + i * down) * COLUMNS + column + i * right for i in range(LINE)])
    return np.array(found)


LINES = _lines()


def winning_columns(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return flags `[7]` of the columns where a piece of `own` completes a line, on boards `[6, 7]`, the top row first.

    Full columns are never flagged.
    """
    taken = (own + other).astype(bool)
    heights = taken.sum(0)
    landing = (ROWS - 1 - heights) * COLUMNS + np.arange(COLUMNS)  # negative where a column is full
    mine, theirs = own.ravel()[LINES], other.ravel()[LINES]
    threats = (mine.sum(1) == LINE - 1) & (theirs.sum(1) == 0)
    missing = LINES[threats][mine[threats] == 0]
    return np.isin(landing, missing) & (heights < ROWS)


def complete_line(observation: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> int:
    """Complete a line in connect_four; or else move at random."""
    return _first_of(rng, winning_columns(observation[..., 0], observation[..., 1]), mask)


def complete_or_prevent(observation: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> int:
    """Complete a line in connect_four; or else prevent that the opponent completes one; or else move at random."""
    own, other = observation[..., 0], observation[..., 1]
    return _first_of(rng, winning_columns(own, other), winning_columns(other, own), mask)


def _first_of(rng: np.random.Generator, *choices: np.ndarray) -> int:
    """Return one of the flagged columns of the first flags that have any."""
    flagged = next(flags for flags in choices if flags.any())
    return int(rng.choice(np.flatnonzero(flagged)))


CALL, RAISE, CHECK = 0, 1, 3  # actions of texas_holdem; the other one folds


def call(observation: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> int:
    """Call or check in texas_holdem."""
    return CALL if mask[CALL] else CHECK


def raise_(observation: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> int:
    """Raise in texas_holdem, as long as it is allowed; else call or check."""
    return RAISE if mask[RAISE] else call(observation, mask, rng)
