"""Networks that remember: what they say along sequences, and what mutations leave of it."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from network_examples import BOX, DISCRETE, INPUTS, builder, first_of, random_parent, second_of, stream
from torch.distributions import Categorical, kl_divergence

from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.modules.param_stack import layout
from agilerl_like.networks.actor_critic import ActorCritic
from agilerl_like.networks.architecture import NetworkSpec
from agilerl_like.networks.network_mutation import (
    KL_LIMIT,
    NOISE_TOLERANCE,
    VALUE_LIMIT,
    MutationSource,
    add_parameter_noise_,
    mutate_network,
)
from agilerl_like.networks.recurrent_state import NO_SEQUENCE, SequenceInfo, resize_hidden

COUNT, STEPS = 6, 9
CELLS = ("LSTM", "GRU", "minGRU")
PART = {"hidden_size": [12], "activation": "Tanh", "min_mlp_nodes": 2, "max_mlp_nodes": 90}
EXACT = {"rtol": 0, "atol": 1e-12}


def spec_of(cell="LSTM", layers=1, units=10, part=PART, latent=9, **encoder):
    memory = {"cell": cell, "num_layers": layers, "hidden_state_size": units, "min_hidden_state_size": 2}
    config = {"encoder_config": {**part, **encoder}, "memory_config": memory, "head_config": part}
    return NetworkSpec.from_net_config({**config, "latent_dim": latent}, recurrent=True)


def parent_of(spec, action_space=DISCRETE, *, share=False):
    """A network whose every number is its own, and sequences that it has seen."""
    parent = random_parent(builder(action_space, share=share), spec)
    return replace(parent, observe=lambda: parent.observations.unflatten(0, (-1, 8)))


def sequences(state_shape, seed=2):
    """Observations [S L, D] in which one step in five begins an episode, and the hidden states before them."""
    generator = stream(seed)
    starts = (torch.rand(COUNT, STEPS, generator=generator) < 0.2).double()
    state = torch.randn(COUNT, *state_shape, generator=generator).double()
    return torch.randn(COUNT * STEPS, INPUTS, generator=generator).double(), SequenceInfo(starts, state)


@torch.no_grad()
def said(network, x, sequence_info):
    """The policy's outputs and the value, side by side."""
    outputs, value = network.evaluate(x, sequence_info)
    return torch.cat([outputs, value.unsqueeze(-1)], -1)


# -- along sequences


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("share", [False, True], ids=["apart", "shared"])
def test_a_course_is_one_step_after_the_other(cell, layers, share):
    network = parent_of(spec_of(cell, layers), share=share).network
    x, sequence_info = sequences(network.state_shape)
    assert network.state_shape == (1 if share else 2, layers * {"LSTM": 2, "GRU": 1, "minGRU": 4}[cell], 10)
    state, found = sequence_info.state, []
    for t, seen in enumerate(x.unflatten(0, (COUNT, STEPS)).unbind(1)):
        state = state * (1 - sequence_info.starts[:, t]).view(-1, 1, 1, 1)
        value = network.critic(seen, SequenceInfo(torch.zeros(COUNT, 1), state), -1)
        outputs, state = network.step(seen, state)
        found.append(torch.cat([outputs, value], -1))
    torch.testing.assert_close(said(network, x, sequence_info), torch.stack(found, 1).flatten(0, 1), **EXACT)


@given(st.tuples(*[st.integers(0, 4)] * 2), st.tuples(*[st.integers(0, 3)] * 2))
def test_a_hidden_state_survives_padding(shape, more):
    state = torch.randn(5, 2, *shape, generator=stream())
    room = tuple(map(sum, zip(shape, more, strict=True)))
    wide = resize_hidden(state, (2, *room))
    assert wide.shape == (5, 2, *room)
    assert wide.count_nonzero() == state.count_nonzero()
    assert torch.equal(resize_hidden(wide, (2, *shape)), state)


def test_a_network_without_memory_needs_no_sequence_info():
    network = builder()(NetworkSpec())
    network.reset_(stream())
    x, sequence_info = sequences((2, 0, 0))
    assert network.state_shape == (2, 0, 0)
    assert torch.equal(said(network, x, sequence_info), said(network, x, NO_SEQUENCE))


