"""Returns of Stable-Baselines3's DQN and SAC after the same steps, with the hyperparameters that rl-zoo tuned.

DQN's return rises and collapses during training, so its agent is the best of rl-zoo's evaluations; SAC's is the last.
"""

import tempfile
import time
from pathlib import Path

import torch
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from benchmarks.learner_work import CHEETAH, LANDER, TEST_SEED, Learned, parse_options

ZOO = {
    LANDER.env: (
        DQN,
        {
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "gamma": 0.99,
            "target_update_interval": 250,
            "train_freq": 4,
            "gradient_steps": -1,
            "exploration_fraction": 0.12,
            "exploration_final_eps": 0.1,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
    CHEETAH.env: (SAC, {"learning_starts": 10_000}),
}
EVALUATED_EVERY, EVALUATION_EPISODES = 25_000, 5  # rl-zoo's


def main() -> None:
    options, work = parse_options((__doc__ or "").splitlines()[0], (LANDER, CHEETAH))
    torch.set_num_threads(options.threads)
    algorithm, settings = ZOO[work.env]
    model = algorithm(
        "MlpPolicy", make_vec_env(work.env, n_envs=1, seed=options.seed), device="cpu", seed=options.seed, **settings
    )
    steps, best = options.steps or work.steps, model
    start = time.process_time()
    if algorithm is SAC:
        model.learn(steps, log_interval=None)
    else:
        with tempfile.TemporaryDirectory() as folder:
            evaluation = EvalCallback(
                make_vec_env(work.env, n_envs=1, seed=options.seed + 1000),
                n_eval_episodes=EVALUATION_EPISODES,
                eval_freq=min(EVALUATED_EVERY, steps),
                best_model_save_path=folder,
                verbose=0,
            )
            model.learn(steps, evaluation, log_interval=None)
            best = algorithm.load(Path(folder) / "best_model")
    seconds = time.process_time() - start
    fresh = make_vec_env(work.env, n_envs=work.episodes, seed=TEST_SEED + 1000 * options.seed)
    returns, _ = evaluate_policy(best, fresh, n_eval_episodes=work.episodes, return_episode_rewards=True)
    print(Learned.of("Stable-Baselines3", 1, model.num_timesteps, seconds, returns).to_json())


if __name__ == "__main__":
    main()
