"""Vector environments by AgileRL's names."""

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.vector.dummy_vec_env import DummyVecEnv, PzDummyVecEnv
from agilerl_like.agilerl.vector.pz_async_vec_env import AsyncPettingZooVecEnv
from agilerl_like.agilerl.vector.pz_vec_env import PettingZooVecEnv

__all__ = ["AsyncPettingZooVecEnv", "DummyVecEnv", "PettingZooVecEnv", "PzDummyVecEnv"]

__getattr__ = absent_from(__name__)
