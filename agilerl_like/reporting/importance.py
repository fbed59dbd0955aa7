"""How much each hyperparameter mattered in a run, and where its good values were.

An additive model of the gain in fitness of one generation is fitted to all members of all generations. Each
hyperparameter has a curve of degree 2 in the rank of its value, a choice a level for each value; fitness before is a
control, because members that had luck gain less. The importance of a hyperparameter is half of what its permutation
adds to the squared error on members that the fit has not seen, over the variance of the gains: the share of the
variance that its own curve explains (Breiman 2001; for an additive function the first-order index of a functional
ANOVA, Hutter et al. 2014). Interactions between hyperparameters are left out. Intervals come from resampling members,
with the fit repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from agilerl_like.reporting import formatting
from agilerl_like.reporting.estimates import Estimate, bootstrap, operator_effects
from agilerl_like.reporting.run_history import FITNESS, RunHistory

RESAMPLES = 200
FOLDS = 10
PENALTIES = (1.0, 10.0, 100.0, 1000.0)
"""Candidate penalties of the squared coefficients of standardized columns."""
LEAST_ROWS = 24
LEAST_MEMBERS = 8
"""Below these, any importance would be that of noise."""
GOOD_SHARE = 0.25
"""Share of the rows, those of the largest gains, whose values are good ones."""


class Effect(NamedTuple):
    """What a run shows of one hyperparameter."""

    name: str
    importance: Estimate
    """Share of the variance of gains, with its interval; at most 1, and about 0 or below without an effect."""
    good: str
    """Values of the members that gained most: the range of the middle 80 %, or the most frequent choice."""
    tried: str
    """All values that members trained with."""

    @property
    def is_shown(self) -> bool:
        """Whether the interval excludes no effect."""
        return self.importance.low > 0


class Effects(NamedTuple):
    """The effects of all hyperparameters that differed between members, the largest first."""

    effects: Sequence[Effect]
    num_rows: int
    """Members times generations that had a gain."""
    num_members: int
    explained: float
    """Share of the variance of the gains of unseen members that the whole model explains; it may be negative."""
    reason: str = ""
    """Why there are no effects."""


def hyperparameter_effects(run: RunHistory) -> Effects:
    """Return the effects of a run's hyperparameters; none, with the reason, where the run is too short."""
    rows, gains, before = _gains(run)
    uids = np.array([run.rows[row]["uid"] for row in rows])
    num_members = len(set(uids.tolist()))
    if len(rows) < LEAST_ROWS or num_members < LEAST_MEMBERS:
        reason = (
            f"{len(rows)} gains of {num_members} members are too few to tell effects from noise; at least {LEAST_ROWS} "
            f"of {LEAST_MEMBERS}"
        )
        return Effects((), len(rows), num_members, math.nan, reason)
    varied = {name: run.column(name)[rows] for name in run.hyperparameters}
    varied = {name: values for name, values in varied.items() if len(set(values[np.isfinite(values)].tolist())) > 1}
    if not varied:
        return Effects((), len(rows), num_members, math.nan, "no hyperparameter differed between members")
    if not gains.any():
        return Effects((), len(rows), num_members, math.nan, "all members of a generation gained the same")
    blocks = [
        _curve(before),
        *(_levels(values) if run.categories(name) else _curve(values) for name, values in varied.items()),
    ]
    places = np.split(np.arange(sum(block.shape[1] for block in blocks)), np.cumsum([b.shape[1] for b in blocks])[:-1])
    columns = np.column_stack(blocks)
    penalty = max(PENALTIES, key=lambda its: _shares(columns, gains, uids, places[1:], its)[-1])
    shares = _shares(columns, gains, uids, places[1:], penalty)
    drawn = _resampled(columns, gains, uids, places[1:], penalty)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    best = gains >= np.quantile(gains, 1 - GOOD_SHARE)
    effects = [
        Effect(
            name.removeprefix("hp/"),
            Estimate(float(shares[n]), float(low[n]), float(high[n]), num_members),
            _described(run, name, values[best], of_good=True),
            _described(run, name, values),
        )
        for n, (name, values) in enumerate(varied.items())
    ]
    ordered = sorted(effects, key=lambda effect: -effect.importance.value)
    return Effects(tuple(ordered), len(rows), num_members, float(shares[-1]))


def _gains(run: RunHistory) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, their gains in units of the deviation within a generation, and fitness before, as a rank in it."""
    fitness, origin = run.column(FITNESS), np.array(run.before)
    rows: list[int] = []
    gains: list[float] = []
    before: list[float] = []
    for start, stop in run.generations:
        own = [row for row in range(start, stop) if origin[row] >= 0]
        own = [row for row in own if math.isfinite(fitness[row] - fitness[origin[row]])]
        if len(own) < 3:
            continue
        gained = fitness[own] - fitness[origin[own]]
        rows += own
        gains += (gained - gained.mean()).tolist()
        before += _ranks(fitness[origin[own]]).tolist()
    values = np.array(gains)
    scale = values.std() if len(values) else 0.0
    return np.array(rows, dtype=int), np.clip(values / scale, -3, 3) if scale > 0 else values * 0, np.array(before)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from -1 to 1, equal for equal values; 0 for values that are not known."""
    known = values[np.isfinite(values)]
    lower, upper = (np.searchsorted(np.sort(known), values, side=side) for side in ("left", "right"))
    ranks = (lower + upper) / max(len(known), 1) - 1
    return np.where(np.isfinite(values), ranks, 0.0)


