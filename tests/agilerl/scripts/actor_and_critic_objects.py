"""StochasticActor and ValueNetwork as an agent's networks."""

import numpy as np
from agilerl.algorithms import PPO
from agilerl.networks import StochasticActor, ValueNetwork
from agilerl.rollouts.on_policy import collect_rollouts
from agilerl.utils.utils import make_vect_envs

env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
spaces = env.single_observation_space, env.single_action_space
settings = {"encoder_config": {"hidden_size": [32]}, "head_config": {"hidden_size": [32]}, "latent_dim": 32}
agent = PPO(
    *spaces,
    learn_step=32,
    batch_size=16,
    num_envs=2,
    actor_network=StochasticActor(*spaces, **settings),
    critic_network=ValueNetwork(spaces[0], **settings),
)
collect_rollouts(agent, env)
assert np.isfinite(agent.learn())
