"""The interface of exploration: how the genome of an offspring differs from its parent's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from agilerl_like.hpo.genome import Genome, Mutation
from agilerl_like.hpo.history import History
from agilerl_like.hpo.hyperparameters import HyperparameterConfig, Number

Repair: TypeAlias = Callable[[dict[str, Number]], Mapping[str, Number]]
"""Adjusts hyperparameters that depend on one another, such as batch_size and the length of a rollout."""


def unchanged(hyperparameters: dict[str, Number]) -> Mapping[str, Number]:
    """Return the hyperparameters as they are; for agents whose hyperparameters do not depend on one another."""
    return hyperparameters


class Explorer(ABC):
    """A way of proposing genomes; `Mutations` is the default, a subclass with `propose` replaces it."""

    mutate_elite: bool = False
    """Whether the best member is changed too, although it keeps its slot."""
    mutate_survivors: bool = False
    """Whether the other members that keep their slots are changed too."""

    @abstractmethod
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
        """Return the changed genome and a record of each change.

        It is called once for each offspring, in the order of the slots; `history.pending` holds the proposals that were
        made before in the same generation. Every random draw must come from `rng`, so that all processes get the same
        result. An explorer of hyperparameters alone returns `with_hyperparameters(genome, changed, repair)`.
        """


def with_hyperparameters(
    genome: Genome, changed: Mapping[str, Number], repair: Repair = unchanged, operator: str = "step"
) -> tuple[Genome, Mutation]:
    """Return the genome with some hyperparameters changed and repaired, and the record of what differs: (old, new)."""
    old = genome.hyperparameters
    new = repair({**old, **changed})
    details = {name: (old[name], new[name]) for name in old if new[name] != old[name]}
    return genome.replace(hyperparameters=new), Mutation("rl_hp", operator, details)