# -- growth


def grow_operators(spec):
    return [name for kind in ("layer", "node") for name in spec.operators(kind) if "add" in name] + [
        *spec.operators("activation")
    ]


@pytest.mark.slow
@settings(max_examples=20)
@given(
    cell=st.sampled_from(CELLS),
    layers=st.integers(1, 2),
    activation=st.sampled_from(["ReLU", "Tanh", "GELU"]),
    share=st.booleans(),
    action_space=st.sampled_from([DISCRETE, BOX]),
    seed=st.integers(0, 2**31),
)
def test_growth_keeps_whole_sequences_and_running_episodes(cell, layers, activation, share, action_space, seed):
    rng = np.random.default_rng(seed)
    parent = parent_of(spec_of(cell, layers, part={**PART, "activation": activation}), action_space, share=share)
    x, sequence_info = sequences(parent.network.state_shape)
    before = said(parent.network, x, sequence_info)
    for _ in range(6):
        spec = parent.network.spec
        operators = grow_operators(spec)
        memories = [name for name in operators if name.startswith("memory")]
        operator = str(rng.choice(memories if memories and rng.random() < 0.5 else operators))
        _, drawn = spec.mutate(operator, rng, activations=("ReLU", "Tanh", "ELU"))
        child = mutate_network(parent, operator, drawn, stream(seed))
        state = child.network.transfer_state(sequence_info.state, spec.memory, child.network.spec.memory, child.maps)
        sequence_info = sequence_info._replace(state=state)
        assert state.shape[1:] == child.network.state_shape
        after = said(child.network, x, sequence_info)
        assert (after - before).abs().max() <= 1e-12 * max(1.0, float(before.abs().max())), (operator, drawn)
        parent = replace(parent, network=child.network, moments=child.moments)


@pytest.mark.parametrize("cell", CELLS)
def test_new_units_of_a_memory_have_a_state(cell):
    child = mutate_network(parent_of(spec_of(cell, units=10)), "memory.add_node", {"nodes": 16}, stream()).network
    x, sequence_info = sequences(child.state_shape)
    sequence_info = sequence_info._replace(state=torch.zeros_like(sequence_info.state))
    for which, branch in enumerate((child.actor, child.critic)):
        outputs = branch.recurrent_output(x, sequence_info, which)
        assert outputs.shape[-1] == 26
        assert bool((outputs[:, 10:] != 0).all())


@pytest.mark.parametrize("share", [False, True], ids=["apart", "shared"])
@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("encoder.add_channel", {"layer": 0, "channels": 8}),
        ("add_latent_node", {"nodes": 8}),
        ("memory.add_node", {"nodes": 16}),
        ("memory.add_layer", {"layer": 1}),
    ],
)
def test_growth_of_a_recurrent_network_of_images_leaves_outputs_unchanged(operator, arguments, share):
    encoding = ObservationEncoder(gymnasium.spaces.Box(0, 255, (1, 6, 6), np.uint8))
    memory = {"hidden_state_size": 10, "min_hidden_state_size": 2}
    cnn = {"channel_size": [4], "kernel_size": [3], "stride_size": [1], "min_channel_size": 2}
    config = {"encoder_config": cnn, "memory_config": memory, "head_config": PART, "latent_dim": 9}
    spec = NetworkSpec.from_net_config(config, encoding.leaves, recurrent=True)

    def build(spec):
        usual = {"normalize_observation": True, "normalize_value": True}
        return ActorCritic(spec, encoding, DISCRETE, share_encoders=share, **usual)

    network = build(spec)
    network.reset_(stream(), output_gain=1.0)
    rows = torch.randint(256, (COUNT, STEPS, encoding.size), generator=stream(), dtype=torch.uint8)
    moments = torch.ones(2, layout(network)[-1].stop).unbind()
    child = mutate_network(MutationSource(network, moments, lambda: rows), operator, arguments, stream())
    courses = [each.sequence_info_of(rows) for each in (network, child.network)]
    before, after = (
        said(each, rows.flatten(0, 1), sequence_info)
        for each, sequence_info in zip((network, child.network), courses, strict=True)
    )
    assert before.std(0).min() > 1e-3
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5)  # images are read in single precision


