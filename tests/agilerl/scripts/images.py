"""An image space with a convolutional encoder of one's own sizes."""

import gymnasium
import numpy as np
from agilerl.algorithms import PPO

space = gymnasium.spaces.Box(0, 255, (3, 16, 16), np.uint8)
agent = PPO(
    space,
    gymnasium.spaces.Discrete(3),
    learn_step=32,
    batch_size=16,
    net_config={
        "encoder_config": {"channel_size": [16], "kernel_size": [3], "stride_size": [2]},
        "head_config": {"hidden_size": [16]},
    },
)
action, log_prob, entropy, value = agent.get_action(np.stack([space.sample() for _ in range(2)]))
assert action.shape == value.shape == (2,)
