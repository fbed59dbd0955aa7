"""Env steps per second of Stable-Baselines3's PPO; several members are several models that take turns.

The network is the one of the comparison, made of SB3's own parts: a features extractor Linear-ReLU-Linear-ReLU that
both heads share, and heads of Linear-ReLU-Linear (SB3's default is two separate nets with tanh). Each model has
a ``DummyVecEnv`` of its own, as ``make_vec_env`` builds it, Monitor wrapper included. Logging is off. Every turn is a
call of ``learn``, which resets SB3's envs only on a model's first turn. No evaluation.
"""

import time

import torch
from gymnasium.spaces import Box
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import set_random_seed
from torch import Tensor, nn

from benchmarks import measurement as m


class SharedEncoder(BaseFeaturesExtractor):
    """One hidden layer and a latent one, as wide as each other."""

    def __init__(self, observation_space: Box):
        super().__init__(observation_space, features_dim=m.WIDTH)
        self.layers = nn.Sequential(
            nn.Linear(observation_space.shape[0], m.WIDTH), nn.ReLU(), nn.Linear(m.WIDTH, m.WIDTH), nn.ReLU()
        )

    def forward(self, observations: Tensor) -> Tensor:
        """Map ``[B, observation]`` to ``[B, latent]``."""
        return self.layers(observations)


def build_model(env_id: str, seed: int) -> PPO:
    return PPO(
        "MlpPolicy",
        make_vec_env(env_id, n_envs=m.ENVS_PER_MEMBER, seed=seed),
        n_steps=m.UPDATE_STEPS // m.ENVS_PER_MEMBER,
        batch_size=m.MINIBATCH,
        n_epochs=m.EPOCHS,
        learning_rate=m.LEARNING_RATE,
        gamma=m.GAMMA,
        gae_lambda=m.GAE_LAMBDA,
        clip_range=m.CLIP,
        ent_coef=m.ENTROPY,
        vf_coef=m.VALUE,
        max_grad_norm=m.GRADIENT_NORM,
        policy_kwargs={
            "features_extractor_class": SharedEncoder,
            "share_features_extractor": True,
            "net_arch": {"pi": [m.WIDTH], "vf": [m.WIDTH]},
            "activation_fn": nn.ReLU,
        },
        device="cpu",
        verbose=0,
        seed=seed,
    )


def train_one_turn(model: PPO, updates: int) -> None:
    model.learn(updates * m.UPDATE_STEPS, log_interval=None, reset_num_timesteps=False)


def layers(model: PPO) -> list[str]:
    """Return the layers that take part, with the place each has in SB3's policy."""
    parts = {
        "encoder": model.policy.features_extractor,
        "actor head": nn.ModuleList([model.policy.mlp_extractor.policy_net, model.policy.action_net]),
        "critic head": nn.ModuleList([model.policy.mlp_extractor.value_net, model.policy.value_net]),
    }
    return [
        f"{name}: {layer}" for name, part in parts.items() for layer in part.modules() if not list(layer.children())
    ]


def main() -> None:
    work = m.parse_work((__doc__ or "").splitlines()[0])
    torch.set_num_threads(work.threads)
    set_random_seed(work.seed)
    models = [build_model(work.env, work.seed + m.ENVS_PER_MEMBER * member) for member in range(work.members)]

    for model in models:
        train_one_turn(model, updates=1)

    start = time.perf_counter()
    for updates in work.turns:
        for model in models:
            train_one_turn(model, updates)
    seconds = time.perf_counter() - start

    trained = {model.num_timesteps for model in models}
    if trained != {work.steps_per_member + m.UPDATE_STEPS}:
        raise RuntimeError(f"models trained {trained} steps, not {work.steps_per_member} after one update")
    for model in models:
        model.env.close()
    print(m.Measurement.of("Stable-Baselines3", "stable-baselines3", work, seconds, layers(models[0])).to_json())


if __name__ == "__main__":
    main()
