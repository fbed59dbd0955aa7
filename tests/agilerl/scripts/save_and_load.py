"""A checkpoint of an agent, loaded by its class."""

import os
import tempfile

import numpy as np
from agilerl.algorithms import PPO
from agilerl.utils.utils import make_vect_envs

env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}
agent = PPO(env.single_observation_space, env.single_action_space, net_config=NET, learn_step=32, batch_size=16)
agent.steps += 7
path = os.path.join(tempfile.mkdtemp(), "agent.pt")
agent.save_checkpoint(path)
loaded = PPO.load(path)
obs = env.reset(seed=1)[0]
for one in (agent, loaded):
    one.set_training_mode(False)
values = [one.get_action(obs)[3] for one in (agent, loaded)]
assert np.allclose(*values)
assert loaded.steps == 7
assert loaded.learn_step == 32
