"""A population of one, without evolution."""

from agilerl.algorithms import PPO
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs

env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}
pop = PPO.population(
    size=1,
    observation_space=env.single_observation_space,
    action_space=env.single_action_space,
    net_config=NET,
    learn_step=32,
    batch_size=16,
    num_envs=2,
)
trained, fitnesses = train_on_policy(
    env, "CartPole-v1", "PPO", pop, max_steps=64, evo_steps=32, eval_steps=20, verbose=False
)
assert len(trained) == 1
