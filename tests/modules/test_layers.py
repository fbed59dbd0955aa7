"""Layers against their formulas; rows of stacked layers equal single layers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from module_checks import normal

from agilerl_like.errors import ConfigurationError
from agilerl_like.hpo import mutation
from agilerl_like.modules import EvolvableMLP, MLPSpec, ParamStack
from agilerl_like.modules.conv_layers import Conv, Geometry
from agilerl_like.modules.layers import (
    ACTIVATIONS,
    SKIP,
    Activation,
    LayerNorm,
    Linear,
    NoisyLinear,
    RunningNorm,
    check_activation,
)
from agilerl_like.modules.recurrent_cells import LSTMCell, MinGRUCell
from agilerl_like.modules.transformer import OutputProjection, QKVProjection
from agilerl_like.modules.words import EvolvableWords, WordsSpec


def scramble_(module, seed):
    """Give every parameter random values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=generator)
    return module.double()


def stacked(layers):
    """Stack layers that have buffers but no parameters together with one that has."""
    members = [torch.nn.ModuleList([layer, Linear(1, 1).double()]) for layer in layers]
    return ParamStack.of(members).module[0]


def test_linear_is_orthogonal_with_its_gain():
    layer = Linear(5, 3)
    layer.reset_(2.0, torch.Generator().manual_seed(0))
    # orthonormal rows times the gain: W W' = gain^2 I
    torch.testing.assert_close(layer.weight @ layer.weight.T, 4.0 * torch.eye(3))
    assert torch.equal(layer.bias, torch.zeros(3))


RESETS = {
    "linear": lambda **how: Linear(3, 4).to("meta").reset_(1.0, **how),
    "convolution": lambda **how: Conv(3, 4, Geometry((3,), (1,), (0,))).to("meta").reset_(1.0, **how),
    "attention": lambda **how: QKVProjection(4, 2, 2).to("meta").reset_(**how),
    "LSTM": lambda **how: LSTMCell(3, 4).to("meta").reset_(**how),
    "minGRU": lambda **how: MinGRUCell(3, 4).to("meta").reset_(**how),
    "words": lambda generator, orthogonal: (
        EvolvableWords(WordsSpec(init_layers=orthogonal), (3, 5)).to("meta").reset_(generator, output_gain=1.0)
    ),
}


@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("kind", RESETS)
def test_weights_on_an_accelerator_are_drawn_on_the_generators_device(kind, orthogonal, monkeypatch):
    """On CUDA torch refuses a generator of the CPU; "meta" stands for an accelerator."""

    def checked(init):
        def drawn(tensor, *arguments, generator, **named):
            assert tensor.device == generator.device
            return init(tensor, *arguments, generator=generator, **named)

        return drawn

    for name in ("orthogonal_", "uniform_", "normal_"):
        monkeypatch.setattr(torch.nn.init, name, checked(getattr(torch.nn.init, name)))
    RESETS[kind](generator=torch.Generator().manual_seed(0), orthogonal=orthogonal)


def test_linear_uniform_weights_fill_their_bound():
    layer = Linear(16, 1000)
    layer.reset_(0.5, torch.Generator().manual_seed(0), orthogonal=False)
    bound = 0.5 / math.sqrt(16)
    largest = float(layer.weight.detach().abs().max())
    assert 0.999 * bound < largest <= bound  # of 16 000 draws none above 0.999: a chance of 1e-7


def test_noisy_linear_adds_the_outer_product_of_its_noise_in_training_only():
    layer = scramble_(NoisyLinear(4, 3, 0.5), seed=1)
    layer.resample_(torch.Generator().manual_seed(2))
    x = normal(7, 4, seed=3)
    weight = layer.weight + layer.weight_sigma * torch.outer(layer.output_noise, layer.input_noise)
    bias = layer.bias + layer.bias_sigma * layer.output_noise

    torch.testing.assert_close(layer(x), x @ weight.T + bias)
    torch.testing.assert_close(layer.eval()(x), x @ layer.weight.T + layer.bias)


