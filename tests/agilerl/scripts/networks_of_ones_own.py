"""Evolvable modules as whole networks of an agent."""

import numpy as np
from agilerl.algorithms import PPO
from agilerl.modules.mlp import EvolvableMLP
from agilerl.rollouts.on_policy import collect_rollouts
from agilerl.utils.utils import make_vect_envs

env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
agent = PPO(
    env.single_observation_space,
    env.single_action_space,
    learn_step=32,
    batch_size=16,
    num_envs=2,
    share_encoders=False,
    actor_network=EvolvableMLP(num_inputs=4, num_outputs=2, hidden_size=[32]),
    critic_network=EvolvableMLP(num_inputs=4, num_outputs=1, hidden_size=[32]),
)
collect_rollouts(agent, env)
assert np.isfinite(agent.learn())
