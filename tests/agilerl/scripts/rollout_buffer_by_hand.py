"""A loop that fills the agent's rollout buffer itself."""

import numpy as np
from agilerl.algorithms import PPO
from agilerl.utils.utils import make_vect_envs

env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}
agent = PPO(
    env.single_observation_space, env.single_action_space, net_config=NET, learn_step=32, batch_size=16, num_envs=2
)
agent.rollout_buffer.reset()
obs, info = env.reset(seed=1)
for _ in range(16):
    action, log_prob, _, value = agent.get_action(obs)
    next_obs, reward, terminated, truncated, info = env.step(action)
    done = np.logical_or(terminated, truncated).astype(np.float32)
    agent.rollout_buffer.add(
        obs=obs, action=action, reward=reward, done=done, value=value, log_prob=log_prob, next_obs=next_obs
    )
    obs = next_obs
last_value = agent.get_action(obs)[3]
agent.rollout_buffer.compute_returns_and_advantages(last_value=last_value, last_done=done)
assert agent.rollout_buffer.size() in (16, 32)  # of all environments, or of each
assert np.isfinite(agent.learn())
