"""DQN, PPO and IPPO with AgileRL's signatures."""

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.algorithms.dqn import DQN
from agilerl_like.agilerl.algorithms.ippo import IPPO
from agilerl_like.agilerl.algorithms.ppo import PPO
from agilerl_like.agilerl.algorithms.recurrent_ppo import RecurrentPPO

__all__ = ["DQN", "IPPO", "PPO", "RecurrentPPO"]

__getattr__ = absent_from(__name__)
