"""Parameter noise is calibrated: it moves the policy by the target KL, within its bounds, and nothing else."""

import gymnasium
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from network_examples import (
    blank,
    builder,
    fitted_parent,
    fitted_spec,
    outputs_of,
    random_parent,
    states,
    stream,
    tensors,
)
from torch.distributions import Categorical, Normal, kl_divergence

from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.network_mutation import add_parameter_noise_


def mean_kl(before, after, log_std=None):
    if log_std is None:
        return float(kl_divergence(Categorical(logits=before), Categorical(logits=after)).mean())
    spread = log_std.detach().exp()
    return float(kl_divergence(Normal(before, spread), Normal(after, spread)).sum(-1).mean())


def cosines(network, before):
    """Cosine of every matrix of the actor with the matrix before."""
    return {
        name: float(F.cosine_similarity(tensor.flatten(), before[name].flatten(), dim=0))
        for name, tensor in tensors(network).items()
        if name.startswith("actor.") and tensor.dim() > 1
    }


@pytest.mark.parametrize(
    ("discrete", "share", "target"),
    [
        (0, 0, 0.01),
        (1, 1, 0.01),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(0, 1, 0.01), (1, 0, 0.01), (0, 0, 0.1)]),
    ],
)
def test_noise_moves_the_policy_by_the_target_kl(discrete, share, target):
    parent = fitted_parent(discrete=discrete, share=share)
    network, x = parent.network, parent.observations
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    before = outputs_of(network, x)
    log_std = None if discrete else network.actor.distribution.log_std
    inside = 0
    for seed in range(40):
        network.load_state_dict(state)
        done = add_parameter_noise_(network, x, 0.5, stream(seed), target_kl=target)
        after = outputs_of(network, x)
        kl = mean_kl(before[:, :-1], after[:, :-1], log_std)
        assert abs(kl - done["kl"]) <= 1e-3 * kl
        inside += 0.85 * target <= kl <= 1.15 * target
        assert min(cosines(network, state).values()) >= 0.9
        assert torch.equal(after[:, -1], before[:, -1])  # the value
    assert inside >= 0.95 * 40


@pytest.mark.parametrize("share", [True, False])
def test_noise_changes_only_the_policys_matrices(share):
    config = {"hidden_size": [16, 16], "layer_norm": True, "noisy": True}
    build = builder(gymnasium.spaces.Box(-1, 1, (2,)), share=share)
    parent = random_parent(build, NetworkSpec.from_net_config({"encoder_config": config, "head_config": config}))
    before = tensors(parent.network)
    add_parameter_noise_(parent.network, parent.observations, 0.5, stream(), target_kl=0.01)
    changed = {name for name, tensor in tensors(parent.network).items() if not torch.equal(tensor, before[name])}
    parts = ("head",) if share else ("encoder", "head")
    assert changed == {f"actor.{part}.linears.{i}.weight" for part in parts for i in range(3)}
    assert parent.network.training


def test_noise_of_a_matrix_is_proportional_to_its_standard_deviation():
    build = builder()
    parent = random_parent(build, NetworkSpec.from_net_config({"encoder_config": {"hidden_size": [400]}}))
    before = tensors(parent.network)
    done = add_parameter_noise_(parent.network, parent.observations, 0.5, stream(), target_kl=0.01)
    for name in ("actor.encoder.linears.0.weight", "actor.encoder.linears.1.weight"):
        moved = (tensors(parent.network)[name] - before[name]).std() / before[name].std(unbiased=False)
        # the deviation of n Gaussians has a relative standard error of 1 / sqrt(2 n); n is at least 1600
        np.testing.assert_allclose(float(moved), done["sd"], rtol=5 / np.sqrt(2 * 1600))


def test_noise_depends_on_the_generator_alone():
    results = []
    for seed in (3, 3, 4):
        parent = fitted_parent()
        add_parameter_noise_(parent.network, parent.observations, 0.5, stream(seed), target_kl=0.01)
        results.append(tensors(parent.network)["actor.head.linears.0.weight"])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("target", [0.01, 0.1])