def test_noisy_linear_noise_is_the_signed_root_of_a_gaussian():
    layer = NoisyLinear(20_000, 1, 0.5)
    layer.resample_(torch.Generator().manual_seed(0))
    # f(z) = sign(z) sqrt|z|: mean 0, E f^2 = E|z| = sqrt(2/pi), Var f^2 = Var|z| = 1 - 2/pi; 5 standard errors
    noise, root = layer.input_noise.double(), math.sqrt(20_000)
    assert abs(noise.mean()) < 5 * math.sqrt(math.sqrt(2 / math.pi)) / root
    assert abs(noise.square().mean() - math.sqrt(2 / math.pi)) < 5 * math.sqrt(1 - 2 / math.pi) / root


def test_noisy_linear_keeps_its_noise_until_resampled():
    layer = NoisyLinear(4, 3, 0.5)
    layer.reset_(1.0, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(5)
    layer.resample_(generator)
    first = layer(torch.ones(4))
    assert torch.equal(layer(torch.ones(4)), first)
    layer.resample_(generator)
    assert not torch.equal(layer(torch.ones(4)), first)


@pytest.mark.parametrize("kind", ["linear", "noisy", "norm", "partly counted norm"])
def test_stacked_layers_equal_single_ones(kind):
    def make(seed):
        if kind == "linear":
            return scramble_(Linear(5, 3), seed)
        if kind == "noisy":
            layer = scramble_(NoisyLinear(5, 3, 0.5), seed)
            layer.resample_(torch.Generator().manual_seed(seed))
            return layer
        layer = scramble_(LayerNorm(5), seed)
        if kind == "partly counted norm":
            layer.counted[seed % 3] = 0.0
            layer.update_count_flags()
        return layer

    members = [make(seed) for seed in range(4)]
    x = normal(4, 7, 5)
    alone = torch.stack([member(x[i]) for i, member in enumerate(members)])
    torch.testing.assert_close(ParamStack.of(members).module(x), alone, rtol=1e-12, atol=1e-12)


def test_layer_norm_equals_torch():
    layer, reference = scramble_(LayerNorm(6), 0), torch.nn.LayerNorm(6).double()
    reference.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    x = 3 * normal(8, 6, seed=1) + 1
    torch.testing.assert_close(layer(x), reference(x))


def test_layer_norm_excludes_uncounted_units_from_its_statistics():
    layer = scramble_(LayerNorm(5), 0)
    layer.counted.copy_(torch.tensor([1.0, 0, 1, 1, 0]))
    layer.update_count_flags()
    x = 3 * normal(8, 5, seed=1) + 1
    counted = x[:, [0, 2, 3]]
    mean, var = counted.mean(1, keepdim=True), counted.var(1, unbiased=False, keepdim=True)
    expected = (x - mean) / (var + 1e-5).sqrt() * layer.weight + layer.bias
    torch.testing.assert_close(layer(x), expected)


def test_layer_norm_counts_all_units_when_fewer_than_two_count():
    layer = LayerNorm(4)
    for counted, after in (([1.0, 0, 1, 0], [1.0, 0, 1, 0]), ([0.0, 0, 1, 0], [1.0] * 4), ([0.0] * 4, [1.0] * 4)):
        layer.counted.copy_(torch.tensor(counted))
        layer.count_all_if_few_()
        assert layer.counted.tolist() == after
        assert layer.counts_all == all(after)


def test_layer_norm_updates_its_flag_when_a_state_dict_is_loaded():
    source, target = LayerNorm(3).double(), LayerNorm(3).double()
    source.counted[0] = 0.0
    source.update_count_flags()
    target.load_state_dict(source.state_dict())
    x = normal(4, 3)
    assert torch.equal(target(x), source(x))
    assert not torch.equal(target(x), LayerNorm(3).double()(x))


# -- running statistics

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@given(sizes=SIZES, seed=st.integers(0, 2**31), share=st.sampled_from([0.3, 0.7, 1.0]), clip=st.sampled_from([1, 10]))
def test_running_norm_equals_mean_and_variance_of_weighted_rows(sizes, seed, share, clip):
    rng = np.random.default_rng(seed)
    norm = RunningNorm(3, clip=clip).double()
    batches = [rng.normal(2.0, 5.0, (size, 3)) for size in sizes]
    weights = [(rng.random(size) < share).astype(float) for size in sizes]
    for batch, weight in zip(batches, weights, strict=True):
        norm.update_(torch.tensor(batch), torch.tensor(weight))
    counted = np.concatenate(batches)[np.concatenate(weights) > 0]

    mean = counted.mean(0) if len(counted) else np.zeros(3)
    var = counted.var(0) if len(counted) else np.ones(3)
    assert float(norm.count) == len(counted)
    np.testing.assert_allclose(norm.mean, mean, atol=1e-12, rtol=1e-10)
    np.testing.assert_allclose(norm.var, var, atol=1e-12, rtol=1e-10)

    probe = rng.normal(2.0, 5.0, (4, 3))
    scale = np.minimum(1 / np.sqrt(np.maximum(var, (1e-6 * mean) ** 2) + 1e-8), 1e4)
    expected = (probe - mean) * scale
    np.testing.assert_allclose(norm(torch.tensor(probe)), expected.clip(-clip, clip), atol=1e-9, rtol=1e-9)
    np.testing.assert_allclose(norm.invert(torch.tensor(expected)), probe, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("poison", [1e6, math.inf, math.nan])
def test_running_norm_ignores_rows_of_weight_zero(poison):
    seen, weight = normal(6, 2), torch.tensor([1.0, 0, 1, 1, 0, 1], dtype=torch.float64)
    poisoned = torch.where(weight.unsqueeze(1) > 0, seen, poison)
    clean, blind = RunningNorm(2).double(), RunningNorm(2).double()
    clean.update_(seen[weight > 0], torch.ones(4, dtype=torch.float64))
    blind.update_(poisoned, weight)
    for name, buffer in clean.named_buffers():
        torch.testing.assert_close(dict(blind.named_buffers())[name], buffer)


def test_running_norm_is_unchanged_when_all_weights_are_zero():
    norm = RunningNorm(2)
    norm.update_(normal(50, 2).float(), torch.ones(50))
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    norm.update_(100 * normal(50, 2, seed=1).float(), torch.zeros(50))
    assert all(torch.equal(buffer, before[name]) for name, buffer in norm.named_buffers())


def test_running_norm_of_a_constant_is_zero_and_stays_finite():
    norm = RunningNorm(1, clip=10.0)
    norm.update_(torch.full((32, 1), 7.0), torch.ones(32))
    assert norm(torch.tensor([[7.0]])).abs().item() < 0.05  # 7e4 - 7e4 in float32
    assert norm(torch.tensor([[8.0]])).item() == 10.0  # clipped


@pytest.mark.parametrize("value", [10.1, 320.7, 1e4 + 0.3, 101325.3, -3.3e7, 1e12])
def test_running_norm_of_a_large_constant_is_near_zero(value):
    """The mean of its float32 differs from it by rounding, by which the variance is not 0."""
    norm = RunningNorm(1, clip=10.0)
    for _ in range(5):
        norm.update_(torch.full((2048, 1), value), torch.ones(2048))
        assert norm(torch.tensor([[value]])).abs().item() < 0.25


def test_running_norm_of_tiny_inputs_has_the_scale_that_a_small_epsilon_allows():
    inputs = 1e-6 * normal(1000, 1).float()
    norm = RunningNorm(1, clip=10.0, epsilon=1e-14)
    norm.update_(inputs, torch.ones(1000))
    assert norm(inputs).std().item() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("epsilon", [1e-40, 5e-324])
def test_running_norm_stays_finite_with_an_epsilon_that_rounds_to_zero(epsilon):
    norm = RunningNorm(1, clip=10.0, epsilon=epsilon)
    norm.update_(torch.zeros(32, 1), torch.ones(32))
    assert norm(torch.tensor([[0.0], [1.0]])).tolist() == [[0.0], [10.0]]


def test_running_norm_clips_only_if_clip_is_set():
    norm, returns = RunningNorm(1).double(), torch.zeros(1000, 1, dtype=torch.float64)
    returns[7] = 100.0  # 32 standard deviations from the mean
    norm.update_(returns, torch.ones(1000, dtype=torch.float64))
    torch.testing.assert_close(norm.invert(norm(returns)), returns, rtol=0, atol=1e-9)


@pytest.mark.parametrize("var", [1.05, 1.5])
def test_running_norm_keeps_its_variance_in_a_long_run(var):
    """Rounding is not to add up: without a least share the mean of 256 variances fell by 1e-4 or more of it.

    The standard error of the mean is 6e-6 of it.
    """
    norm, generator = RunningNorm(256), torch.Generator().manual_seed(0)
    norm.count.fill_(2.0**24)  # to which 1 cannot be added in float32
    norm.var.fill_(var)
    for _ in range(5000):
        norm.update_(var**0.5 * torch.randn(1, 256, generator=generator), torch.ones(1))
    assert norm.var.double().mean().item() == pytest.approx(var, rel=5e-5)


def test_running_norm_follows_the_inputs_of_a_long_run():
    """A batch has a share of 2**-20 or more; members without inputs in it keep their statistics."""
    stack = stacked([RunningNorm(1).double() for _ in range(2)])
    stack.count.fill_(2.0**30)
    stack.update_(torch.full((2, 1, 1), 1024.0).double(), torch.tensor([[1.0], [0.0]]).double())
    assert stack.mean.flatten().tolist() == [2.0**-10, 0.0]
    assert stack.var.flatten().tolist() == [pytest.approx(2.0, rel=1e-5), 1.0]


def test_stacked_running_norm_equals_single_ones():
    weights = torch.tensor([[1.0, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]], dtype=torch.float64)
    alone, members = [[RunningNorm(2).double() for _ in range(3)] for _ in range(2)]
    stack = stacked(members)
    for seed in range(3):
        x = 4 * normal(3, 4, 2, seed=seed) - 1
        stack.update_(x, weights)
        for i, norm in enumerate(alone):
            norm.update_(x[i], weights[i])
    probe = normal(3, 5, 2, seed=9)
    for i, norm in enumerate(alone):
        torch.testing.assert_close(stack(probe)[i], norm(probe[i]))
        torch.testing.assert_close(stack.invert(probe)[i], norm.invert(probe[i]))
        torch.testing.assert_close(members[i](probe[i]), norm(probe[i]))  # the members' buffers are live


# -- activations


def test_fading_activation_blends_from_before_to_after():
    layer, x, layer_input = Activation(3, "ReLU", "Tanh").double(), normal(5, 3), normal(5, 3, seed=1)
    tanh, relu = x.tanh(), x.clamp(min=0)
    for step in range(6):
        blend = min(step * 0.25, 1.0)
        torch.testing.assert_close(layer(x.clone(), layer_input), (1 - blend) * tanh + blend * relu)
        layer.advance_(0.25)
    assert torch.equal(layer(x.clone(), layer_input), relu)


def test_skip_starts_as_the_layer_input():
    layer, x, layer_input = Activation(3, "Tanh", SKIP).double(), normal(5, 3), normal(5, 3, seed=1)
    assert torch.equal(layer(x, layer_input), layer_input)
    layer.advance_(0.5)
    torch.testing.assert_close(layer(x, layer_input), (layer_input + x.tanh()) / 2)


def test_stacked_members_fade_separately():
    members = [Activation(3, "GELU", "ReLU").double() for _ in range(3)]
    for i, member in enumerate(members):
        member.advance_(0.3 * i)
    x = normal(3, 4, 2)
    alone = torch.stack([member(x[i], x[i]) for i, member in enumerate(members)])
    torch.testing.assert_close(stacked(members)(x, x), alone)


def test_finish_fading_drops_the_old_activation_and_changes_no_output():
    layer, x = Activation(2, "ELU", "Sigmoid").double(), normal(4, 2)
    layer.advance_(1.0)
    before = layer(x, x)
    layer.finish_fading_()
    assert torch.equal(layer(x.clone(), x), before)
    assert dict(layer.named_buffers()) == {}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_torch(name):
    x = normal(20)
    assert torch.equal(Activation(x.shape[-1], name)(x.clone(), x), getattr(torch.nn, name)()(x))


def test_mutations_can_name_every_activation_that_they_can_change_to():
    changes = MLPSpec(activation="Identity").activation_choices()
    assert {change["activation"] for change in changes} == set(mutation.ACTIVATIONS)


def test_unknown_activations_suggest_near_names():
    with pytest.raises(ConfigurationError, match=r"activation='Relu' is unknown; did you mean 'ReLU'"):
        check_activation("activation", "Relu")


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_no_activation_compiles_a_kernel_per_shape(name, capfd):
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        torch.nn.functional.conv2d(torch.ones(4, 8, 12, 12), torch.ones(8, 8, 3, 3))
        ACTIVATIONS[name](x).sum().backward()
    operations = [line for line in capfd.readouterr().out.splitlines() if ",exec," in line]
    assert any("convolution" in line for line in operations)  # the profiler sees oneDNN's kernels
    assert not any("eltwise" in line for line in operations)


@pytest.mark.parametrize("shape", [(3,), (1, 4), (3, 4), (2, 3, 4)])
def test_gelu_equals_x_times_the_normal_cdf(shape):
    x = 3 * normal(*shape)
    expected = [value * 0.5 * math.erfc(-value / math.sqrt(2)) for value in x.flatten().tolist()]
    found = ACTIVATIONS["GELU"](x.float())
    assert found.is_contiguous()
    torch.testing.assert_close(found.double().flatten(), torch.tensor(expected, dtype=torch.float64), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("layer", "printed"),
    [
        (Linear(4, 32), "Linear(num_inputs=4, num_outputs=32)"),
        (NoisyLinear(4, 32, 0.5), "NoisyLinear(num_inputs=4, num_outputs=32, noise_std=0.5)"),
        (
            Conv(3, 16, Geometry((4, 3), (2, 1), (1, 0))),
            "Conv(num_inputs=3, num_outputs=16, kernel=(4, 3), stride=(2, 1), padding=(1, 0))",
        ),
        (LayerNorm(32), "LayerNorm(num_units=32)"),
        (RunningNorm(4, clip=10.0), "RunningNorm(size=4, clip=10.0)"),
        (Activation(32, "Tanh"), "Activation(Tanh)"),
        (Activation(32, "Tanh", "ReLU"), "Activation(ReLU -> Tanh)"),
        (LSTMCell(4, 32).gates, "GateLinear(gates=4, num_inputs=4, num_units=32)"),
        (QKVProjection(32, 4, 8), "QKVProjection(num_inputs=32, heads=4, head_dim=8)"),
        (OutputProjection(4, 8, 16), "OutputProjection(num_inputs=32, num_outputs=16)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else "",
)
def test_layers_are_printed_with_their_sizes_and_functions(layer, printed):
    assert repr(layer) == printed


def test_layers_of_a_stack_are_printed_with_the_sizes_of_a_member_and_the_functions_of_all():
    members = [EvolvableMLP(MLPSpec((32,), activation=name), 4, 2) for name in ("Tanh", "ReLU")]
    module = ParamStack.of(members).module
    assert repr(module.linears[0]) == "Linear(num_inputs=4, num_outputs=32)"
    assert repr(module.activations[0]) == "Activation(Tanh or ReLU)"
