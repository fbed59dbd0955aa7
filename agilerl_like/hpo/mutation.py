"""The default explorer: it draws one kind of mutation for each offspring, then the mutation's arguments.

Growing and shrinking are equally likely however many operators there are for either; otherwise networks would drift
towards the direction with more of them. The modules that hold the weights decide how outputs are preserved.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from agilerl_like.errors import (
    ConfigurationError,
    check_init_names,
    check_scalar_fields,
    set_tuple_field,
    unknown_name,
)
from agilerl_like.hpo.explorer import Explorer, Repair, unchanged, with_hyperparameters
from agilerl_like.hpo.genome import Architecture, Genome, Mutation, MutationKind, direction
from agilerl_like.hpo.history import History
from agilerl_like.hpo.hyperparameters import HyperparameterConfig
from agilerl_like.registry import register

ACTIVATIONS = (
    "ReLU",
    "Tanh",
    "ELU",
    "GELU",
    "SiLU",
    "LeakyReLU",
    "Softsign",
    "Mish",
    "Sigmoid",
    "Softplus",
)
"""Names of the activations that mutations change to, all but the identity; `modules/layers.py` has their functions."""


@register("explorer", "mutations")
@check_init_names
@dataclass(frozen=True)
class Mutations(Explorer):
    """Relative weights of each kind of mutation, and the sizes of the changes.

    By default 60 % of the clones change hyperparameters, each one with a range with probability 1/2. (AgileRL's usual
    weights are 0.4, 0.2, 0.2, 0.0 and 0.2, with which a search of few generations hardly changes any hyperparameter.)

    An architecture mutation adds or removes a layer with probability `new_layer_prob`, else nodes. Parameter noise is
    scaled until the policy has moved by `mutation_kl`, the mean KL(parent || child) in nats over states of the last
    rollout. `mutation_sd`, AgileRL's name, is an upper bound: the standard deviation of the noise relative to that of
    each weight matrix; where it applies, the policy moves by less. Every matrix keeps a cosine of at least 0.9 with its
    parent's. With `mutate_elite` and `mutate_survivors` the best member and the other survivors change too; by default
    only clones do. `rand_seed` is for mutation by hand alone and drawn from the operating system if it is None; a run
    has its own seed. `device` and `accelerator` are AgileRL's arguments and have no effect.
    """

    no_mutation: float = 0.1
    architecture: float = 0.2
    new_layer_prob: float = 0.2
    parameters: float = 0.1
    activation: float = 0.0
    rl_hp: float = 0.6
    mutation_sd: float = 0.5
    activation_selection: tuple[str, ...] = ("ReLU", "ELU", "GELU")
    mutate_elite: bool = False
    rand_seed: int | None = None
    device: Any = field(default="cpu", compare=False)
    accelerator: Any = field(default=None, repr=False, compare=False)
    mutate_survivors: bool = field(default=False, kw_only=True)
    mutation_kl: float = field(default=0.01, kw_only=True)

    def __post_init__(self) -> None:
        check_scalar_fields(self)
        set_tuple_field(self, "activation_selection")
        for kind, weight in self.weights.items():
            name = "no_mutation" if kind == "none" else kind
            if not 0 <= weight < math.inf:
                raise ConfigurationError(f"{name}={weight!r} must be a relative weight: finite and not negative")
        if not any(self.weights.values()):
            raise ConfigurationError("no_mutation, architecture, parameters, activation and rl_hp must not all be 0")
        if not 0 <= self.new_layer_prob <= 1:
            raise ConfigurationError(f"new_layer_prob={self.new_layer_prob!r} must lie between 0 and 1")
        for name in ("mutation_sd", "mutation_kl"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be finite and not negative")
        if self.activation and not self.activation_selection:
            raise ConfigurationError("activation_selection=() must name an activation while activation is above 0")
        for name in self.activation_selection:
            if name not in ACTIVATIONS:
                raise unknown_name("activation_selection", name, ACTIVATIONS)

    @property
    def weights(self) -> dict[MutationKind, float]:
        """The relative weight of each kind."""
        return {
            "none": self.no_mutation,
            "architecture": self.architecture,
            "parameters": self.parameters,
            "activation": self.activation,
            "rl_hp": self.rl_hp,
        }

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
        """Return a mutated genome and a record of the change; `history` is not used.

        With `pre_training` the weight of `no_mutation` is 0. A kind that finds nothing to change leaves the genome as
        it is; the record's details then hold the kind as "wanted".
        """
        weights = self.weights
        if pre_training:
            weights["none"] = 0.0
        reached = [*accumulate(weights.values())]
        kind: MutationKind = "none"
        if reached[-1]:  # the same draw as `rng.choice` with probabilities, in a seventh of the time
            kind = list(weights)[bisect_right(reached, rng.random() * reached[-1])]
        match kind:
            case "none":
                return genome, (Mutation("none"),)
            case "parameters":
                return genome, (Mutation(kind, "noise", {"sd": self.mutation_sd, "kl": self.mutation_kl}),)
            case "rl_hp":
                child, mutation = mutate_hyperparameters(genome, hp_config, rng, repair)
            case "architecture":
                operator = draw_operator(genome.architecture, rng, self.new_layer_prob)
                child, mutation = mutate_architecture(genome, kind, operator, rng)
            case "activation":
                operator = draw_one(genome.architecture.operators(kind), rng)
                child, mutation = mutate_architecture(genome, kind, operator, rng, self.activation_selection)
        return child, (Mutation("none", details={"wanted": kind}) if child == genome else mutation,)


def mutate_hyperparameters(
    genome: Genome, hp_config: HyperparameterConfig, rng: np.random.Generator, repair: Repair
) -> tuple[Genome, Mutation]:
    """Move each hyperparameter with probability 1/2, and at least one; record every value that changed."""
    old = genome.hyperparameters
    active = hp_config.active(old)
    moves = rng.random(len(active)) < 0.5
    if len(moves) and not moves.any():
        moves[rng.integers(len(moves))] = True
    moved = {
        name: parameter.mutate(old[name], rng)
        for (name, parameter), moves_now in zip(active.items(), moves, strict=True)
        if moves_now
    }
    return with_hyperparameters(genome, hp_config.resolve(old, moved, rng), repair)


def mutate_architecture(
    genome: Genome,
    kind: MutationKind,
    operator: str,
    rng: np.random.Generator,
    activations: tuple[str, ...] = (),
) -> tuple[Genome, Mutation]:
    """Apply one operator of the architecture; the empty name changes nothing."""
    if not operator:
        return genome, Mutation("none")
    architecture, details = genome.architecture.mutate(operator, rng, activations=activations)
    return genome.replace(architecture=architecture), Mutation(kind, operator, details)


def draw_operator(architecture: Architecture, rng: np.random.Generator, new_layer_prob: float) -> str:
    """Draw a direction and a kind, then an operator; "" if none is legal.

    Where none is legal in the direction, the other direction is used; where none is legal of the kind, the other kind.
    An operator that may grow or shrink counts in both directions.
    """
    unwanted = 1 if rng.random() < 0.5 else -1
    layers_first = rng.random() < new_layer_prob
    for kind in ("layer", "node") if layers_first else ("node", "layer"):
        legal = architecture.operators(kind)
        wanted = tuple(operator for operator in legal if direction(operator) != unwanted)
        if legal:
            return draw_one(wanted or legal, rng)
    return ""


def draw_one(names: tuple[str, ...], rng: np.random.Generator) -> str:
    """Return one of the names, each equally likely, or "" if there is none."""
    return names[rng.integers(len(names))] if names else ""
