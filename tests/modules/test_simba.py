"""EvolvableSimBa: its forward pass, stacks of unequal members, and mutations."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from module_checks import check_stack, normal
from torch import nn

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.layers import Residual
from agilerl_like.modules.simba import EvolvableSimBa, SimBaSpec
from agilerl_like.modules.weight_transfer import transfer_weights_

SMALL = {"min_mlp_nodes": 2, "hidden_size": 6, "scale_factor": 2}


def made(spec, inputs=4, num_outputs=3, *, seed=0):
    """A module with random parameters."""
    simba, generator = EvolvableSimBa(spec, inputs, num_outputs).double(), torch.Generator().manual_seed(seed)
    for parameter in simba.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return simba


def reference(simba):
    """The same of torch's layers, as Lee et al. draw it."""

    def linear(ours):
        layer = nn.Linear(*reversed(ours.weight.shape)).double()
        layer.load_state_dict({"weight": ours.weight, "bias": ours.bias})
        return layer

    def norm(ours):
        layer = nn.LayerNorm(len(ours.weight)).double()
        layer.load_state_dict({"weight": ours.weight, "bias": ours.bias})
        return layer

    blocks = [
        nn.Sequential(norm(block.norm), linear(block.inner), nn.ReLU(), linear(block.outer)) for block in simba.blocks
    ]

    def forward(x):
        x = linear(simba.stem)(x)
        for block in blocks:
            x = x + block(x)
        return torch.tanh(linear(simba.output)(norm(simba.norm)(x)))

    return forward


@pytest.mark.parametrize("blocks", [1, 3])
def test_forward_equals_torch_layers(blocks):
    simba = made(SimBaSpec(num_blocks=blocks, output_activation="Tanh", **SMALL))
    x = normal(7, 4)
    torch.testing.assert_close(simba(x), reference(simba)(x), rtol=0, atol=1e-12)


