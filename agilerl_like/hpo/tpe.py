"""Tree-structured Parzen estimator (Bergstra et al. 2011), for jobs of different lengths as in BOHB (Falkner 2018)."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo.explorer import Explorer, Repair, unchanged, with_hyperparameters
from agilerl_like.hpo.gaussian_steps import check_probability
from agilerl_like.hpo.genome import Genome, Mutation
from agilerl_like.hpo.history import History, Trial
from agilerl_like.hpo.hyperparameters import HyperparameterConfig
from agilerl_like.hpo.pb2 import units
from agilerl_like.registry import register

CANDIDATES = 24
GOOD_SHARE = 0.15
BANDWIDTH = 0.2
"""Of one point's kernel, in units of a range. It does not depend on the spread of the points, because good points that
are close to one another must not keep the search at one place."""


@register("explorer", "tpe")
@dataclass(frozen=True)
class TPE(Explorer):
    """Draws where good jobs are dense in comparison with the others.

    Jobs are compared after as many generations as `min_jobs` of them have lasted; those that were stopped earlier count
    as worse. A share `random` of the draws, and all before there are `min_jobs`, are uniform on the parameters' scales.
    """

    min_jobs: int = 10
    random: float = 1 / 3

    def __post_init__(self) -> None:
        if self.min_jobs < 4:
            raise ConfigurationError(f"min_jobs={self.min_jobs!r} must be at least 4")
        check_probability("random", self.random)

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
        """Return what `draw` returns: the parent's values have no influence."""
        return self.draw(genome, history, rng, hp_config=hp_config, repair=repair)

    def draw(
        self,
        genome: Genome,
        history: History,
        rng: np.random.Generator,
        *,
        hp_config: HyperparameterConfig,
        repair: Repair = unchanged,
    ) -> tuple[Genome, tuple[Mutation, ...]]:
        """Return the genome of the best of 24 candidates from the density of good jobs."""
        jobs = ranked_jobs(history, hp_config, self.min_jobs)
        if len(jobs) < self.min_jobs or rng.random() < self.random:
            return super().draw(genome, history, rng, hp_config=hp_config, repair=repair)
        num_good = max(2, math.ceil(GOOD_SHARE * len(jobs)))
        pending = [units(trial, hp_config) for trial in history.pending]
        good = Density(jobs[:num_good])
        rest = Density(np.array([*jobs[num_good:], *pending]))  # so that proposals differ from one another
        candidates = good.sample(CANDIDATES, rng)
        best = candidates[int(np.argmax(good.log(candidates) - rest.log(candidates)))]
        drawn = {
            name: range_.from_unit(unit, rng) for (name, range_), unit in zip(hp_config.items(), best, strict=True)
        }
        child, record = with_hyperparameters(genome, drawn, repair, operator="tpe")
        return child, (record,)


class Density:
    """A mixture of a normal kernel at each of the points `[N, D]`, and of the uniform density on [0, 1]."""

    def __init__(self, points: np.ndarray) -> None:
        self.points = points
        count, dimensions = points.shape
        self.bandwidth = np.full(dimensions, BANDWIDTH * count ** (-1 / (4 + dimensions)))

    def log(self, places: np.ndarray) -> np.ndarray:
        """Return the logarithm of the density at places `[M, D]`."""
        distance = (places[:, None] - self.points) / self.bandwidth
        kernels = np.exp(-0.5 * (distance**2).sum(axis=-1)) / np.prod(self.bandwidth * math.sqrt(2 * math.pi))
        return np.log((1 + kernels.sum(axis=1)) / (1 + len(self.points)))

    def sample(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw places `[M, D]` from the kernels, reflected at the ends of [0, 1]."""
        drawn = (
            self.points[rng.integers(len(self.points), size=count)]
            + rng.normal(size=(count, len(self.bandwidth))) * self.bandwidth
        )
        return 1 - np.abs(1 - drawn % 2)


def ranked_jobs(history: History, hp_config: HyperparameterConfig, least: int) -> np.ndarray:
    """Return the places `[N, D]` of the jobs, best first.

    Those that lasted for as many generations as at least `least` jobs did are ordered by their fitness then; the ones
    that were stopped earlier follow. Younger jobs that have not ended, and diverged ones at the right age, are last or
    left out: nothing is known of them.
    """
    by_job = defaultdict(list)
    for trial in history.trials:
        if hp_config.keys() <= trial.hyperparameters.keys():
            by_job[trial.uid].append(trial)
    ages = sorted(map(len, by_job.values()), reverse=True)
    age = ages[least - 1] if len(ages) >= least else 1
    now = history.trials[-1].generation if history.trials else 0

    def key(trials: list[Trial]) -> tuple[float, float]:
        fitness = trials[min(age, len(trials)) - 1].fitness
        return -min(age, len(trials)), -fitness if math.isfinite(fitness) else math.inf

    known = [trials for trials in by_job.values() if len(trials) >= age or trials[-1].generation < now]
    return np.array([units(trials[0], hp_config) for trials in sorted(known, key=key)]).reshape(-1, len(hp_config))
