"""wrapper_cls in a population, by hand and in train_on_policy."""

from agilerl.algorithms import PPO
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs
from agilerl.wrappers.agent import RSNorm

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
    wrapper_cls=RSNorm,
)
tournament = TournamentSelection(2, True, 2)
mutations = Mutations(0.4, 0.2, 0.2, 0.2, 0.0, 0.2)
fitnesses = [agent.test(env, max_steps=20, loop=1) for agent in pop]
elite, pop, indices = tournament.select(pop)
pop = mutations.mutation(pop, indices=indices)
trained, fitnesses = train_on_policy(
    env,
    "CartPole-v1",
    "PPO",
    pop,
    max_steps=64,
    evo_steps=32,
    eval_steps=20,
    selection_strategy=tournament,
    mutation=mutations,
    verbose=False,
)
assert all(isinstance(agent, RSNorm) for agent in trained)
