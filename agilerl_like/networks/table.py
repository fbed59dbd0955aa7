"""A table of action values, with an entry for each state and action, as a network without layers.

Rows of observations hold one number for each category (`ObservationEncoder` without `one_hot`). A state is its place in
the product of the categories, the last of which varies fastest.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import gymnasium
import torch
from torch import Tensor, nn

from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.errors import ConfigurationError, check_mapping
from agilerl_like.modules.evolvable_module import EvolvableModule, UnitAxes, UnitChange
from agilerl_like.modules.spec import Arguments, OperatorKind, Spec
from agilerl_like.networks.actor_critic import Actor, Network
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.branched_network import BranchedNetwork
from agilerl_like.networks.exploration import EpsilonGreedy
from agilerl_like.networks.identity_module import EmptySpec, IdentityModule
from agilerl_like.networks.recurrent_state import NO_SEQUENCE, SequenceInfo

LARGEST_CATEGORY = 2**24
"""Values of a category, at most: rows are float32, which has all whole numbers up to this one."""


def category_counts(encoding: ObservationEncoder) -> tuple[int, ...]:
    """Return the number of values of each category of an observation.

    Raises:
        ConfigurationError: an observation has other parts than categories, or a category has too many values.
    """
    for leaf in encoding.leaves:
        if not leaf.counts.size:
            raise ConfigurationError(
                f"observation_space={encoding.space!s:.200} is not for a table; allowed are Discrete, MultiDiscrete, "
                "and Dict and Tuple of these; of a small Box the wrapper "
                "agilerl_like.envs.observation_wrappers:BinObservation makes a MultiDiscrete"
            )
        if (most := int(leaf.counts.max())) > LARGEST_CATEGORY:
            raise ConfigurationError(
                f"observation_space={encoding.space!s:.200} has a category of {most} values; allowed are at most "
                f"{LARGEST_CATEGORY}"
            )
    return tuple(int(count) for leaf in encoding.leaves for count in leaf.counts)


@dataclass(frozen=True)
class TableSpec(Spec):
    """The size of a table, which does not evolve."""

    counts: tuple[int, ...]
    """Values of each category of an observation."""
    actions: int

    @property
    def states(self) -> int:
        """Number of states: the product of the categories."""
        return math.prod(self.counts)

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        return ()

    def stack_key(self) -> Hashable:
        return self.counts, self.actions

    def multiply_adds(self, padded: Any, inputs: Any, num_outputs: int) -> int:
        return num_outputs

    def describe(self) -> str:
        return f"{self.states} x {self.actions}"


@dataclass(frozen=True)
class TableNetworkSpec(NetworkSpec):
    """The architecture of a `TableNetwork`: the table alone."""

    OPERATORS: ClassVar[Mapping[str, OperatorKind]] = {}

    @classmethod
    def of(cls, counts: Sequence[int], actions: int) -> TableNetworkSpec:
        """Return the architecture of a table of that size."""
        return cls(encoder=TableSpec(tuple(counts), actions), head=EmptySpec())

    @property
    def table(self) -> TableSpec:
        """The size of the table."""
        return cast(TableSpec, self.encoder)

    def choices(self, operator: str) -> tuple[Arguments, ...]:
        return ()

    def multiply_adds(self, padded: NetworkSpec, inputs: Any, num_outputs: int, critic_inputs: Any = None) -> int:
        return num_outputs

    def describe(self) -> str:
        return self.table.describe()

    def legend(self) -> str:
        return "states x actions"

    def to_config(self) -> dict[str, Any]:
        return {"encoder": "table", "encoder_config": self.table.to_config()}

    def read(self, config: Mapping[str, Any]) -> TableNetworkSpec:
        """Return this architecture, if a `to_config` describes it.

        Raises:
            ConfigurationError: it describes another one.
        """
        check_mapping("architecture", config)
        if dict(config) != self.to_config():
            raise ConfigurationError(f"architecture={config!r:.200}; allowed is {self.to_config()!r}")
        return self


class Table(EvolvableModule[TableSpec]):
    """Values `[…, actions]` of rows `[…, categories]`, or `[P, B, …]` of a stack, and how often each was updated."""

    weight: nn.Parameter
    """Values `[states, actions]`."""
    visits: Tensor
    """Updates of each value, `[states, actions]`."""

    def __init__(self, spec: TableSpec, initial_value: float) -> None:
        super().__init__()
        self.spec, self.initial_value = spec, initial_value
        self.inputs, self.num_outputs = len(spec.counts), spec.actions
        self.weight = nn.Parameter(torch.full((spec.states, spec.actions), initial_value))
        self.register_buffer("visits", torch.zeros(spec.states, spec.actions))

    def reset_(self, generator: torch.Generator, *, output_gain: float = 1.0) -> None:
        """Set all values to the initial one."""
        nn.init.constant_(self.weight, self.initial_value)
        self.visits.zero_()

    def states(self, x: Tensor) -> Tensor:
        """Return the states `[…]` of rows; a number outside of its category, which is an error elsewhere, is moved."""
        found: Any = 0
        for column, count in enumerate(self.spec.counts):
            found = found * count + x[..., column].to(torch.int64).clamp(0, count - 1)
        return found

    def forward(self, x: Tensor) -> Tensor:
        states = self.states(x)
        if self.weight.dim() == 2:
            return self.weight.index_select(0, states.flatten()).view(*states.shape, self.num_outputs)
        return self.weight.gather(1, states.unsqueeze(-1).expand(-1, -1, self.num_outputs))

    def unit_axes(self) -> UnitAxes:
        return {}

    def unit_change(self, operator: str, arguments: Arguments) -> UnitChange:
        return UnitChange()


class TableNetwork(BranchedNetwork):
    """The table of one member as its policy and its values."""

    spec: TableNetworkSpec  # pyright: ignore[reportIncompatibleVariableOverride]  # only this one is a table's

    def __init__(
        self, spec: TableNetworkSpec, action_space: gymnasium.spaces.Discrete, *, initial_value: float = 0.0
    ) -> None:
        super().__init__(spec)
        table = Table(spec.table, initial_value)
        memory, head = (IdentityModule(EmptySpec(), table.num_outputs) for _ in range(2))
        self.actor = Actor(table, memory, head, EpsilonGreedy(action_space))

    @property
    def branches(self) -> dict[str, Network]:
        return {"actor": self.actor}

    @property
    def table(self) -> Table:
        """The values and their counts; those of all members `[P, states, actions]` in a stack."""
        return cast(Table, self.actor.encoder)

    @property
    def dtype(self) -> torch.dtype:
        return self.table.weight.dtype

    @property
    def parts(self) -> dict[str, EvolvableModule]:
        return {"actor.encoder": self.table}

    def rebuild(self, spec: NetworkSpec) -> BranchedNetwork:
        """Raise an error: a table has no other architecture."""
        raise NotImplementedError

    def reset_(self, generator: torch.Generator, *, output_gain: float = 1.0) -> None:
        self.table.reset_(generator)

    def stack_key(self) -> Hashable:
        return type(self), self.spec.table.stack_key()

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.table(x), state

    def q_values(self, x: Tensor) -> Tensor:
        """Return the values `[…, actions]` of rows."""
        return self.table(x)

    def evaluate(self, x: Tensor, sequence_info: SequenceInfo = NO_SEQUENCE) -> tuple[Tensor, Tensor]:
        """Return the action values `[…, actions]` and the largest of them `[…]`."""
        values = self.table(x)
        return values, values.max(-1).values