def test_a_new_policy_whose_outputs_are_near_zero_keeps_its_weights(share, target):
    # its last layer has a gain of 0.01, so that even an encoder three times as large would hardly move it
    network = blank(fitted_spec(), share=share)
    network.reset_(stream())
    x = states(512, torch.float32)
    for seed in range(2, 6):  # other streams than the one of the weights
        before = tensors(network)
        done = add_parameter_noise_(network, x, 0.5, stream(seed), target_kl=target)
        assert 0 < done["kl"] < 0.85 * target
        turned = cosines(network, before)
        assert min(turned.values()) == pytest.approx(0.901, abs=1e-4)  # as far as is allowed
        for name in turned:
            # orthogonal noise of tan(acos 0.901) times the matrix makes it longer by 1 / 0.901
            assert 1 <= tensors(network)[name].norm() / before[name].norm() <= 1 / 0.9 + 1e-6


@pytest.mark.parametrize("sd", [0.02, 0.05])
def test_sd_bounds_the_noise_relative_to_each_matrix(sd):
    parent = fitted_parent()
    before = tensors(parent.network)
    done = add_parameter_noise_(parent.network, parent.observations, sd, stream(2), target_kl=0.1)
    assert done["sd"] == pytest.approx(sd)
    assert done["kl"] < 0.85 * 0.1
    for name in cosines(parent.network, before):
        moved = float((tensors(parent.network)[name] - before[name]).std() / before[name].std())
        # the deviation of n Gaussians has a relative standard error of 1 / sqrt(2 n); n is at least 192
        assert moved == pytest.approx(sd, rel=5 / np.sqrt(2 * 192))


def test_a_smaller_bound_moves_the_policy_less():
    kls = []
    for sd in (0.01, 0.02, 0.04):
        parent = fitted_parent()
        kls.append(add_parameter_noise_(parent.network, parent.observations, sd, stream(), target_kl=0.1)["kl"])
    # the KL of small noise goes with its square
    assert [kls[1] / kls[0], kls[2] / kls[1]] == pytest.approx([4, 4], rel=0.2)


@pytest.mark.parametrize(("actions", "sd", "target"), [(1, 0.1, 0.01), (3, 0.0, 0.01), (3, 0.1, 0.0)])
def test_no_noise_is_added_where_it_cannot_move_the_policy(actions, sd, target):
    # a single action has probability 1 whatever the weights; and a bound or a target of 0 is no noise
    build = builder(gymnasium.spaces.Discrete(actions))
    parent = random_parent(build, NetworkSpec())
    before = tensors(parent.network)
    done = add_parameter_noise_(parent.network, parent.observations, sd, stream(), target_kl=target)
    assert done == {"sd": 0.0, "kl": 0.0}
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors(parent.network).items())


def test_the_search_evaluates_the_network_a_few_times_only():
    # an offspring may take 5 ms: two or three evaluations on all states, and as many on a quarter of them
    def rows_of(network, x, seed):
        rows = []
        handle = network.actor.head.register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
        add_parameter_noise_(network, x, 0.5, stream(seed), target_kl=0.01)
        handle.remove()
        return sum(rows)

    resize_hidden, new = fitted_parent(), blank(fitted_spec())
    new.reset_(stream())
    x = resize_hidden.observations
    state = {name: tensor.clone() for name, tensor in resize_hidden.network.state_dict().items()}
    asked = []
    for seed in range(20):
        resize_hidden.network.load_state_dict(state)
        asked.append(rows_of(resize_hidden.network, x, seed) / len(x))
    assert np.mean(asked) <= 4
    assert rows_of(new, x, 0) / len(x) <= 4


def test_the_kl_holds_on_other_states():
    parent = fitted_parent(fitted_spec(activation="ReLU"))
    x = states(2000, torch.float32, seed=42)
    before = outputs_of(parent.network, x)
    add_parameter_noise_(parent.network, parent.observations, 0.5, stream(), target_kl=0.01)
    # 512 states: their mean KL is within a few standard errors of that over all states
    assert 0.005 < mean_kl(before[:, :-1], outputs_of(parent.network, x)[:, :-1]) < 0.02
