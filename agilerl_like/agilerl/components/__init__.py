"""Buffers of hand-written loops."""

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.components.replay_buffer import MultiStepReplayBuffer, ReplayBuffer
from agilerl_like.agilerl.components.rollout_buffer import RolloutBuffer

__all__ = ["MultiStepReplayBuffer", "ReplayBuffer", "RolloutBuffer"]

__getattr__ = absent_from(__name__)
