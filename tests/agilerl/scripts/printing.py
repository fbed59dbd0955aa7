"""print_hyperparams and save_population_checkpoint."""

import os
import tempfile

from agilerl.algorithms import PPO
from agilerl.utils.utils import make_vect_envs, print_hyperparams, save_population_checkpoint

env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}
pop = PPO.population(
    size=2,
    observation_space=env.single_observation_space,
    action_space=env.single_action_space,
    net_config=NET,
    learn_step=32,
    batch_size=16,
    num_envs=2,
)
for agent in pop:
    agent.test(env, max_steps=20, loop=1)
print_hyperparams(pop)
folder = tempfile.mkdtemp()
save_population_checkpoint(pop, os.path.join(folder, "agent"), overwrite_checkpoints=True)
assert len(os.listdir(folder)) == 2
