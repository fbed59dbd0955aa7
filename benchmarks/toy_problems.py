"""Small problems with known answers, on which searches run through `next_generation` as they do in a run.

A toy's member has a state (what weights are to an agent), which a clone inherits, and hyperparameters. `train` advances
all members by a generation and returns their fitness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agilerl_like.hpo import (
    Explorer,
    Genome,
    History,
    HyperparameterConfig,
    PopulationView,
    RLParameter,
    Selection,
    Trial,
)
from agilerl_like.hpo.evolution import clone_of_best, next_generation
from agilerl_like.hpo.genome import NO_PARENT


@dataclass(frozen=True)
class NoArchitecture:
    """An architecture that cannot change."""

    def operators(self, kind: str) -> tuple[str, ...]:
        return ()

    def mutate(self, operator: str, rng: np.random.Generator, *, activations: tuple[str, ...] = ()) -> Any:
        raise AssertionError

    def apply(self, operator: str, **arguments: int | float | str) -> Any:
        raise AssertionError

    def describe(self) -> str:
        return "none"


@dataclass
class Toy:
    """A problem: initial states, ranges, and a generation of training."""

    ranges: HyperparameterConfig
    initial_state: Callable[[], Any]
    train: Callable[[Any, dict[str, float], int, np.random.Generator], Any]
    """State, hyperparameters, generation from 0, rng -> the next state."""
    score: Callable[[Any], float]
    noise: float = 0.0
    """Standard deviation of the fitness that selection compares."""
    episodes: int = 10


@dataclass
class Result:
    """The members of the last generation, and the course of the search."""

    states: list[Any]
    genomes: list[Genome]
    history: History
    scores: list[list[float]]
    """True scores by generation."""

    @property
    def best(self) -> float:
        return max(self.scores[-1])


def search(
    toy: Toy,
    starts: Sequence[dict[str, float]],
    generations: int,
    selection: Selection | None,
    explorer: Explorer,
    seed: int = 0,
) -> Result:
    """Run a search; selection happens between generations, and the best agent of the run may return before it."""
    size = len(starts)
    rng = np.random.default_rng(seed)
    genomes = [Genome(start, NoArchitecture()) for start in starts]
    states = [toy.initial_state() for _ in starts]
    uids, parents = list(range(size)), [NO_PARENT] * size
    before = [np.nan] * size
    operators = [""] * size
    history, memory, next_uid, scores = History(), {}, size, []
    best: Any = None  # true score, state, genome and uid of the best agent so far
    for generation in range(1, generations + 1):
        states = [
            toy.train(state, dict(genome.hyperparameters), generation - 1, rng)
            for state, genome in zip(states, genomes, strict=True)
        ]
        true = np.array([toy.score(state) for state in states])
        scores.append(true.tolist())
        errors = toy.noise * np.sqrt(toy.episodes) * rng.normal(size=(size, toy.episodes))
        returns = true[:, None] + errors
        fitness = returns.mean(axis=1)
        history = history.extended(
            Trial(
                generation,
                uid,
                parent,
                dict(genome.hyperparameters),
                "none",
                "",
                was,
                float(now),
                1,
                operators=done,
                standard_error=toy.noise,
            )
            for uid, parent, genome, was, now, done in zip(
                uids, parents, genomes, before, fitness, operators, strict=True
            )
        )
        first = int(true.argmax())
        leads = best is None or true[first] > best[0]
        best = (true[first], states[first], genomes[first], uids[first]) if leads else best
        if generation == generations or selection is None:
            before = fitness.tolist()
            continue
        view = PopulationView(
            fitness, uids, genomes, generation, history, returns=returns, generations=generations, state=memory,
            best_returns=None if leads else best[0] + errors[first],
        )  # fmt: skip
        row = selection.slot_for_best(view)
        if row is not None:
            _, state, genome, uid = best
            clone = clone_of_best(row, uid, genome, toy.ranges, view=view, explorer=explorer, seed=seed, uid=next_uid)
            slot, next_uid = clone.slot, next_uid + 1
            returns[slot], states[slot], genomes[slot] = view.best_returns, state, clone.genome
            fitness[slot], uids[slot], parents[slot] = returns[slot].mean(), clone.uid, uid
            view = replace(view, fitness=fitness, returns=returns, uids=uids, genomes=genomes)
        offspring = next_generation(
            view, [toy.ranges] * size, selection=selection, explorer=explorer, seed=seed, next_uid=next_uid
        )
        next_uid = max(next_uid, *(one.uid + 1 for one in offspring))
        states = [
            toy.initial_state() if one.start is not None and one.start.is_fresh else states[one.parent_slot]
            for one in offspring
        ]
        before = [float(fitness[one.parent_slot]) if one.start is None else np.nan for one in offspring]
        parents = [parents[one.slot] if one.survives else one.parent_uid for one in offspring]
        uids, genomes = [one.uid for one in offspring], [one.genome for one in offspring]
        operators = [", ".join(change.full_name for change in one.mutations) for one in offspring]
    return Result(states, genomes, history, scores)


def uniform_starts(toy: Toy, size: int, seed: int) -> list[dict[str, float]]:
    """Draw each member's hyperparameters from the ranges."""
    rng = np.random.default_rng(seed + 10_000)
    return [toy.ranges.sample(rng) for _ in range(size)]


