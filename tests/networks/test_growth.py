"""Law 4: growth keeps outputs. No grow operator changes an output, for any network after any mutations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from network_examples import BOX, DISCRETE, INPUTS, builder, outputs_of, random_parent, states, stream

from agilerl_like.modules.layers import ACTIVATIONS
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.network_mutation import mutate_network

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
ACTIONS = {"discrete": DISCRETE, "box": BOX}


@st.composite
def net_configs(draw):
    def part(**more):
        return {
            "hidden_size": draw(st.lists(st.integers(2, 12), min_size=1, max_size=2)),
            "activation": draw(st.sampled_from(sorted(ACTIVATIONS))),
            "layer_norm": draw(st.booleans()),
            "noisy": draw(st.booleans()),
            "min_mlp_nodes": 2,
            "max_mlp_nodes": 90,
            "max_hidden_layers": 4,
            **more,
        }

    encoder = part(output_layernorm=draw(st.booleans()), init_layers=draw(st.booleans()))
    return {"encoder_config": encoder, "head_config": part(), "latent_dim": draw(st.integers(8, 12))}


def grow_operators(spec):
    return [name for kind in ("layer", "node") for name in spec.operators(kind) if "add" in name] + [
        *spec.operators("activation")
    ]


@pytest.mark.slow
@given(
    config=net_configs(),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from(sorted(TOLERANCE, key=str)),
    action=st.sampled_from(sorted(ACTIONS)),
    share=st.booleans(),
    training=st.booleans(),
)
@example(config={}, seed=0, dtype=torch.float32, action="box", share=True, training=True)
@settings(max_examples=30)
def test_ten_grow_operators_change_no_output(config, seed, dtype, action, share, training):
    rng, build = np.random.default_rng(seed), builder(ACTIONS[action], dtype, share=share)
    parent = random_parent(build, NetworkSpec.from_net_config(config))
    parent.network.train(training)
    x = states(64, dtype, seed=1)  # not those that the mutation saw
    before = outputs_of(parent.network, x)
    for _ in range(10):
        spec = parent.network.spec
        operators = grow_operators(spec)
        if not operators:  # everything is fading in or full: let it arrive, and start again from there
            parent.network.advance_fades_(1.0)
            before = outputs_of(parent.network, x)
            parent.network.finish_fading_()
            torch.testing.assert_close(outputs_of(parent.network, x), before, rtol=0, atol=0)
            continue
        operator = str(rng.choice(operators))
        _, drawn = spec.mutate(operator, rng, activations=tuple(ACTIVATIONS))
        child = mutate_network(parent, operator, drawn, stream(seed))
        assert child.network.spec == spec.apply(operator, **drawn)
        assert child.network.training == training
        scale = max(1.0, float(before.abs().max()))
        after = outputs_of(child.network, x)
        assert (after - before).abs().max() <= TOLERANCE[dtype] * scale, (operator, drawn)
        parent = replace(parent, network=child.network, moments=child.moments)


NORMED = {"hidden_size": [16, 16], "activation": "GELU", "layer_norm": True, "noisy": True}
GROWTH = [
    ("encoder.add_layer", {"layer": 0}),
    ("head.add_layer", {"layer": 1}),
    ("encoder.add_node", {"layer": 1, "nodes": 16}),
    ("head.add_node", {"layer": 0, "nodes": 16}),
    ("add_latent_node", {"nodes": 8}),
    ("change_activation", {"activation": "ReLU"}),
]


@pytest.mark.parametrize(("operator", "arguments"), GROWTH)
def test_growth_does_not_modify_the_parent_and_copies_everything_else(operator, arguments):
    build = builder()
    parent = random_parent(build, NetworkSpec.from_net_config({"encoder_config": NORMED, "head_config": NORMED}))
    parent.network.observation_norm.update_(5 * states(20) + 1, torch.ones(20, dtype=torch.float64))
    state = {name: tensor.clone() for name, tensor in parent.network.state_dict().items()}
    child = mutate_network(parent, operator, arguments, stream()).network

    for name, tensor in parent.network.state_dict().items():
        assert torch.equal(tensor, state[name])
    for name, tensor in child.state_dict().items():
        if "norm." in name or "log_std" in name:
            assert torch.equal(tensor, state[name])
    assert not {t.data_ptr() for t in child.state_dict().values()} & {
        t.data_ptr() for t in parent.network.state_dict().values()
    }


@pytest.mark.parametrize("activation", ["ReLU", "Tanh"])
@pytest.mark.parametrize("noisy", [False, True])
def test_a_new_layer_is_the_identity_under_any_later_noise(activation, noisy):
    # the new layer is the identity and has no noise of its own, so relu(x) stays relu(x)
    config = {"hidden_size": [16], "activation": activation, "noisy": noisy}
    build = builder()
    parent = random_parent(build, NetworkSpec.from_net_config({"encoder_config": config, "head_config": config}))
    child = mutate_network(parent, "encoder.add_layer", {"layer": 0}, stream()).network
    x = states(32, seed=2)
    before = outputs_of(child, x)
    for branch in (child.actor, child.critic):
        new_layer = branch.encoder.linear(1)
        if noisy:
            new_layer.resample_(torch.Generator().manual_seed(4))
    torch.testing.assert_close(outputs_of(child, x), before, rtol=0, atol=1e-12)


def test_a_new_unit_has_normal_activations_once_its_readers_learn():
    # its incoming weights are as large as its neighbours', so the gradient of its outgoing weights is as large too
    build = builder()
    parent = random_parent(build, NetworkSpec.from_net_config({"encoder_config": {"hidden_size": [32]}}))
    with torch.no_grad():
        for p in parent.network.parameters():
            p.mul_(10.0)
    child = mutate_network(parent, "encoder.add_node", {"layer": 0, "nodes": 16}, stream()).network
    old, new = child.actor.encoder.linear(0).weight.norm(dim=1).split([32, 16])
    # each new row has the norm of the (lower) median row of the others
    torch.testing.assert_close(new, old.median().expand(16))
    gradient = torch.autograd.grad(outputs_grad(child), child.actor.encoder.linear(1).weight)[0].norm(dim=0)
    assert (gradient[32:] >= 0.1 * gradient[:32].median()).double().mean() >= 0.8


def outputs_grad(network):
    return network.actor(states(128)).square().sum()


@pytest.mark.parametrize("share", [False, True])
def test_actor_and_critic_change_in_the_same_way(share):
    build = builder(share=share)
    parent = random_parent(build, NetworkSpec())
    for operator, arguments in (("encoder.add_node", {"layer": 0, "nodes": 16}), ("head.add_layer", {"layer": 0})):
        child = mutate_network(parent, operator, arguments, stream()).network
        for part in ("encoder", "head"):
            assert getattr(child.actor, part).spec.hidden_size == getattr(child.critic, part).spec.hidden_size
        assert (child.actor.encoder is child.critic.encoder) == share


def test_an_encoder_may_grow_while_the_head_blends_activations():
    build = builder()
    config = {"hidden_size": [16], "activation": "Tanh"}
    parent = random_parent(build, NetworkSpec.from_net_config({"encoder_config": config, "head_config": config}))
    fading = mutate_network(parent, "head.add_layer", {"layer": 0}, stream())
    fading.network.advance_fades_(0.25)
    x = states(32, seed=2)
    before = outputs_of(fading.network, x)
    parent = replace(parent, network=fading.network, moments=fading.moments)
    child = mutate_network(parent, "encoder.add_layer", {"layer": 0}, stream()).network
    torch.testing.assert_close(outputs_of(child, x), before, rtol=0, atol=1e-12)
    assert child.fade_left() == 1.0  # the newer of the two
    child.advance_fades_(0.75)
    assert child.fade_left() == 0.25


def test_inputs_of_every_width_grow():
    for inputs in (1, INPUTS, 40):
        build = builder(inputs=inputs)
        parent = random_parent(build, NetworkSpec(), inputs=inputs)
        x = states(32, inputs=inputs, seed=2)
        child = mutate_network(parent, "encoder.add_node", {"layer": 0, "nodes": 64}, stream()).network
        torch.testing.assert_close(outputs_of(child, x), outputs_of(parent.network, x), rtol=0, atol=1e-12)
