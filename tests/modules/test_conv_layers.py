"""Convolution layers equal torch's for every number of axes, single and stacked."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium.spaces import Box
from module_checks import normal
from torch import nn

from agilerl_like.envs.spaces import ObservationEncoder
from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.cnn import CNNSpec, EvolvableCNN
from agilerl_like.modules.conv_layers import (
    MAX_REFIT_PATCHES,
    Conv,
    Geometry,
    PlainImage,
    apply_activation,
    apply_norm,
    as_image_leaf,
    compose_kernels,
    join_members,
    split_members,
)
from agilerl_like.modules.layers import Activation, LayerNorm

FUNCTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
SIZES = {1: (9,), 2: (9, 8), 3: (5, 9, 8)}
GEOMETRIES = {
    1: Geometry((3,), (2,), (1,)),
    2: Geometry((3, 2), (2, 1), (1, 0)),
    3: Geometry((2, 3, 3), (1, 2, 1), (0, 1, 2)),
}


def made(geometry, *members, inputs=4, outputs=5, seed=1):
    conv = Conv(inputs, outputs, geometry)
    conv.weight = nn.Parameter(normal(*members, outputs, inputs, *geometry.kernel, seed=seed))
    conv.bias = nn.Parameter(normal(*members, outputs, seed=seed + 1))
    return conv


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 3])
def test_stacked_convolutions_equal_single_ones(axes, count):
    geometry, x = GEOMETRIES[axes], normal(3, 2, 4, *SIZES[axes])
    conv = made(geometry, 3)
    expected = torch.stack(
        [FUNCTIONS[axes](x[p], conv.weight[p], conv.bias[p], geometry.stride, geometry.padding) for p in range(3)]
    )
    found = join_members(conv(split_members(x, count)), 3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert found.shape[3:] == geometry.output_size(0, SIZES[axes])


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_patches_times_matrix_equals_the_convolution(axes):
    conv, x = made(GEOMETRIES[axes]), normal(2, 4, *SIZES[axes])
    (expected,) = conv([x])
    rows = conv.patches(x) @ conv.matrix().T + conv.bias
    torch.testing.assert_close(rows, expected.movedim(1, -1).flatten(0, -2))


def test_many_patches_are_subsampled_evenly():
    geometry = Geometry((1,), (1,), (0,))
    x = torch.arange(3.0 * MAX_REFIT_PATCHES).view(2, 1, -1)  # a kernel of one reads each number once
    rows = made(geometry, inputs=1).patches(x).flatten()
    # from the first to the last of 3 n indices in n - 1 steps: each is (3 n - 1) / (n - 1), a little above 3, rounded
    assert len(rows) == MAX_REFIT_PATCHES
    assert (rows[0], rows[-1]) == (0, 3 * MAX_REFIT_PATCHES - 1)
    assert set(rows.diff().tolist()) == {3.0, 4.0}


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_composing_kernels_composes_convolutions(axes):
    # where the second kernel sees all of the image at once nothing is cut off, borders included
    size = SIZES[axes]
    first = made(Geometry((3,) * axes, (1,) * axes, (1,) * axes))
    second, x = normal(6, 5, *size, seed=5), normal(2, 4, *size)
    (between,) = first([x])
    expected = second.flatten(1) @ (between - first.bias.view(-1, *(1,) * axes)).flatten(1).T
    torch.testing.assert_close(compose_kernels(second, first).flatten(1) @ x.flatten(1).T, expected)


@pytest.mark.parametrize("count", [1, 2])
def test_normalisation_is_over_channels_at_each_position(count):
    norm, x = LayerNorm(5).double(), normal(2, 3, 5, 4, 6)
    norm.weight, norm.bias = nn.Parameter(normal(2, 5)), nn.Parameter(normal(2, 5, seed=1))
    norm.counted = torch.ones(2, 5, dtype=torch.float64)
    found = join_members(apply_norm(norm, split_members(x, count), 2), 2)
    mean, var = x.mean(2, keepdim=True), x.var(2, keepdim=True, unbiased=False)
    weight, bias = (p.view(2, 1, 5, 1, 1) for p in (norm.weight, norm.bias))
    torch.testing.assert_close(found, (x - mean) / (var + LayerNorm.EPSILON).sqrt() * weight + bias)


@pytest.mark.parametrize("count", [1, 2])
def test_each_member_fades_by_its_own_share(count):
    activation, x = Activation(5, "Tanh", "ReLU").double(), normal(2, 3, 5, 4)
    activation.blend = torch.tensor([[0.25], [0.5]], dtype=torch.float64)
    found = join_members(apply_activation(activation, split_members(x, count), split_members(x, count), 2), 2)
    for p, share in enumerate((0.25, 0.5)):
        torch.testing.assert_close(found[p], (1 - share) * x[p].relu() + share * x[p].tanh())


def test_activations_leave_their_input_unchanged():
    x = normal(1, 2, 3)
    before = x.clone()
    (outputs,) = apply_activation(Activation(2, "ReLU"), [x], [x], 1)
    assert torch.equal(x, before)
    torch.testing.assert_close(outputs, before.relu())


@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        (Geometry((9, 8), (1, 1), (0, 1)), "kernel_size entry=9 of layer 2 is larger than its input, which is 8x8 and"),
        (Geometry((8, 8), (8, 9), (0, 0)), "stride_size entry=9 of layer 2 leaves nothing of its input, which is 8x8"),
    ],
)
def test_errors_name_layers_that_do_not_fit(geometry, message):
    with pytest.raises(ConfigurationError, match=message):
        geometry.output_size(2, (8, 8))


@pytest.mark.parametrize("shape", [(3,), (3, 0), (3, 4, 4, 4, 4)])
def test_shapes_that_are_not_images_raise_errors(shape):
    with pytest.raises(ConfigurationError, match=r"must be that of an image, channels first"):
        as_image_leaf(shape)


@pytest.mark.parametrize("space", [Box(0, 255, (9, 8, 3), np.uint8), Box(-2.0, 2.0, (9, 8, 3), np.float32)])
def test_leaves_read_images_from_rows(space):
    encoding = ObservationEncoder(space, swap_channels=True)
    (leaf,) = encoding.leaves
    space.seed(0)
    given = np.stack([space.sample() for _ in range(6)])
    rows = torch.as_tensor(encoding.encode(given))
    cnn = EvolvableCNN(CNNSpec(), leaf, 4)
    cnn.reset_(torch.Generator().manual_seed(0), output_gain=1.0)
    plain = EvolvableCNN(CNNSpec(), PlainImage((3, 9, 8)), 4)
    plain.load_state_dict(cnn.state_dict())
    scaled = (given.astype(np.float32) - space.low) / (space.high - space.low)
    expected = plain(torch.as_tensor(scaled).movedim(-1, 1))
    torch.testing.assert_close(cnn(rows), expected)
    torch.testing.assert_close(cnn(rows.view(2, 3, -1)), expected.view(2, 3, 4))  # any axes in front
