"""Computes the fitness that selection compares: the mean return, on the same seeds for all members, not exploring."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from agilerl_like.algorithms.constant_policies import play_constant_policies
from agilerl_like.algorithms.episode_guard import never_stop
from agilerl_like.algorithms.evaluation import Episodes
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.seeding import Purpose, generator
from agilerl_like.training.sharding import ShardedPopulation

INITIAL_RATING = 1000.0
"""Of the first opponent, a copy of the untrained first member."""
POOL_SIZE = 16
"""Largest number of opponents in the pool."""


class EvalResult(NamedTuple):
    """The evaluation of P members."""

    fitness: list[float]
    spread: list[float]
    """Standard deviation of each member's returns; of a rating, its standard error."""
    errors: list[float]
    """Standard error of each fitness; nan with fewer than two episodes."""
    episodes: int
    """Of each member."""
    steps: list[int]
    """Env steps of each member's evaluation."""
    returns: Sequence[list[float]] = ()
    """Returns of each member's episodes, in the order of the seeds, which are the same for all; nan where an episode
    was lost. Empty if fitness is not a mean return."""
    is_zero_sum: bool = False
    """Whether agents were paid, and what some won others lost in every episode."""

    def averaged(self, places: Sequence[int], more: EvalResult) -> EvalResult:
        """Return the ratings after as many further games of the members at `places` as in each earlier round."""
        fitness, errors, steps = list(self.fitness), list(self.errors), list(self.steps)
        for place, rating, error, its_steps in zip(places, more.fitness, more.errors, more.steps, strict=True):
            weight = errors[place] ** -2, error**-2
            fitness[place] = (fitness[place] * weight[0] + rating * weight[1]) / sum(weight)
            errors[place] = sum(weight) ** -0.5
            steps[place] += its_steps
        return self._replace(fitness=fitness, spread=list(errors), errors=errors, steps=steps)

    def of(self, places: Sequence[int]) -> EvalResult:
        """Return the result of some members."""
        return EvalResult(
            [self.fitness[place] for place in places],
            [self.spread[place] for place in places],
            [self.errors[place] for place in places],
            self.episodes,
            [self.steps[place] for place in places],
            [self.returns[place] for place in places if self.returns],
            self.is_zero_sum,
        )

    def extended(self, places: Sequence[int], more: EvalResult) -> EvalResult:
        """Return the result after further episodes of the members at `places`."""
        fitness, spread, errors = list(self.fitness), list(self.spread), list(self.errors)
        steps, returns = list(self.steps), list(self.returns)
        for place, its_steps, its_returns in zip(places, more.steps, more.returns, strict=True):
            returns[place] = [*returns[place], *its_returns]
            played = np.array([score for score in returns[place] if math.isfinite(score)])
            fitness[place] = float(played.mean()) if len(played) else math.nan
            spread[place] = float(played.std()) if len(played) else math.nan
            errors[place] = float(played.std(ddof=1) / math.sqrt(len(played))) if len(played) > 1 else math.nan
            steps[place] += its_steps
        return EvalResult(fitness, spread, errors, self.episodes, steps, returns, self.is_zero_sum)


class Opponent(NamedTuple):
    """An agent of an earlier generation that members are rated against."""

    player: Any
    rating: float
    generation: int
    games: Sequence[Sequence[float]] = ()
    """Generation of an earlier opponent, the score against it and the number of games, each."""


class PoolUpdate(NamedTuple):
    """The cost of adding an opponent to the pool."""

    steps: int
    """Env steps of its games."""
    signal: int
    """The signal that stopped the games, so that no opponent was added; 0 if none did."""


EvaluateLocally = Callable[[Callable[[Callable[[], bool]], Any]], tuple[Any, int]]
"""Calls a function that evaluates on this process; returns None and the signal if one stopped any process."""