# -- shrinking

REMOVALS = [
    ("encoder.remove_node", {"layer": 0, "nodes": 4}),
    ("encoder.remove_layer", {"layer": 0}),
    ("remove_latent_node", {"nodes": 4}),
    ("memory.remove_node", {"nodes": 4}),
    ("memory.remove_layer", {"layer": 1}),
    ("head.remove_node", {"layer": 0, "nodes": 4}),
    ("head.remove_layer", {"layer": 0}),
]


def large_spec(cell):
    return spec_of(cell, 2, units=12, part={**PART, "hidden_size": [12, 12]}, latent=16)


def measured(parent, child, sequences):
    """Mean KL(parent || child), and the value's RMSE over its standard deviation, along sequences."""
    ours, theirs = (
        said(network, sequences.flatten(0, 1), network.sequence_info_of(sequences)) for network in (parent, child)
    )
    kl = kl_divergence(Categorical(logits=ours[:, :-1]), Categorical(logits=theirs[:, :-1])).mean()
    error = (ours[:, -1] - theirs[:, -1]).square().mean().sqrt() / ours[:, -1].std(unbiased=False)
    return float(kl), float(error)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("share", [False, True], ids=["apart", "shared"])
@pytest.mark.parametrize(("operator", "arguments"), REMOVALS, ids=[operator for operator, _ in REMOVALS])
def test_what_shrinks_stays_within_the_gate_or_as_it_is(operator, arguments, share, cell):
    found = []
    parent = parent_of(large_spec(cell), share=share)
    for softness in (1.0, 0.3):  # the smaller the weights, the more alike are units and the less is missed
        with torch.no_grad():
            for parameter in parent.network.parameters():
                parameter.mul_(softness)
        result = mutate_network(parent, operator, dict(arguments), stream())
        found.append("refused" in result.arguments)
        if found[-1]:
            assert result.network is parent.network
        else:
            kl, error = measured(parent.network, result.network, parent.held_out)
            assert result.network.spec == parent.network.spec.apply(
                operator, **{name: result.arguments[name] for name in arguments}
            )
            assert (result.arguments["kl"], result.arguments["value_error"]) == pytest.approx((kl, error), abs=1e-9)
            assert kl <= KL_LIMIT
            assert error <= VALUE_LIMIT
    assert not all(found)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("share", [False, True], ids=["apart", "shared"])
def test_a_layer_that_has_a_say_does_not_just_vanish(cell, share):
    """The last layer decides here, so without it the network would be another one."""
    parent = parent_of(large_spec(cell), share=share)
    with torch.no_grad():
        for branch in (parent.network.actor, parent.network.critic):
            branch.memory.residuals["1"].weight.mul_(20.0)
    result = mutate_network(parent, "memory.remove_layer", {"layer": 1}, stream())
    assert "refused" in result.arguments
    assert result.network is parent.network


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("share", [False, True], ids=["apart", "shared"])
def test_removing_units_with_zero_outgoing_weights_leaves_outputs_unchanged(cell, share):
    parent, silent = parent_of(spec_of(cell, units=14), share=share), [1, 4, 5, 11]
    with torch.no_grad():
        for branch in (parent.network.actor, parent.network.critic):
            if cell != "minGRU":  # its gates do not read the hidden state
                branch.memory.cells[0].recurrent_weight[..., silent] = 0.0
            branch.head.linears[0].weight[:, silent] = 0.0
    result = mutate_network(parent, "memory.remove_node", {"nodes": 4}, stream())
    x, sequence_info = sequences(parent.network.state_shape)
    before = said(parent.network, x, sequence_info)
    old, new = parent.network.spec.memory, result.network.spec.memory
    state = result.network.transfer_state(sequence_info.state, old, new, result.maps)
    torch.testing.assert_close(said(result.network, x, sequence_info._replace(state=state)), before, rtol=0, atol=1e-10)
    stay = [unit for unit in range(14) if unit not in silent]
    torch.testing.assert_close(state, sequence_info.state[..., stay])


