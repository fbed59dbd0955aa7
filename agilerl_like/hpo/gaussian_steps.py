"""An explorer that moves all hyperparameters of a clone at once, by normal steps on their own scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from agilerl_like.errors import ConfigurationError, check_init_names, check_scalar_fields
from agilerl_like.hpo.explorer import Explorer, Repair, unchanged, with_hyperparameters
from agilerl_like.hpo.genome import Genome, Mutation
from agilerl_like.hpo.history import History
from agilerl_like.hpo.hyperparameters import HyperparameterConfig, Parameter
from agilerl_like.hpo.mutation import draw_operator, mutate_architecture
from agilerl_like.registry import register

LARGE_POPULATION = 64
"""Members from which on smaller steps are taken: the best of many draws is an extreme one anyway."""


def check_probability(name: str, value: float) -> None:
    """Raise `ConfigurationError` unless a value lies in [0, 1]."""
    if not 0 <= value <= 1:
        raise ConfigurationError(f"{name}={value!r} must be a probability, between 0 and 1")


@register("explorer", "gaussian")
@check_init_names
@dataclass(frozen=True)
class GaussianSteps(Explorer):
    """Each hyperparameter with a range moves by N(0, `sd`) of its range, or is redrawn with probability `redraw`.

    Steps are taken on the parameter's own scale and reflected at the ends of the range; integers are rounded at random,
    and unordered choices take no step: they are redrawn alone.
    `sd` and `redraw` may be left out: 0.1 and 0.1; with 64 members or more 0.05 and 0.05, from 16 on 0.1 and 0.05. With
    probability `architecture` the clone's architecture changes too, by one mutation.
    """

    sd: float | None = None
    redraw: float | None = None
    architecture: float = 0.2
    new_layer_prob: float = 0.2

    def __post_init__(self) -> None:
        check_scalar_fields(self)
        if self.sd is not None and not 0 < self.sd <= 1:
            raise ConfigurationError(f"sd={self.sd!r} must be greater than 0 and at most 1")
        for name in ("redraw", "architecture", "new_layer_prob"):
            if getattr(self, name) is not None:
                check_probability(name, getattr(self, name))

    def sizes(self, members: int) -> tuple[float, float]:
        """Return the standard deviation of a step and the probability of a new draw, for so many members."""
        sd = 0.05 if members >= LARGE_POPULATION else 0.1
        redraw = 0.05 if members >= 16 else 0.1
        return sd if self.sd is None else self.sd, redraw if self.redraw is None else self.redraw

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
        """Return the genome with all hyperparameters moved, and perhaps one change of its architecture."""
        sd, redraw = self.sizes(history.population_size)
        old = genome.hyperparameters
        moved = {name: step(parameter, old[name], rng, sd, redraw) for name, parameter in hp_config.active(old).items()}
        child, record = with_hyperparameters(genome, hp_config.resolve(old, moved, rng), repair, operator="gaussian")
        return self.with_architecture(child, record, rng)

    def with_architecture(
        self, genome: Genome, record: Mutation, rng: np.random.Generator
    ) -> tuple[Genome, tuple[Mutation, ...]]:
        """Return the genome with one mutation of its architecture, with probability `architecture`, and the records.

        `record` is that of the hyperparameters; it is left out if they are unchanged and the architecture is not.
        """
        if rng.random() >= self.architecture:
            return genome, (record,)
        operator = draw_operator(genome.architecture, rng, self.new_layer_prob)
        child, change = mutate_architecture(genome, "architecture", operator, rng)
        if child == genome:
            return genome, (record,)
        return child, ((change,) if record.kind == "none" else (record, change))


def step(parameter: Parameter, value: Any, rng: np.random.Generator, sd: float, redraw: float) -> Any:
    """Return a value that is a normal step away on the parameter's scale, or a new draw."""
    if rng.random() < redraw:
        return parameter.resample_value(rng)
    return parameter.step(value, sd, rng)
