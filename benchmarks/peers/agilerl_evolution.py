"""AgileRL's whole evolution run on one env and a budget, then 100 fresh episodes of its best member.

Everything is AgileRL's own: ``train_on_policy``, tournament, mutations, and the values of its
``configs/training/ppo/ppo.yaml`` (LunarLander-v3; layer norm, shared encoder, ReLU, learning rate 1e-3, elite mutated
too). Four things differ from that file, each in AgileRL's favour or demanded by the comparison: the env, the
population's size and the budget are the benchmark's; envs are stepped in this process, which is faster for these envs
than a process each; the seed is an option; the target score is left out, for it cannot stop a run as short as these.

The best member is the elite that AgileRL saves, that is the best of the last evaluation, before mutation. AgileRL
tests with sampled actions, so ``score`` does; ``score_mode`` is the same member with the most probable action, and
``population_scores`` are the members that ``train_on_policy`` returns, which are mutated already.
A run ends with the generation in which a member passes its share of the budget, so it takes a few per cent more
than requested; ``env_steps`` has the true count, evaluation not included.
Runs do not repeat bit for bit: AgileRL draws mutation sizes from generators that it does not seed.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from agilerl.algorithms import PPO
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.rollouts import collect_rollouts
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.mutation_utils import set_global_seed
from agilerl.utils.utils import make_vect_envs
from gymnasium.spaces import Discrete
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from benchmarks.measurement import ENVS_PER_MEMBER, GENERATION_STEPS, versions

BUDGETS = {  # members, env steps of all members together
    "CartPole-v1": (4, 200_000),
    "Acrobot-v1": (4, 500_000),
    "Pendulum-v1": (4, 800_000),
    "LunarLander-v3": (8, 3_000_000),
}
TEST_SEED = 1_000_000  # far from the seeds that training starts with


def build_population(env: VectorEnv, members: int) -> list[PPO]:
    mlp = {"activation": "ReLU", "min_mlp_nodes": 64, "max_mlp_nodes": 500, "layer_norm": True}
    return PPO.population(
        size=members,
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
        hp_config=HyperparameterConfig(
            lr=RLParameter(min=1e-4, max=1e-2),
            batch_size=RLParameter(min=8, max=1024),
            learn_step=RLParameter(min=256, max=8192),
            ent_coef=RLParameter(min=1e-3, max=1e-1),
            update_epochs=RLParameter(min=1, max=10),
        ),
        net_config={
            "latent_dim": 64,
            # a list each: AgileRL's mutations grow these lists in place
            "encoder_config": {"hidden_size": [64], **mlp},
            "head_config": {"hidden_size": [64], **mlp, "min_hidden_layers": 1, "max_hidden_layers": 3},
        },
        num_envs=ENVS_PER_MEMBER,
        batch_size=128,
        lr=1e-3,
        learn_step=2048,
        gamma=0.99,
        gae_lambda=0.95,
        action_std_init=0.6,
        clip_coef=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
        max_grad_norm=0.5,
        target_kl=None,
        update_epochs=4,
        share_encoders=True,
    )


class StepCounter:
    """AgileRL's ``collect_rollouts`` that also counts the env steps taken in training."""

    def __init__(self) -> None:
        self.env_steps = 0

    def __call__(self, agent: PPO, env: VectorEnv, n_steps: int, **carried: object) -> tuple:
        """Collect one rollout."""
        self.env_steps += n_steps * agent.num_envs
        return collect_rollouts(agent, env, n_steps=n_steps, **carried)


