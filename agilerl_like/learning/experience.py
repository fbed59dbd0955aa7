"""The protocols of an algorithm's experience buffer and of its update.

The collector writes every env step into an `ExperienceBuffer` that the algorithm made. An `Update` is what one call of
`learn` does to some members; the population learner runs it on the rows in which their weights are stored.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from tensordict import TensorDict
from torch import Tensor

from agilerl_like.envs.vec_adapter import Transition
from agilerl_like.learning.execution import Execution
from agilerl_like.learning.gradient_sync import GradientSync
from agilerl_like.learning.stacked_networks import StackedNetworks

UpdateT = TypeVar("UpdateT", bound="Update")


class ExperienceWriter(Protocol):
    """A buffer's share of some envs of every member."""

    def put_actions(self, place: int, observations: Tensor, actions: Tensor, mask: Tensor | None) -> None:
        """Store observations `[P, e, D]`, raw actions `[P, e, A]` and action masks `[P, e, choices]` of a step.

        `place` is the step's index in the buffer, which `begin` returned, and not that of a member.
        """

    def put_outcome(self, place: int, transition: Transition) -> None:
        """Store rewards, flags and next observations of the step at index `place`, `[P e]` rows."""


class ExperienceBuffer(Protocol):
    """The env steps of P members with E envs each."""

    def begin(self) -> int:
        """Return the index at which the next step of all envs is stored."""
        ...

    def part(self, columns: slice) -> ExperienceWriter:
        """Return the share of some envs of every member."""
        ...

    def reader(self, next_observations: Tensor, state: Tensor) -> Any:
        """Return what the algorithm's `learn` reads.

        `next_observations` `[P, E, D]` are those after the last step, `state` `[P, E, M, K, H]` is the hidden state at
        each member's last update.
        """


class Update(Protocol):
    """One update of P members, in the order of its tensors."""

    def of_members(self: UpdateT, members: Tensor) -> UpdateT:
        """Return the update of some members, in this order."""
        ...

    def alone(self: UpdateT, member: int, state_shape: tuple[int, int, int]) -> UpdateT:
        """Return the update of one member, with tensors in the memory layout of a population of one.

        `state_shape` `(M, K, H)` is that of its own hidden state.
        """
        ...

    def run(self, stacked: StackedNetworks, execution: Execution, gradient_sync: GradientSync) -> TensorDict:
        """Change weights and moments in place; return metrics `[P]`, of which `healthy` is 1 if all is finite."""
        ...
