"""What one agent of Stable-Baselines3's PPO reaches on MinAtar's Breakout, with the network of ours.

Convolutions, a latent layer that both heads share, and heads of one layer, all ReLU; SB3's own loss, normalisation of
advantages and initialisation. The settings are those of ``configs/ppo/minatar_breakout.yaml`` at the start; nothing
evolves. At the end 100 fresh episodes are played, with the most likely actions, as ours are, and with drawn ones.
"""

import argparse
import json
import time
from importlib import metadata

import numpy as np
import torch
from gymnasium.spaces import Box
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor, nn

from benchmarks import measurement as m
from benchmarks.envs import make

SETTINGS = {
    "learning_rate": 1e-3,
    "n_steps": m.UPDATE_STEPS // m.ENVS_PER_MEMBER,
    "batch_size": 256,
    "n_epochs": m.EPOCHS,
    "gamma": m.GAMMA,
    "gae_lambda": m.GAE_LAMBDA,
    "clip_range": m.CLIP,
    "ent_coef": m.ENTROPY,
    "vf_coef": m.VALUE,
    "max_grad_norm": m.GRADIENT_NORM,
}
TEST_SEED = 1_000_000  # far from the seeds that training starts with


class Convolutions(BaseFeaturesExtractor):
    """Convolutions of 3 by 3, then the latent layer."""

    def __init__(self, observation_space: Box):
        super().__init__(observation_space, features_dim=m.IMAGE_LATENT)
        channels, height, width = observation_space.shape
        layers: list[nn.Module] = []
        for wider in m.CHANNELS:
            layers += [nn.Conv2d(channels, wider, 3), nn.ReLU()]
            channels, height, width = wider, height - 2, width - 2
        latent = nn.Linear(channels * height * width, m.IMAGE_LATENT)
        self.layers = nn.Sequential(*layers, nn.Flatten(), latent, nn.ReLU())

    def forward(self, observations: Tensor) -> Tensor:
        """Map ``[B, 4, 10, 10]`` to ``[B, latent]``."""
        return self.layers(observations)


def build_model(env: VecEnv, seed: int) -> PPO:
    return PPO(
        "MlpPolicy",
        env,
        policy_kwargs={
            "features_extractor_class": Convolutions,
            "share_features_extractor": True,
            "net_arch": {"pi": [m.WIDTH], "vf": [m.WIDTH]},
            "activation_fn": nn.ReLU,
        },
        device="cpu",
        seed=seed,
        **SETTINGS,
    )


def episode_returns(model: PPO, episodes: int, seed: int, *, deterministic: bool) -> list[float]:
    """Return those of each env's first episode, one env an episode."""
    env = make_vec_env(lambda: make(m.BREAKOUT), n_envs=episodes, seed=seed)
    observations = env.reset()
    returns, running = np.zeros(episodes), np.ones(episodes, dtype=bool)
    while running.any():
        observations, rewards, ended, _ = env.step(model.predict(observations, deterministic=deterministic)[0])
        returns += rewards * running
        running &= ~ended
    env.close()
    return returns.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--total-steps", type=int, default=2_000_000, metavar="N")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    set_random_seed(options.seed)
    env = make_vec_env(lambda: make(m.BREAKOUT), n_envs=m.ENVS_PER_MEMBER, seed=options.seed)
    model = build_model(env, options.seed)
    start = time.perf_counter()
    model.learn(options.total_steps, log_interval=None)
    seconds = time.perf_counter() - start
    test = (model, options.episodes, TEST_SEED + 1000 * options.seed)
    likely, drawn = (episode_returns(*test, deterministic=deterministic) for deterministic in (True, False))
    print(
        json.dumps(
            {
                "learner": f"Stable-Baselines3 {metadata.version('stable-baselines3')}",
                "env_name": m.BREAKOUT,
                "seed": options.seed,
                "env_steps": model.num_timesteps,
                "seconds": round(seconds, 1),
                "mean": round(float(np.mean(likely)), 2),
                "drawn": round(float(np.mean(drawn)), 2),
                "found": "",
            }
        )
    )


if __name__ == "__main__":
    main()
