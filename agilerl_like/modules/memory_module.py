"""What a network's memory has to provide: a module that carries a hidden state from step to step.

A memory stands between encoder and head. It is registered under the name that `memory_config["cell"]` gives:
`register("memory", NAME, MemoryKind(spec, module))`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from agilerl_like.modules.evolvable_module import EvolvableModule, UnitMaps
from agilerl_like.modules.spec import Spec


class MemorySpec(Spec):
    """The architecture of a memory."""

    hidden_state_size: int
    """Number of outputs."""

    @property
    @abstractmethod
    def state_shape(self) -> tuple[int, int]:
        """Vectors K and units H of the hidden state."""


class UnrolledStates(ABC):
    """The hidden states after every step of sequences `[…, S, L]`.

    Few of them are needed, so a memory with large states may assemble those that are.
    """

    @abstractmethod
    def after(self, steps: Sequence[int]) -> Tensor:
        """Return the hidden states `[…, S, C, K, H]` after C steps of every sequence."""

    @abstractmethod
    def at(self, member: Tensor, sequence: Tensor, step: Tensor) -> Tensor:
        """Return the hidden states `[n, K, H]` after n steps, of a stack of members."""


class StoredStates(UnrolledStates):
    """Hidden states `[…, S, L, K, H]` that are stored for every step."""

    def __init__(self, states: Tensor) -> None:
        self.states = states

    def after(self, steps: Sequence[int]) -> Tensor:
        return self.states.index_select(-3, torch.tensor(steps, dtype=torch.int64, device=self.states.device))

    def at(self, member: Tensor, sequence: Tensor, step: Tensor) -> Tensor:
        return self.states[member, sequence, step]


MemorySpecT = TypeVar("MemorySpecT", bound=MemorySpec)


class MemoryModule(EvolvableModule[MemorySpecT]):
    """A memory of `spec.hidden_state_size` outputs; a call is one `step`.

    All tensors have a leading member axis in a stack. A hidden state of zeros begins an episode.
    """

    inputs: int

    def __init__(self, spec: MemorySpecT, inputs: int) -> None:
        super().__init__()
        self.spec, self.inputs, self.num_outputs = spec, inputs, spec.hidden_state_size

    def rebuild(self, spec: Any) -> Any:
        return type(self)(spec, self.inputs)

    @property
    def state_shape(self) -> tuple[int, int]:
        """Vectors K and units H of the hidden state."""
        return self.spec.state_shape

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.step(x, state)

    @abstractmethod
    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs `[…, H]` after one more input `[…, in]`, and the state `[…, K, H]`."""

    def unroll(self, x: Tensor, starts: Tensor, state: Tensor) -> tuple[Tensor, UnrolledStates]:
        """Return the outputs `[…, S, L, H]` of sequences `[…, S, L, in]`, and the states after each step.

        `starts` `[…, S, L]` is 1 where an episode begins at that step, before which the state is reset. By default the
        steps are computed one after the other.
        """
        outputs, states = [], []
        for t, x_t in enumerate(x.unbind(-2)):
            y, state = self.step(x_t, state * (1 - starts[..., t, None, None]))
            outputs.append(y)
            states.append(state)
        return torch.stack(outputs, -2), StoredStates(torch.stack(states, -3))

    def resample_(self, generator: torch.Generator) -> None:
        """Draw what is random in the module, for one member; it stays the same for a rollout and its update."""

    @staticmethod
    def transfer_state(state: Tensor, old: Any, new: Any, maps: UnitMaps) -> Tensor:
        """Return the hidden states of running episodes `[…, K, H]` after a mutation; `maps` are the module's unit maps.

        By default a state of another shape starts at zero.
        """
        return state if old.state_shape == new.state_shape else state.new_zeros(*state.shape[:-2], *new.state_shape)


class MemoryKind(NamedTuple):
    """A kind of memory: its spec, and the module that is built from it and the number of inputs."""

    spec: type[MemorySpec]
    module: Callable[[Any, int], MemoryModule[Any]]


def with_members(x: Tensor, num_axes: int) -> Tensor:
    """`[…, *axes]` -> `[P, *axes]`, P = 1 for a single member; also for zero sequences."""
    return x.reshape(x.shape[:-num_axes].numel(), *x.shape[-num_axes:])


def no_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Disable autocast; a null context where it is off, since entering it would take as long as a kernel."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
