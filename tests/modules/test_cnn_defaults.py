"""Default convolutions of an image; given ones are not replaced."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.cnn import CNNSpec, EvolvableCNN
from agilerl_like.modules.conv_layers import output_sizes
from agilerl_like.modules.resnet import ResNetSpec
from agilerl_like.modules.weight_transfer import transfer_weights_


def spec_for(*shape, **config):
    return CNNSpec.from_config("encoder_config", config, shape)


def lists(spec):
    return spec.channel_size, spec.kernel_size, spec.stride_size, spec.padding


def test_atari_images_get_the_network_of_mnih_et_al():
    spec = spec_for(4, 84, 84)
    assert lists(spec) == ((32, 64, 64), (8, 4, 3), (4, 2, 1), (0, 0, 0))
    cnn = EvolvableCNN(spec, (4, 84, 84), 64)
    # 20x20, 9x9 and 7x7 positions: (84 - 8) / 4 + 1, (20 - 4) / 2 + 1 (rounded down), 9 - 3 + 1
    weights = (4 * 8 * 8 + 1) * 32 + (32 * 4 * 4 + 1) * 64 + (64 * 3 * 3 + 1) * 64 + (7 * 7 * 64 + 1) * 64
    assert sum(parameter.numel() for parameter in cnn.parameters()) == weights == 278_752


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((16, 16), ((32, 64), (4, 3), (2, 1), (0, 0))),  # 7x7, 5x5
        ((10, 10), ((32, 32), (3, 3), (1, 1), (0, 0))),  # 8x8, 6x6
        ((5, 7), ((32, 32), (3, (2, 3)), (1, 1), (0, 0))),  # 3x5, 2x3
        ((3, 3), ((32, 32), (2, 2), (1, 1), (0, 0))),  # 2x2, 1x1
        ((1, 1), ((32, 32), (1, 1), (1, 1), (0, 0))),
    ],
)
def test_small_images_are_not_strided(size, expected):
    assert lists(spec_for(3, *size)) == expected


def test_each_axis_has_its_own_strides():
    # 48 -> (48 - 8) / 4 + 1 = 11; 13 -> (13 - 4) / 2 + 1 = 5; both few, so a kernel of 3 with stride 1 is the last
    assert lists(spec_for(1, 48, 13)) == ((32, 64), ((8, 4), 3), ((4, 2), 1), (0, 0))


@given(channels=st.integers(1, 4), size=st.lists(st.integers(1, 512), min_size=2, max_size=2))
def test_every_image_keeps_positions_and_few_weights(channels, size):
    spec = spec_for(channels, *size)
    sizes = output_sizes(spec.geometries(2), size)
    assert min(sizes[-1]) >= 1
    assert max(sizes[-1]) <= 9  # fewer than 12 before the last kernel of 3
    with torch.device("meta"):
        cnn = EvolvableCNN(spec, (channels, *size), 64)
    assert sum(parameter.numel() for parameter in cnn.parameters()) < 600_000


def test_given_limits_hold():
    spec = spec_for(4, 84, 84, max_hidden_layers=2, max_channel_size=40, max_kernel_size=5, min_channel_size=36)
    assert lists(spec) == ((36, 40), (5, 4), (4, 2), (0, 0))  # the first kernel leaves 20 positions, too
    assert lists(spec_for(4, 5, 5, min_hidden_layers=3))[0] == (32, 32, 32)
    with pytest.raises(ConfigurationError, match="max_hidden_layers='2' must be an integer"):
        spec_for(4, 84, 84, max_hidden_layers="2")


def test_given_convolutions_are_not_replaced():
    given = {"channel_size": [16, 32]}  # as configs/ppo/minatar_breakout.yaml has it
    assert spec_for(4, 84, 84, **given) == CNNSpec((16, 32), kernel_size=(3, 3), stride_size=(1, 1))
    assert spec_for(4, 84, 84, padding=[1, 1]) == CNNSpec((32, 32), padding=(1, 1))
    assert CNNSpec.from_config("encoder_config", {}) == CNNSpec()  # nothing is known of the image


def test_default_limits_include_the_given_channels():
    spec = spec_for(4, 84, 84, channel_size=[8, 300])
    assert (spec.min_channel_size, spec.max_channel_size) == (8, 300)
    assert (spec_for(4, 84, 84, channel_size=[32]).min_channel_size, CNNSpec.min_channel_size) == (16, 16)
    assert ResNetSpec.from_config("encoder_config", {"channel_size": 8}).min_channel_size == 8
    with pytest.raises(ConfigurationError, match=r"channel_size entry=8 is outside its range \[16, 256\]"):
        spec_for(4, 84, 84, channel_size=[8], min_channel_size=16)


@pytest.mark.parametrize("shape", [(2, 3, 3), (3, 16, 13)])
def test_default_networks_mutate_exactly_and_within_limits(shape):
    spec = spec_for(*shape, activation="Tanh")
    parent, generator = EvolvableCNN(spec, shape, 3).double(), torch.Generator().manual_seed(0)
    parent.reset_(generator, output_gain=1.0)
    x = torch.randn(64, *shape, generator=generator, dtype=torch.float64)
    for operator, arguments in [(name, choice) for name in spec.OPERATORS for choice in spec.choices(name)]:
        child = parent.rebuild(spec.apply(operator, **arguments)).double()
        transfer_weights_(child, parent, operator, arguments, states=x, generator=generator)
        if operator.startswith("remove"):
            assert min(child.spec.channel_size) >= spec.min_channel_size
        else:
            torch.testing.assert_close(child(x), parent(x), rtol=0, atol=1e-12)
