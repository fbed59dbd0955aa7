"""The data that evolution works on: a genome, a mutation, and the record of one offspring.

A genome is an architecture and a set of hyperparameters; it has no weights and no history. Offspring are plain data,
equal on every process; the algorithms apply them to weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_args

import numpy as np

from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo.choice import plain
from agilerl_like.hpo.frozen_mapping import FrozenMapping

OperatorKind: TypeAlias = Literal["layer", "node", "activation"]
MutationKind: TypeAlias = Literal["none", "architecture", "parameters", "activation", "rl_hp"]


class Architecture(Protocol):
    """A frozen, hashable description of networks that lists and applies its own mutations."""

    def operators(self, kind: OperatorKind) -> tuple[str, ...]:
        """Return the operators that are legal now, in a fixed order; `direction` parses their names."""
        ...

    def mutate(
        self, operator: str, rng: np.random.Generator, *, activations: tuple[str, ...] = ()
    ) -> tuple[Architecture, dict[str, int | float | str]]:
        """Return the changed description, and the arguments of the change (layer, nodes, …)."""
        ...

    def apply(self, operator: str, **arguments: int | float | str) -> Architecture:
        """Return the description after an operator with the arguments that `mutate` returned."""
        ...

    def describe(self) -> str:
        """Return one line for a table."""
        ...


@dataclass(frozen=True)
class Mutation:
    """One change and its arguments.

    A record of kind "rl_hp" has details {name: (old, new)}; `operator` is free. A record of kind "architecture" or
    "activation" has an operator of the architecture and the arguments that `Architecture.mutate` returned with it, by
    which the weights are transferred. A record of kind "parameters" is noise on the weights, with details "sd" and
    "kl", the limits of its size. A record of kind "none" changes nothing; its details are free.
    """

    kind: MutationKind
    operator: str = ""
    details: Mapping[str, Any] = FrozenMapping()

    def __post_init__(self) -> None:
        if self.kind not in get_args(MutationKind):
            raise ConfigurationError(
                f"kind={self.kind!r:.100} of a mutation is unknown; allowed are {', '.join(get_args(MutationKind))}"
            )
        object.__setattr__(self, "details", FrozenMapping(self.details))

    @property
    def full_name(self) -> str:
        """Kind and operator, as trials and searches name a change: "rl_hp.gaussian"."""
        return f"{self.kind}.{self.operator}" if self.operator else self.kind

    @property
    def changes_policy(self) -> bool:
        """Whether it changes how a network acts: its weights or layers, or the standard deviation of its actions."""
        is_of_network = self.kind in ("architecture", "parameters", "activation")
        return is_of_network or any(name.startswith("action_std_") for name in self.details)

    @property
    def label(self) -> str:
        """The mutation in a table; AgileRL calls it `mut`."""
        match self.kind:
            case "none":
                return "None"
            case "rl_hp":
                return ",".join(self.details)
            case "architecture":
                return self.operator
            case "parameters":
                return "param"
            case "activation":
                return "act"

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        details = {name: plain(value) for name, value in self.details.items()}
        return {"kind": self.kind, "operator": self.operator, "details": details}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Mutation:
        """Read what `to_json` wrote."""
        return cls(**data)


@dataclass(frozen=True)
class Genome:
    """All that an offspring inherits besides weights."""

    hyperparameters: Mapping[str, Any]
    architecture: Architecture

    def __post_init__(self) -> None:
        object.__setattr__(self, "hyperparameters", FrozenMapping(self.hyperparameters))

    def replace(self, **changes: Any) -> Genome:
        """Return this genome with other `hyperparameters` or another `architecture`."""
        return replace(self, **changes)


NO_PARENT = -1
"""The parent uid of a fresh member."""


class WeightMix(NamedTuple):
    """Weights of an offspring that are not its parent's alone: `parent` * its weights + `initial` * initial ones.

    Where `parent` is 0, `initial` is 1. Elsewhere the logarithms of the deviation of actions and of SAC's temperature
    stay the parent's: a factor would move the deviation and the temperature towards 1.
    """

    parent: float = 0.0
    initial: float = 1.0

    @property
    def is_fresh(self) -> bool:
        """Whether nothing of the parent's weights is left, so that the member has no parent."""
        return self.parent == 0


@dataclass(frozen=True)
class Offspring:
    """The member of a slot from this generation on: a survivor, or a clone of the member that was in `parent_slot`.

    A fresh member has initial weights, no parent (`parent_uid` is -1), and only its architecture from `parent_slot`.
    """

    generation: int
    slot: int
    uid: int
    parent_uid: int
    parent_slot: int
    genome: Genome
    mutations: tuple[Mutation, ...] = ()
    start: WeightMix | None = None
    """How initial weights enter; None: the weights are the parent's."""
    donor_uid: int | None = None
    """The member whose hyperparameters it begins with, if that is not the parent."""

    @property
    def survives(self) -> bool:
        """Whether the member was in this slot before; its genome may have changed all the same."""
        return self.uid == self.parent_uid

    def to_json(self) -> dict[str, Any]:
        """Return one line of the lineage as plain data."""
        return {
            "generation": self.generation,
            "slot": self.slot,
            "uid": self.uid,
            "parent_uid": self.parent_uid,
            "parent_slot": self.parent_slot,
            "survives": self.survives,
            "mutations": [mutation.to_json() for mutation in self.mutations],
            "hyperparameters": {name: plain(value) for name, value in self.genome.hyperparameters.items()},
            "architecture": self.genome.architecture.describe(),
        }


def direction(operator: str) -> int:
    """Return 1 for an operator that grows the network, -1 for one that shrinks it, 0 for one that may do either.

    Only the verb after the last dot counts, because the part before it may have any name.
    """
    verb = operator.rpartition(".")[2]
    return 1 if verb.startswith("add_") else -1 if verb.startswith("remove_") else 0