def _curve(values: np.ndarray) -> np.ndarray:
    """Return the columns of a curve of degree 2 in the rank of values."""
    ranks = _ranks(values)
    return _standardized(np.column_stack([ranks, (3 * ranks**2 - 1) / 2]))


def _levels(values: np.ndarray) -> np.ndarray:
    """Return a column for each value of a choice."""
    return _standardized(np.column_stack([values == value for value in np.unique(values[np.isfinite(values)])]))


def _standardized(columns: np.ndarray) -> np.ndarray:
    deviation = columns.std(axis=0)
    return (columns - columns.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)


def _shares(
    columns: np.ndarray, gains: np.ndarray, uids: np.ndarray, places: Sequence[np.ndarray], penalty: float
) -> np.ndarray:
    """Return the importance of each of the groups of columns, and at the end what the whole model explains.

    Members are held out in folds. The permutation is replaced by its mean: with f the curve's value in a row, of mean m
    and mean square s, and r the residual, the squared error rises by 2 r (f - m) + f^2 - 2 f m + s.
    """
    members = np.unique(uids)
    fold = dict(zip(members.tolist(), (np.arange(len(members)) % FOLDS).tolist(), strict=True))
    folds = np.array([fold[uid] for uid in uids.tolist()])
    residuals, rises = np.zeros(len(gains)), np.zeros((len(places), len(gains)))
    diagonal = penalty * np.eye(columns.shape[1])
    for number in range(FOLDS):
        held, used = folds == number, folds != number
        if not held.any() or not used.any():
            residuals[held] = gains[held]
            continue
        x, y = columns[used], gains[used]
        weights = np.linalg.solve(x.T @ x + diagonal, x.T @ (y - y.mean()))
        residuals[held] = gains[held] - y.mean() - columns[held] @ weights
        for n, place in enumerate(places):
            curve = columns[:, place] @ weights[place]
            mean, own = curve.mean(), curve[held]
            rises[n, held] = 2 * residuals[held] * (own - mean) + own**2 - 2 * own * mean + (curve**2).mean()
    variance = float(gains.var()) or 1.0
    return np.array([*(rises.mean(axis=1) / 2 / variance), 1 - float((residuals**2).mean()) / variance])


def _resampled(
    columns: np.ndarray, gains: np.ndarray, uids: np.ndarray, places: Sequence[np.ndarray], penalty: float
) -> np.ndarray:
    """Return the shares of `RESAMPLES` draws of members with replacement; copies of a member stay in one fold."""
    rng = np.random.default_rng(0)
    members = np.unique(uids)
    rows_of = {uid: np.flatnonzero(uids == uid) for uid in members.tolist()}
    found = []
    for _ in range(RESAMPLES):
        rows = np.concatenate([rows_of[uid] for uid in rng.choice(members, len(members)).tolist()])
        found.append(_shares(columns[rows], gains[rows], uids[rows], places, penalty))
    return np.array(found)


def _described(run: RunHistory, name: str, values: np.ndarray, *, of_good: bool = False) -> str:
    """Return values in words: a range, or choices; of the good ones the middle 80 %, or the most frequent."""
    known: Any = values[np.isfinite(values)]
    if not known.size:
        return "-"
    if categories := run.categories(name):
        places, counts = np.unique(known, return_counts=True)
        shown = [formatting.hyperparameter(categories[int(place)]) for place in places]
        return shown[int(np.argmax(counts))] if of_good else ", ".join(shown)
    ends = np.quantile(known, [0.1, 0.9] if of_good else [0.0, 1.0], method="nearest").tolist()
    whole = bool((known % 1 == 0).all())
    low, high = formatting.hyperparameters([int(end) if whole else float(end) for end in ends])
    return low if low == high else f"{low} to {high}"


def effects_lines(found: Effects) -> list[str]:
    """Return the effects as lines of text, for a terminal."""
    if found.reason:
        return [f"not known: {found.reason}"]
    shown = [effect for effect in found.effects if effect.is_shown]
    lines = [
        f"{effect.name}: {percent(effect.importance)} of the variance of gains; good values {effect.good} "
        f"of {effect.tried}"
        for effect in shown
    ]
    rest = [effect.name for effect in found.effects if not effect.is_shown]
    if rest:
        lines.append(f"no effect shown: {', '.join(rest)} ({found.num_rows} gains of {found.num_members} members)")
    return lines


def percent(estimate: Estimate) -> str:
    """Return a share with its interval, `31 % [12, 47]`."""
    value, low, high = (f"{100 * max(0.0, end):.0f}" for end in estimate[:3])
    return f"{value} % [{low}, {high}]"


def operator_lines(run: RunHistory, least: int = 5) -> list[str]:
    """Return the effect of each kind of mutation with its interval, of those with at least so many births."""
    estimates = {name: bootstrap(own) for name, own in operator_effects(run).items() if len(own) >= least}
    lines = []
    for name, estimate in estimates.items():
        value, low, high = formatting.returns(estimate[:3], signed=True)
        lines.append(f"{name}: {value} [{low}, {high}] in {estimate.num_values} births")
    return lines
