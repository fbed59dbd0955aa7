"""Fitness where what one side wins the other loses: an Elo-like rating, from games against those who were best before.

A member fields the agents of one group and an opponent all others, then the other way round on the same seed, and who
earned more in both games together has won; so nobody profits from a side that is easier. All members meet the same
opponents: the best of the last generation and some that are drawn from earlier ones, each of which has a rating since
it was crowned. The rating of a member is that at which its results are what a logistic curve expects.

The subtlety is the crowning. The best of many uncertain ratings is too high, and others are measured against it ever
after; so who is crowned is rated anew, in games that nobody was selected by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np

from agilerl_like.algorithms.episode_guard import never
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.individuals import BasePopulation
from agilerl_like.algorithms.ippo import IPPO, MultiAgentPopulation
from agilerl_like.algorithms.multi_agent_evaluation import eval_mode, evaluate_multi_agent
from agilerl_like.envs.multi_agent.vec_adapter import MultiAgentVecEnvAdapter
from agilerl_like.errors import ConfigurationError
from agilerl_like.seeding import Purpose, generator, integers
from agilerl_like.training.evaluator import EvalResult, EvaluateLocally, Evaluator, Opponent, PoolUpdate
from agilerl_like.training.sharding import ShardedPopulation

INITIAL_RATING = 1000.0
"""What the first opponent has by definition: the first of the founders, as it was before it had learned anything."""
OPPONENTS_PER_GENERATION = 3
"""How many opponents a generation meets, if there are so many."""
POOL_SIZE = 16
"""How many opponents are kept."""
RERATING_GAMES = 20
"""Games against each opponent by which the best of a generation is rated anew."""
SCALE = 400.0 / math.log(10.0)
"""A difference in rating by which the odds are e to one."""


class EloEvaluator(Evaluator):
    """Judges teams by ratings."""

    env: MultiAgentVecEnvAdapter

    def init_opponent_pool(self, members: ShardedPopulation) -> None:
        first = members.broadcast_agents(
            0, [members.local_members()[0].clone()] if 0 in members.local_members() else [None]
        )[0]
        groups = cast(IPPO, first).groups
        if len(groups) < 2:
            raise ConfigurationError(
                f"fitness='rating' needs groups that play against each other; all of {[*groups.values()]} are one. "
                "Allowed are groups={agent: name} that divide them, or fitness='return'"
            )
        self.opponent_pool = [Opponent(first, INITIAL_RATING, 0)]

    def evaluate(
        self,
        players: EvolvableAlgorithm | BasePopulation,
        seeds: Sequence[int],
        generation: int,
        *,
        should_stop: Callable[[], bool] = never,
    ) -> EvalResult:
        home = cast(MultiAgentPopulation | IPPO, players)
        opponent_pool = self._sample_opponents(home.seed, generation)
        games = [self._play_games(home, cast(IPPO, rival.player), seeds, should_stop) for rival in opponent_pool]
        scores = np.stack([score.mean(axis=1) for score, _ in games], axis=1)  # [P, opponents]
        ratings, errors = fit_ratings(scores, len(seeds), [rival.rating for rival in opponent_pool])
        steps = np.sum([steps for _, steps in games], axis=0)
        sides = len(group_sides(opponent_pool[0].player.groups))
        played = len(opponent_pool) * sides * len(seeds)
        return EvalResult(ratings.tolist(), errors.tolist(), errors.tolist(), played, steps.tolist())

    def update_opponent_pool(
        self, members: ShardedPopulation, slot: int, generation: int, evaluate: EvaluateLocally
    ) -> PoolUpdate:
        seeds = integers(RERATING_GAMES, members.first.seed, Purpose.POOL_UPDATE, generation)
        owner_rank = members.owner_rank(slot)
        best = members.local_members().get(slot) if owner_rank == members.process_group.rank else None
        own, signal = evaluate(lambda asked: best and self.evaluate(best, seeds, generation, should_stop=asked))
        if signal:
            return PoolUpdate(0, signal)
        rating, steps = members.process_group.all_gather(None if own is None else [own.fitness[0], own.steps[0]])[
            owner_rank
        ]
        champion = members.broadcast_agents(owner_rank, [None if best is None else best.clone()])[0]
        self.opponent_pool.append(Opponent(champion, rating, generation))
        if len(self.opponent_pool) > POOL_SIZE:  # the first and the last stay
            forgotten = generator(members.first.seed, Purpose.OPPONENTS, generation, 1).integers(1, POOL_SIZE)
            del self.opponent_pool[int(forgotten)]
        return PoolUpdate(steps, 0)

    def _sample_opponents(self, seed: int, generation: int) -> list[Opponent]:
        """The newest, and some of the others."""
        *older, newest = self.opponent_pool
        count = min(OPPONENTS_PER_GENERATION - 1, len(older))
        places = (
            generator(seed, Purpose.OPPONENTS, generation).choice(len(older), count, replace=False) if count else ()
        )
        return [newest, *(older[int(place)] for place in sorted(places))]

    def _play_games(
        self,
        home: MultiAgentPopulation | IPPO,
        visitor: IPPO,
        seeds: Sequence[int],
        should_stop: Callable[[], bool] = never,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores `[P, K]` of all members on each seed (1 won, 0.5 drawn, 0 lost), and the env steps they took `[P]`."""
        members = len(home) if isinstance(home, MultiAgentPopulation) else 1
        group_of = {agent: group for group, ids in visitor.groups.items() for agent in ids}
        mine, theirs = np.zeros((members, len(seeds))), np.zeros((members, len(seeds)))
        lost, steps = np.zeros(mine.shape, np.bool_), np.zeros(members, np.int64)
        with eval_mode(home), eval_mode(visitor):
            at_home, away = home.group_policies, visitor.group_policies
            for side in group_sides(visitor.groups):
                group_policies = {group: (at_home if group in side else away)[group] for group in visitor.groups}
                games = evaluate_multi_agent(
                    group_policies,
                    self.env,
                    seeds,
                    members=members,
                    max_steps=self.max_steps,
                    should_stop=should_stop,
                )
                for agent, returns in games.returns.items():
                    earned = mine if group_of[agent] in side else theirs
                    earned += returns
                lost |= games.lost
                steps += games.lengths.sum(axis=1)
        won = np.where(mine == theirs, 0.5, mine > theirs)
        return np.where(lost, 0.5, won), steps


def group_sides(groups: Mapping[str, object]) -> list[frozenset[str]]:
    """What a team fields in its games with another, which fields the rest: each group alone, and all but that one."""
    alone = [frozenset([group]) for group in groups]
    return list(dict.fromkeys([*alone, *(frozenset(groups) - side for side in alone)]))


def fit_ratings(scores: np.ndarray, games: int, opponents: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Ratings `[P]` and their standard errors, from mean scores `[P, R]` in so many games against each opponent.

    Half a game won and half a game lost against each are thrown in, so that who has won all is not infinitely strong.
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
