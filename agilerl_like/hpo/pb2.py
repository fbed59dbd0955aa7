"""Population Based Bandits (Parker-Holder et al. 2020) inside a trust region (Wan et al. 2022).

A Gaussian process is fitted to what each generation gained with its hyperparameters. A proposal is the point in a box
around the parent's values where the predicted gain, plus a bonus for uncertainty, is largest. Two details differ from
the published code, in which the process cannot forget and the bonus is a variance: time is the number of the
generation, and the bonus is a standard deviation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo.explorer import Repair, unchanged, with_hyperparameters
from agilerl_like.hpo.gaussian_process import GaussianProcess
from agilerl_like.hpo.gaussian_steps import GaussianSteps, check_probability, population_size
from agilerl_like.hpo.genome import Genome, Mutation
from agilerl_like.hpo.history import History, Trial
from agilerl_like.hpo.hyperparameters import HyperparameterConfig
from agilerl_like.hpo.selection import require_members
from agilerl_like.registry import register

CANDIDATES = 300
WINDOW = 160
"""The last trials that the process is fitted to."""
RELIABLE_GAIN = 4.0
"""Standard errors of fitness that the best member must gain in a generation; below it, normal steps do as well."""
ENOUGH_MEMBERS = 16
"""Members from which on the process is used however noisy fitness is."""


@register("explorer", "pb2")
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
        trials = [trial for trial in history.trials if is_measured(trial, hp_config)][-WINDOW:]
        uses_steps = rng.random() < self.gaussian
        if uses_steps or len(trials) < self.min_trials or not hp_config or not (self.always or is_reliable(history)):
            return super().propose(genome, history, rng, hp_config=hp_config, repair=repair, pre_training=pre_training)
        here = np.array([range_.to_unit(genome.hyperparameters[name]) for name, range_ in hp_config.items()])
        best = self._best_candidate(here, trials, history, hp_config, rng)
        moved = {
            name: range_.from_unit(unit, rng) for (name, range_), unit in zip(hp_config.items(), best, strict=True)
        }
        child, record = with_hyperparameters(genome, moved, repair, operator="pb2")
        child, changes = self.with_architecture(child, rng)
        return child, (record, *changes)

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
            rows = [(*units(trial, hp_config), (trial.fitness_before - low) / span) for trial in of]
            return np.array(rows).reshape(len(of), len(hp_config) + 1)

        times = [trial.generation for trial in trials]
        gains = [trial.fitness - trial.fitness_before for trial in trials]
        process = GaussianProcess(inputs(trials), np.array(times), np.array(gains))
        pending = [trial for trial in history.pending if math.isfinite(trial.fitness_before)]
        process = process.with_pending(inputs(pending), np.array([trial.generation for trial in pending]))
        lower, upper = np.maximum(here - self.radius, 0.0), np.minimum(here + self.radius, 1.0)
        candidates = rng.uniform(lower, upper, size=(CANDIDATES, len(here)))
        context = (parent_fitness(history, hp_config, here) - low) / span
        now = np.full(CANDIDATES, max(times) + 1)
        mean, spread = process.predict(np.column_stack([candidates, np.full(CANDIDATES, context)]), now)
        bonus = math.sqrt(0.2 * math.log(max(0.4 * len(trials), math.e)))
        return candidates[int(np.argmax(mean + bonus * spread))]


def units(trial: Trial, hp_config: HyperparameterConfig) -> list[float]:
    """Return where a trial's hyperparameters lie in their ranges."""
    return [range_.to_unit(trial.hyperparameters[name]) for name, range_ in hp_config.items()]


def is_measured(trial: Trial, hp_config: HyperparameterConfig) -> bool:
    """Whether a trial's gain is known, with hyperparameters that are searched."""
    return math.isfinite(trial.fitness - trial.fitness_before) and hp_config.keys() <= trial.hyperparameters.keys()


def parent_fitness(history: History, hp_config: HyperparameterConfig, here: np.ndarray) -> float:
    """Return the fitness in the last generation of the member whose hyperparameters are the nearest."""
    last = [trial for trial in history.trials if trial.generation == history.trials[-1].generation]
    last = [
        trial for trial in last if math.isfinite(trial.fitness) and hp_config.keys() <= trial.hyperparameters.keys()
    ]
    distance = [float(((np.array(units(trial, hp_config)) - here) ** 2).sum()) for trial in last]
    return last[int(np.argmin(distance))].fitness if last else 0.0


def is_reliable(history: History) -> bool:
    """Whether gains stand out from the noise of fitness, or members are many."""
    if population_size(history) >= ENOUGH_MEMBERS:
        return True
    last = history.trials[-1].generation
    recent = [trial for trial in history.trials if trial.generation > last - 5]
    errors = [trial.standard_error for trial in recent if math.isfinite(trial.standard_error)]
    gains: dict[int, float] = {}
    for trial in recent:
        gain = trial.fitness - trial.fitness_before
        if math.isfinite(gain):
            gains[trial.generation] = max(gain, gains.get(trial.generation, -math.inf))
    if not gains:
        return False
    return float(np.mean(list(gains.values()))) >= RELIABLE_GAIN * (float(np.median(errors)) if errors else 0.0)