class Evaluator:
    """Computes the mean return of members."""

    def __init__(self, env: Any, max_steps: int | None) -> None:
        self.env, self.max_steps = env, max_steps
        self.opponent_pool: list[Opponent] = []
        """Agents that members are rated against, and may train against; the same on all processes."""
        self.keeps_pool = False
        """Whether members train against the best of earlier generations."""

    def evaluate(
        self,
        players: EvolvableAlgorithm | BasePopulation,
        seeds: Sequence[int],
        generation: int,
        *,
        should_stop: Callable[[], bool] = never_stop,
    ) -> EvalResult:
        """Evaluate members, or one; raises EvaluationStopped if `should_stop` returns True."""
        played = players.run_episodes(self.env, list(seeds), self.max_steps, should_stop=should_stop)
        return EvalResult(
            played.mean.tolist(),
            played.returns.std(axis=1).tolist(),
            played.standard_errors.tolist(),
            played.returns.shape[1],  # whole sets of instances: at least as many as seeds
            played.lengths.sum(axis=1).tolist(),
            np.where(played.lost, np.nan, played.returns).tolist(),
            _is_zero_sum(played),
        )

    def play_constant(
        self,
        population: BasePopulation,
        numbers: Sequence[int],
        seeds: Sequence[int],
        should_stop: Callable[[], bool] = never_stop,
    ) -> tuple[list[float], list[int]]:
        """Return mean return and env steps of a constant policy in the place of each member; raises as `evaluate`."""
        played = play_constant_policies(population, numbers, self.env, list(seeds), self.max_steps, should_stop)
        return played.mean.tolist(), played.lengths.sum(axis=1).tolist()

    def evaluate_some(
        self,
        population: BasePopulation,
        places: Sequence[int],
        seeds: Sequence[int],
        generation: int,
        *,
        should_stop: Callable[[], bool] = never_stop,
    ) -> EvalResult | None:
        """Evaluate some members of a population; None without any. Raises as `evaluate`."""
        if not places:
            return None
        count = next(n for n in range(len(places), self.env.num_envs + 1) if self.env.num_envs % n == 0)
        # each member has as many rows as the others, so the first is repeated where the rows cannot be divided
        chosen = [*places, *[places[0]] * (count - len(places))]
        copies = type(population)([population[place].clone(index=number) for number, place in enumerate(chosen)])
        found = self.evaluate(copies, seeds, generation, should_stop=should_stop)
        return found.of(range(len(places)))

    def init_opponent_pool(self, members: ShardedPopulation) -> None:
        """Start the opponent pool from the initial members; collective."""
        if self.keeps_pool:
            self.opponent_pool = first_opponent(members)

    def update_opponent_pool(
        self, members: ShardedPopulation, slot: int, generation: int, evaluate: EvaluateLocally
    ) -> PoolUpdate:
        """Add the best member of a generation, in `slot`, to the opponent pool; collective. Games run by `evaluate`."""
        if self.keeps_pool:
            self.opponent_pool = with_opponent(self.opponent_pool, members, slot, generation)
        return PoolUpdate(0, 0)


def first_opponent(members: ShardedPopulation) -> list[Opponent]:
    """Return a pool of one: a copy of the first member; collective."""
    local = members.local_members()
    first = members.broadcast_agents(0, [local[0].clone() if 0 in local else None])[0]
    return [Opponent(first, INITIAL_RATING, 0)]


def with_opponent(
    pool: Sequence[Opponent],
    members: ShardedPopulation,
    slot: int,
    generation: int,
    games: Sequence[Sequence[float]] = (),
) -> list[Opponent]:
    """Return the pool with a copy of the member in `slot`; collective. Of a full pool the first and the newest stay."""
    owner_rank = members.owner_rank(slot)
    own = members.local_members()[slot].clone() if owner_rank == members.process_group.rank else None
    player = members.broadcast_agents(owner_rank, [own])[0]
    found = [*pool, Opponent(player, INITIAL_RATING, generation, games)]
    if len(found) > POOL_SIZE:
        removed = generator(members.first.seed, Purpose.OPPONENTS, generation, 1).integers(1, POOL_SIZE)
        del found[int(removed)]
    return found


def _is_zero_sum(played: Episodes) -> bool:
    by_agent = [*played.returns_by_agent.values()]
    if len(by_agent) < 2 or not np.any(by_agent):
        return False
    return bool(np.abs(played.returns).max() <= 1e-6 * np.abs(by_agent).max())
