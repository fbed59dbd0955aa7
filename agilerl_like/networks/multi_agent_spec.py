"""The architecture of a team: one of each group's networks, evolved as one.

A mutation changes the networks of one group; its operator is written with the group in front
("speaker.encoder.add_node"). See de Witt et al. 2020, "Is Independent Learning All You Need …", for such teams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from agilerl_like.hpo.genome import OperatorKind
from agilerl_like.networks.architecture import NetworkSpec


@dataclass(frozen=True)
class MultiAgentSpec:
    """Each group's architecture, in the order of the groups."""

    groups: tuple[tuple[str, NetworkSpec], ...]

    def of(self, group: str) -> NetworkSpec:
        """One group's."""
        return dict(self.groups)[group]

    def operators(self, kind: OperatorKind) -> tuple[str, ...]:
        """Every group's operators that are legal now."""
        return tuple(f"{group}.{operator}" for group, spec in self.groups for operator in spec.operators(kind))

    def mutate(
        self, operator: str, rng: np.random.Generator, *, activations: tuple[str, ...] = ()
    ) -> tuple[MultiAgentSpec, dict[str, int | float | str]]:
        """Change one group's architecture."""
        group, inner = split_operator(operator)
        changed, arguments = self.of(group).mutate(inner, rng, activations=activations)
        return self.replace(group, changed), arguments

    def replace(self, group: str, spec: NetworkSpec) -> MultiAgentSpec:
        """This with another architecture of one group."""
        return MultiAgentSpec(tuple((name, spec if name == group else own) for name, own in self.groups))

    def describe(self) -> str:
        """One line for a table."""
        return "; ".join(f"{group} {spec.describe()}" for group, spec in self.groups)

    def legend(self) -> str:
        """What stands in `describe` at each place."""
        return "; ".join(dict.fromkeys(f"group {spec.legend()}" for _, spec in self.groups))

    def to_config(self) -> dict[str, Any]:
        """Plain data: each group's `to_config` by its name."""
        return {group: spec.to_config() for group, spec in self.groups}

    @classmethod
    def by_group(cls, specs: Mapping[str, NetworkSpec]) -> MultiAgentSpec:
        """The team of these groups."""
        return cls(tuple(specs.items()))


def split_operator(operator: str) -> tuple[str, str]:
    """The group, and the operator as the group's own networks call it."""
    group, _, inner = operator.partition(".")
    return group, inner
