"""tournament_selection_and_mutation, its older name and order."""

from agilerl.algorithms import PPO
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.utils.utils import make_vect_envs, tournament_selection_and_mutation

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
pop = tournament_selection_and_mutation(
    pop, TournamentSelection(2, True, 3), Mutations(0, 0, 0, 1, 0, 0, mutation_sd=0.1), "CartPole-v1", algo="PPO"
)
assert len(pop) == 3
