"""How much each hyperparameter mattered in a run, and where its good values were.

An additive model of the gain in fitness of one generation is fitted to all members of all generations; the gain of a
member that starts with initial weights is its fitness, compared with the others that start in that generation. Each
hyperparameter has a curve of degree 2 in the rank of its value, a choice a level for each value; fitness before is a
control, because members that had luck gain less. The importance of a hyperparameter is half of what its permutation
adds to the squared error on members that the fit has not seen, over the variance of the gains: the share of the
variance that its own curve explains (Breiman 2001; for an additive function the first-order index of a functional
ANOVA, Hutter et al. 2014). Interactions between hyperparameters are left out. Intervals come from resampling members,
with the fit repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from agilerl_like.reporting import formatting
from agilerl_like.reporting.estimates import LEAST, Estimate, bootstrap, operator_effects
from agilerl_like.reporting.run_history import FITNESS, RunHistory

RESAMPLES = 200
AT_ONCE = 20
"""Draws that are computed together; more would need more memory."""
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
    reason: str = ""
    """Why there are no effects."""
    is_of_one_member: bool = False
    """Whether the run had one member, so that there is nothing to compare."""


def hyperparameter_effects(run: RunHistory) -> Effects:
    """Return the effects of a run's hyperparameters; none, with the reason, where the run is too short."""
    rows, gains, before = _gains(run)
    uids = np.array([run.rows[row]["uid"] for row in rows])
    num_members = len(set(uids.tolist()))
    if len(rows) < LEAST_ROWS or num_members < LEAST_MEMBERS:
        reason = (
            f"needs at least {LEAST_ROWS} gains and {LEAST_MEMBERS} members, to know effects from noise; this run has "
            f"{len(rows)} and {num_members}"
        )
        return Effects((), len(rows), num_members, reason, len({row["uid"] for row in run.rows}) == 1)
    varied = {name: run.column(name)[rows] for name in run.hyperparameters}
    varied = {name: values for name, values in varied.items() if len(set(values[np.isfinite(values)].tolist())) > 1}
    if not varied:
        return Effects((), len(rows), num_members, "no hyperparameter differed between members")
    if not gains.any():
        return Effects((), len(rows), num_members, "all members of a generation gained the same")
    blocks = [
        _curve(before),
        *(_levels(values) if run.categories(name) else _curve(values) for name, values in varied.items()),
    ]
    places = np.split(np.arange(sum(block.shape[1] for block in blocks)), np.cumsum([b.shape[1] for b in blocks])[:-1])
    columns = np.column_stack(blocks)
    moments = _moments(columns, gains, uids)
    once = np.ones((1, num_members))
    penalty = max(PENALTIES, key=lambda its: _shares(moments, once, places[1:], its)[0, -1])
    (shares,) = _shares(moments, once, places[1:], penalty)
    drawn = _resampled(moments, places[1:], penalty)
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
    return Effects(tuple(ordered), len(rows), num_members)


def _gains(run: RunHistory) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, their gains in units of the deviation within a generation, and fitness before, as a rank in it.

    Members that start with initial weights, as all in the first generation, are compared with one another: their gain
    is their fitness.
    """
    fitness, origin = run.column(FITNESS), np.array(run.before)
    rows: list[int] = []
    gains: list[float] = []
    before: list[float] = []
    for start, stop in run.generations:
        for has_origin in (True, False):
            own = [row for row in range(start, stop) if (origin[row] >= 0) == has_origin]
            of_before = fitness[origin[own]] if has_origin else np.zeros(len(own))
            known = np.isfinite(fitness[own] - of_before)
            if known.sum() < 3:
                continue
            own, of_before = np.array(own)[known].tolist(), of_before[known]
            gained = fitness[own] - of_before
            rows += own
            gains += (gained - gained.mean()).tolist()
            before += _ranks(of_before).tolist() if has_origin else [0.0] * len(own)
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


def _moments(columns: np.ndarray, gains: np.ndarray, uids: np.ndarray) -> np.ndarray:
    """Return each member's sum over its rows of all products of (1, columns, gain), `[members, q, q]`."""
    rows = np.column_stack([np.ones(len(gains)), columns, gains])
    _, member, counts = np.unique(uids, return_inverse=True, return_counts=True)
    of_members = np.split(rows[np.argsort(member, kind="stable")], np.cumsum(counts)[:-1])
    return np.stack([own.T @ own for own in of_members])


