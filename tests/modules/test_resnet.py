"""EvolvableResNet: its forward pass, its spec, and mutations: growth is exact, removals are refitted."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from module_checks import advance_unequally, check_stack, normal
from torch import nn

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.conv_layers import MAX_GROUPED_SIZE
from agilerl_like.modules.layers import ACTIVATIONS, Activation
from agilerl_like.modules.resnet import EvolvableResNet, ResNetSpec
from agilerl_like.modules.weight_transfer import transfer_weights_

SHAPE = (3, 7, 6)
SMALL = {"min_channel_size": 2, "max_channel_size": 12, "max_blocks": 3, "scale_factor": 2}
NAMES = st.sampled_from(sorted(ACTIVATIONS))


def made(spec, shape=SHAPE, outputs=3, *, seed=0):
    """A network with random parameters."""
    net, generator = EvolvableResNet(spec, shape, outputs).double(), torch.Generator().manual_seed(seed)
    for name, parameter in net.named_parameters():
        deviation = parameter[0].numel() ** -0.5 if name.endswith("weight") else 0.3
        nn.init.normal_(parameter, std=deviation, generator=generator)
    return net


def mutated(parent, operator, *, states, seed=0, **arguments):
    child = parent.rebuild(parent.spec.apply(operator, **arguments)).double()
    transfer_weights_(child, parent, operator, arguments, states=states, generator=torch.Generator().manual_seed(seed))
    return child


def legal(spec, *operators):
    return [(name, choice) for name in operators or spec.OPERATORS for choice in spec.choices(name)]


# -- what it computes


@pytest.mark.parametrize(("shape", "convolve"), [((3, 7), F.conv1d), (SHAPE, F.conv2d), ((3, 4, 5, 4), F.conv3d)])
def test_forward_equals_the_formula(shape, convolve):
    spec = ResNetSpec(4, kernel_size=3, stride_size=2, num_blocks=2, activation="ELU", **SMALL)
    net, x = made(spec, shape), normal(5, *shape)
    before = x.clone()
    y = convolve(x, net.stem.weight, net.stem.bias, stride=2, padding=1)
    for block in net.blocks:
        inner = convolve(F.elu(y), block.inner.weight, block.inner.bias, padding=1)
        y = y + convolve(F.elu(inner), block.outer.weight, block.outer.bias, padding=1)
    expected = F.linear(F.elu(y).flatten(1), net.output.weight, net.output.bias)
    torch.testing.assert_close(net(x), expected)
    torch.testing.assert_close(net(x[0]), expected[0])
    assert torch.equal(x, before)


def test_orthogonal_kernels_have_their_gains():
    net = EvolvableResNet(ResNetSpec(16, scale_factor=1), SHAPE, 4)
    net.reset_(torch.Generator().manual_seed(0), output_gain=0.5)
    for name, gain in (("stem", 2**0.5), ("blocks.0.inner", 2**0.5), ("blocks.0.outer", 1.0), ("output", 0.5)):
        matrix = net.get_submodule(name).matrix()
        torch.testing.assert_close(matrix @ matrix.T, gain**2 * torch.eye(len(matrix)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["stem", "blocks.0.inner", "blocks.0.outer", "blocks.1.inner", "blocks.1.outer"])
def test_layer_inputs_of_convolutions(name):
    net, x = made(ResNetSpec(4, num_blocks=2, **SMALL)), normal(2, *SHAPE)
    conv = net.get_submodule(name)
    gave = []
    with torch.no_grad():
        hook = conv.register_forward_hook(lambda module, inputs, outputs: gave.append(outputs[0].clone()))
        net(x)
    hook.remove()
    sums = net.layer_input(name, x) @ conv.matrix().T + conv.bias
    torch.testing.assert_close(sums, gave[0].movedim(1, -1).flatten(0, -2))
    expected = sums.relu() if name.endswith("inner") else sums
    torch.testing.assert_close(net.layer_output(name, sums, sums), expected)


def test_layer_input_of_the_output_layer():
    net, x = made(ResNetSpec(4, output_activation="Tanh", **SMALL)), normal(2, *SHAPE)
    torch.testing.assert_close(net.layer_output("output", net.output(net.layer_input("output", x)), x), net(x))


def test_unit_axes_name_every_axis():
    net = made(ResNetSpec(4, num_blocks=2, stride_size=2, **SMALL))
    widths, unit_axes = {"in": 3, "stream": 4, "0": 8, "1": 8, "flat": 4 * 4 * 3, "out": 3, "": 3}, net.unit_axes()
    for name, tensor in net.state_dict().items():
        assert tuple(tensor.shape) == tuple(widths[group] for group in unit_axes[name])


def test_too_large_strides_raise_errors():
    with pytest.raises(
        ConfigurationError, match="stride_size entry=7 of layer 0 leaves nothing of its input, which is 7x6"
    ):
        EvolvableResNet(ResNetSpec(stride_size=7), SHAPE, 3)


# -- the spec


@st.composite
def specs(draw):
    return ResNetSpec(
        channel_size=draw(st.integers(2, 12)),
        kernel_size=draw(st.sampled_from((1, 3))),
        stride_size=draw(st.integers(1, 2)),
        num_blocks=draw(st.integers(1, 3)),
        activation=draw(NAMES),
        output_activation=draw(NAMES),
        **SMALL,
    )


@given(spec=specs(), seed=st.integers(0, 2**31))
def test_mutations_stay_within_limits(spec, seed):
    rng = np.random.default_rng(seed)
    for _ in range(12):
        names = [name for kind in ("layer", "node", "activation") for name in spec.operators(kind)]
        if not names:
            assert spec.is_fading
            spec = spec.without_fading()
            continue
        child, drawn = spec.mutate(str(rng.choice(names)), rng, activations=("ReLU", "Tanh", "GELU"))
        assert 1 <= child.num_blocks <= 3
        assert 2 <= child.channel_size <= 12
        assert (child == spec) == (drawn == {})
        assert ResNetSpec.from_config("x", json.loads(json.dumps(child.to_config()))) == child
        spec = child


def test_every_mutation_can_be_undone():
    spec = ResNetSpec(32, num_blocks=2, max_channel_size=44)
    assert spec.choices("add_channel") == ({"channels": 8}, {"channels": 12})
    assert spec.choices("remove_channel") == ({"channels": 8}, {"channels": 16})
    assert spec.choices("add_block") == ({"block": 0}, {"block": 1}, {"block": 2})
    assert spec.choices("remove_block") == ({"block": 0}, {"block": 1})
    undo = {"add": "remove", "remove": "add"}
    for operator, choice in legal(spec, "add_channel", "remove_channel", "add_block", "remove_block"):
        verb, _, noun = operator.partition("_")
        child = spec.apply(operator, **choice)
        assert child != spec
        assert child.apply(f"{undo[verb]}_{noun}", **choice) == spec


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_block": 2}, "enc key='num_block' is unknown; did you mean 'num_blocks'"),
        ({"kernel_size": 4}, "kernel_size=4 must be odd"),
        ({"stride_size": 0}, "stride_size=0 must be at least 1"),
        ({"scale_factor": 0}, "scale_factor=0 must be at least 1"),
        ({"num_blocks": 5}, r"num_blocks=5 is outside its range \[1, 4\]"),
        ({"channel_size": 8, "min_channel_size": 16}, r"channel_size=8 is outside its range \[16, 256\]"),
        ({"channel_size": [32]}, r"channel_size=\(32,\) must be an integer"),
        ({"min_blocks": 3, "max_blocks": 2}, "min_blocks=3 must be at least 1 and at most max_blocks=2"),
        ({"activation": "Rulu"}, "activation='Rulu' is unknown; did you mean 'ReLU'"),
        ({"fading": ["Tanh"]}, "must be empty or have 2 entries"),
        ({"fading": ["Skip", ""]}, "has no layer that can be skipped"),
    ],
)
def test_invalid_configs_raise_errors_that_name_the_field(config, message):
    with pytest.raises(ConfigurationError, match=message):
        ResNetSpec.from_config("enc", config)


def test_multiply_adds_count_every_position():
    spec, padded = ResNetSpec(4, stride_size=2, num_blocks=2, **SMALL), ResNetSpec(6, stride_size=2, **SMALL)
    # 7x6 -> 4x3; two blocks of 6 to 12 and 12 to 6 channels
    assert spec.multiply_adds(padded, SHAPE, 3) == 12 * (9 * (3 * 6 + 2 * 2 * 6 * 12) + 6 * 3)


# -- mutations


@given(spec=specs(), seed=st.integers(0, 2**31))
def test_growth_changes_no_output(spec, seed):
    rng, parent, x = np.random.default_rng(seed), made(spec, seed=seed), normal(3, *SHAPE)
    for _ in range(6):
        choices = legal(parent.spec, "add_block", "add_channel", "change_activation")
        operator, choice = choices[rng.integers(len(choices))]
        child = mutated(parent, operator, states=x, seed=int(rng.integers(2**31)), **choice)
        torch.testing.assert_close(child(x), parent(x), rtol=0, atol=1e-12)
        for layer in child.modules():
            if isinstance(layer, Activation):
                layer.advance_(1.0)
        child.finish_fading_()
        parent = child


def test_new_blocks_compute_something_and_add_nothing():
    parent = made(ResNetSpec(4, num_blocks=2, **SMALL))
    child = mutated(parent, "add_block", states=normal(2, *SHAPE), block=1)
    matrix = child.blocks[1].inner.matrix()
    torch.testing.assert_close(matrix @ matrix.T, 2 * torch.eye(8, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    assert not child.blocks[1].outer.weight.any()
    for here, there in ((0, 0), (2, 1)):
        assert torch.equal(child.blocks[here].inner.weight, parent.blocks[there].inner.weight)


@pytest.mark.parametrize("block", [0, 1, 2])
def test_removing_a_block_that_adds_nothing_is_exact(block):
    parent, states = made(ResNetSpec(4, num_blocks=2, **SMALL)), normal(12, *SHAPE)
    child = mutated(parent, "add_block", states=states, block=block)
    again = mutated(child, "remove_block", states=states, block=block)
    torch.testing.assert_close(again(states), parent(states), rtol=0, atol=1e-8)


def test_unused_channels_are_removed_first():
    parent, states = made(ResNetSpec(5, **SMALL)), normal(12, *SHAPE)
    with torch.no_grad():
        parent.blocks[0].inner.weight[:, [0, 3]] = 0.0
        parent.output_kernel()[:, [0, 3]] = 0.0
        parent.blocks[0].outer.weight[:, [2, 4, 5, 9]] = 0.0
    child = mutated(parent, "remove_channel", states=states, channels=2)
    assert torch.equal(child.stem.weight, parent.stem.weight[[1, 2, 4]])
    assert torch.equal(child.blocks[0].inner.bias, parent.blocks[0].inner.bias[[0, 1, 3, 6, 7, 8]])
    torch.testing.assert_close(child(states), parent(states), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("operator", "arguments"), [("remove_block", {"block": 0}), ("remove_channel", {"channels": 1})]
)
def test_consumers_are_refitted_after_a_removal(operator, arguments):
    spec = ResNetSpec(8, num_blocks=2, activation="Tanh", **SMALL)
    parent, states = made(spec), normal(400, *SHAPE)
    child = mutated(parent, operator, states=states, **arguments)
    with torch.no_grad():
        error = (child(states) - parent(states)).square().mean()
        child.output_kernel().copy_(parent.output_kernel()[:, : child.spec.channel_size])  # the same without a refit
        child.output.bias.copy_(parent.output.bias)
        without = (child(states) - parent(states)).square().mean()
    assert error < 0.7 * without


# -- stacks

PLAIN = ResNetSpec(4, num_blocks=2, **SMALL)
STACKS = {
    "padded": [PLAIN, PLAIN.evolve(channel_size=7), PLAIN.evolve(channel_size=2)],
    "fading": [
        s.evolve(activation="Tanh").apply("change_activation", activation="ELU")
        for s in (PLAIN, PLAIN.evolve(channel_size=7))
    ],
}


@pytest.mark.parametrize("kind", STACKS)
@pytest.mark.parametrize("batch", [2, 120])
def test_stack_rows_equal_single_members(kind, batch):
    specs = STACKS[kind]
    assert len({spec.stack_key() for spec in specs}) == 1
    members = [made(spec, seed=seed) for seed, spec in enumerate(specs)]
    advance_unequally(members)
    padded = EvolvableResNet(ResNetSpec.padded_union(specs), SHAPE, 3).double()
    stack = check_stack(members, padded, normal(len(members), batch, *SHAPE))
    assert (batch * stack.module.widest > MAX_GROUPED_SIZE) == (batch == 120)  # both ways of convolving


def test_stack_key_holds_what_cannot_be_padded():
    assert PLAIN.evolve(channel_size=3).stack_key() == PLAIN.stack_key()
    for other in ({"num_blocks": 1}, {"kernel_size": 1}, {"stride_size": 2}, {"scale_factor": 1}):
        assert PLAIN.evolve(**other).stack_key() != PLAIN.stack_key()
    sigmoid = PLAIN.evolve(activation="Sigmoid")
    assert sigmoid.evolve(channel_size=3).stack_key() != sigmoid.stack_key()
