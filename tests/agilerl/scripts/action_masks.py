"""Masked actions are never taken."""

import gymnasium
import numpy as np
from agilerl.algorithms import PPO

agent = PPO(gymnasium.spaces.Box(-1.0, 1.0, (4,)), gymnasium.spaces.Discrete(3), learn_step=32, batch_size=16)
mask = np.tile([1, 0, 1], (50, 1))
action, *_ = agent.get_action(np.zeros((50, 4), np.float32), action_mask=mask)
assert 1 not in action
