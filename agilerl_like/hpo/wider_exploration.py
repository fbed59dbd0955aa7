"""Wider exploration where no member earns more than a constant policy.

A reward that was never found cannot be learned from, and a policy that pays for its actions learns to stand still. What
helps is not another learning rate but more noise of the actions, for longer.
"""

from __future__ import annotations

import numpy as np

from agilerl_like.hpo.explorer import Repair, with_hyperparameters
from agilerl_like.hpo.genome import Genome, Mutation
from agilerl_like.hpo.hyperparameters import HyperparameterConfig, RLParameter

EXPLORATION = ("action_std_init", "action_noise_correlation", "ent_coef", "eps_end", "eps_share", "expl_noise")
"""Settings that make a member explore more, the larger they are."""


def with_wider_exploration(
    genome: Genome, hp_config: HyperparameterConfig, rng: np.random.Generator, repair: Repair
) -> tuple[Genome, Mutation]:
    """Return the genome with each hyperparameter of exploration drawn from the upper half of its range."""
    active = hp_config.active(genome.hyperparameters)
    drawn = {
        name: parameter.from_unit(rng.uniform(0.5, 1.0), rng)
        for name, parameter in active.items()
        if name in EXPLORATION and isinstance(parameter, RLParameter)
    }
    return with_hyperparameters(genome, drawn, repair, operator="wider")
