"""What selection goes by: how a generation is judged, and what a judge must remember of those before.

All members are judged alike: on the same seeds, and without exploration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from agilerl_like.algorithms.episode_guard import never
from agilerl_like.algorithms.evolvable_algorithm import EvolvableAlgorithm
from agilerl_like.algorithms.population import BasePopulation
from agilerl_like.training.sharding import ShardedPopulation


class EvalResult(NamedTuple):
    """What became of P members in a test."""

    fitness: list[float]
    spread: list[float]
    """The standard deviation of each member's returns; of a rating, its standard error."""
    errors: list[float]
    """The standard error of each fitness; nan where fewer than two episodes count."""
    episodes: int
    """Of each member."""
    steps: list[int]
    """Env steps of each member's test."""


class Opponent(NamedTuple):
    """One who is gone, and whom others are still measured against."""

    player: Any
    rating: float
    generation: int


class PoolUpdate(NamedTuple):
    """What it took to crown the best of a generation."""

    steps: int
    """Env steps of its games."""
    signal: int
    """What stopped them, so that nobody was crowned: SIGINT or SIGTERM, 0 if nothing did."""


EvaluateLocally = Callable[[Callable[[Callable[[], bool]], EvalResult | None]], tuple[EvalResult | None, int]]
"""Calls a function that evaluates on this process until it is asked to stop.

It returns None and the signal if a signal stopped the evaluation of any process.
"""


class Evaluator:
    """Judges members by what they earn: fitness is the mean return."""

    def __init__(self, env: Any, max_steps: int | None) -> None:
        self.env, self.max_steps = env, max_steps
        self.opponent_pool: list[Opponent] = []
        """Who is remembered; every process has them all."""

    def evaluate(
        self,
        players: EvolvableAlgorithm | BasePopulation,
        seeds: Sequence[int],
        generation: int,
        *,
        should_stop: Callable[[], bool] = never,
    ) -> EvalResult:
        """Test members, or one; raises EvaluationStopped if it was asked to stop."""
        played = players.run_episodes(self.env, list(seeds), self.max_steps, should_stop=should_stop)
        return EvalResult(
            played.means.tolist(),
            played.returns.std(axis=1).tolist(),
            played.standard_errors.tolist(),
            played.returns.shape[1],  # whole sets of instances: at least as many as seeds
            played.lengths.sum(axis=1).tolist(),
        )

    def init_opponent_pool(self, members: ShardedPopulation) -> None:
        """See those who begin a run; all processes take part."""
        return

    def update_opponent_pool(
        self, members: ShardedPopulation, slot: int, generation: int, evaluate: EvaluateLocally
    ) -> PoolUpdate:
        """See who was the best of a generation; all processes take part. Games, if any, are played by `evaluate`."""
        return PoolUpdate(0, 0)
