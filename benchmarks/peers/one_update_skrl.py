"""One update of skrl's PPO from the weights and the rollout of a problem: PROBLEM.npz SETTINGS OUT.npz."""

import json
import sys

import gymnasium
import numpy as np
import torch
from skrl.agents.torch.ppo import PPO
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model

from benchmarks import one_update_problem as problems

SPACES = {
    "observation_space": gymnasium.spaces.Box(-np.inf, np.inf, (problems.OBSERVATIONS,)),
    "state_space": None,
    "action_space": gymnasium.spaces.Box(-1.0, 1.0, (problems.ACTIONS,)),
}


class Policy(GaussianMixin, Model):
    """A Gaussian policy with one learned standard deviation per dimension."""

    def __init__(self):
        Model.__init__(self, **SPACES, device="cpu")
        GaussianMixin.__init__(self)
        self.net = problems.network(problems.ACTIONS)
        self.log_std = torch.nn.Parameter(torch.zeros(problems.ACTIONS))

    def compute(self, inputs, role=""):
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Value(DeterministicMixin, Model):
    """A value function."""

    def __init__(self):
        Model.__init__(self, **SPACES, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = problems.network(1)

    def compute(self, inputs, role=""):
        return self.net(inputs["observations"]), {}


class Memory(RandomMemory):
    """A memory without replacement that records the order of the samples."""

    def __init__(self):
        super().__init__(memory_size=problems.STEPS, num_envs=problems.ENVS, device="cpu", replacement=False)
        self.orders = []

    def sample_by_index(self, names, *, indexes, mini_batches=1):
        self.orders.append(indexes.numpy())
        return super().sample_by_index(names=names, indexes=indexes, mini_batches=mini_batches)


def main(problem_file: str, settings: str, out: str) -> None:
    torch.manual_seed(0)
    problem = dict(np.load(problem_file))
    policy, value, memory = Policy(), Value(), Memory()
    named = {**problems.parameters({"actor": policy.net, "critic": value.net}), "log_std": policy.log_std}
    problems.load_weights(named, problem)
    agent = PPO(
        models={"policy": policy, "value": value}, memory=memory, device="cpu", cfg=json.loads(settings), **SPACES
    )
    agent.init()
    given = problems.tensors(problem)
    ended = given["starts"][1:].bool().unsqueeze(-1)
    for t in range(problems.STEPS):
        memory.add_samples(
            observations=given["observations"][t],
            actions=given["actions"][t],
            rewards=given["rewards"][t].unsqueeze(-1),
            terminated=ended[t],
            truncated=torch.zeros_like(ended[t]),
            log_prob=given["log_probs"][t].unsqueeze(-1),
            values=given["values"][t].unsqueeze(-1),
        )
    agent._current_next_observations, agent._current_next_states = given["observations"][-1], None
    agent.enable_training_mode(True)
    agent.enable_models_training_mode(True)
    agent.update(timestep=1, timesteps=1)
    np.savez(out, allow_pickle=False, **problems.outcome(named, agent.optimizer, memory.orders))


if __name__ == "__main__":
    main(*sys.argv[1:])
