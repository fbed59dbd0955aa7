"""The loop by hand since 2.3: collect, learn, test, select, mutate."""

import numpy as np
from agilerl.algorithms import PPO
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.rollouts.on_policy import collect_rollouts
from agilerl.utils.utils import make_vect_envs

env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}
hp_config = HyperparameterConfig(
    lr=RLParameter(min=1e-4, max=1e-2),
    batch_size=RLParameter(min=8, max=32, dtype=int, grow_factor=1.5, shrink_factor=0.75),
)
pop = PPO.population(
    size=3,
    observation_space=env.single_observation_space,
    action_space=env.single_action_space,
    net_config=NET,
    learn_step=32,
    batch_size=16,
    num_envs=2,
    hp_config=hp_config,
)
tournament = TournamentSelection(tournament_size=2, elitism=True, population_size=3)
mutations = Mutations(
    no_mutation=0.4, architecture=0.2, new_layer_prob=0.2, parameters=0.2, activation=0.0, rl_hp=0.2, mutation_sd=0.1
)
total = 0
while np.less([agent.steps for agent in pop], 128).all():
    for agent in pop:
        agent.set_training_mode(True)
        last_obs, last_done, last_scores, last_info = None, None, None, None
        for _ in range(2):
            scores, last_obs, last_done, last_scores, last_info = collect_rollouts(
                agent,
                env,
                last_obs=last_obs,
                last_done=last_done,
                last_scores=last_scores,
                last_info=last_info,
            )
            loss = agent.learn()
            agent.add_scores(scores)
            total += agent.learn_step
            agent.steps += agent.learn_step
    fitnesses = [agent.test(env, max_steps=20, loop=1) for agent in pop]
    elite, pop, indices = tournament.select(pop)
    pop = mutations.mutation(pop, indices=indices)

assert total == 3 * 128
assert len(pop) == 3
assert elite.fitness[-1] == max(fitnesses)
assert np.isfinite(loss)
