"""The loop by hand up to 2.2: lists of experiences, steps as a list, two values of select."""

import numpy as np
from agilerl.algorithms.ppo import PPO
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
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
tournament = TournamentSelection(tournament_size=2, elitism=True, population_size=2, eval_loop=1)
mutations = Mutations(
    no_mutation=0.4, architecture=0.2, new_layer_prob=0.2, parameters=0.2, activation=0.0, rl_hp=0.2, mutation_sd=0.1
)
for agent in pop:
    state, info = env.reset()
    states, actions, log_probs, rewards, dones, values = [], [], [], [], [], []
    done = np.zeros(2)
    for _ in range(agent.learn_step // 2):
        action, log_prob, _, value = agent.get_action(state)
        next_state, reward, term, trunc, info = env.step(action)
        states.append(state)
        actions.append(action)
        log_probs.append(log_prob)
        rewards.append(reward)
        dones.append(done)
        values.append(value)
        state, done = next_state, np.logical_or(term, trunc).astype(np.int8)
    loss = agent.learn((states, actions, log_probs, rewards, dones, values, next_state, done))
    agent.steps[-1] += agent.learn_step
    agent.scores.append(float(np.sum(rewards)))
fitnesses = [agent.test(env, swap_channels=False, max_steps=20, loop=1) for agent in pop]
elite, pop = tournament.select(pop)
pop = mutations.mutation(pop)
for agent in pop:
    agent.steps.append(agent.steps[-1])
assert [agent.steps for agent in pop] == [32, 32]
