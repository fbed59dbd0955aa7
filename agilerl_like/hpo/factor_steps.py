"""The explorer of Population Based Training (Jaderberg et al. 2017): every hyperparameter takes one step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agilerl_like.hpo.explorer import Explorer, Repair, unchanged, with_hyperparameters
from agilerl_like.hpo.genome import Genome, Mutation
from agilerl_like.hpo.history import History
from agilerl_like.hpo.hyperparameters import HyperparameterConfig
from agilerl_like.registry import register


@register("explorer", "factors")
@dataclass(frozen=True)
class FactorSteps(Explorer):
    """Each hyperparameter is multiplied by its shrink or grow factor, or redrawn with its probability `resample`.

    A choice takes another of its values.
    """

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
        """Return the genome with all hyperparameters moved."""
        old = genome.hyperparameters
        moved = {name: parameter.mutate(old[name], rng) for name, parameter in hp_config.active(old).items()}
        child, record = with_hyperparameters(genome, hp_config.resolve(old, moved, rng), repair)
        return child, (record,)
