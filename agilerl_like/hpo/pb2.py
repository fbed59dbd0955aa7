"""Population Based Bandits (Parker-Holder et al. 2020) inside a trust region (Wan et al. 2022).

A Gaussian process is fitted to what each generation gained with its hyperparameters. A proposal is the point in a box
around the parent's values where the predicted gain, plus a bonus for uncertainty, is largest. Three details differ from
the published code, in which the process cannot forget, the bonus is a variance, and gains are divided by steps: time is
the number of the generation, the bonus is a standard deviation, and gains are those of whole generations, which are
equally long unless members are removed or a resumed run has another `evo_steps`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from agilerl_like.errors import ConfigurationError, check_init_names
from agilerl_like.hpo.explorer import Repair, unchanged, with_hyperparameters
from agilerl_like.hpo.gaussian_process import GaussianProcess
from agilerl_like.hpo.gaussian_steps import GaussianSteps, check_probability
from agilerl_like.hpo.genome import Genome, Mutation
from agilerl_like.hpo.history import History, Trial
from agilerl_like.hpo.hyperparameters import HyperparameterConfig
from agilerl_like.hpo.selection import require_members
from agilerl_like.registry import register

CANDIDATES = 300
CATEGORY_DISTANCE = 0.7
"""Distance of two values of a choice, in units of a range."""
WINDOW = 160
"""The last trials that the process is fitted to."""
RELIABLE_GAIN = 4.0
"""Standard errors of fitness that the best member must gain in a generation; below it, normal steps do as well."""
ENOUGH_MEMBERS = 16
"""Members from which on the process is used however noisy fitness is."""


@register("explorer", "pb2")
@check_init_names
@dataclass(frozen=True)
class PB2(GaussianSteps):
    """Proposals of a Gaussian process, within `radius` of the parent's values on each parameter's own scale.

    Normal steps (`sd`, `redraw`) take its place for a share `gaussian` of the clones, until there are `min_trials`
    trials, and, unless `always` is set, while fitness is too noisy to learn from: with fewer than 16 members and a best
    gain per generation of less than four standard errors.
    """

    radius: float = 0.2
    min_trials: int = 20
    gaussian: float = 0.25
    always: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.radius <= 1:
            raise ConfigurationError(f"radius={self.radius!r} must be greater than 0 and at most 1")
        if self.min_trials < 2:
            raise ConfigurationError(f"min_trials={self.min_trials!r} must be at least 2")
        check_probability("gaussian", self.gaussian)

    def validate(self, population_size: int) -> None:
        """Raise `ConfigurationError` for a single member, which is never a clone."""
        require_members("mutation 'pb2'", population_size, 2)

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
        """Return the genome with all hyperparameters set by the process, and perhaps a change of its architecture."""
        trials = last_measured(history, hp_config, WINDOW)
        uses_steps = rng.random() < self.gaussian
        if uses_steps or len(trials) < self.min_trials or not hp_config or not self.uses_process(history):
            return super().propose(genome, history, rng, hp_config=hp_config, repair=repair, pre_training=pre_training)
        old = genome.hyperparameters
        here = np.array(hp_config.to_units(old))
        best = self._best_candidate(here, trials, history, hp_config, rng)
        moved = hp_config.resolve(old, hp_config.from_units(best.tolist(), rng), rng)
        child, record = with_hyperparameters(genome, moved, repair, operator="pb2")
        return self.with_architecture(child, record, rng)

    def uses_process(self, history: History) -> bool:
        """Whether the process proposes; otherwise hyperparameters move by normal steps."""
        return self.always or is_reliable(history)

    def _best_candidate(
        self,
        here: np.ndarray,
        trials: list[Trial],
        history: History,
        hp_config: HyperparameterConfig,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Return the candidate `[D]` with the largest upper confidence bound on its gain."""
        before = np.array([trial.fitness_before for trial in trials])
        low, span = before.min(), np.ptp(before) or 1.0

        def inputs(of: list[Trial]) -> np.ndarray:
            before = [(trial.fitness_before - low) / span for trial in of]
            return np.column_stack([encoded(coordinates(of, hp_config), hp_config), before])

        times = [trial.generation for trial in trials]
        gains = [trial.fitness - trial.fitness_before for trial in trials]
        process = GaussianProcess(inputs(trials), np.array(times), np.array(gains))
        pending = [
            trial
            for trial in history.pending
            if math.isfinite(trial.fitness_before) and hp_config.covers(trial.hyperparameters)
        ]
        process = process.with_pending(inputs(pending), np.array([trial.generation for trial in pending]))
        candidates = self._candidates(here, hp_config, rng)
        context = (parent_fitness(history, hp_config, here) - low) / span
        now = np.full(CANDIDATES, max(times) + 1)
        rows = np.column_stack([encoded(candidates, hp_config), np.full(CANDIDATES, context)])
        mean, spread = process.predict(rows, now)
        bonus = math.sqrt(0.2 * math.log(max(0.4 * len(trials), math.e)))
        return candidates[int(np.argmax(mean + bonus * spread))]

    def _candidates(self, here: np.ndarray, hp_config: HyperparameterConfig, rng: np.random.Generator) -> np.ndarray:
        """Return points `[N, D]` of the box around the parent's; a choice is the parent's, or drawn, equally often."""
        known = np.isfinite(here)
        lower = np.where(known, np.maximum(here - self.radius, 0.0), 0.0)
        upper = np.where(known, np.minimum(here + self.radius, 1.0), 1.0)
        candidates = rng.uniform(lower, upper, size=(CANDIDATES, len(here)))
        for place, count in enumerate(hp_config.categories):
            if count:
                drawn = (rng.integers(count, size=CANDIDATES) + 0.5) / count
                keeps = (rng.random(CANDIDATES) < 0.5) & known[place]
                candidates[:, place] = np.where(keeps, here[place], drawn)
        return hp_config.without_inactive(candidates)