def test_initial_weights_are_orthogonal():
    simba = EvolvableSimBa(SimBaSpec(hidden_size=16), 16, 16)
    simba.reset_(torch.Generator().manual_seed(0), output_gain=0.01)
    square = torch.eye(16)
    for linear, gain in ((simba.stem, 1.0), (simba.output, 0.01)):
        torch.testing.assert_close(linear.weight @ linear.weight.T, gain**2 * square, rtol=1e-5, atol=1e-6)
    for block in simba.blocks:
        torch.testing.assert_close(block.inner.weight.T @ block.inner.weight, 2 * square, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(block.outer.weight @ block.outer.weight.T, square, rtol=1e-5, atol=1e-5)


def test_uniform_weights_fill_their_bound_with_the_output_gain():
    simba = EvolvableSimBa(SimBaSpec(hidden_size=400, init_layers=False), 16, 50)
    simba.reset_(torch.Generator().manual_seed(0), output_gain=0.01)
    for linear, bound in ((simba.stem, 1 / 4), (simba.blocks[0].outer, 1 / 40), (simba.output, 0.01 / 20)):
        largest = float(linear.weight.detach().abs().max())
        assert 0.99 * bound < largest <= bound * (1 + 1e-6)  # at least 6400 draws: a chance of 1e-28


def test_residual_maps_start_at_zero_and_learn_only_where_present():
    residual = Residual(5, 3).double()
    x = normal(1, 7, 5)
    assert bool((residual(x) == 0).all())
    with torch.no_grad():
        residual.weight.copy_(normal(3, 5, seed=1))
        residual.bias.copy_(normal(3, seed=2))
    slope = normal(1, 7, 3, seed=3)
    for present in (1.0, 0.0):
        residual.present.fill_(present)
        x.requires_grad_()
        wanted = torch.autograd.grad(residual(x), [residual.weight, residual.bias, x], slope)
        assert bool((wanted[1] == 0).all()) == (present == 0)


# -- a stack


def flat_gradients(module, x, slope):
    x = x.clone().requires_grad_()
    y, parameters = module(x), dict(module.named_parameters())
    of_input, *found = torch.autograd.grad(y, [x, *parameters.values()], slope)
    return y.detach(), of_input, dict(zip(parameters, found, strict=True))


@pytest.mark.parametrize(
    "shapes", [((6, 2), (6, 2)), ((6, 3), (9, 1), (4, 2)), ((4, 1), (4, 4))], ids=lambda shapes: str(shapes)
)
def test_stack_rows_equal_single_members(shapes):
    specs = [
        SimBaSpec(**{**SMALL, "hidden_size": width}, num_blocks=blocks, output_activation=activation)
        for (width, blocks), activation in zip(shapes, ("Tanh", "Sigmoid", "ReLU"), strict=False)
    ]
    members = [made(spec, num_outputs=3 - seed, seed=seed) for seed, spec in enumerate(specs)]
    members[0].blocks[0].norm.counted[1] = 0.0  # one that has grown
    members[0].blocks[0].norm.update_count_flags()
    check_stack(members, EvolvableSimBa(SimBaSpec.padded_union(specs), 4, 3).double(), normal(len(members), 7, 4))


# -- mutations


@st.composite
def specs(draw):
    low_nodes, low_blocks = draw(st.integers(2, 20)), draw(st.integers(1, 2))
    high_nodes, high_blocks = draw(st.integers(low_nodes, 150)), draw(st.integers(low_blocks, 5))
    return SimBaSpec(
        hidden_size=draw(st.integers(low_nodes, high_nodes)),
        num_blocks=draw(st.integers(low_blocks, high_blocks)),
        output_activation=draw(st.sampled_from(["Identity", "ReLU"])),
        output_vanish=draw(st.booleans()),
        init_layers=draw(st.booleans()),
        scale_factor=draw(st.integers(1, 5)),
        min_blocks=low_blocks,
        max_blocks=high_blocks,
        min_mlp_nodes=low_nodes,
        max_mlp_nodes=high_nodes,
    )


@given(spec=specs(), seed=st.integers(0, 2**31))
def test_mutations_stay_within_limits(spec, seed):
    rng = np.random.default_rng(seed)
    for _ in range(12):
        legal = [name for kind in ("layer", "node") for name in spec.operators(kind)]
        if not legal:
            return
        child, drawn = spec.mutate(str(rng.choice(legal)), rng)
        assert spec.min_blocks <= child.num_blocks <= spec.max_blocks
        assert spec.min_mlp_nodes <= child.hidden_size <= spec.max_mlp_nodes
        assert drawn
        assert child != spec
        spec = child


@given(spec=specs())
def test_operators_change_only_their_field(spec):
    for operator, field, sign in (
        ("add_block", "num_blocks", 1),
        ("remove_block", "num_blocks", -1),
        ("add_node", "hidden_size", 1),
        ("remove_node", "hidden_size", -1),
    ):
        for arguments in spec.choices(operator):
            change = sign * arguments.get("nodes", 1)
            assert spec.apply(operator, **arguments) == spec.evolve(**{field: getattr(spec, field) + change})


@given(spec=specs())
def test_spec_round_trips_through_json(spec):
    assert SimBaSpec.from_config("x", json.loads(json.dumps(spec.to_config()))) == spec


def test_steps_stop_at_the_limits_and_blocks_are_inserted_anywhere():
    spec = SimBaSpec(hidden_size=90, min_mlp_nodes=80, max_mlp_nodes=120, max_blocks=3)
    assert spec.choices("add_node") == ({"nodes": 16}, {"nodes": 30})
    assert spec.choices("remove_node") == ({"nodes": 10},)
    assert spec.choices("add_block") == ({"block": 0}, {"block": 1}, {"block": 2})
    assert spec.choices("remove_block") == ({"block": 0}, {"block": 1})
    assert spec.evolve(num_blocks=3).choices("add_block") == ()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_sise": 64}, "enc key='hidden_sise' is unknown; did you mean 'hidden_size'"),
        ({"hidden_size": [64]}, r"hidden_size=\(64,\) must be an integer"),
        ({"hidden_size": 8}, r"hidden_size=8 is outside its range \[16, 500\]"),
        ({"num_blocks": 5}, r"num_blocks=5 is outside its range \[1, 4\]"),
        ({"min_blocks": 0}, "min_blocks=0 must be at least 1 and at most max_blocks=4"),
        ({"min_mlp_nodes": 1}, "min_mlp_nodes=1 must be at least 2 and at most max_mlp_nodes=500"),
        ({"scale_factor": 0}, "scale_factor=0 must be at least 1"),
        ({"output_activation": "Rulu"}, "output_activation='Rulu' is unknown; did you mean 'ReLU'"),
    ],
)
def test_invalid_configs_raise_errors_that_name_the_field(config, message):
    with pytest.raises(ConfigurationError, match=message):
        SimBaSpec.from_config("enc", config)


def test_unit_axes_name_every_axis():
    simba = made(SimBaSpec(**SMALL))
    widths = {"in": 4, "stream": 6, "0": 12, "1": 12, "out": 3}
    unit_axes = simba.unit_axes()
    for name, tensor in simba.state_dict().items():
        if not name.endswith("present"):
            assert tuple(tensor.shape) == tuple(widths[group] for group in unit_axes[name])


