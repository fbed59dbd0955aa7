"""A Dict space with an encoder for each part."""

import gymnasium
import numpy as np
from agilerl.algorithms import PPO

space = gymnasium.spaces.Dict(
    vector=gymnasium.spaces.Box(-1.0, 1.0, (4,)), image=gymnasium.spaces.Box(0, 255, (3, 16, 16), np.uint8)
)
agent = PPO(space, gymnasium.spaces.Discrete(2), learn_step=32, batch_size=16)
obs = {"vector": np.zeros((2, 4), np.float32), "image": np.zeros((2, 3, 16, 16), np.uint8)}
assert agent.get_action(obs)[0].shape == (2,)