def moving_optimum(dimensions: int = 1, noise: float = 0.0, length: int = 40) -> Toy:
    """The best values move across the range; at most 1 per generation is gained, so at most `length` in all.

    Of the best constant, 1 dimension: 17.346 of 40; of 0.5 everywhere in 4 dimensions: 25.98.
    """

    def gain(values: np.ndarray, t: int) -> float:
        rising = 0.2 + 0.6 * t / (length - 1)
        optimum = np.where(np.arange(dimensions) % 2 == 0, rising, 1.0 - rising)
        width = 0.2 if dimensions == 1 else 0.3
        return max(0.0, 1.0 - float(np.mean(((values - optimum) / width) ** 2)))

    def train(total: float, hyperparameters: dict[str, float], t: int, rng: np.random.Generator) -> float:
        return total + gain(np.array(list(hyperparameters.values())), t) + 0.05 * rng.normal()

    return Toy(
        HyperparameterConfig(**{f"x{i}": RLParameter(0.0, 1.0, scale="linear") for i in range(dimensions)}),
        float,
        train,
        float,
        noise,
    )


def escape() -> Toy:
    """Fitness is the distance of the learning rate from 3e-4, in decades; weights do not matter."""
    return Toy(
        HyperparameterConfig(lr=RLParameter(1e-5, 1e-2, scale="log")),
        lambda: 0.0,
        lambda _, hyperparameters, t, rng: -abs(np.log10(hyperparameters["lr"] / 3e-4)) + 0.1 * rng.normal(),
        float,
    )


def patience(deceptive: bool, periods: int = 40) -> Toy:
    """A quadratic in which the step that gains most now is the one that gains least over the whole lineage.

    `theta` starts at 0.9; the score is -ln(theta / 0.9). With `deceptive`, a high h pays only as far as the lineage's h
    has fallen linearly from 1 by 1 / periods a generation: the linear schedule gains 2.980, h = 0 gains 0.496.
    """

    def train(state: tuple[float, float], hyperparameters: dict[str, float], t: int, rng: np.random.Generator) -> Any:
        gained, debt = state
        h = hyperparameters["h"]
        debt += abs(h - (1 - t / periods))
        v = max(0.0, 2 - h - 0.2 * debt) if deceptive else 2 - h
        return gained - 25 * np.log1p(-0.002 * v), debt

    return Toy(
        HyperparameterConfig(h=RLParameter(0.0, 2.0, 0.8, 1.25, scale="linear", resample=0.0)),
        lambda: (0.0, 0.0),
        train,
        lambda state: state[0],
    )


