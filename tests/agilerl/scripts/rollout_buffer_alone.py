"""A rollout buffer without an agent: returns of rewards of 1 in an episode that does not end."""

import gymnasium
import numpy as np
from agilerl.components.rollout_buffer import RolloutBuffer

buffer = RolloutBuffer(
    capacity=3,
    observation_space=gymnasium.spaces.Box(-1.0, 1.0, (2,)),
    action_space=gymnasium.spaces.Discrete(2),
    num_envs=1,
    gamma=0.5,
    gae_lambda=1.0,
)
for _ in range(3):
    buffer.add(
        obs=np.zeros((1, 2), np.float32),
        action=np.zeros(1, np.int64),
        reward=np.ones(1, np.float32),
        done=np.zeros(1, np.float32),
        value=np.zeros(1, np.float32),
        log_prob=np.zeros(1, np.float32),
        next_obs=np.zeros((1, 2), np.float32),
    )
buffer.compute_returns_and_advantages(last_value=np.zeros(1, np.float32), last_done=np.zeros(1, np.float32))
batch = buffer.get_tensor_batch()
assert np.allclose(np.ravel(batch["returns"]), [1.75, 1.5, 1.0])
