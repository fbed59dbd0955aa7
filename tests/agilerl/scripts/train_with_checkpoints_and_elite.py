"""Checkpoints while training, and the elite at its end."""

import os
import tempfile

from agilerl.algorithms import PPO
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs

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
folder = tempfile.mkdtemp()
trained, fitnesses = train_on_policy(
    env,
    "CartPole-v1",
    "PPO",
    pop,
    max_steps=64,
    evo_steps=32,
    eval_steps=20,
    selection_strategy=TournamentSelection(2, True, 2),
    mutation=Mutations(0.4, 0.2, 0.2, 0.2, 0.0, 0.2),
    checkpoint=32,
    checkpoint_path=os.path.join(folder, "point"),
    overwrite_checkpoints=True,
    save_elite=True,
    elite_path=os.path.join(folder, "elite"),
    verbose=False,
)
assert PPO.load(os.path.join(folder, "elite.pt")).algo == "PPO"
