"""The rules by which other systems evolve populations, as selections and explorers of this package's loop.

The decisions are plain functions, which `tests/benchmarks` compares with what the originals returned on recorded inputs
(`tests/benchmarks/recorded_decisions.json`). Differences that the common PPO imposes stand in the docstrings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from agilerl_like.hpo import (
    Explorer,
    Genome,
    History,
    HyperparameterConfig,
    Mutation,
    Mutations,
    PopulationView,
    RLParameter,
    Selection,
    SlotPlan,
    ranking,
    with_hyperparameters,
)
from agilerl_like.hpo.explorer import Repair, unchanged
from agilerl_like.hpo.hyperparameters import Number, Parameter

# -- Ray Tune: PopulationBasedTraining, AsyncHyperBand


class Randomness(Protocol):
    """What of Python's `random` the rules of Ray use."""

    def random(self) -> float: ...
    def choice(self, values: Sequence[Any], /) -> Any: ...
    def uniform(self, low: float, high: float, /) -> float: ...


def ray_quantiles(scores: Sequence[float], fraction: float = 0.25) -> tuple[list[int], list[int]]:
    """Return the members at the bottom and at the top, by ascending score."""
    order = sorted(range(len(scores)), key=lambda member: scores[member])
    if len(order) <= 1:
        return [], []
    count = math.ceil(len(order) * fraction)
    if count > len(order) / 2:
        count = len(order) // 2
    return order[:count], order[-count:]


def ray_explore(
    values: Mapping[str, Number],
    space: Mapping[str, Sequence[Number] | RLParameter],
    rng: Randomness,
    *,
    resample: float = 0.25,
    factors: tuple[float, float] = (1.2, 0.8),
) -> dict[str, Number]:
    """Return a clone's values: each is drawn again, or multiplied; one of a list moves by a place.

    Integers are rounded (Ray 2.60; earlier releases truncated them).
    """
    changed = dict(values)
    for name, allowed in space.items():
        if isinstance(allowed, RLParameter):
            if rng.random() < resample:
                changed[name] = _draw(allowed, rng)
            else:
                changed[name] = values[name] * rng.choice(factors)
            if isinstance(values[name], int):
                changed[name] = round(changed[name])
        elif rng.random() < resample or values[name] not in allowed:
            changed[name] = rng.choice(allowed)
        else:
            place = list(allowed).index(values[name]) + rng.choice([-1, 1])
            changed[name] = allowed[min(max(place, 0), len(allowed) - 1)]
    return changed


def _draw(range_: RLParameter, rng: Randomness) -> Number:
    if range_.scale == "log":
        return math.exp(rng.uniform(math.log(range_.min), math.log(range_.max)))
    return rng.uniform(range_.min, range_.max)


COMPLEMENTED = ("gamma", "gae_lambda")


@dataclass(frozen=True)
class RayPBT(Selection):
    """Ray's rule: each member of the bottom quarter becomes a clone of a random one of the top quarter, and explores.

    It acts after every generation. Members that diverged count as the worst.
    """

    fraction: float = 0.25

    def plan(self, view: PopulationView, rng: np.random.Generator) -> Sequence[SlotPlan]:
        bottom, top = ray_quantiles(np.where(np.isfinite(view.fitness), view.fitness, -np.inf).tolist(), self.fraction)
        sources = {slot: int(rng.choice(top)) for slot in bottom}
        return [SlotPlan(sources.get(s, s), sources.get(s, s), explore=s in sources) for s in range(len(view))]


def _range(parameter: Parameter) -> RLParameter:
    """Return a parameter that is a range; the rules here know no others."""
    if not isinstance(parameter, RLParameter):
        raise TypeError(f"{parameter!r} is no RLParameter")
    return parameter


@dataclass(frozen=True)
class RayExplore(Explorer):
    """Ray's `explore` with its defaults.

    Factors apply to 1 - gamma and 1 - gae_lambda, because 1.2 * gamma would be illegal. Ray does not clip; here values
    are clipped to the ranges, because PPO's settings have bounds. Powers of two are lists.
    """

    resample: float = 0.25

    def propose(
        self,
        genome: Genome,
        history: History,
        rng: np.random.Generator,
        *,
        hp_config: HyperparameterConfig,
        repair: Repair = unchanged,
        pre_training: bool = False,
    ) -> tuple[Genome, tuple[Mutation, ...]]:
        space: dict[str, Sequence[Number] | RLParameter] = {}
        values: dict[str, Number] = {}
        ranges = {name: _range(its) for name, its in hp_config.items()}
        for name, range_ in ranges.items():
            values[name], space[name] = genome.hyperparameters[name], range_
            if name in COMPLEMENTED:
                values[name] = 1 - values[name]
                space[name] = RLParameter(1 - range_.max, 1 - range_.min, scale="log")
            elif range_.scale == "power_of_two":
                space[name] = [
                    2**power for power in range(int(range_.min).bit_length() - 1, int(range_.max).bit_length())
                ]
        changed = ray_explore(values, space, _PythonRandom(rng), resample=self.resample)
        changed = {name: 1 - value if name in COMPLEMENTED else value for name, value in changed.items()}
        clipped = {name: ranges[name].clip(value) for name, value in changed.items()}
        child, record = with_hyperparameters(genome, clipped, repair, operator="ray")
        return child, (record,)