def coordinates(trials: Sequence[Trial], hp_config: HyperparameterConfig) -> np.ndarray:
    """Return where the trials' hyperparameters lie in their ranges, `[N, D]`; nan where they were inactive."""
    rows = [hp_config.to_units(trial.hyperparameters) for trial in trials]
    return np.array(rows, dtype=float).reshape(len(trials), hp_config.size)


def encoded(units: np.ndarray, hp_config: HyperparameterConfig) -> np.ndarray:
    """Return the process's inputs for coordinates `[N, D]`.

    Each value of a choice has a column, so that all values are equally far apart; the middle of the range stands for a
    number that is inactive.
    """
    columns = []
    for column, count in zip(units.T, hp_config.categories, strict=True):
        if count:
            columns += [
                CATEGORY_DISTANCE / math.sqrt(2) * (np.floor(column * count) == value) for value in range(count)
            ]
        else:
            columns.append(np.where(np.isfinite(column), column, 0.5))
    return np.column_stack(columns) if columns else np.zeros((len(units), 0))


def is_measured(trial: Trial, hp_config: HyperparameterConfig) -> bool:
    """Whether a trial's gain is known, with hyperparameters that are searched."""
    return math.isfinite(trial.fitness - trial.fitness_before) and hp_config.covers(trial.hyperparameters)


def last_measured(history: History, hp_config: HyperparameterConfig, count: int) -> list[Trial]:
    """Return the last trials that are measured, oldest first; a large population has many rows before them."""
    return [*islice((trial for trial in reversed(history.trials) if is_measured(trial, hp_config)), count)][::-1]


def parent_fitness(history: History, hp_config: HyperparameterConfig, here: np.ndarray) -> float:
    """Return the fitness in the last generation of the member whose hyperparameters are the nearest."""
    last = [trial for trial in history.trials if trial.generation == history.trials[-1].generation]
    last = [trial for trial in last if math.isfinite(trial.fitness) and hp_config.covers(trial.hyperparameters)]
    if not last:
        return 0.0
    places = encoded(np.vstack([here, coordinates(last, hp_config)]), hp_config)
    return last[int(np.argmin(((places[1:] - places[0]) ** 2).sum(axis=1)))].fitness


def is_reliable(history: History) -> bool:
    """Whether gains stand out from the noise of fitness, which must be known, or members are many."""
    if history.population_size >= ENOUGH_MEMBERS:
        return True
    last = history.trials[-1].generation
    recent = [trial for trial in history.trials if trial.generation > last - 5]
    errors = [trial.standard_error for trial in recent if math.isfinite(trial.standard_error)]
    gains: dict[int, float] = {}
    for trial in recent:
        gain = trial.fitness - trial.fitness_before
        if math.isfinite(gain):
            gains[trial.generation] = max(gain, gains.get(trial.generation, -math.inf))
    if not gains or not errors:
        return False
    return float(np.mean(list(gains.values()))) >= RELIABLE_GAIN * float(np.median(errors))