def with_episodes(toy: Toy, episodes: int) -> Toy:
    """Return the toy with another number of evaluation episodes."""
    return replace(toy, episodes=episodes)


def quadratic(steps: int = 10) -> Toy:
    """Jaderberg's: `theta` starts at (0.9, 0.9), Q = 1.2 - |theta|^2, and h decides which of the two falls.

    With h = (1, 0) or (0, 1) alone Q is 0.39 - 0.81 * 0.98^(2 t) after t steps, at most 0.39.
    """

    def train(theta: tuple[float, float], hyperparameters: dict[str, float], t: int, rng: np.random.Generator) -> Any:
        a, b = (value * (1 - 0.02 * hyperparameters[name]) ** steps for value, name in zip(theta, "ab", strict=True))
        return a, b

    return Toy(
        HyperparameterConfig(**{name: RLParameter(0.0, 1.0, scale="linear") for name in "ab"}),
        lambda: (0.9, 0.9),
        train,
        lambda theta: 1.2 - theta[0] ** 2 - theta[1] ** 2,
    )


def plateau(threshold: float) -> Toy:
    """A member near x = 0.7 gains up to 1 a generation, which its fitness shows from a threshold on."""

    def train(gained: float, hyperparameters: dict[str, float], t: int, rng: np.random.Generator) -> float:
        return gained + max(0.0, 1 - ((hyperparameters["x"] - 0.7) / 0.15) ** 2)

    return Toy(
        HyperparameterConfig(**{name: RLParameter(0.0, 1.0, scale="linear") for name in "xy"}),
        float,
        train,
        lambda gained: gained if gained >= threshold else 0.0,
    )


def narrow(noise: float = 0.1) -> Toy:
    """A member gains up to 1 in a generation where all of four values are near 0.7; most draws gain nothing."""

    def train(total: float, hyperparameters: dict[str, float], t: int, rng: np.random.Generator) -> float:
        distances = (np.array(list(hyperparameters.values())) - 0.7) / 0.25
        return total + max(0.0, 1 - float(np.mean(np.square(distances)))) + 0.02 * rng.normal()

    return Toy(
        HyperparameterConfig(**{name: RLParameter(0.0, 1.0, scale="linear") for name in "abcd"}),
        float,
        train,
        float,
        noise,
    )


def hasty(noise: float = 0.0) -> Toy:
    """A high h gains fast but lowers what a lineage can reach, for good: 1 - 0.3 h, at the largest h it ever had."""

    def train(state: tuple[float, float], hyperparameters: dict[str, float], t: int, rng: np.random.Generator) -> Any:
        score, limit = state
        limit = min(limit, 1 - 0.3 * hyperparameters["h"])
        others = [hyperparameters[name] - 0.5 for name in "xyz"]
        rate = 0.15 * 10 ** (0.8 * hyperparameters["h"]) * np.exp(-np.sum(np.square(others)) / (2 * 0.3**2))
        return score + max(0.0, limit - score) * min(rate, 1.0), limit

    return Toy(
        HyperparameterConfig(**{name: RLParameter(0.0, 1.0, scale="linear") for name in "hxyz"}),
        lambda: (0.0, 1.0),
        train,
        lambda state: state[0],
        noise,
    )


def fragile(noise: float = 0.0) -> Toy:
    """A member gains up to 1 in a generation near h = 1, and there loses all with a probability of up to 0.4."""

    def train(total: float, hyperparameters: dict[str, float], t: int, rng: np.random.Generator) -> float:
        h, others = hyperparameters["h"], [hyperparameters[name] - 0.5 for name in "xy"]
        gain = h * np.exp(-np.sum(np.square(others)) / (2 * 0.3**2))
        return 0.0 if rng.random() < 0.4 * h else total + gain

    return Toy(
        HyperparameterConfig(**{name: RLParameter(0.0, 1.0, scale="linear") for name in "hxy"}),
        float,
        train,
        float,
        noise,
    )
