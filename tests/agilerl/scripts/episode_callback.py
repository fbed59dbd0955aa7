"""test calls back with each episode's score and last info."""

from agilerl.algorithms import PPO
from agilerl.utils.utils import make_vect_envs

env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}
agent = PPO(env.single_observation_space, env.single_action_space, net_config=NET, learn_step=32, batch_size=16)
heard = []
fitness = agent.test(env, max_steps=20, loop=2, callback=lambda score, info: heard.append((score, info)))
assert len(heard) == 2
assert all(isinstance(info, dict) for _, info in heard)
assert agent.fitness == [fitness]