def mutated(simba, operator, arguments, *, states=None, seed=0):
    child = simba.rebuild(simba.spec.apply(operator, **arguments)).double()
    transfer_weights_(child, simba, operator, arguments, states=states, generator=torch.Generator().manual_seed(seed))
    return child


GROWTHS = st.lists(st.sampled_from(["add_block", "add_node"]), min_size=1, max_size=5)


@given(operators=GROWTHS, seed=st.integers(0, 2**31))
def test_growth_changes_no_output_for_any_width(operators, seed):
    rng = np.random.default_rng(seed)
    simba, x = made(SimBaSpec(max_blocks=7, **SMALL), seed=seed), normal(9, 4, seed=seed)
    before = simba(x)
    for operator in operators:
        simba = mutated(simba, operator, simba.spec.mutate(operator, rng)[1], seed=seed)
    torch.testing.assert_close(simba(x), before, rtol=0, atol=1e-12)
    assert all(bool(parameter.isfinite().all()) for parameter in simba.parameters())


def test_new_units_and_blocks_learn():
    simba = mutated(made(SimBaSpec(**SMALL)), "add_node", {"nodes": 2})
    simba = mutated(simba, "add_block", {"block": 1})
    x, slope = normal(9, 4), normal(9, 3, seed=1)
    _, _, found = flat_gradients(simba, x, slope)
    assert bool((found["output.weight"][:, 6:] != 0).all())
    assert bool((found["blocks.0.inner.weight"][:, 6:] != 0).any(0).all())
    assert bool((found["blocks.1.outer.weight"][:6] != 0).any(1).all())  # the new units have no consumer yet


@pytest.mark.parametrize("block", [0, 1, 2])
def test_removing_a_block_that_adds_nothing_is_exact(block):
    simba, x = made(SimBaSpec(num_blocks=3, **SMALL)), normal(200, 4)
    with torch.no_grad():
        simba.blocks[block].outer.weight.zero_()
        simba.blocks[block].outer.bias.zero_()
    child = mutated(simba, "remove_block", {"block": block}, states=x)
    torch.testing.assert_close(child(x), simba(x), rtol=0, atol=1e-9)


def test_later_blocks_are_refitted_after_a_block_is_removed():
    simba, x = made(SimBaSpec(num_blocks=3, **SMALL)), normal(400, 4)
    child = mutated(simba, "remove_block", {"block": 0}, states=x)
    plain = simba.rebuild(child.spec).double()
    state = simba.state_dict()
    plain.load_state_dict(
        {
            name: state[name.replace("blocks.1", "blocks.2").replace("blocks.0", "blocks.1")]
            for name in plain.state_dict()
        }
    )
    wanted = simba(x)

    def error(module):
        return float((module(x) - wanted).detach().square().mean())

    assert error(child) < 0.5 * error(plain)


def test_outputs_are_refitted_after_units_are_removed():
    simba, x = made(SimBaSpec(**{**SMALL, "hidden_size": 40})), normal(400, 4)
    with torch.no_grad():
        simba.blocks[0].inner.weight[5] = 0.0
        simba.blocks[0].inner.bias[5] = 0.0  # always 0
    child = mutated(simba, "remove_node", {"nodes": 10}, states=x)
    wanted = simba(x)
    error = float((child(x) - wanted).detach().square().mean() / (wanted - wanted.mean(0)).detach().square().mean())
    assert error < 0.2  # ten of forty units which depend on four inputs
    kept = {tuple(row) for row in child.blocks[0].inner.bias.detach().view(-1, 1).tolist()}
    assert (0.0,) not in kept
    assert child.blocks[0].inner.weight.shape == (60, 30)


def test_layer_inputs_follow_the_forward_pass():
    simba, x = made(SimBaSpec(**SMALL)), normal(7, 4)
    stem, block = simba.stem(x), simba.blocks[0]
    torch.testing.assert_close(simba.layer_input("stem", x), x)
    torch.testing.assert_close(simba.layer_input("blocks.0.inner", x), block.norm(stem))
    second = stem + block.outer(torch.relu(block.inner(block.norm(stem))))
    torch.testing.assert_close(simba.layer_input("blocks.1.inner", x), simba.blocks[1].norm(second))
    torch.testing.assert_close(simba.output(simba.layer_input("output", x)), simba(x))


def test_multiply_adds():
    padded = SimBaSpec(**{**SMALL, "hidden_size": 10}, num_blocks=3)
    # 4 x 10 inputs, 3 blocks of 10 x 20 and 20 x 10, 10 x 5 outputs
    assert SimBaSpec(**SMALL).multiply_adds(padded, 4, 5) == 40 + 3 * 400 + 50
