"""Fitness for zero-sum environments: ratings from games against the best teams of earlier generations.

In a pair of games on the same seed, a member controls the agents of one group and the opponent all others, then the
other way round; the team with the higher reward over both games wins, so that no side has an advantage, and equal
rewards are half a win. In a team of a single group, whose agents share a policy, each agent is a side. All members play
the same opponents: the best team of the last generation, and a few sampled from earlier ones.

Where nothing is random, agents that do not explore would repeat one game. There, games begin with `Openings`: the first
seed has none, the others have a few random moves, the same for all members and both sides. Games with equal openings
count once, and those that end within their opening not at all.

Ratings are those of Bradley and Terry (1952), with a normal prior around the rating of the best team one generation
before, so that a team that always wins has a finite rating. A prior around the initial rating would hold back ratings
the more, the higher they are, until they stop rising while strengths still rise. Those of the pool are fitted to all
games between its teams whenever it gets another one. A team that enters it has been selected as the best of many
uncertain ratings, which is biased upwards; so it is rated in games of its own, against more opponents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from agilerl_like.algorithms.episode_guard import never_stop
from agilerl_like.algorithms.evaluation import eval_mode
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.ippo import IPPO, MultiAgentPopulation
from agilerl_like.algorithms.openings import Openings, has_chance
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.errors import ConfigurationError
from agilerl_like.seeding import Purpose, generator, integers
from agilerl_like.training.evaluator import (
    INITIAL_RATING,
    EvalResult,
    EvaluateLocally,
    Evaluator,
    Opponent,
    PoolUpdate,
    first_opponent,
    with_opponent,
)
from agilerl_like.training.sharding import ShardedPopulation
from agilerl_like.training.sides import group_parts, play_sides, player_sides, scores_of

OPPONENTS_PER_GENERATION = 3
"""Opponents that a generation plays against, if the pool has as many."""
PRIOR_STD = 200.0
"""Standard deviation of ratings before any game, around the rating that is expected."""
RERATING_GAMES = 20
"""Games against each opponent that rate a team again when it enters the pool."""
RERATING_OPPONENTS = 8
"""Opponents in these games, if the pool has as many: against few, their style of play decides."""
MAX_NEWTON_STEPS = 100
SCALE = 400.0 / math.log(10.0)
"""Rating difference at which the odds are e to one."""
PRIOR_PRECISION = (SCALE / PRIOR_STD) ** 2
"""Inverse variance of ratings before any game, in units of 1 / SCALE^2."""


class PoolGames(NamedTuple):
    """Games of a team that enters the pool."""

    games: list[list[float]]
    """As in `Opponent`."""
    steps: int


class EloEvaluator(Evaluator):
    """Computes ratings; the opponent pool is the same on all ranks."""

    env: MultiAgentVecEnvAdapter
    is_relative = True

    def __init__(self, env: Any, max_steps: int | None) -> None:
        super().__init__(env, max_steps)
        self._chance: bool | None = None
        """Whether games differ by their seeds; None before the first game."""
        self._openings: dict[int, set[str]] = {}
        """The openings of the games since the last `evaluate`, by the opponent's generation."""

    def init_opponent_pool(self, members: ShardedPopulation) -> None:
        groups = cast(IPPO, members.first).groups
        if len(player_sides(groups)) < 2:
            raise ConfigurationError(
                f"fitness='rating' needs two agents or more that play each other; the team has {dict(groups)}: allowed "
                "is fitness='return'"
            )
        self.opponent_pool = first_opponent(members)

    def evaluate(
        self,
        players: EvolvableAlgorithm | BasePopulation,
        seeds: Sequence[int],
        generation: int,
        *,
        should_stop: Callable[[], bool] = never_stop,
    ) -> EvalResult:
        self._openings = {}
        return self.evaluate_further(players, seeds, generation, should_stop=should_stop)

    def evaluate_further(
        self,
        players: EvolvableAlgorithm | BasePopulation,
        seeds: Sequence[int],
        generation: int,
        *,
        should_stop: Callable[[], bool] = never_stop,
    ) -> EvalResult:
        """Rate members by games that do not repeat those since the last `evaluate`.

        Where a member has no game, its standard error is infinite, so that the rating has no weight.
        """
        home = cast(MultiAgentPopulation | IPPO, players)
        opponents = self._sample_opponents(home.seed, generation, OPPONENTS_PER_GENERATION)
        games = [
            self._play_games(
                home,
                cast(IPPO, opponent.player),
                seeds,
                should_stop,
                self._openings.setdefault(opponent.generation, set()),
            )
            for opponent in opponents
        ]
        counts = np.stack([np.isfinite(score).sum(axis=1) for score, _ in games], axis=1)  # [P, opponents]
        scores = np.stack([np.nansum(score, axis=1) for score, _ in games], axis=1) / np.maximum(counts, 1)
        ratings, errors = fit_ratings(scores, counts, [opponent.rating for opponent in opponents], opponents[0].rating)
        errors = np.where(counts.any(axis=1), errors, math.inf)
        steps = np.sum([steps for _, steps in games], axis=0)
        episodes = len(player_sides(opponents[0].player.groups)) * sum(score.shape[1] for score, _ in games)
        return EvalResult(ratings.tolist(), errors.tolist(), errors.tolist(), episodes, steps.tolist())

    def update_opponent_pool(
        self, members: ShardedPopulation, slot: int, generation: int, evaluate: EvaluateLocally
    ) -> PoolUpdate:
        seeds = integers(RERATING_GAMES, members.first.seed, Purpose.POOL_UPDATE, generation)
        owner_rank = members.owner_rank(slot)
        best = members.local_members().get(slot) if owner_rank == members.process_group.rank else None
        own, stop_signal = evaluate(lambda asked: best and self._pool_games(cast(IPPO, best), seeds, generation, asked))
        if stop_signal:
            return PoolUpdate(0, stop_signal)
        results = members.process_group.all_gather(None if own is None else [own.games, own.steps])
        games, steps = results[owner_rank]
        self.opponent_pool = rated_pool(with_opponent(self.opponent_pool, members, slot, generation, games))
        return PoolUpdate(steps, 0)

    def _pool_games(
        self, best: IPPO, seeds: Sequence[int], generation: int, should_stop: Callable[[], bool]
    ) -> PoolGames:
        """Play the games that rate a team when it enters the pool."""
        found, steps = [], 0
        for opponent in self._sample_opponents(best.seed, generation, RERATING_OPPONENTS):
            scores, its_steps = self._play_games(best, cast(IPPO, opponent.player), seeds, should_stop)
            found.append([opponent.generation, float(np.nansum(scores[0])), int(np.isfinite(scores[0]).sum())])
            steps += int(its_steps[0])
        return PoolGames(found, steps)

    def _sample_opponents(self, seed: int, generation: int, most: int) -> list[Opponent]:
        """Return at most `most` opponents: the newest, and a sample of the others."""
        *older, newest = self.opponent_pool
        count = min(most - 1, len(older))
        rng = generator(seed, Purpose.OPPONENTS, generation)
        places = rng.choice(len(older), count, replace=False) if count else ()
        return [newest, *(older[int(place)] for place in sorted(places))]

    def _play_games(
        self,
        home: MultiAgentPopulation | IPPO,
        visitor: IPPO,
        seeds: Sequence[int],
        should_stop: Callable[[], bool] = never_stop,
        seen: set[str] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return scores `[P, K]` of all members on each seed, and their env steps `[P]`.

        They compare the returns over all sides: 1 is a win, 0.5 a draw and 0 a defeat. A seed has no score (nan) if one
        of its games was lost with its worker process.

        Without chance, games with openings that were `seen` are left out, and those of the others are added to it.
        """
        seen = set() if seen is None else seen
        spaces = self.env.single_action_spaces
        openings = None if self._has_chance(visitor.seed) else Openings(seeds, spaces, seen=seen)
        with eval_mode(home), eval_mode(visitor):
            played = play_sides(
                player_sides(visitor.groups),
                lambda agents: group_parts(visitor.groups, home.group_policies, agents),
                lambda agents: group_parts(visitor.groups, visitor.group_policies, agents),
                self.env,
                seeds,
                members=len(home) if isinstance(home, MultiAgentPopulation) else 1,
                max_steps=self.max_steps,
                should_stop=should_stop,
                openings=openings,
            )
        if openings is not None:
            seen |= openings.played
        mine, theirs = played.mine.sum(axis=0), played.others.sum(axis=0)
        return scores_of(mine, theirs, played.lost.any(axis=0)), played.steps

    def _has_chance(self, seed: int) -> bool:
        if self._chance is None:
            self._chance = has_chance(self.env, seed)
        return self._chance


def rated_pool(pool: Sequence[Opponent]) -> list[Opponent]:
    """Return the pool with the ratings that fit all games between its teams best; the first one's is the initial one.

    Games against teams that have left the pool do not count any more.
    """
    places = {opponent.generation: place for place, opponent in enumerate(pool)}
    wins, games = (np.zeros((len(pool), len(pool))) for _ in range(2))
    for place, opponent in enumerate(pool):
        for generation, score, count in opponent.games:
            other = places.get(int(generation))
            if other is not None:
                wins[place, other] += score
                wins[other, place] += count - score
                games[place, other] += count
                games[other, place] += count
    ratings = fit_bradley_terry(wins, games, successive_prior(len(pool)))
    ratings += INITIAL_RATING - ratings[0]
    return [one._replace(rating=float(rating)) for one, rating in zip(pool, ratings, strict=True)]


def independent_prior(count: int) -> np.ndarray:
    """Return the precision `[N, N]` of ratings that are each near the initial one, in units of 1 / SCALE^2."""
    return PRIOR_PRECISION * np.eye(count)


def successive_prior(count: int) -> np.ndarray:
    """Return the precision `[N, N]` of ratings of which the first is near the initial one and each next near the last.

    It is in units of 1 / SCALE^2.
    """
    changes = np.eye(count) - np.eye(count, k=-1)
    return PRIOR_PRECISION * changes.T @ changes


def fit_bradley_terry(wins: np.ndarray, games: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return ratings `[N]` with the highest posterior density, from scores and numbers of games `[N, N]`.

    `prior` is the precision of the ratings before any game. The ratings are found by Newton's method on a concave
    function.
    """
    ratings = np.zeros(len(wins))  # relative to the initial rating, in units of SCALE
    for _ in range(MAX_NEWTON_STEPS):
        gradient = (wins - games * _win_probabilities(ratings)).sum(axis=1) - prior @ ratings
        change = np.linalg.solve(_information(ratings, games, prior), gradient)
        ratings = ratings + np.clip(change, -1.0, 1.0)
        if np.abs(change).max() < 1e-10:
            break
    return INITIAL_RATING + SCALE * ratings


def rating_errors(ratings: np.ndarray, games: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return the standard errors `[N]` of the ratings that `fit_bradley_terry` found, to their mean."""
    count = len(ratings)
    covariance = np.linalg.inv(_information((ratings - INITIAL_RATING) / SCALE, games, prior))
    centred = np.eye(count) - 1 / count
    return SCALE * np.sqrt(np.diag(centred @ covariance @ centred.T))


def _win_probabilities(ratings: np.ndarray) -> np.ndarray:
    """Return the expected score of each against each `[N, N]`, for ratings in units of SCALE."""
    return 1 / (1 + np.exp(ratings[None] - ratings[:, None]))


def _information(ratings: np.ndarray, games: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return the negative second derivatives `[N, N]` of the log posterior."""
    expected = _win_probabilities(ratings)
    weights = games * expected * (1 - expected)
    return np.diag(weights.sum(axis=1)) - weights + prior


def fit_ratings(
    scores: np.ndarray, games: int | np.ndarray, opponents: Sequence[float], expected: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return ratings `[P]` and their standard errors, from mean scores `[P, R]` in `games` (a number or `[P, R]`).

    The opponents' ratings are known; that of a player has a normal prior around `expected`.
    """
    ratings, counts = np.asarray(opponents), np.broadcast_to(np.asarray(games, np.float64), scores.shape)

    def surplus(rating: np.ndarray) -> np.ndarray:
        won = ((scores - _expected_scores(rating, ratings)) * counts).sum(axis=1)
        return won - PRIOR_PRECISION * (rating - expected) / SCALE

    edges = min(ratings.min(), expected) - 4000.0, max(ratings.max(), expected) + 4000.0
    low, high = (np.full(len(scores), edge) for edge in edges)
    for _ in range(60):
        middle = (low + high) / 2
        below = surplus(middle) > 0
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    found = (low + high) / 2
    chances = _expected_scores(found, ratings)
    return found, SCALE / np.sqrt((counts * chances * (1 - chances)).sum(axis=1) + PRIOR_PRECISION)


def _expected_scores(rating: np.ndarray, opponents: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp((opponents - rating[:, None]) / SCALE))
