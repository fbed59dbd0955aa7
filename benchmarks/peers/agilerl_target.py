"""Seconds until AgileRL's evolution reaches a target: its own parts, in the loop that its documentation writes by hand.

Members, ranges, tournament and mutations are those of `agilerl_evolution`, after AgileRL's `ppo.yaml`. AgileRL's
`train_on_policy` stops only when the whole population has had the target for a hundred evaluations, hence the loop.
The elite of each generation has 20 fresh episodes without exploration; these count like everything else.
"""

import json
import time
from dataclasses import asdict

import torch
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.rollouts import collect_rollouts
from agilerl.utils.mutation_utils import set_global_seed
from agilerl.utils.utils import make_vect_envs

from benchmarks.measurement import ENVS_PER_MEMBER, GENERATION_STEPS
from benchmarks.peers.agilerl_evolution import build_population, episode_returns, most_probable_action
from benchmarks.targets import BUDGETS, EPISODES, TARGETS, TEST_SEED, Reached, parse_options

MEMBERS = 4


def train_one_turn(agent, env) -> int:
    """Do what `train_on_policy` does with one agent in a generation; return the env steps that it took."""
    agent.set_training_mode(True)
    agent.init_training_step(False)
    taken, carried = 0, dict.fromkeys(("last_obs", "last_done", "last_scores", "last_info"))
    while taken < GENERATION_STEPS:
        steps = -(agent.learn_step // -ENVS_PER_MEMBER)
        _, *state = collect_rollouts(agent, env, n_steps=steps, **carried)
        carried = dict(zip(carried, state, strict=True))
        agent.learn()
        taken += steps * ENVS_PER_MEMBER
    agent.finalize_training_step(taken)
    return taken


def main() -> None:
    options = parse_options((__doc__ or "").splitlines()[0])
    torch.set_num_threads(options.threads)
    set_global_seed(options.seed)
    env = make_vect_envs(options.env, num_envs=ENVS_PER_MEMBER, should_async_vector=False)
    env.reset(seed=options.seed)
    population = build_population(env, MEMBERS)
    tournament = TournamentSelection(tournament_size=2, elitism=True, population_size=MEMBERS)
    mutations = Mutations(
        no_mutation=0.4,
        architecture=0.2,
        new_layer_prob=0.2,
        parameters=0.2,
        activation=0.0,
        rl_hp=0.2,
        mutation_sd=0.1,
        rand_seed=options.seed,
    )
    start, cpu, taken, generation, score = time.perf_counter(), time.process_time(), 0, 0, 0.0
    while taken < BUDGETS[options.env]:
        generation += 1
        for agent in population:
            taken += train_one_turn(agent, env)
            agent.test(env, loop=1)  # EVAL_LOOP of ppo.yaml
        elite, population, _ = tournament.select(population)
        seed = TEST_SEED + 10_000 * options.seed + EPISODES * generation
        score = float(episode_returns(elite, most_probable_action, options.env, EPISODES, seed).mean())
        if score >= TARGETS[options.env]:
            break
        population = mutations.mutation(population)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    reached = score >= TARGETS[options.env]
    result = Reached(
        "AgileRL", options.env, MEMBERS, round(seconds, 2), round(cpu_seconds, 2), taken, round(score, 1), reached
    )
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
