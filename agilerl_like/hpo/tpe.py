"""Tree-structured Parzen estimator (Bergstra et al. 2011), for jobs of different lengths as in BOHB (Falkner 2018)."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from agilerl_like.errors import ConfigurationError, check_init_names, check_scalar_fields
from agilerl_like.hpo.explorer import Explorer, Repair, unchanged, with_hyperparameters
from agilerl_like.hpo.gaussian_steps import check_probability
from agilerl_like.hpo.genome import NO_PARENT, Genome, Mutation
from agilerl_like.hpo.history import History, Trial
from agilerl_like.hpo.hyperparameters import HyperparameterConfig
from agilerl_like.hpo.pb2 import coordinates
from agilerl_like.registry import register

CANDIDATES = 24
GOOD_SHARE = 0.15
BANDWIDTH = 0.2
"""Of one point's kernel, in units of a range. It does not depend on the spread of the points, because good points that
are close to one another must not keep the search at one place."""


@register("explorer", "tpe")
@check_init_names
@dataclass(frozen=True)
class TPE(Explorer):
    """Draws where good jobs are dense in comparison with the others.

    Jobs are compared after as many generations as `min_jobs` of them have lasted; those that were stopped earlier count
    as worse. A share `random` of the draws, and all before there are `min_jobs`, are uniform on the parameters' scales.
    """

    min_jobs: int = 10
    random: float = 1 / 3

    def __post_init__(self) -> None:
        check_scalar_fields(self)
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
        known = [trial for trial in history.pending if hp_config.covers(trial.hyperparameters)]
        pending = coordinates(known, hp_config)
        good = Density(jobs[:num_good], hp_config.categories)
        rest = Density(np.vstack([jobs[num_good:], pending]), hp_config.categories)  # so that proposals differ
        candidates = hp_config.without_inactive(good.sample(CANDIDATES, rng))
        best = candidates[int(np.argmax(good.log(candidates) - rest.log(candidates)))]
        old = genome.hyperparameters
        drawn = hp_config.resolve(old, hp_config.from_units(best.tolist(), rng), rng)
        child, record = with_hyperparameters(genome, drawn, repair, operator="tpe")
        return child, (record,)


class Density:
    """A mixture of a kernel at each of the points `[N, D]`, and of the uniform density on [0, 1].

    A kernel is normal in the coordinates of numbers, reflected at the ends of [0, 1]. In that of a choice, for which
    `categories` has the number of its values, it has the weight `1 - bandwidth` at the point's value, and the rest is
    uniform; all densities are relative to the uniform one. A coordinate that is nan, because its hyperparameter is
    inactive, is uniform.
    """

    def __init__(self, points: np.ndarray, categories: tuple[int, ...] = ()) -> None:
        self.points = points
        count, dimensions = points.shape
        self.categories = np.array(categories or (0,) * dimensions)
        self.bandwidth = np.full(dimensions, BANDWIDTH * count ** (-1 / (4 + dimensions)))

    def log(self, places: np.ndarray) -> np.ndarray:
        """Return the logarithm of the density at places `[M, D]`."""
        width = self.bandwidth
        here = places[:, None]
        reflected = np.stack([here - self.points, here + self.points, 2 - here - self.points])  # as `sample` draws
        log_kernels = np.log(np.exp(-0.5 * (reflected / width) ** 2).sum(axis=0) / (width * math.sqrt(2 * math.pi)))
        for place, count in enumerate(self.categories.tolist()):
            if count:
                is_equal = np.isclose(places[:, None, place], self.points[:, place])
                unknown = np.isnan(places[:, None, place] + self.points[:, place])
                log_kernels[..., place] = np.log((1 - width[place]) * count * is_equal + width[place])
                log_kernels[unknown, place] = np.nan
        kernels = np.exp(np.nansum(log_kernels, axis=-1))
        return np.log((1 + kernels.sum(axis=1)) / (1 + len(self.points)))

    def sample(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw places `[M, D]` from the kernels, reflected at the ends of [0, 1]."""
        centres = self.points[rng.integers(len(self.points), size=count)]
        drawn = centres + rng.normal(size=(count, len(self.bandwidth))) * self.bandwidth
        drawn = 1 - np.abs(1 - drawn % 2)
        for place, values in enumerate(self.categories.tolist()):
            if values:
                uniform = (rng.integers(values, size=count) + 0.5) / values
                is_drawn = (rng.random(count) < self.bandwidth[place]) | np.isnan(centres[:, place])
                drawn[:, place] = np.where(is_drawn, uniform, centres[:, place])
        unknown = np.isnan(drawn)
        if unknown.any():
            drawn[unknown] = rng.random(int(unknown.sum()))
        return drawn


def ranked_jobs(history: History, hp_config: HyperparameterConfig, least: int) -> np.ndarray:
    """Return the places `[N, D]` of the jobs, best first.

    Those that lasted for as many generations as at least `least` jobs did are ordered by their fitness then; the ones
    that were stopped earlier follow. Younger jobs that have not ended, and diverged ones at the right age, are last or
    left out: nothing is known of them. Left out, too, are jobs whose first rows the history may have dropped, because
    their age is not known, and members that began as an unchanged copy, such as the clones that a run puts in the place
    of diverged members: they continue the job of their parent.
    """
    by_job = defaultdict(list)
    for trial in history.trials:
        by_job[trial.uid].append(trial)
    first_start = history.first_known_start
    jobs = [
        trials
        for trials in by_job.values()
        if trials[0].generation >= first_start
        and (trials[0].parent_uid == NO_PARENT or trials[0].operators)
        and hp_config.covers(trials[0].hyperparameters)
    ]
    ages = sorted(map(len, jobs), reverse=True)
    age = ages[least - 1] if len(ages) >= least else 1
    now = history.trials[-1].generation if history.trials else 0

    def key(trials: list[Trial]) -> tuple[float, float]:
        fitness = trials[min(age, len(trials)) - 1].fitness
        return -min(age, len(trials)), -fitness if math.isfinite(fitness) else math.inf

    known = [trials for trials in jobs if len(trials) >= age or trials[-1].generation < now]
    return coordinates([trials[0] for trials in sorted(known, key=key)], hp_config)
