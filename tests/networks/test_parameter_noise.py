"""Parameter noise is calibrated: it moves the policy by a hundredth of a nat, and nothing else."""

import gymnasium
import numpy as np
import pytest
import torch
from network_examples import builder, fitted_parent, fitted_spec, outputs_of, random_parent, states, stream, tensors
from torch.distributions import Categorical, Normal, kl_divergence

from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.variation import NOISE_KL, perturb_


def mean_kl(before, after, log_std=None):
    if log_std is None:
        return float(kl_divergence(Categorical(logits=before), Categorical(logits=after)).mean())
    spread = log_std.detach().exp()
    return float(kl_divergence(Normal(before, spread), Normal(after, spread)).sum(-1).mean())


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("share", [True, False])
def test_noise_moves_the_policy_by_a_hundredth_of_a_nat(discrete, share):
    parent = fitted_parent(discrete=discrete, share=share)
    network, x = parent.network, parent.observations
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    before = outputs_of(network, x)
    log_std = None if discrete else network.actor.distribution.log_std
    inside = 0
    for seed in range(40):
        network.load_state_dict(state)
        done = perturb_(network, x, 0.1, stream(seed))
        after = outputs_of(network, x)
        kl = mean_kl(before[:, :-1], after[:, :-1], log_std)
        assert abs(kl - done["kl"]) <= 1e-3 * kl
        inside += 0.8 * NOISE_KL <= kl <= 1.2 * NOISE_KL
        assert torch.equal(after[:, -1], before[:, -1])  # the value
    assert inside >= 0.95 * 40


@pytest.mark.parametrize("share", [True, False])
def test_noise_touches_only_the_policys_matrices(share):
    config = {"hidden_size": [16, 16], "layer_norm": True, "noisy": True}
    build = builder(gymnasium.spaces.Box(-1, 1, (2,)), share=share)
    parent = random_parent(build, NetworkSpec.from_net_config({"encoder_config": config, "head_config": config}))
    before = tensors(parent.network)
    perturb_(parent.network, parent.observations, 0.1, stream())
    changed = {name for name, tensor in tensors(parent.network).items() if not torch.equal(tensor, before[name])}
    parts = ("head",) if share else ("encoder", "head")
    assert changed == {f"actor.{part}.linears.{i}.weight" for part in parts for i in range(3)}
    assert parent.network.training


def test_each_matrix_gets_noise_in_proportion_to_its_own_spread():
    build = builder()
    parent = random_parent(build, NetworkSpec.from_net_config({"encoder_config": {"hidden_size": [400]}}))
    before = tensors(parent.network)
    done = perturb_(parent.network, parent.observations, 0.1, stream())
    for name in ("actor.encoder.linears.0.weight", "actor.encoder.linears.1.weight"):
        moved = (tensors(parent.network)[name] - before[name]).std() / before[name].std(unbiased=False)
        # the deviation of n Gaussians has a relative standard error of 1 / sqrt(2 n); n is at least 1600
        np.testing.assert_allclose(float(moved), done["sd"], rtol=5 / np.sqrt(2 * 1600))


def test_the_same_generator_gives_the_same_noise_and_another_one_another():
    results = []
    for seed in (3, 3, 4):
        parent = fitted_parent()
        perturb_(parent.network, parent.observations, 0.1, stream(seed))
        results.append(tensors(parent.network)["actor.head.linears.0.weight"])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize("sd", [1e-3, 0.1, 30.0])
def test_wherever_the_search_begins_it_finds_its_scale(sd):
    parent = fitted_parent()
    before = outputs_of(parent.network, parent.observations)
    perturb_(parent.network, parent.observations, sd, stream())
    kl = mean_kl(before[:, :-1], outputs_of(parent.network, parent.observations)[:, :-1])
    assert 0.8 * NOISE_KL <= kl <= 1.2 * NOISE_KL


@pytest.mark.parametrize(("actions", "sd"), [(1, 0.1), (3, 0.0)])
def test_where_no_noise_can_move_the_policy_there_is_none(actions, sd):
    # a single action has probability 1 whatever the weights; and a scale of 0 is no noise
    build = builder(gymnasium.spaces.Discrete(actions))
    parent = random_parent(build, NetworkSpec())
    before = tensors(parent.network)
    assert perturb_(parent.network, parent.observations, sd, stream()) == {"sd": 0.0, "kl": 0.0}
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors(parent.network).items())


def test_it_holds_on_states_that_it_did_not_see():
    parent = fitted_parent(fitted_spec(activation="ReLU"))
    x = states(2000, torch.float32, seed=42)
    before = outputs_of(parent.network, x)
    perturb_(parent.network, parent.observations, 0.1, stream())
    # 512 states: their mean KL is within a few of its standard errors of everybody's
    assert 0.5 * NOISE_KL < mean_kl(before[:, :-1], outputs_of(parent.network, x)[:, :-1]) < 2 * NOISE_KL
