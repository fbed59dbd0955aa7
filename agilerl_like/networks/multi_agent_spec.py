"""The architecture of a multi-agent algorithm: one network spec for each group of agents.

A mutation changes the networks of one group; the group's name is the first part of its operator
("speaker.encoder.add_node"). See de Witt et al. 2020, "Is Independent Learning All You Need …", for such agents.
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
    """The architectures of all groups, in the order of the groups."""

    groups: tuple[tuple[str, NetworkSpec], ...]
    frozen: tuple[str, ...] = ()
    """Groups whose architecture does not change."""

    def of(self, group: str) -> NetworkSpec:
        """Return one group's architecture."""
        return dict(self.groups)[group]

    def operators(self, kind: OperatorKind) -> tuple[str, ...]:
        """Return the operators of all groups that are legal now."""
        return tuple(f"{group}.{operator}" for group, spec in self._changing for operator in spec.operators(kind))

    @property
    def _changing(self) -> list[tuple[str, NetworkSpec]]:
        return [(group, spec) for group, spec in self.groups if group not in self.frozen]

    def mutate(
        self, operator: str, rng: np.random.Generator, *, activations: tuple[str, ...] = ()
    ) -> tuple[MultiAgentSpec, dict[str, int | float | str]]:
        """Return the spec with one group's architecture mutated, and the arguments of the change."""
        group, inner = split_operator(operator)
        changed, arguments = self.of(group).mutate(inner, rng, activations=activations)
        return self.replace(group, changed), arguments

    def apply(self, operator: str, **arguments: int | float | str) -> MultiAgentSpec:
        """Return the spec after one mutation of one group's architecture with given arguments."""
        group, inner = split_operator(operator)
        return self.replace(group, self.of(group).apply(inner, **arguments))

    def replace(self, group: str, spec: NetworkSpec) -> MultiAgentSpec:
        """Return the spec with one group's architecture replaced."""
        return MultiAgentSpec(tuple((name, spec if name == group else own) for name, own in self.groups), self.frozen)

    def describe(self) -> str:
        """Return one line for a table."""
        return "; ".join(f"{group} {spec.describe()}" for group, spec in self.groups)

    def legend(self) -> str:
        """Return the names of the fields of `describe`."""
        return "; ".join(dict.fromkeys(f"group {spec.legend()}" for _, spec in self.groups))

    def to_config(self) -> dict[str, Any]:
        """Return plain data: the groups' `to_config` by name."""
        return {group: spec.to_config() for group, spec in self.groups}

    @classmethod
    def by_group(cls, specs: Mapping[str, NetworkSpec], frozen: tuple[str, ...] = ()) -> MultiAgentSpec:
        """Return the spec of these groups, some of them frozen."""
        return cls(tuple(specs.items()), frozen)


def split_operator(operator: str) -> tuple[str, str]:
    """Return the group, and the operator without the group's name."""
    group, _, inner = operator.partition(".")
    return group, inner