class _PythonRandom:
    """A numpy generator with the methods of Python's `random`."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self.random, self.uniform = rng.random, rng.uniform

    def choice(self, values: Sequence[Any], /) -> Any:
        return values[int(self._rng.integers(len(values)))]


class AshaBracket:
    """Ray's AsyncHyperBand, one bracket: a trial that reaches a rung stops if it is below the top share so far."""

    def __init__(self, least: int, most: int, reduction: float) -> None:
        rungs = int(math.log(most / least) / math.log(reduction) + 1)
        self.rungs: list[tuple[float, dict[int, float]]] = [
            (least * reduction**place, {}) for place in reversed(range(rungs))
        ]
        self.reduction = reduction

    def stops(self, trial: int, resource: int, score: float) -> bool:
        """Record the score of a trial that has used a resource; return whether it stops."""
        for milestone, recorded in self.rungs:
            if resource < milestone or trial in recorded:
                continue
            cutoff = float(np.nanpercentile([*recorded.values()], (1 - 1 / self.reduction) * 100)) if recorded else None
            recorded[trial] = score
            return cutoff is not None and score < cutoff
        return False


# -- AgileRL 2.58


def agilerl_tournament(fitness: Sequence[float], drawn: Sequence[int]) -> int:
    """Return the winner among members drawn with replacement; of equal ones, the first drawn."""
    return int(drawn[int(np.argmax([fitness[member] for member in drawn]))])


def agilerl_step(value: Number, range_: RLParameter, draw: float) -> Number:
    """Return a hyperparameter multiplied by one of its factors, clipped and truncated."""
    factor = range_.shrink_factor if draw < 0.5 else range_.grow_factor
    moved = min(max(value * factor, range_.min), range_.max)
    return int(moved) if range_.dtype is int else float(moved)


@dataclass(frozen=True)
class AgileRLTournament(Selection):
    """AgileRL's selection: the best member, then winners of tournaments of two; all of them are then mutated.

    A winner keeps its slot where it can, which changes nothing but uids.
    """

    tournament_size: int = 2

    def plan(self, view: PopulationView, rng: np.random.Generator) -> Sequence[SlotPlan]:
        fitness = np.where(np.isfinite(view.fitness), view.fitness, -np.inf)
        parents = [int(ranking(view.fitness, view.uids)[0])]
        for _ in range(len(view) - 1):
            parents.append(
                agilerl_tournament(fitness.tolist(), rng.integers(0, len(view), self.tournament_size).tolist())
            )
        sources = [parents.pop(parents.index(slot)) if slot in parents else -1 for slot in range(len(view))]
        sources = [parents.pop(0) if source < 0 else source for source in sources]
        return [SlotPlan(source, source, explore=True) for source in sources]


@dataclass(frozen=True)
class AgileRLMutations(Mutations):
    """AgileRL's usual probabilities, and its step: one hyperparameter, times 0.8 or 1.2, integers truncated.

    The factors apply to gamma and gae_lambda themselves, because AgileRL's ranges have no scale: in `benchmarks.search`
    growth leads from 0.84 on to the upper end of their range, and shrinking gamma to its lower end. `RayExplore` and
    the explorer "factors" multiply 1 - gamma and 1 - gae_lambda.

    Every member is mutated, the best included, as by default there. Batch sizes and rollout lengths are not rounded to
    powers of two, which this engine allows, too. Adam's moments are kept, where AgileRL restarts it after a change of
    the learning rate or of the architecture; architecture and weight noise are this package's operators.
    """

    no_mutation: float = 0.4
    architecture: float = 0.2
    new_layer_prob: float = 0.2
    parameters: float = 0.2
    activation: float = 0.0
    rl_hp: float = 0.2
    mutation_sd: float = 0.1

    def propose(
        self,
        genome: Genome,
        history: History,
        rng: np.random.Generator,
        *,
        hp_config: HyperparameterConfig,
        repair: Repair = unchanged,
        pre_training: bool = False,
    ) -> tuple[Genome, tuple[Mutation, ...]]:
        child, changes = super().propose(
            genome, history, rng, hp_config=hp_config, repair=repair, pre_training=pre_training
        )
        if not any(change.kind == "rl_hp" or change.details.get("wanted") == "rl_hp" for change in changes):
            return child, changes
        name = list(hp_config)[int(rng.integers(len(hp_config)))]
        moved = agilerl_step(genome.hyperparameters[name], _range(hp_config[name]), rng.random())
        child, record = with_hyperparameters(genome, {name: moved}, repair, operator="agilerl")
        return child, (record,)
