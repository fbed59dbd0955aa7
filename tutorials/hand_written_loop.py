"""Evolve PPO agents with a loop of your own, on LunarLanderContinuous-v3.

`train_on_policy` does all of this in one call, faster, for it computes the whole population at once. A loop by hand is
for those who want to change something in the middle of it. It reads as AgileRL's does; it needs
`pip install 'agilerl-like[box2d]'`.

    python tutorials/hand_written_loop.py --max-steps 200000
"""

import argparse

import numpy as np
import torch

from agilerl_like import PPO, HyperparameterConfig, Mutations, RLParameter, TournamentSelection, make_vect_envs

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--max-steps", type=int, default=500_000, help="env steps of each agent")
parser.add_argument("--evo-steps", type=int, default=20_000, help="env steps of each agent between evaluations")
parser.add_argument("--population", type=int, default=4)
parser.add_argument("--save", default="lander", help="folder for the best agent")
args = parser.parse_args()

torch.set_num_threads(1)  # small networks: one thread is fastest on a shared machine

env = make_vect_envs("LunarLanderContinuous-v3", num_envs=16)
population = PPO.population(
    size=args.population,
    observation_space=env.single_observation_space,
    action_space=env.single_action_space,
    hp_config=HyperparameterConfig(
        lr=RLParameter(min=1e-4, max=1e-2),
        batch_size=RLParameter(min=64, max=512, dtype=int),
        ent_coef=RLParameter(min=1e-5, max=1e-1),
    ),
    lr=1e-3,
    batch_size=128,
    learn_step=2048,
    gamma=0.99,
    num_envs=env.num_envs,
    seed=1,
)
tournament = TournamentSelection(tournament_size=2, elitism=True, seed=1)
mutations = Mutations(
    no_mutation=0.4, architecture=0.2, new_layer_prob=0.2, parameters=0.1, activation=0.0, rl_hp=0.3, rand_seed=1
)

low, high = env.single_action_space.low, env.single_action_space.high
steps = 0
while True:
    for agent in population:
        agent.set_training_mode(True)
        state, info = env.reset(seed=steps)
        done = np.ones(env.num_envs)  # the first step begins an episode
        scores, score = [], np.zeros(env.num_envs)
        for _ in range(0, args.evo_steps, agent.learn_step):
            states, actions, log_probs, rewards, dones, values = [], [], [], [], [], []
            for _ in range(agent.rollout_steps):
                action, log_prob, _, value = agent.get_action(state)
                next_state, reward, terminated, truncated, info = env.step(np.clip(action, low, high))
                states.append(state)
                actions.append(action)  # unclipped: log_prob belongs to this one
                log_probs.append(log_prob)
                rewards.append(reward)
                dones.append(done)  # whether this step *begins* an episode
                values.append(value)
                state, done = next_state, np.logical_or(terminated, truncated)
                score += reward
                scores.extend(score[done])
                score[done] = 0.0
            agent.steps[-1] += agent.rollout_steps * env.num_envs
            agent.learn((states, actions, log_probs, rewards, dones, values, state, done))
        agent.scores.append(np.mean(scores) if scores else np.nan)

    steps += args.evo_steps
    fitnesses = [agent.test(env, loop=8) for agent in population]
    best = population[int(np.argmax(fitnesses))]
    print(f"{steps:8d} steps each   test {np.round(fitnesses)}   train {np.round([a.scores[-1] for a in population])}")
    print(f"         best: lr {best.lr:.1e}, batch_size {best.batch_size}, {best.architecture.describe()}, {best.mut}")
    if steps >= args.max_steps:
        break
    elite, population = tournament.select(population)
    population = mutations.mutation(population)

path = best.save_checkpoint(args.save)
loaded = PPO.load(path)
print(f"saved to {path}; loaded again it scores {loaded.test(env, loop=8):.0f}")
env.close()
