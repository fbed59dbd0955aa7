"""Seconds until Stable-Baselines3's PPO reaches a target, with the hyperparameters that rl-zoo tuned for the env."""

import json
import time
from dataclasses import asdict

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from benchmarks.targets import BUDGETS, EPISODES, TARGETS, TEST_SEED, Reached, parse_options

EVERY = {"CartPole-v1": 10_000, "LunarLander-v3": 50_000}
"""Env steps between two evaluations, whose 20 episodes may have 1,000 steps each on LunarLander."""


def linear(start: float):
    """Return rl-zoo's "lin_" schedule: from `start` to 0 with the training that remains."""
    return lambda remaining: start * remaining


ZOO = {  # number of envs, steps that schedules end at, arguments
    "CartPole-v1": (
        8,
        100_000,
        {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": linear(1e-3),
            "clip_range": linear(0.2),
        },
    ),
    "LunarLander-v3": (
        16,
        1_000_000,
        {"n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01},
    ),
}


class StopAtTarget(BaseCallback):
    """Evaluates after every `every` steps, and stops at the target."""

    def __init__(self, env_id: str, seed: int) -> None:
        super().__init__()
        self.target, self.every, self.score = TARGETS[env_id], EVERY[env_id], 0.0
        self.next = self.every
        self.seed, self.evaluations = TEST_SEED + 1000 * seed, 0
        self.env = make_vec_env(env_id, n_envs=EPISODES, seed=self.seed)

    def _on_step(self) -> bool:
        if self.num_timesteps < self.next:
            return True
        self.next += self.every
        self.evaluations += 1
        self.env.seed(self.seed + EPISODES * self.evaluations)
        self.score = float(evaluate_policy(self.model, self.env, n_eval_episodes=EPISODES)[0])
        return self.score < self.target


def main() -> None:
    options = parse_options(__doc__ or "")
    torch.set_num_threads(options.threads)
    envs, steps, arguments = ZOO[options.env]
    model = PPO(
        "MlpPolicy",
        make_vec_env(options.env, n_envs=envs, seed=options.seed),
        device="cpu",
        seed=options.seed,
        **arguments,
    )
    stop = StopAtTarget(options.env, options.seed)
    start, cpu, taken = time.perf_counter(), time.process_time(), 0
    while taken < BUDGETS[options.env] and stop.score < stop.target:  # again from the weights that it has
        stop.next = stop.every
        model.learn(steps, callback=stop, log_interval=None)
        taken += model.num_timesteps
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    reached = stop.score >= stop.target
    result = Reached(
        "Stable-Baselines3", options.env, 1, round(seconds, 2), round(cpu_seconds, 2), taken, stop.score, reached
    )
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
