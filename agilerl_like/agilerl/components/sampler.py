"""AgileRL's sampler, which here is the buffer's own method."""

from __future__ import annotations

from typing import Any

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.components.replay_buffer import ReplayBuffer
from agilerl_like.errors import ConfigurationError

__getattr__ = absent_from(__name__)


class Sampler:
    """Samples from a buffer: `sample` is that of the buffer."""

    def __init__(self, memory: ReplayBuffer | None = None, dataset: Any = None, dataloader: Any = None) -> None:
        if memory is None:
            raise ConfigurationError("memory is missing; data loaders of several processes are not supported")
        self.memory, self.sample = memory, memory.sample
