"""One update of Stable-Baselines3's PPO from the weights and the rollout of a problem: PROBLEM.npz SETTINGS OUT.npz."""

import json
import sys

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv

from benchmarks import one_update_problem as problems


class NoEnv(gymnasium.Env):
    """Spaces; it is never stepped."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (problems.OBSERVATIONS,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (problems.ACTIONS,))


def main(problem_file: str, settings: str, out: str) -> None:
    problem = dict(np.load(problem_file))
    sizes = list(problems.HIDDEN)
    env = DummyVecEnv([NoEnv] * problems.ENVS)
    model = PPO(
        "MlpPolicy", env, policy_kwargs={"net_arch": {"pi": sizes, "vf": sizes}}, device="cpu", **json.loads(settings)
    )
    policy = model.policy
    actor = torch.nn.Sequential(policy.mlp_extractor.policy_net, policy.action_net)
    critic = torch.nn.Sequential(policy.mlp_extractor.value_net, policy.value_net)
    named = {**problems.parameters({"actor": actor, "critic": critic}), "log_std": policy.log_std}
    problems.load_weights(named, problem)
    buffer = model.rollout_buffer
    for t in range(problems.STEPS):
        buffer.add(
            problem["observations"][t],
            problem["actions"][t],
            problem["rewards"][t],
            problem["starts"][t],
            torch.from_numpy(problem["values"][t]),
            torch.from_numpy(problem["log_probs"][t]),
        )
    with torch.no_grad():
        last_values = policy.predict_values(torch.from_numpy(problem["observations"][-1]))
    buffer.compute_returns_and_advantage(last_values, problem["starts"][-1])
    model.set_logger(configure(None, []))
    np.random.seed(0)  # noqa: NPY002  # the generator that SB3 draws its minibatches with
    permutation, orders = np.random.permutation, []

    def recorded(count: int) -> np.ndarray:
        order = permutation(count)
        orders.append(order % problems.STEPS * problems.ENVS + order // problems.STEPS)  # its samples go env by env
        return order

    np.random.permutation = recorded
    model.train()
    np.savez(out, allow_pickle=False, **problems.outcome(named, policy.optimizer, orders))


if __name__ == "__main__":
    main(*sys.argv[1:])
