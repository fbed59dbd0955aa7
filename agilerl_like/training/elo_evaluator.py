"""Fitness for zero-sum environments: an Elo-like rating from games against the best teams of earlier generations.

In a pair of games on the same seed, a member controls the agents of one group and the opponent all others, then the
other way round; the team with the higher reward over both games wins, so that no side has an advantage. All members
play the same opponents: the best team of the last generation, and a few sampled from earlier ones. An opponent's rating
was fixed when it entered the pool. A member's rating is the one at which a logistic curve predicts its scores.

The best of many uncertain ratings is biased upwards, and the bias would accumulate in the pool. So a team that enters
the pool is rated again, in games that were not used to select it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np

from agilerl_like.algorithms.episode_guard import never_stop
from agilerl_like.algorithms.evaluation import eval_mode, evaluate
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.ippo import IPPO, MultiAgentPopulation
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.errors import ConfigurationError
from agilerl_like.seeding import Purpose, generator, integers
from agilerl_like.training.evaluator import EvalResult, EvaluateLocally, Evaluator, Opponent, PoolUpdate
from agilerl_like.training.sharding import ShardedPopulation

INITIAL_RATING = 1000.0
"""Of the first opponent, a copy of the untrained first member."""
OPPONENTS_PER_GENERATION = 3
"""Opponents that a generation plays against, if the pool has as many."""
POOL_SIZE = 16
"""Largest number of opponents in the pool."""
RERATING_GAMES = 20
"""Games against each opponent that rate a team again when it enters the pool."""
SCALE = 400.0 / math.log(10.0)
"""Rating difference at which the odds are e to one."""


class EloEvaluator(Evaluator):
    """Computes ratings; the opponent pool is the same on all ranks."""

    env: MultiAgentVecEnvAdapter

    def init_opponent_pool(self, members: ShardedPopulation) -> None:
        local = members.local_members()
        first = members.broadcast_agents(0, [local[0].clone() if 0 in local else None])[0]
        groups = cast(IPPO, first).groups
        if len(groups) < 2:
            raise ConfigurationError(
                f"fitness='rating' needs two groups or more that play each other; the only one: {dict(groups)}. "
                "Allowed are groups={agent: name} with two names or more, or fitness='return'"
            )
        self.opponent_pool = [Opponent(first, INITIAL_RATING, 0)]

    def evaluate(
        self,
        players: EvolvableAlgorithm | BasePopulation,
        seeds: Sequence[int],
        generation: int,
        *,
        should_stop: Callable[[], bool] = never_stop,
    ) -> EvalResult:
        home = cast(MultiAgentPopulation | IPPO, players)
        opponents = self._sample_opponents(home.seed, generation)
        games = [self._play_games(home, cast(IPPO, opponent.player), seeds, should_stop) for opponent in opponents]
        scores = np.stack([score.mean(axis=1) for score, _ in games], axis=1)  # [P, opponents]
        ratings, errors = fit_ratings(scores, len(seeds), [opponent.rating for opponent in opponents])
        steps = np.sum([steps for _, steps in games], axis=0)
        episodes = len(opponents) * len(group_sides(opponents[0].player.groups)) * len(seeds)
        return EvalResult(ratings.tolist(), errors.tolist(), errors.tolist(), episodes, steps.tolist())

    def update_opponent_pool(
        self, members: ShardedPopulation, slot: int, generation: int, evaluate: EvaluateLocally
    ) -> PoolUpdate:
        seeds = integers(RERATING_GAMES, members.first.seed, Purpose.POOL_UPDATE, generation)
        owner_rank = members.owner_rank(slot)
        best = members.local_members().get(slot) if owner_rank == members.process_group.rank else None
        own, signal = evaluate(lambda asked: best and self.evaluate(best, seeds, generation, should_stop=asked))
        if signal:
            return PoolUpdate(0, signal)
        results = members.process_group.all_gather(None if own is None else [own.fitness[0], own.steps[0]])
        rating, steps = results[owner_rank]
        player = members.broadcast_agents(owner_rank, [None if best is None else best.clone()])[0]
        self.opponent_pool.append(Opponent(player, rating, generation))
        if len(self.opponent_pool) > POOL_SIZE:  # the first and the newest stay
            removed = generator(members.first.seed, Purpose.OPPONENTS, generation, 1).integers(1, POOL_SIZE)
            del self.opponent_pool[int(removed)]
        return PoolUpdate(steps, 0)

    def _sample_opponents(self, seed: int, generation: int) -> list[Opponent]:
        """Return the newest opponent, and a sample of the others."""
        *older, newest = self.opponent_pool
        count = min(OPPONENTS_PER_GENERATION - 1, len(older))
        rng = generator(seed, Purpose.OPPONENTS, generation)
        places = rng.choice(len(older), count, replace=False) if count else ()
        return [newest, *(older[int(place)] for place in sorted(places))]

    def _play_games(
        self,
        home: MultiAgentPopulation | IPPO,
        visitor: IPPO,
        seeds: Sequence[int],
        should_stop: Callable[[], bool] = never_stop,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return scores `[P, K]` of all members on each seed (1 won, 0.5 drawn, 0 lost), and their env steps `[P]`."""
        members = len(home) if isinstance(home, MultiAgentPopulation) else 1
        group_of = {agent: group for group, ids in visitor.groups.items() for agent in ids}
        mine, theirs = np.zeros((members, len(seeds))), np.zeros((members, len(seeds)))
        lost, steps = np.zeros(mine.shape, np.bool_), np.zeros(members, np.int64)
        with eval_mode(home), eval_mode(visitor):
            home_policies, visitor_policies = home.group_policies, visitor.group_policies
            for side in group_sides(visitor.groups):
                episodes = evaluate(
                    [(home_policies if group in side else visitor_policies)[group] for group in visitor.groups],
                    self.env,
                    seeds,
                    members=members,
                    max_steps=self.max_steps,
                    should_stop=should_stop,
                )
                for agent, returns in episodes.returns_by_agent.items():
                    total = mine if group_of[agent] in side else theirs
                    total += returns
                lost |= episodes.lost
                steps += episodes.lengths.sum(axis=1)
        scores = np.where(mine == theirs, 0.5, mine > theirs)
        return np.where(lost, 0.5, scores), steps


def group_sides(groups: Mapping[str, object]) -> list[frozenset[str]]:
    """Return the sets of groups that a team controls in its games: each single group, and all groups but that one."""
    single = [frozenset([group]) for group in groups]
    return list(dict.fromkeys([*single, *(frozenset(groups) - side for side in single)]))


def fit_ratings(scores: np.ndarray, games: int, opponents: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return ratings `[P]` and their standard errors, from mean scores `[P, R]` in `games` against each opponent.

    One drawn game against each opponent is added, so that a member that won all games has a finite rating.
    """
    ratings = np.asarray(opponents)
    wanted = ((scores * games + 0.5) / (games + 1)).sum(axis=1)
    low, high = (np.full(len(scores), edge) for edge in (ratings.min() - 4000.0, ratings.max() + 4000.0))
    for _ in range(60):
        middle = (low + high) / 2
        enough = _expected_scores(middle, ratings).sum(axis=1) >= wanted
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    found = (low + high) / 2
    expected = _expected_scores(found, ratings)
    return found, SCALE / np.sqrt((games + 1) * (expected * (1 - expected)).sum(axis=1))


def _expected_scores(rating: np.ndarray, opponents: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp((opponents - rating[:, None]) / SCALE))
