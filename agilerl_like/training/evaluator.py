"""Computes the fitness that selection compares: the mean return, on the same seeds for all members, not exploring."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from agilerl_like.algorithms.episode_guard import never_stop
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.training.sharding import ShardedPopulation


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
        return EvalResult(fitness, spread, errors, self.episodes, steps, returns)


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
        """Agents that members are rated against; the same on all processes."""

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
        )

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

    def update_opponent_pool(
        self, members: ShardedPopulation, slot: int, generation: int, evaluate: EvaluateLocally
    ) -> PoolUpdate:
        """Add the best member of a generation, in `slot`, to the opponent pool; collective. Games run by `evaluate`."""
        return PoolUpdate(0, 0)
