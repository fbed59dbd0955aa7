"""run_selection_and_mutation saves the elite, too."""

import os
import tempfile

from agilerl.algorithms import PPO
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.utils.utils import make_vect_envs, run_selection_and_mutation

env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}
pop = PPO.population(
    size=3,
    observation_space=env.single_observation_space,
    action_space=env.single_action_space,
    net_config=NET,
    learn_step=32,
    batch_size=16,
    num_envs=2,
)
for number, agent in enumerate(pop):
    agent.fitness.append(float(number))
folder = tempfile.mkdtemp()
pop = run_selection_and_mutation(
    TournamentSelection(2, True, 3),
    pop,
    Mutations(1, 0, 0, 0, 0, 0),
    "CartPole-v1",
    "PPO",
    os.path.join(folder, "elite"),
    save_elite=True,
)
assert pop[0].fitness == [2.0]
assert len(pop) == 3
assert len(os.listdir(folder)) == 1
