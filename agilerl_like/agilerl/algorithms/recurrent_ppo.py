"""PPO with a recurrent encoder, as AgileRL names it."""

from __future__ import annotations

from typing import Any

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.algorithms.ppo import PPO

__getattr__ = absent_from(__name__)


class RecurrentPPO(PPO, same_algorithm=True):
    """`PPO(recurrent=True, learn_step=8192, bptt_sequence_type="chunked")`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"recurrent": True, "learn_step": 8192, "bptt_sequence_type": "chunked", **kwargs})
