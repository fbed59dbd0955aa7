"""collect_rollouts in an environment of continuous actions."""

import numpy as np
from agilerl.algorithms import PPO
from agilerl.rollouts.on_policy import collect_rollouts
from agilerl.utils.utils import make_vect_envs

env = make_vect_envs("Pendulum-v1", num_envs=2, should_async_vector=False)
agent = PPO(
    env.single_observation_space,
    env.single_action_space,
    learn_step=32,
    batch_size=16,
    num_envs=2,
    net_config={"encoder_config": {"hidden_size": [16]}},
)
collect_rollouts(agent, env)
loss = agent.learn()
agent.set_training_mode(False)
action, log_prob, entropy, value = agent.get_action(env.reset(seed=0)[0])
assert action.shape == (2, 1)
assert log_prob.shape == value.shape == (2,)
assert np.isfinite(loss)
