"""A standard deviation that the network outputs: densities, bounds, mutations, populations of both kinds, files."""

import math

import gymnasium
import numpy as np
import pytest
import torch

from agilerl_like import PPO, Mutations, Population, make_vect_envs, train_on_policy
from agilerl_like.errors import ConfigurationError
from agilerl_like.networks.distributions import make_distribution

BOX = gymnasium.spaces.Box(-2.0, 2.0, (2,))
OBSERVATIONS = gymnasium.spaces.Box(-1.0, 1.0, (3,))


def agent_of(index=0, **settings):
    settings = {"seed": 0, "state_dependent_std": True, "num_envs": 2, "learn_step": 32, "batch_size": 16} | settings
    return PPO(OBSERVATIONS, BOX, index=index, **settings)


def test_density_and_entropy_are_those_of_the_normal_distribution():
    policy = make_distribution(BOX, log_std=0.3, std_range=(-1.0, 0.5))
    outputs = torch.tensor([[0.1, -0.2, 0.1, 9.0]])  # log std .3 + .1 = .4, and .3 + 9 is clamped to .5
    raw = torch.tensor([[0.4, 0.3]])
    normal = torch.distributions.Normal(torch.tensor([[0.1, -0.2]]), torch.tensor([[0.4, 0.5]]).exp())
    log_prob, entropy = policy.evaluate(outputs, raw)
    # densities are in the env's units, of which two are a half-width
    torch.testing.assert_close(log_prob, normal.log_prob(raw).sum(-1) - 2 * math.log(2))
    torch.testing.assert_close(entropy, normal.entropy().sum(-1) + 2 * math.log(2))
    assert policy.mode(outputs).tolist() == [pytest.approx([0.1, -0.2])]
    noise = torch.tensor([[1.0, -1.0]])
    torch.testing.assert_close(policy.sample(outputs, noise), normal.mean + noise * normal.stddev)
    other = torch.tensor([[0.0, 0.0, -0.3, -0.3]])  # a standard normal
    expected = torch.distributions.kl_divergence(
        normal, torch.distributions.Normal(torch.zeros(1, 2), torch.ones(1, 2))
    )
    torch.testing.assert_close(policy.kl_from(outputs)(policy, other), expected.sum(-1))


def test_only_box_actions_have_it():
    with pytest.raises(ConfigurationError, match="state_dependent_std=True is for Box actions"):
        PPO(OBSERVATIONS, gymnasium.spaces.Discrete(2), state_dependent_std=True)


def test_the_bounds_are_the_members_settings():
    agent = agent_of(action_std_min=-1.0, action_std_max=0.5)
    assert agent.get_action_dim == 4
    assert agent.learner.distribution.std_range.tolist() == [-1.0, 0.5]
    agent.action_std_max = 0.25  # counts after the next update
    agent.learner.bound_std_(0.0)
    assert agent.learner.distribution.std_range.tolist() == [-1.0, 0.25]
    clone = agent.clone(index=1)
    assert clone.learner.distribution.std_range.tolist() == [-1.0, 0.25]


class Noisy(gymnasium.Env):
    """Reward -(a - 1)² where the observation is 1, and the action's distance from 0 where it is -1."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._sign = float(self.np_random.integers(2) * 2 - 1)
        return np.array([self._sign], np.float32), {}

    def step(self, action):
        reward = -4 * float(action[0]) ** 2 if self._sign > 0 else min(abs(float(action[0])), 1.0)
        return np.array([self._sign], np.float32), reward, True, False, {}


@pytest.mark.slow
def test_it_becomes_small_where_noise_costs_and_large_where_it_pays():
    env = make_vect_envs(Noisy, num_envs=16, backend="sync")
    settings = {"learn_step": 256, "batch_size": 64, "lr": 5e-3, "num_envs": 16, "ent_coef": 0.0, "seed": 1}
    population = PPO.population(1, Noisy.observation_space, Noisy.action_space, state_dependent_std=True, **settings)
    population, _ = train_on_policy(env, pop=population, max_steps=6144, evo_steps=6144, eval_loop=1, verbose=False)
    learner = population[0].learner
    outputs, _ = learner.network.evaluate(learner.normalize(np.array([[1.0], [-1.0]], np.float32)))
    _, log_std = learner.distribution._mean_and_log_std(outputs)
    assert log_std[0].item() < log_std[1].item() - 1.0
    env.close()


@pytest.mark.slow
def test_members_with_and_without_it_act_as_alone_and_survive_mutations(tmp_path):
    agents = [agent_of(index=i, state_dependent_std=i != 1) for i in range(3)]
    rng = np.random.default_rng(0)
    for agent in (agents[0], agents[2]):
        for _ in range(3):
            agent.mutate(Mutations(architecture=1.0, no_mutation=0, rl_hp=0, parameters=0, activation=0), rng)
    alone = [agent.clone(index=agent.index) for agent in agents]
    population = Population(agents)
    observations = torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(1))
    states = population.learners.initial_hidden_state.repeat(3, 5, 1, 1, 1)
    actions, _ = population.learners.act(observations, states, None, noise)
    for i, agent in enumerate(alone):
        state = agent.learner.initial_hidden_state.repeat(1, 5, 1, 1, 1)
        its = agent.learner.cohort.act(observations[i : i + 1], state, noise[i : i + 1], None)[0]
        torch.testing.assert_close(actions[i : i + 1], its, rtol=1e-5, atol=1e-5)
    loaded = PPO.load(agents[0].save_checkpoint(tmp_path / "agent"))
    ours, theirs = (agent.predict(np.ones((1, 3), np.float32), deterministic=True)[0] for agent in (alone[0], loaded))
    assert np.array_equal(ours, theirs)
    assert agents[0].export(tmp_path / "policy.py")  # compares the file's actions with the agent's
    assert torch.equal(loaded.learner.distribution.std_range, alone[0].learner.distribution.std_range)
