"""load_weights takes networks and leaves hyperparameters."""

import os
import tempfile

import numpy as np
from agilerl.algorithms import PPO
from agilerl.utils.utils import make_vect_envs

env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}
spaces = env.single_observation_space, env.single_action_space
agent = PPO(*spaces, net_config=NET, learn_step=32, batch_size=16, lr=0.002)
path = os.path.join(tempfile.mkdtemp(), "agent.pt")
agent.save_checkpoint(path)
other = PPO(*spaces, net_config=NET, learn_step=32, batch_size=8, lr=0.003, ent_coef=0.02, target_kl=0.5)
other.load_weights(path)
obs = env.reset(seed=1)[0]
for one in (agent, other):
    one.set_training_mode(False)
assert np.allclose(agent.get_action(obs)[3], other.get_action(obs)[3])
assert (other.lr, other.batch_size, other.ent_coef, other.target_kl) == (0.003, 8, 0.02, 0.5)
