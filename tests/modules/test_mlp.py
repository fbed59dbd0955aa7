"""EvolvableMLP: its forward pass, initial weights and unit axes."""

import math

import pytest
import torch
from torch import nn

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules import EvolvableMLP, EvolvableSimBa, MLPSpec, SimBaSpec


def made(spec, num_inputs=4, num_outputs=3, *, gain=1.0, seed=0):
    mlp = EvolvableMLP(spec, num_inputs, num_outputs)
    mlp.reset_(torch.Generator().manual_seed(seed), output_gain=gain)
    return mlp.double()


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("norm", [False, True])
def test_forward_equals_torch_layers(norm):
    mlp = made(
        MLPSpec(
            hidden_size=(16, 20), activation="ELU", output_activation="Tanh", layer_norm=norm, output_layernorm=norm
        )
    )
    sizes, reference = (4, 16, 20, 3), []
    for i in range(3):
        linear = nn.Linear(sizes[i], sizes[i + 1]).double()
        linear.load_state_dict({"weight": mlp.linear(i).weight, "bias": mlp.linear(i).bias})
        reference += [linear, *([nn.LayerNorm(sizes[i + 1]).double()] * norm), nn.Tanh() if i == 2 else nn.ELU()]
    x = normal(6, 4)
    torch.testing.assert_close(mlp(x), nn.Sequential(*reference)(x))


def test_layer_inputs_follow_the_forward_pass():
    mlp = made(MLPSpec(hidden_size=(16, 20)))
    x = normal(6, 4)
    first = torch.relu(mlp.linear(0)(x))
    second = torch.relu(mlp.linear(1)(first))
    for i, expected in enumerate((x, first, second)):
        torch.testing.assert_close(mlp.layer_input(f"linears.{i}", x), expected)


@pytest.mark.parametrize("gain", [0.01, 1.0])
def test_orthogonal_weights_have_gain_sqrt_2_and_the_output_gain(gain):
    mlp = made(MLPSpec(hidden_size=(16,)), 16, 4, gain=gain)
    identity = torch.eye(16, dtype=torch.float64)
    torch.testing.assert_close(mlp.linear(0).weight @ mlp.linear(0).weight.T, 2 * identity, rtol=1e-5, atol=1e-5)
    product = mlp.linear(1).weight @ mlp.linear(1).weight.T
    torch.testing.assert_close(product, gain**2 * identity[:4, :4], rtol=1e-5, atol=1e-7)


def test_uniform_output_weights_use_the_output_gain():
    mlp = made(MLPSpec(hidden_size=(400,), init_layers=False), 16, 50, gain=0.01)
    for linear, bound in ((mlp.linear(0), 1 / 4), (mlp.linear(1), 0.01 / math.sqrt(400))):
        largest = float(linear.weight.detach().abs().max())
        assert (
            0.99 * bound < largest <= bound * (1 + 1e-6)
        )  # at least 6400 draws: none above 0.99 has a chance of 1e-28


def test_state_dict_of_a_grown_norm_restores_the_module():
    mlp, other = (made(MLPSpec(hidden_size=(16,), layer_norm=True), seed=seed) for seed in (0, 1))
    mlp.norms[0].counted[:3] = 0.0
    mlp.norms[0].update_count_flags()
    other.load_state_dict(mlp.state_dict())
    assert torch.equal(other(normal(5, 4)), mlp(normal(5, 4)))


def test_unit_axes_name_every_axis():
    mlp = made(MLPSpec(hidden_size=(16, 20), layer_norm=True, noisy=True))
    widths = {"in": 4, "0": 16, "1": 20, "out": 3}
    unit_axes = mlp.unit_axes()
    for name, tensor in mlp.state_dict().items():
        assert tuple(tensor.shape) == tuple(widths[group] for group in unit_axes[name])


def test_normalising_a_single_output_raises_an_error():
    with pytest.raises(ConfigurationError, match="output_layernorm=True needs at least 2 outputs"):
        EvolvableMLP(MLPSpec(output_layernorm=True), 4, 1)


def test_finish_fading_changes_no_output():
    spec = MLPSpec(hidden_size=(16,), activation="Tanh", output_activation="Tanh")
    mlp = made(spec.apply("change_activation", activation="ReLU"))
    for activation in mlp.activations:
        activation.advance_(1.0)
    before = mlp(normal(5, 4))
    mlp.finish_fading_()
    assert mlp.spec == MLPSpec(hidden_size=(16,), activation="ReLU", output_activation="ReLU")
    assert torch.equal(mlp(normal(5, 4)), before)


@pytest.mark.parametrize(
    "kind", [lambda *ends: EvolvableMLP(MLPSpec(), *ends), lambda *ends: EvolvableSimBa(SimBaSpec(), *ends)]
)
@pytest.mark.parametrize(
    ("ends", "message"), [((0, 3), "num_inputs=0 must be at least 1"), ((4, 0), "num_outputs=0 must")]
)
def test_zero_inputs_or_outputs_raise_an_error(kind, ends, message):
    with pytest.raises(ConfigurationError, match=message):
        kind(*ends)