def _shares(moments: np.ndarray, counts: np.ndarray, places: Sequence[np.ndarray], penalty: float) -> np.ndarray:
    """Return the importance of each of the groups of columns, and at the end what the whole model explains.

    `counts`, `[draws, members]`, is how often each draw has each member; there is a row of shares for each draw.
    Members are held out in folds. No permutations are drawn, their expected effect is computed: for a row with curve
    value f and residual r, where f has mean m and mean square s over all rows, permuting f raises the squared error by
    2 r (f - m) + f^2 - 2 f m + s on average. This needs only summed moments, so a draw does not visit the rows.
    """
    held = _by_fold(moments, counts)  # [draws, folds, q, q], as all below but for the draws' own sums
    whole = held.sum(axis=1)
    used, num_rows = whole[:, None] - held, whole[:, 0, 0]
    mean_gain = used[..., 0, -1] / np.maximum(used[..., 0, 0], 1)
    normal = used[..., 1:-1, 1:-1] + penalty * np.eye(moments.shape[-1] - 2)
    target = used[..., 1:-1, -1] - mean_gain[..., None] * used[..., 0, 1:-1]
    weights = np.linalg.solve(normal, target[..., None])[..., 0]
    residual = np.concatenate([-mean_gain[..., None], -weights, np.ones((*mean_gain.shape, 1))], axis=-1)
    variance = whole[:, -1, -1] / num_rows - (whole[:, 0, -1] / num_rows) ** 2
    scale = num_rows * np.where(variance > 1e-12, variance, 1.0)
    found = []
    for place in places:
        curve = np.zeros_like(residual)
        curve[..., place + 1] = weights[..., place]
        of_held, of_whole = _product(held, curve), _product(whole[:, None], curve)
        mean, mean_square = of_whole[..., 0] / num_rows[:, None], (of_whole * curve).sum(-1) / num_rows[:, None]
        centred = (residual * of_held).sum(-1) - mean * (held[..., 0, :] * residual).sum(-1)
        rise = 2 * centred + (curve * of_held).sum(-1) - 2 * mean * of_held[..., 0] + held[..., 0, 0] * mean_square
        found.append(rise.sum(axis=1) / 2 / scale)
    squares = (residual * _product(held, residual)).sum((-1, -2))
    return np.column_stack([*found, 1 - squares / scale])


def _by_fold(moments: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return sums of moments, `[draws, folds, q, q]`; the members that a draw has are dealt to the folds in turn."""
    is_drawn = counts > 0
    folds = (np.cumsum(is_drawn, axis=1) - 1) % FOLDS
    weights = np.stack([counts * (folds == number) for number in range(FOLDS)], axis=1)
    return np.tensordot(weights, moments, axes=1)


def _product(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    return (matrices @ vectors[..., None])[..., 0]


def _resampled(moments: np.ndarray, places: Sequence[np.ndarray], penalty: float) -> np.ndarray:
    """Return the shares of `RESAMPLES` draws of members with replacement; copies of a member stay in one fold."""
    rng, members, found = np.random.default_rng(0), len(moments), []
    for _ in range(0, RESAMPLES, AT_ONCE):
        drawn = [np.bincount(rng.choice(members, members), minlength=members) for _ in range(AT_ONCE)]
        found.append(_shares(moments, np.array(drawn, dtype=float), places, penalty))
    return np.concatenate(found)


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
    if found.is_of_one_member:
        return []
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
        lines.append(
            f"no effect beyond noise: {', '.join(rest)} ({found.num_rows} gains of {found.num_members} members)"
        )
    return lines


def percent(estimate: Estimate) -> str:
    """Return a share with its interval, `31 % [12, 47]`; 0 is at most 0, and a smaller share has a digit."""
    value, low, high = (100 * max(0.0, end) for end in estimate[:3])
    value, low, high = (f"{end:.1g}" if 0 < end < 0.5 else f"{end:.0f}" for end in (value, low, high))
    return f"{value} % [{low}, {high}]"


def operator_lines(run: RunHistory) -> list[str]:
    """Return the effect of each kind of mutation with its interval, of those with enough births for one."""
    estimates = {name: bootstrap(own) for name, own in operator_effects(run).items() if len(own) >= LEAST}
    return [f"{name}: {its.text(signed=True)} in {its.num_values} births" for name, its in estimates.items()]
