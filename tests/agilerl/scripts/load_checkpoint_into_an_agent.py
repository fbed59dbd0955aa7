"""load_checkpoint, and the training that continues."""

import os
import tempfile

from agilerl.algorithms import PPO
from agilerl.rollouts.on_policy import collect_rollouts
from agilerl.utils.utils import make_vect_envs

env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}
spaces = env.single_observation_space, env.single_action_space
agent = PPO(*spaces, net_config=NET, learn_step=32, batch_size=16, num_envs=2, lr=0.002)
path = os.path.join(tempfile.mkdtemp(), "agent.pt")
agent.save_checkpoint(path)
other = PPO(*spaces, net_config=NET, learn_step=32, batch_size=16, num_envs=2)
other.load_checkpoint(path)
collect_rollouts(other, env)
other.learn()
assert other.lr == 0.002
