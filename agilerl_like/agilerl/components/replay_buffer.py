"""AgileRL's replay buffers: rings of transitions for hand-written loops, and the sizes of a memory for a training loop.

`train_off_policy` stores transitions in a replay of its own (`agilerl_like.learning.replay_buffer`), which holds true
last observations, and reads only `max_size` and `n_step` of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from tensordict import TensorDict
from torch import Tensor

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.errors import ConfigurationError
from agilerl_like.resources import check_memory
from agilerl_like.seeding import Purpose, fresh_seed, integer

__getattr__ = absent_from(__name__)

OBSERVATIONS = ("obs", "next_obs")
"""Entries whose shape is that of the env's observations, such as [B] of a Discrete space."""


class ReplayBuffer:
    """The last `max_size` transitions that were added; `seed` names the random stream of its samples.

    `dtype` has no effect: tensors keep their types.
    """

    def __init__(
        self,
        max_size: int,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        seed: int | None = None,
    ) -> None:
        if not isinstance(max_size, int) or max_size < 1:
            raise ConfigurationError(f"max_size={max_size!r} must be a positive integer")
        self.max_size, self.device, self.dtype = max_size, device, dtype
        self.counter = self.size = self._cursor = 0
        self.storage: TensorDict | None = None
        stream = integer(fresh_seed() if seed is None else seed, Purpose.MANUAL)
        self._generator = torch.Generator().manual_seed(stream)

    @property
    def initialized(self) -> bool:
        """Whether anything was added."""
        return self.storage is not None

    @property
    def is_full(self) -> bool:
        """Whether it holds `max_size` transitions."""
        return self.size == self.max_size

    def __len__(self) -> int:
        return self.size

    def add(self, data: Any) -> None:
        """Add transitions: a TensorDict, or a mapping of tensors, with a row for each.

        Raises:
            ConfigurationError: `max_size` transitions do not fit into the memory of the machine (device="cpu").
        """
        rows = _with_columns(data if isinstance(data, TensorDict) else TensorDict(dict(data)))
        count = len(next(iter(rows.values(True, True))))
        rows = cast(TensorDict, rows.to(torch.device(self.device)))
        rows.batch_size = torch.Size([count])
        if self.storage is None:
            if torch.device(self.device).type == "cpu":
                each = sum(part[:1].nbytes for part in cast(Any, rows.values(True, True)))
                check_memory(f"max_size={self.max_size}", self.max_size, each, "transitions")
            self.storage = cast(TensorDict, torch.zeros_like(rows[:1]).expand(self.max_size).clone())
        kept = min(count, self.max_size)  # the last rows, if there are more than places
        at = (self._cursor + torch.arange(count - kept, count)) % self.max_size
        self.storage[at] = rows[count - kept :]
        self._cursor = (self._cursor + count) % self.max_size
        self.size, self.counter = min(self.size + count, self.max_size), self.counter + count

    def sample(self, batch_size: int, return_idx: bool = False, *, beta: float = 0.4) -> TensorDict:
        """Return distinct transitions, at most `batch_size`, with their places as "idxs" if `return_idx`.

        `beta` is accepted for AgileRL's sake.

        Raises:
            ConfigurationError: nothing was added.
        """
        if self.storage is None:
            raise ConfigurationError("sample() of an empty buffer; add() comes first")
        places = torch.randperm(self.size, generator=self._generator)[:batch_size]
        samples = cast(TensorDict, self.storage[places])
        if return_idx:
            samples["idxs"] = places
        return samples

    def clear(self) -> None:
        """Forget all transitions."""
        self.size = self._cursor = 0
        self.storage = None


class MultiStepReplayBuffer(ReplayBuffer):
    """States the `n_step` of returns for `train_off_policy(n_step_memory=…)`, whose own replay computes them.

    `gamma` and `dtype` have no effect: the discount is that of the agent.
    """

    def __init__(
        self,
        max_size: int,
        n_step: int = 3,
        gamma: float = 0.99,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(max_size, device, dtype)
        self.n_step, self.gamma = n_step, gamma

    def add(self, data: Any) -> None:
        """Refuse: an n-step return of a hand-written loop would need the loop's order of envs."""
        raise ConfigurationError(
            "MultiStepReplayBuffer.add is not available: n-step returns are computed in train_off_policy, where "
            "DQN(n_step=…) sets them"
        )


def _with_columns(data: Mapping[str, Any]) -> TensorDict:
    """Return rows in which single numbers have an axis of their own, [B, 1], but not those of observations."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, TensorDict | Mapping):
            found[name] = TensorDict(dict(value))
        else:
            tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
            found[name] = tensor.unsqueeze(1) if tensor.dim() == 1 and name not in OBSERVATIONS else tensor
    return TensorDict(found)