# -- moments


def mean(moment):
    return float(moment.mean())


@pytest.mark.parametrize("cell", CELLS)
def test_moments_travel_gate_by_gate(cell):
    parent = parent_of(spec_of(cell, units=10))
    child = mutate_network(parent, "memory.add_node", {"nodes": 16}, stream())
    for branch in ("actor", "critic"):
        for name, corner in (
            ("memory.cells.0.gates.weight", (slice(None), slice(10))),
            ("memory.cells.0.gates.bias", (slice(None), slice(10))),
            *([("memory.cells.0.recurrent_weight", (slice(None), slice(10), slice(10)))] if cell != "minGRU" else []),
            ("head.linears.0.weight", (slice(None), slice(10))),
        ):
            for now, then, new in (
                (first_of(child), first_of(parent), 0.0),
                (second_of(child), second_of(parent), None),
            ):
                moment, old = (moments[f"{branch}.{name}"] for moments in (now, then))
                expected = torch.full_like(moment, mean(old) if new is None else new)
                expected[corner] = old
                assert torch.equal(moment[corner], old)
                torch.testing.assert_close(moment, expected, rtol=1e-6, atol=0.0)  # of the mean, the last bits may vary
    elsewhere = [name for name in first_of(child) if "memory" not in name and "head.linears.0" not in name]
    assert all(torch.equal(first_of(child)[name], first_of(parent)[name]) for name in elsewhere)


def test_moments_of_a_new_layer_are_zero_and_the_mean_of_all():
    parent = parent_of(spec_of("GRU"))
    child = mutate_network(parent, "memory.add_layer", {"layer": 1}, stream())
    newborn = [name for name in first_of(child) if "cells.1" in name or "residuals.1" in name]
    assert len(newborn) == 2 * 5
    usual = mean(parent.moments[1])
    for name, moment in first_of(child).items():
        assert torch.equal(moment, torch.zeros_like(moment) if name in newborn else first_of(parent)[name])
        second = torch.full_like(moment, usual) if name in newborn else second_of(parent)[name]
        torch.testing.assert_close(second_of(child)[name], second)


def test_units_that_stay_keep_their_moments():
    parent = parent_of(spec_of("LSTM", units=14))
    with torch.no_grad():
        for branch in (parent.network.actor, parent.network.critic):
            branch.head.linears[0].weight.mul_(0.02)
    child = mutate_network(parent, "memory.remove_node", {"nodes": 4}, stream())
    stay = child.maps["actor.memory.out"]
    assert len(stay) == child.network.spec.memory.hidden_state_size < 14
    for now, then in ((first_of(child), first_of(parent)), (second_of(child), second_of(parent))):
        name = "actor.memory.cells.0.recurrent_weight"
        assert torch.equal(now[name], then[name][:, stay][:, :, stay])
    assert not first_of(child)["actor.head.linears.0.weight"].any()  # it was refitted
    assert torch.equal(
        second_of(child)["actor.head.linears.0.weight"], second_of(parent)["actor.head.linears.0.weight"][:, stay]
    )


# -- noise


def test_noise_moves_the_policy_along_its_sequences_by_so_much():
    parent = parent_of(spec_of("LSTM", 2))
    network = parent.network
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    old = said(network, parent.observations.flatten(0, 1), network.sequence_info_of(parent.observations))
    add_parameter_noise_(network, parent.observations, 0.5, stream(), target_kl=0.01)
    new = said(network, parent.observations.flatten(0, 1), network.sequence_info_of(parent.observations))
    kl = kl_divergence(Categorical(logits=old[:, :-1]), Categorical(logits=new[:, :-1])).mean()
    assert kl == pytest.approx(0.01, rel=NOISE_TOLERANCE)
    assert torch.equal(old[:, -1], new[:, -1])
    moved = {name for name, p in network.named_parameters() if not torch.equal(p, before[name])}
    assert {f"actor.memory.cells.{i}.{part}" for i in (0, 1) for part in ("gates.weight", "recurrent_weight")} <= moved
    assert all(name.startswith("actor") for name in moved)
