"""Settings that differ between members of a population: computed together they are what each would be alone."""

import copy

import gymnasium
import numpy as np
import pytest
import torch

from agilerl_like import (
    PPO,
    Choice,
    ConfigurationError,
    HyperparameterConfig,
    Mutations,
    NumberArray,
    Population,
    RLParameter,
)
from agilerl_like.hpo import Genome, Offspring
from agilerl_like.learning.rollout_buffer import FinalObservations, Rollout

BOX = gymnasium.spaces.Box(-1.0, 1.0, (3,))
ACTIONS = gymnasium.spaces.Discrete(3)
STEPS, ENVS = 16, 4
BASE = {"seed": 0, "num_envs": ENVS, "learn_step": STEPS * ENVS, "batch_size": 16, "lr": 1e-3}
DIFFERENT = [
    {},
    {"advantage": "n_step", "n_step": 3, "lr_critic": 5e-3},
    {"advantage": "mc", "betas": (0.8, 0.95), "max_grad_norm": None},
    {"advantage": "n_step", "n_step": 7, "weight_decay": 0.1, "adam_eps": 1e-3},
    {"lr_schedule": "kl", "kl_threshold": 1e-4},
    {"lr_schedule": "linear", "lr_end": 1e-4},
    {"bootstrap_truncated": False},
    {"normalize_reward": True, "clip_coef_vf": 0.1},
    {"reward_transform": {"scale": 3.0}, "reward_clip": 1.0},
]


def rollout_of(places, steps=STEPS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (steps, len(DIFFERENT), ENVS)
    ends = torch.rand(*shape, generator=generator)
    terminated, truncated = (ends < 0.1).float(), (ends > 0.9).float()
    at = truncated.nonzero()
    whole = Rollout.from_steps(
        torch.randn(*shape, 3, generator=generator),
        torch.randint(3, (*shape, 1), generator=generator),
        torch.randn(*shape, generator=generator),
        terminated,
        terminated + truncated,
        torch.ones(shape),
        torch.randn(*shape[1:], 3, generator=generator),
        FinalObservations.of(*at.unbind(1), torch.randn(len(at), 3, generator=generator), members=len(DIFFERENT)),
        None,
        torch.zeros(*shape[1:], 2, 0, 0),
    )
    return whole[torch.tensor(places)]


def weights(agent):
    return torch.cat([x.detach().reshape(-1) for x in agent.network.parameters()])


@pytest.mark.filterwarnings("ignore:bootstrap_truncated=False")
@pytest.mark.parametrize(
    "common", [{}, {"optimizer": "rmsprop", "clip_grads": "together"}, {"per_member": True}], ids=str
)
def test_members_of_unlike_settings_learn_as_alone(common):
    settings = [its for its in DIFFERENT if not ("max_grad_norm" in its and "clip_grads" in common)]
    agents = [PPO(BOX, ACTIONS, index=i, **BASE, **common, **its) for i, its in enumerate(settings)]
    for agent in agents:
        agent.progress = 0.5
    alone = [copy.deepcopy(agent) for agent in agents]
    population, count = Population(agents), len(agents)
    for _ in range(2):
        reports = population.learners.learn(range(count), lambda places, steps: rollout_of(places, steps))
        assert sorted(reports) == [*range(count)]
    for i, agent in enumerate(alone):
        single = Population([agent])
        for _ in range(2):
            single.learners.learn([0], lambda _, steps, i=i: rollout_of([i], steps))
        if common.get("per_member"):
            assert torch.equal(weights(agents[i]), weights(agent))
        torch.testing.assert_close(weights(agents[i]), weights(agent), rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(agents[i].learner.moments.lr_scale, agent.learner.moments.lr_scale)
    moved = {round(float((weights(agent) - weights(agents[0])).norm()), 6) for agent in agents[1:]}
    assert len(moved) == count - 1  # every setting has an effect of its own


def test_an_offspring_inherits_the_adapted_rate():
    # the KL is above 2 x 1e-9 after every epoch but the first, whose first minibatch has KL 0
    parent = PPO(BOX, ACTIONS, **BASE, lr_schedule="kl", kl_threshold=1e-9, update_epochs=2)
    Population([parent]).learners.learn([0], lambda _, steps: rollout_of([0], steps))
    assert parent.learner.moments.lr_scale.item() == pytest.approx(1.5**-2)
    hyperparameters = {**parent.genome.hyperparameters, "lr": 2e-3}
    genome = Genome(hyperparameters, parent.architecture)
    child, _ = parent.make_offspring(Offspring(1, 1, 7, 0, 0, genome))
    assert child.learner.adapted_lr == pytest.approx(2e-3 * 1.5**-2)
    mutated = parent.clone(index=3).mutate(
        Mutations(architecture=1.0, no_mutation=0, rl_hp=0, parameters=0, activation=0), np.random.default_rng(0)
    )
    assert mutated.learner.moments.lr_scale.item() == pytest.approx(1.5**-2)


def test_choices_and_arrays_of_the_dials_evolve():
    ranges = HyperparameterConfig(
        advantage=Choice(["gae", "mc"]),
        lr_schedule=Choice([None, "linear", "kl"]),
        betas=NumberArray([RLParameter(0.8, 0.95), RLParameter(0.9, 0.9999)]),
        lr_critic=RLParameter(1e-4, 1e-2),
        random_steps=RLParameter(0, 64),
    )
    agent = PPO(BOX, ACTIONS, **BASE, hp_config=ranges, betas=(0.9, 0.99), lr_critic=1e-3)
    rng, seen = np.random.default_rng(0), set()
    only_numbers = Mutations(architecture=0, no_mutation=0, rl_hp=1.0, parameters=0, activation=0)
    for _ in range(60):
        agent.mutate(only_numbers, rng)
        agent.check()
        seen.add((agent.advantage, agent.lr_schedule))
        document, tensors = agent.to_documents()
        assert PPO.from_documents(document, tensors, device="cpu", where="memory").settings() == agent.settings()
    assert len(seen) == 6
    assert agent.betas[0] != 0.9


def test_a_linear_schedule_scales_the_members_own_rate():
    agent = PPO(BOX, ACTIONS, **BASE, lr_schedule="linear", lr_critic=1e-2)
    found = []
    for progress in (0.0, 0.25, 0.5, 0.75):
        agent.progress = progress
        found.append(agent.learner.hyperparams()[:2])
    assert [lr for lr, _ in found] == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])
    assert [lr for _, lr in found] == pytest.approx([1e-2, 7.5e-3, 5e-3, 2.5e-3])
    agent.progress, agent.lr = 0.5, 1.2 * agent.lr
    assert agent.learner.hyperparams()[0] == pytest.approx(6e-4)
    agent.lr_end = 2e-4  # 2e-4 + (1.2e-3 - 2e-4) / 2
    assert agent.learner.hyperparams()[0] == pytest.approx(7e-4)


