"""RSNorm around one agent."""

from agilerl.algorithms import PPO
from agilerl.rollouts.on_policy import collect_rollouts
from agilerl.utils.utils import make_vect_envs
from agilerl.wrappers.agent import RSNorm

env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}
agent = RSNorm(
    PPO(env.single_observation_space, env.single_action_space, net_config=NET, learn_step=32, batch_size=16, num_envs=2)
)
collect_rollouts(agent, env)
agent.learn()
agent.steps += 32
clone = agent.clone(index=2)
assert isinstance(clone, RSNorm)
assert clone.agent.index == 2
assert agent.agent.steps == 32
