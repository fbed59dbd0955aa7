"""Return of AgileRL's DQN on LunarLander after the same steps: its `train_off_policy` as its `dqn.yaml` sets it up.

Four members with that file's network, ranges, tournament and mutations share a replay of 50,000 transitions; the agent
is the elite that `train_off_policy` saves.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from agilerl.algorithms import DQN
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.mutation_utils import set_global_seed
from agilerl.utils.utils import make_vect_envs

from benchmarks.learner_work import LANDER, TEST_SEED, Learned, parse_options

MEMBERS, ENVS = 4, 16


def build_population(env) -> list[DQN]:
    """Make the members that `dqn.yaml` describes."""
    return [
        DQN(
            env.single_observation_space,
            env.single_action_space,
            index=index,
            hp_config=HyperparameterConfig(
                lr=RLParameter(min=6.25e-5, max=1e-2),
                batch_size=RLParameter(min=8, max=512, dtype=int),
                learn_step=RLParameter(min=1, max=10, dtype=int),
            ),
            net_config={
                "latent_dim": 128,
                "encoder_config": {"hidden_size": [256]},
                "head_config": {"hidden_size": [256]},
            },
            batch_size=128,
            lr=6.3e-4,
            learn_step=4,
            gamma=0.99,
            tau=0.001,
            double=False,
        )
        for index in range(MEMBERS)
    ]


def fresh_returns(agent: DQN, seed: int) -> list[float]:
    """Return the undiscounted return of each env's first episode, without exploration, one env an episode."""
    agent.set_training_mode(False)
    env = make_vect_envs(LANDER.env, num_envs=LANDER.episodes, should_async_vector=False)
    observations, _ = env.reset(seed=seed)
    returns, running = np.zeros(LANDER.episodes), np.ones(LANDER.episodes, dtype=bool)
    while running.any():
        observations, rewards, terminated, truncated, _ = env.step(agent.get_action(observations, 0.0))
        returns += rewards * running
        running &= ~(terminated | truncated)
    env.close()
    return returns.tolist()


def main() -> None:
    options, work = parse_options((__doc__ or "").splitlines()[0], [LANDER])
    total = options.steps or work.steps
    torch.set_num_threads(options.threads)
    set_global_seed(options.seed)
    env = make_vect_envs(work.env, num_envs=ENVS, should_async_vector=False)
    env.reset(seed=options.seed)
    with tempfile.TemporaryDirectory() as folder:
        elite_path = Path(folder) / "elite.pt"
        start = time.process_time()
        population, _ = train_off_policy(
            env,
            work.env,
            "DQN",
            build_population(env),
            memory=ReplayBuffer(max_size=50_000),
            max_steps=total // MEMBERS,  # AgileRL counts each member's own steps
            evo_steps=min(10_000, total // MEMBERS),
            eval_loop=1,
            eps_start=1.0,
            eps_end=0.1,
            eps_decay=0.99,
            selection_strategy=TournamentSelection(tournament_size=2, elitism=True, population_size=MEMBERS),
            mutation=Mutations(
                no_mutation=0.4,
                architecture=0.2,
                new_layer_prob=0.2,
                parameters=0.2,
                activation=0.2,
                rl_hp=0.2,
                mutation_sd=0.1,
                rand_seed=options.seed,
            ),
            save_elite=True,
            elite_path=str(elite_path),
            verbose=False,
        )
        seconds = time.process_time() - start
        elite = DQN.load(str(elite_path))
    steps = sum(agent.metrics.steps for agent in population)
    returns = fresh_returns(elite, TEST_SEED + 1000 * options.seed)
    print(Learned.of("AgileRL", MEMBERS, steps, seconds, returns).to_json())


if __name__ == "__main__":
    main()