def test_orthogonal_weights_are_the_default_and_uniform_ones_a_choice():
    def first_layer(**config):
        net_config = {part: {"hidden_size": [64], **config} for part in ("encoder_config", "head_config")}
        return PPO(BOX, ACTIONS, seed=0, net_config=net_config).network.actor.head.get_parameter("linears.0.weight")

    orthogonal = first_layer().detach()
    products = orthogonal @ orthogonal.T if len(orthogonal) <= orthogonal.shape[1] else orthogonal.T @ orthogonal
    torch.testing.assert_close(products, products.diagonal().mean() * torch.eye(len(products)), atol=1e-4, rtol=1e-4)
    uniform = first_layer(init_layers=False).detach()
    bound = uniform.shape[1] ** -0.5  # torch.nn.Linear: kaiming_uniform with a = sqrt(5)
    assert uniform.abs().max().item() == pytest.approx(bound, rel=0.01)
    assert uniform.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)


def test_a_population_repairs_the_hyperparameters_of_a_member_within_its_own_ranges():
    configs = [
        HyperparameterConfig(lr=RLParameter(1e-5, 1e-2)),
        HyperparameterConfig(learn_step=RLParameter(32, 256, dtype=int)),
        HyperparameterConfig(batch_size=RLParameter(8, 64, dtype=int)),
    ]
    population = Population(
        [
            PPO(BOX, ACTIONS, index=index, seed=0, learn_step=128, batch_size=64, hp_config=config)
            for index, config in enumerate(configs)
        ]
    )
    changed = {**population[0].genome.hyperparameters, "learn_step": 40}
    for agent, (learn_step, batch_size) in zip(population, [(40, 64), (64, 64), (40, 40)], strict=True):
        repaired = population.repair(changed, agent.hp_config)
        assert repaired == agent.repair(changed)
        assert (repaired["learn_step"], repaired["batch_size"]) == (learn_step, batch_size)


def test_ranges_that_are_no_mapping_are_named():
    with pytest.raises(ConfigurationError, match=r"hp_config=3; allowed are None and a HyperparameterConfig"):
        PPO(BOX, ACTIONS, **BASE, hp_config=3)
