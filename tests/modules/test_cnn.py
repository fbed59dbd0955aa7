"""EvolvableCNN: its forward pass, its spec, and mutations: growth is exact, removals are refitted."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from module_checks import advance_unequally, check_stack, normal
from torch import nn

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.cnn import CNNSpec, EvolvableCNN
from agilerl_like.modules.conv_layers import MAX_GROUPED_SIZE
from agilerl_like.modules.layers import ACTIVATIONS, SKIP, Activation
from agilerl_like.modules.weight_transfer import transfer_weights_

SHAPE = (3, 9, 8)
SMALL = {"min_channel_size": 2, "max_channel_size": 12, "max_kernel_size": 7, "max_hidden_layers": 4}
NAMES = st.sampled_from(sorted(ACTIVATIONS))


def made(spec, shape=SHAPE, outputs=3, *, seed=0):
    """A network with random parameters."""
    cnn, generator = EvolvableCNN(spec, shape, outputs).double(), torch.Generator().manual_seed(seed)
    for name, parameter in cnn.named_parameters():
        nn.init.normal_(
            parameter, std=parameter[0].numel() ** -0.5 if name.endswith("weight") else 0.3, generator=generator
        )
    return cnn


def mutated(parent, operator, *, states, seed=0, **arguments):
    child = parent.rebuild(parent.spec.apply(operator, **arguments)).double()
    transfer_weights_(child, parent, operator, arguments, states=states, generator=torch.Generator().manual_seed(seed))
    return child


def legal(spec, *operators):
    return [(name, choice) for name in operators or spec.OPERATORS for choice in spec.choices(name)]


# -- what it computes


@pytest.mark.parametrize("norm", [False, True])
def test_forward_equals_torch_layers(norm):
    spec = CNNSpec((4, 6), kernel_size=(3, (2, 3)), stride_size=(2, 1), padding=(1, (0, 1)), layer_norm=norm,
                   activation="ELU", output_activation="Tanh", **SMALL)  # fmt: skip
    cnn, x = made(spec), normal(5, *SHAPE)
    y = x
    for i, (stride, padding) in enumerate(((2, 1), (1, (0, 1)))):
        y = F.conv2d(y, cnn.conv(i).weight, cnn.conv(i).bias, stride, padding)
        if norm:
            weight, bias = cnn.norms[i].weight, cnn.norms[i].bias
            y = F.layer_norm(y.movedim(1, -1), y.shape[1:2], weight, bias).movedim(-1, 1)
        y = F.elu(y)
    expected = torch.tanh(F.linear(y.flatten(1), cnn.output.weight, cnn.output.bias))
    torch.testing.assert_close(cnn(x), expected)
    torch.testing.assert_close(cnn(x[0]), expected[0])
    torch.testing.assert_close(cnn(x[:4].view(2, 2, *SHAPE)), expected[:4].view(2, 2, 3))


@pytest.mark.parametrize("shape", [(3, 9), (3, 5, 6, 7)])
def test_images_of_one_and_three_dimensions(shape):
    cnn, x = made(CNNSpec((4, 5), stride_size=(1, 2), **SMALL), shape), normal(2, *shape)
    convolve = {2: F.conv1d, 4: F.conv3d}[len(shape)]
    y = torch.relu(convolve(x, cnn.conv(0).weight, cnn.conv(0).bias))
    y = torch.relu(convolve(y, cnn.conv(1).weight, cnn.conv(1).bias, 2))
    torch.testing.assert_close(cnn(x), F.linear(y.flatten(1), cnn.output.weight, cnn.output.bias))


@pytest.mark.parametrize("gain", [0.01, 1.0])
def test_orthogonal_weights_have_gain_sqrt_2_and_the_output_gain(gain):
    cnn = EvolvableCNN(CNNSpec((16,)), SHAPE, 4)
    cnn.reset_(torch.Generator().manual_seed(0), output_gain=gain)
    matrix = cnn.conv(0).matrix()  # [16, 27]
    torch.testing.assert_close(matrix @ matrix.T, 2 * torch.eye(16), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cnn.output.weight @ cnn.output.weight.T, gain**2 * torch.eye(4), rtol=1e-5, atol=1e-7)
    assert not any(bool(bias.any()) for bias in (cnn.conv(0).bias, cnn.output.bias))


def test_uniform_weights_fill_their_bound():
    cnn = EvolvableCNN(CNNSpec((256,), init_layers=False), SHAPE, 9)
    cnn.reset_(torch.Generator().manual_seed(0), output_gain=0.01)
    columns = {"convs.0": 3 * 9, "output": 256 * 7 * 6}
    for name, gain in (("convs.0", 1.0), ("output", 0.01)):
        bound = gain / math.sqrt(columns[name])
        largest = float(cnn.get_submodule(name).weight.detach().abs().max())
        assert 0.99 * bound < largest <= bound * (1 + 1e-6)  # 6912 draws: none above 0.99 has a chance of 1e-30


def test_layer_inputs_and_outputs_follow_the_forward_pass():
    spec = CNNSpec((4, 6), padding=(1, 0), layer_norm=True, output_activation="Tanh", **SMALL)
    cnn, x = made(spec), normal(2, *SHAPE)
    for i in range(2):
        reads = cnn.layer_input(f"convs.{i}", x)
        sums = reads @ cnn.conv(i).matrix().T + cnn.conv(i).bias
        before = sums.clone()
        outputs = cnn.layer_output(f"convs.{i}", sums, reads)
        assert torch.equal(sums, before)
    flat = outputs.view(2, -1, 6).transpose(1, 2).flatten(1)
    torch.testing.assert_close(cnn.layer_input("output", x), flat)
    torch.testing.assert_close(cnn.layer_output("output", cnn.output(flat), flat), cnn(x))


def test_unit_axes_name_every_axis():
    cnn = made(CNNSpec((4, 6), kernel_size=(3, (2, 5)), layer_norm=True, **SMALL))
    widths = {"in": 3, "0": 4, "1": 6, "flat": 6 * 6 * 2, "out": 3}
    widths |= {"0.kernel.0": 3, "0.kernel.1": 3, "1.kernel.0": 2, "1.kernel.1": 5}
    unit_axes = cnn.unit_axes()
    for name, tensor in cnn.state_dict().items():
        assert tuple(tensor.shape) == tuple(widths[group] for group in unit_axes[name])


def test_expand_maps_maps_a_channel_to_all_its_positions():
    cnn = made(CNNSpec((2, 2), **SMALL), (1, 6, 5))  # 2x1 are left
    assert cnn.expand_maps({"1": torch.tensor([1, -1, 0])})["flat"].tolist() == [2, 3, -1, -1, 0, 1]
    assert cnn.expand_maps({"0": torch.tensor([1])}) == {}


# -- the spec


@st.composite
def specs(draw):
    layers = draw(st.integers(1, 3))

    def per_layer(low, high):
        return tuple(draw(st.lists(st.integers(low, high), min_size=layers, max_size=layers)))

    return CNNSpec(
        channel_size=per_layer(2, 12),
        kernel_size=per_layer(1, 3),
        stride_size=per_layer(1, 2),
        padding=per_layer(0, 2),
        activation=draw(NAMES),
        output_activation=draw(NAMES),
        layer_norm=draw(st.booleans()),
        **SMALL,
    )


def fits(spec, shape=SHAPE):
    try:
        spec.multiply_adds(spec, shape, 3)
    except ConfigurationError:
        return False
    return True


@given(spec=specs(), seed=st.integers(0, 2**31))
def test_mutations_stay_within_limits_and_fit_the_image(spec, seed):
    rng, fitted = np.random.default_rng(seed), fits(spec)
    for _ in range(12):
        names = [name for kind in ("layer", "node", "activation") for name in spec.operators(kind)]
        if not names:
            assert spec.is_fading
            spec = spec.without_fading()
            continue
        child, drawn = spec.mutate(str(rng.choice(names)), rng, activations=("ReLU", "Tanh", "GELU"))
        assert spec.min_hidden_layers <= len(child.channel_size) <= spec.max_hidden_layers
        assert all(2 <= channels <= 12 for channels in child.channel_size)
        assert all(1 <= kernel <= 7 for kernel in child.kernel_size)
        assert all(padding >= 0 for padding in child.padding)
        assert (child == spec) == (drawn == {})
        assert fits(child) == fitted
        spec = child


def test_every_architecture_is_reachable_from_every_other():
    start = CNNSpec(
        (2,), kernel_size=(3,), stride_size=(2,), min_channel_size=2, max_channel_size=4, max_kernel_size=5,
        max_hidden_layers=2,
    )  # fmt: skip
    ahead, edges, found = [start], [], {start}
    while ahead:
        spec = ahead.pop()
        for operator, choice in legal(
            spec, "add_layer", "remove_layer", "add_channel", "remove_channel", "change_kernel"
        ):
            child = spec.apply(operator, **choice)
            edges.append((spec, child))
            if child not in found:
                found.add(child)
                ahead.append(child)
    # 2 or 4 channels, kernels of 3 or 5; of a second layer, if there is one, 2 or 4 channels and kernels of 1, 3, 5
    assert len(found) == 4 + 4 * 2 * 3
    back, grew = {start}, True
    while grew:
        more = {spec for spec, child in edges if child in back} - back
        back, grew = back | more, bool(more)
    assert back == found


@given(spec=specs())
def test_operators_change_only_their_field(spec):
    names = ("channel_size", "kernel_size", "stride_size", "padding")
    old = list(zip(*(getattr(spec, name) for name in names), strict=True))
    for operator, choice in legal(spec, "add_layer", "remove_layer", "add_channel", "remove_channel", "change_kernel"):
        child, i = spec.apply(operator, **choice), choice["layer"]
        channels, kernel, stride, padding = old[i]
        by, half = choice.get("by", 0), choice.get("by", 0) // 2
        expected = {
            "add_layer": [(channels, kernel, stride, padding), (channels, 3, 1, 1)],
            "remove_layer": [],
            "add_channel": [(channels + choice.get("channels", 0), kernel, stride, padding)],
            "remove_channel": [(channels - choice.get("channels", 0), kernel, stride, padding)],
            "change_kernel": [(channels, kernel + by, stride, padding + half)],
        }[operator]
        assert list(zip(*(getattr(child, name) for name in names), strict=True)) == [*old[:i], *expected, *old[i + 1 :]]
        rest = {**dict.fromkeys((*names, "fading"), ()), "channel_size": (2,)}
        assert child.evolve(**rest) == spec.evolve(**rest)


def test_only_size_preserving_layers_are_removable():
    spec = CNNSpec((16,) * 5, kernel_size=(3, 3, 5, 3, 1), stride_size=(1, 1, 1, 2, 1), padding=(1, 0, 2, 1, 0))
    assert spec.choices("remove_layer") == ({"layer": 2}, {"layer": 4})  # not the first, though it keeps it
    assert spec.evolve(min_hidden_layers=5).choices("remove_layer") == ()
    assert spec.evolve(max_hidden_layers=5).choices("add_layer") == ()


def test_kernels_shrink_only_where_there_is_padding():
    spec = CNNSpec((16,) * 4, kernel_size=(3, 3, 2, (3, 9)), padding=(0, 1, 1, (1, 3)))
    assert spec.choices("change_kernel") == (
        {"layer": 0, "by": 2}, {"layer": 1, "by": -2}, {"layer": 1, "by": 2}, {"layer": 2, "by": 2},
        {"layer": 3, "by": -2},
    )  # fmt: skip
    child = spec.apply("change_kernel", layer=3, by=-2)
    assert (child.kernel_size[3], child.padding[3]) == ((1, 7), (0, 2))


@given(spec=specs(), seed=st.integers(0, 2**31))
def test_spec_round_trips_through_json(spec, seed):
    rng = np.random.default_rng(seed)
    for operator in spec.OPERATORS:
        if spec.choices(operator):
            child, _ = spec.mutate(operator, rng, activations=tuple(ACTIVATIONS))
            assert CNNSpec.from_config("x", json.loads(json.dumps(child.to_config()))) == child


def test_a_config_equals_its_json_also_with_extents_by_axis():
    """Processes divide members by their configs, of which they receive those of other processes as JSON."""
    spec = CNNSpec((16, 16), kernel_size=((3, 5), 3), stride_size=(1, (2, 1)), padding=((1, 2), 0))
    assert json.loads(json.dumps(spec.to_config())) == spec.to_config()


def test_extents_may_be_lists_and_equal_lists_become_integers():
    spec = CNNSpec.from_config("x", {"channel_size": [16, 16], "kernel_size": [[3, 5], [3, 3]], "stride_size": None})
    assert (spec.kernel_size, spec.stride_size, spec.padding) == (((3, 5), 3), (1, 1), (0, 0))
    assert CNNSpec.from_config("x", json.loads(json.dumps(spec.to_config()))) == spec
    assert CNNSpec() == CNNSpec((32, 32), kernel_size=(3, 3), stride_size=(1, 1), padding=(0, 0))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"chanel_size": [64]}, "enc key='chanel_size' is unknown; did you mean 'channel_size'"),
        ({"channel_size": []}, r"number of layers in channel_size=0 is outside its range \[1, 6\]"),
        (
            {"channel_size": [8], "min_channel_size": 16},
            r"channel_size entry=8 is outside its range \[16, 256\], which min_channel_size and max_channel_size set",
        ),
        ({"kernel_size": [3]}, r"kernel_size=\(3,\) must be a list with an entry for each of the 2 layers"),
        ({"kernel_size": 3}, "kernel_size=3 must be a list with an entry for each of the 2 layers"),
        ({"kernel_size": 0}, "kernel_size=0 must be a list"),
        ({"kernel_size": [3, 0]}, "kernel_size entry=0 must be a whole number of at least 1"),
        ({"kernel_size": [3, [3, 2.0]]}, r"kernel_size entry=\[3, 2.0\] must be a whole number"),
        ({"kernel_size": [3, 11]}, "kernel_size entry=11 is above max_kernel_size=9"),
        ({"max_kernel_size": 2}, "max_kernel_size=2 must be at least 3"),
        ({"stride_size": [True, 1]}, "stride_size entry=True must be a whole number"),
        ({"padding": [-1, 0]}, "padding entry=-1 must be a whole number of at least 0"),
        ({"min_channel_size": 9, "max_channel_size": 8}, "min_channel_size=9 must be at least 1 and at most"),
        ({"min_hidden_layers": 0}, "min_hidden_layers=0 must be at least 1"),
        ({"min_channel_size": 1, "layer_norm": True}, "min_channel_size=1 is too few for layer_norm=True"),
        ({"activation": "Rulu"}, "activation='Rulu' is unknown; did you mean 'ReLU'"),
        ({"fading": ["Tanh"]}, "must be empty or have 3 entries"),
        ({"fading": ["", "Skip", ""]}, "only a convolution whose output has the shape of its input"),
        ({"fading": ["", "Tahn", ""]}, "fading='Tahn' is unknown; did you mean 'Tanh'"),
    ],
)
def test_invalid_configs_raise_errors_that_name_the_field(config, message):
    with pytest.raises(ConfigurationError, match=message):
        CNNSpec.from_config("enc", config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel_size": (9, 3)}, "kernel_size entry=9 of layer 0 is larger than its input, which is 9x8"),
        ({"kernel_size": (8, 3)}, "kernel_size entry=3 of layer 1 is larger than its input, which is 2x1"),
        ({"stride_size": (8, 2)}, "stride_size entry=2 of layer 1 leaves nothing of its input, which is 1x1"),
        ({"padding": (0, (1, 2, 3))}, "padding entry=.1, 2, 3. of layer 1 has 3 entries for an image of 2 axes"),
    ],
)
def test_layers_that_do_not_fit_the_image_raise_errors(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        EvolvableCNN(CNNSpec(**{"kernel_size": (3, 1), **changes}), SHAPE, 3)


def test_multiply_adds_count_every_position():
    spec, padded = CNNSpec((4, 5), stride_size=(1, 2), **SMALL), CNNSpec((6, 7), stride_size=(1, 2), **SMALL)
    # 9x8 -> 7x6 -> 3x2
    assert spec.multiply_adds(padded, SHAPE, 3) == 3 * 6 * 9 * 42 + 6 * 7 * 9 * 6 + 7 * 6 * 3


# -- mutations


def check_growth(spec, seed, operations, shape=SHAPE):
    """Apply growth operators in sequence; none may change an output."""
    rng, parent = np.random.default_rng(seed), made(spec, shape, seed=seed)
    x = normal(3, *shape)
    for _ in range(operations):
        choices = legal(parent.spec, "add_layer", "add_channel", "change_activation")
        choices += [(name, choice) for name, choice in legal(parent.spec, "change_kernel") if choice["by"] > 0]
        if not choices:
            return
        operator, choice = choices[rng.integers(len(choices))]
        child = mutated(parent, operator, states=x, seed=int(rng.integers(2**31)), **choice)
        torch.testing.assert_close(child(x), parent(x), rtol=0, atol=1e-12)
        for layer in child.modules():
            if isinstance(layer, Activation):
                layer.advance_(1.0)
        child.finish_fading_()
        parent = child


@given(
    channels=st.lists(st.integers(2, 4), min_size=1, max_size=2).map(tuple),
    activation=NAMES,
    norm=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_growth_changes_no_output(channels, activation, norm, seed):
    spec = CNNSpec(channels, activation=activation, output_activation=activation, layer_norm=norm, **SMALL)
    check_growth(spec, seed, 6)


@pytest.mark.parametrize("shape", [(2, 9), (2, 6, 5, 7)])
def test_growth_changes_no_output_in_one_and_three_dimensions(shape):
    for seed in range(5):
        check_growth(CNNSpec((3, 4), **SMALL), seed, 5, shape)


def test_new_channels_are_nonzero_and_have_no_consumers():
    parent = made(CNNSpec((4, 6), **SMALL))
    child = mutated(parent, "add_channel", states=normal(2, *SHAPE), layer=0, channels=3)
    usual = parent.conv(0).matrix().norm(dim=1).median().expand(3)
    torch.testing.assert_close(child.conv(0).matrix()[4:].norm(dim=1), usual)
    assert not child.conv(1).weight[:, 4:].any()
    assert torch.equal(child.conv(1).weight[:, :4], parent.conv(1).weight)


@pytest.mark.parametrize(
    ("operator", "arguments", "undo", "back"),
    [
        ("add_channel", {"layer": 0, "channels": 3}, "remove_channel", {"layer": 0, "channels": 3}),
        ("add_channel", {"layer": 1, "channels": 3}, "remove_channel", {"layer": 1, "channels": 3}),
        ("add_layer", {"layer": 0}, "remove_layer", {"layer": 1}),
        ("add_layer", {"layer": 1}, "remove_layer", {"layer": 2}),
        ("change_kernel", {"layer": 1, "by": 2}, "change_kernel", {"layer": 1, "by": -2}),
    ],
)
@pytest.mark.parametrize("norm", [False, True])
def test_growth_can_be_undone(operator, arguments, undo, back, norm):
    states = normal(12, *SHAPE)
    parent = made(CNNSpec((4, 6), layer_norm=norm, **SMALL))
    if norm and operator == "add_layer":
        return  # it fades in, so it is not exact to remove
    child = mutated(parent, operator, states=states, **arguments)
    again = mutated(child, undo, states=states, **back)
    assert again.spec == parent.spec
    torch.testing.assert_close(again(states), parent(states), rtol=0, atol=1e-8)


@pytest.mark.parametrize("kernel", [3, 5])
def test_removing_the_last_linear_layer_is_exact(kernel):
    # two linear maps are one, and the output layer reads all positions
    spec = CNNSpec((4, 6), kernel_size=(3, kernel), padding=(0, kernel // 2), activation="Identity", **SMALL)
    parent, states = made(spec), normal(12, *SHAPE)
    child = mutated(parent, "remove_layer", states=states, layer=1)
    assert child.spec.channel_size == (4,)
    torch.testing.assert_close(child(states), parent(states), rtol=0, atol=1e-8)


def test_unused_channels_are_removed_first():
    parent, states = made(CNNSpec((4, 6), **SMALL)), normal(12, *SHAPE)
    with torch.no_grad():
        parent.conv(1).weight[:, [0, 2]] = 0.0
        parent.output_kernel()[:, [1, 4]] = 0.0
    for layer, kept in ((0, [1, 3]), (1, [0, 2, 3, 5])):
        child = mutated(parent, "remove_channel", states=states, layer=layer, channels=2)
        assert torch.equal(child.conv(layer).weight, parent.conv(layer).weight[kept])
        torch.testing.assert_close(child(states), parent(states), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("remove_channel", {"layer": 0, "channels": 1}),
        ("remove_channel", {"layer": 1, "channels": 1}),
        ("remove_layer", {"layer": 1}),
        ("change_kernel", {"layer": 1, "by": -2}),
    ],
)
def test_consumers_are_refitted_after_a_removal(operator, arguments):
    spec = CNNSpec((8, 8), kernel_size=(3, 5), padding=(0, 2), activation="Tanh", **SMALL)
    parent, states = made(spec), normal(200, *SHAPE)
    child = mutated(parent, operator, states=states, **arguments)
    cut = EvolvableCNN(child.spec, SHAPE, 3).double()
    ours, unit_axes = dict(parent.named_parameters()), cut.unit_axes()
    with torch.no_grad():  # the same without a refit
        for name, tensor in cut.named_parameters():
            source = ours.get(cut.source_name(name, operator, arguments) or name)
            tensor.copy_(source[tuple(slice(n) for n in tensor.shape)] if len(unit_axes[name]) else source)
        if operator == "change_kernel":
            cut.conv(1).weight.copy_(ours["convs.1.weight"][..., 1:-1, 1:-1])
    error, without = ((net(states) - parent(states)).square().mean() for net in (child, cut))
    assert error < 0.7 * without


# -- stacks


PLAIN = CNNSpec((4, 6), stride_size=(1, 2), padding=(1, 0), **SMALL)
STACKS = {
    "equal": [PLAIN] * 3,
    "padded": [PLAIN, PLAIN.evolve(channel_size=(7, 3)), PLAIN.evolve(channel_size=(2, 12))],
    "one": [PLAIN],
    "normed": [s.evolve(layer_norm=True) for s in (PLAIN, PLAIN.evolve(channel_size=(7, 3)), PLAIN)],
    "fading": [
        s.evolve(activation="Tanh").apply("change_activation", activation="ELU")
        for s in (PLAIN, PLAIN.evolve(channel_size=(7, 3)), PLAIN)
    ],
    "born": [
        s.evolve(activation="SiLU").apply("add_layer", layer=0)
        for s in (PLAIN, PLAIN.evolve(channel_size=(7, 3)), PLAIN)
    ],
}


@pytest.mark.parametrize("kind", STACKS)
@pytest.mark.parametrize("batch", [2, 250])
def test_stack_rows_equal_single_members(kind, batch):
    assert len({spec.stack_key() for spec in STACKS[kind]}) == 1
    members = [made(spec, seed=seed) for seed, spec in enumerate(STACKS[kind])]
    advance_unequally(members)
    padded = EvolvableCNN(CNNSpec.padded_union(STACKS[kind]), SHAPE, 3).double()
    stack = check_stack(members, padded, normal(len(members), batch, *SHAPE))
    assert (batch * stack.module.widest > MAX_GROUPED_SIZE) == (batch == 250)  # both ways of convolving


def test_channels_are_padded_only_where_activations_map_zero_to_zero():
    narrow = PLAIN.evolve(channel_size=(3, 3))
    assert narrow.stack_key() == PLAIN.stack_key()
    assert narrow.evolve(activation="Sigmoid").stack_key() != PLAIN.evolve(activation="Sigmoid").stack_key()
    fading = [s.evolve(activation="Sigmoid").apply("change_activation", activation="Tanh") for s in (narrow, PLAIN)]
    assert fading[0].stack_key() != fading[1].stack_key()
    for other in ({"kernel_size": (5, 3)}, {"stride_size": (1, 1)}, {"padding": (0, 0)}, {"layer_norm": True}):
        assert PLAIN.evolve(**other).stack_key() != PLAIN.stack_key()


def test_layers_after_idempotent_activations_do_not_fade_in():
    assert PLAIN.apply("add_layer", layer=1).fading == ()
    for spec in (PLAIN.evolve(activation="Tanh"), PLAIN.evolve(layer_norm=True)):
        child = spec.apply("add_layer", layer=0)
        assert (child.channel_size, child.fading) == ((4, 4, 6), ("", SKIP, "", ""))
        assert legal(child) == []
        assert child.without_fading().fading == ()