def evolve(options: argparse.Namespace, elite_path: Path) -> tuple[list[PPO], int, float]:
    """Run AgileRL from start to end; return its population, the env steps it took and the seconds."""
    env = make_vect_envs(options.env, num_envs=ENVS_PER_MEMBER, should_async_vector=False)
    env.reset(seed=options.seed)
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
    population = build_population(env, options.members)
    count = StepCounter()
    start = time.perf_counter()
    population, _ = train_on_policy(
        env,
        options.env,
        "PPO",
        population,
        max_steps=options.total_steps // options.members,  # AgileRL counts each member's own steps
        evo_steps=GENERATION_STEPS,
        eval_loop=options.eval_loop,
        selection_strategy=TournamentSelection(tournament_size=2, elitism=True, population_size=options.members),
        mutation=mutations,
        save_elite=True,
        elite_path=str(elite_path),
        verbose=False,
        collect_rollouts_fn=count,
    )
    return population, count.env_steps, time.perf_counter() - start


def sampled_action(agent: PPO, observations: NDArray) -> NDArray:
    """Act as ``PPO.test`` does."""
    action, *_ = agent.get_action(observations)
    return action


def most_probable_action(agent: PPO, observations: NDArray) -> NDArray:
    """Act without noise, which AgileRL has no switch for: the largest logit, or the clipped mean."""
    with torch.no_grad():
        latent = agent.actor.extract_features(agent.preprocess_observation(observations))
        output = agent.actor.head_net.wrapped(latent)
    if isinstance(agent.action_space, Discrete):
        return output.argmax(dim=-1).numpy()
    return np.clip(output.numpy(), agent.action_space.low, agent.action_space.high)


def episode_returns(
    agent: PPO, act: Callable[[PPO, NDArray], NDArray], env_id: str, episodes: int, seed: int
) -> NDArray:
    """Return the undiscounted return of each env's first episode, one env an episode."""
    agent.set_training_mode(False)
    env = make_vect_envs(env_id, num_envs=episodes, should_async_vector=False)
    observations, _ = env.reset(seed=seed)
    returns, running = np.zeros(episodes), np.ones(episodes, dtype=bool)
    while running.any():
        observations, rewards, terminated, truncated, _ = env.step(act(agent, observations))
        returns += rewards * running
        running &= ~(terminated | truncated)
    env.close()
    return returns


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--env", choices=BUDGETS, default="CartPole-v1")
    parser.add_argument("--members", type=int, metavar="P", help="default: the benchmark's for this env")
    parser.add_argument("--total-steps", type=int, metavar="N", help="of all members; default: the benchmark's")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eval-loop", type=int, default=1, help="evaluations a generation (ppo.yaml: 1, of 16 envs)")
    parser.add_argument("--episodes", type=int, default=100, help="test episodes at the end (default: %(default)s)")
    options = parser.parse_args()
    members, total_steps = BUDGETS[options.env]
    options.members = options.members or members
    options.total_steps = options.total_steps or total_steps
    return options


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    set_global_seed(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        elite_path = Path(folder) / "elite.pt"
        population, env_steps, seconds = evolve(options, elite_path)
        elite = PPO.load(str(elite_path))

    test = (options.env, options.episodes, TEST_SEED + 1000 * options.seed)
    sampled = episode_returns(elite, sampled_action, *test)
    mode = episode_returns(elite, most_probable_action, *test)
    members = [episode_returns(agent, sampled_action, *test).mean() for agent in population]
    print(
        json.dumps(
            {
                "peer": "AgileRL",
                "version": metadata.version("agilerl"),
                "env": options.env,
                "members": options.members,
                "threads": options.threads,
                "seed": options.seed,
                "eval_loop": options.eval_loop,
                "budget": options.total_steps,
                "env_steps": env_steps,
                "seconds": round(seconds, 2),
                "steps_per_second": round(env_steps / seconds, 1),
                "episodes": options.episodes,
                "score": round(float(sampled.mean()), 2),
                "score_std": round(float(sampled.std()), 2),
                "score_mode": round(float(mode.mean()), 2),
                "score_mode_std": round(float(mode.std()), 2),
                "population_scores": [round(float(score), 2) for score in members],
                "elite_fitness": [round(float(fitness), 2) for fitness in elite.fitness],
                "elite_hyperparameters": {name: getattr(elite, name) for name in elite.registry.hp_config.names()},
                "versions": versions(),
            }
        )
    )


if __name__ == "__main__":
    main()
