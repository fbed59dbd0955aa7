"""A clone is independent of its original."""

from agilerl.algorithms import PPO
from agilerl.rollouts.on_policy import collect_rollouts
from agilerl.utils.utils import make_vect_envs

env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}
agent = PPO(
    env.single_observation_space, env.single_action_space, net_config=NET, learn_step=32, batch_size=16, num_envs=2
)
clone = agent.clone(index=5, wrap=False)
collect_rollouts(clone, env)
clone.learn()
clone.steps += 32
assert (clone.index, clone.steps) == (5, 32)
assert (agent.index, agent.steps) == (0, 0)
