"""A DQN loop written by hand, with a replay buffer, a sampler and transitions."""

import gymnasium
import numpy as np
from agilerl.algorithms import DQN
from agilerl.components.data import Transition
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.components.sampler import Sampler

env = gymnasium.make_vec("CartPole-v1", num_envs=4, vectorization_mode="sync")
agent = DQN(
    env.single_observation_space,
    env.single_action_space,
    net_config={"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}},
    batch_size=16,
    seed=1,
)
memory = ReplayBuffer(max_size=50, device="cpu")
sampler = Sampler(memory=memory)

obs, info = env.reset(seed=1)
epsilon, losses = 1.0, []
for step in range(30):
    action = agent.get_action(obs, epsilon)
    epsilon = max(0.1, epsilon * 0.9)
    next_obs, reward, terminated, truncated, info = env.step(action)
    transition = Transition(obs=obs, action=action, reward=reward, next_obs=next_obs, done=terminated, device="cpu")
    transition.batch_size = [4]
    memory.add(transition.to_tensordict())
    if memory.size >= agent.batch_size and step % 2 == 0:
        losses.append(agent.learn(sampler.sample(agent.batch_size)))
    obs = next_obs
env.close()

assert len(memory) == memory.size == 50
assert memory.is_full
assert memory.counter == 120
assert len(losses) == 13
assert np.isfinite(losses).all()
