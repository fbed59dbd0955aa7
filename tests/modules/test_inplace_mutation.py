"""Mutations of modules in place, with AgileRL's names."""

import copy

import pytest
import torch

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules import (
    CNNSpec,
    EvolvableCNN,
    EvolvableLSTM,
    EvolvableMLP,
    EvolvableResNet,
    EvolvableSimBa,
    LSTMSpec,
    MLPSpec,
    ResNetSpec,
    SimBaSpec,
)
from agilerl_like.modules.history_lstm import EvolvableHistoryLSTM, HistoryLSTMSpec

IMAGE = (2, 7, 7)
KINDS = {
    "mlp": lambda: EvolvableMLP(MLPSpec((20, 20)), 3, 4),
    "simba": lambda: EvolvableSimBa(SimBaSpec(hidden_size=32, num_blocks=2), 3, 4),
    "cnn": lambda: EvolvableCNN(CNNSpec((16, 16), (3, 3), (1, 1)), IMAGE, 4),
    "resnet": lambda: EvolvableResNet(ResNetSpec(channel_size=16, num_blocks=2), IMAGE, 4),
}
GROWTH = {
    "mlp": ["add_layer", "add_node"],
    "simba": ["add_block", "add_node"],
    "cnn": ["add_layer", "add_channel", "change_kernel"],
    "resnet": ["add_block", "add_channel"],
}


def made(kind):
    module = KINDS[kind]().double()
    module.reset_(torch.Generator().manual_seed(0), output_gain=1.0)
    return module


def states_of(module, count=64):
    shape = (module.inputs,) if isinstance(module.inputs, int) else module.inputs
    return torch.randn(count, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", KINDS)
def test_new_modules_are_usable_and_reproducible(kind):
    first, second = KINDS[kind](), KINDS[kind]()
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.abs().max() <= 1
    x = states_of(first).float()
    assert first(x).var(0).min() > 0


@pytest.mark.parametrize(("kind", "operator"), [(kind, name) for kind, names in GROWTH.items() for name in names])
def test_growth_changes_the_spec_and_no_output(kind, operator):
    module = made(kind)
    x, spec = states_of(module), module.spec
    before = module(x)
    done = getattr(module, operator)(seed=3)
    assert module.spec == spec.apply(operator, **done) != spec
    torch.testing.assert_close(module(x), before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_growth_can_be_undone(kind):
    module = made(kind)
    x, before = states_of(module, 512), made(kind)(states_of(module, 512))
    add, remove = (f"{verb}_{GROWTH[kind][-1].split('_')[1]}" for verb in ("add", "remove"))
    add, remove = ("add_channel", "remove_channel") if "kernel" in add else (add, remove)
    spec = module.spec
    done = getattr(module, add)()
    getattr(module, remove)(states=x, **done)
    assert module.spec == spec
    error = (module(x) - before).square().mean() / before.var()
    assert error < 0.02  # the new units have no consumers and are removed first


NOISY_OR_DROPOUT = {
    "noisy": lambda: EvolvableMLP(MLPSpec((64, 64), noisy=True), 4, 2),
    "dropout": lambda: EvolvableLSTM(LSTMSpec(hidden_state_size=64, num_layers=2, dropout=0.5), 4),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", NOISY_OR_DROPOUT)
def test_a_module_stays_in_its_mode_and_is_refitted_to_its_outputs_in_evaluation_mode(kind, training):
    module = NOISY_OR_DROPOUT[kind]()
    module.reset_(torch.Generator().manual_seed(0), output_gain=1.0)
    in_eval_mode = copy.deepcopy(module).eval()
    module.train(training)
    done = module.remove_node(nodes=16)
    assert {part.training for part in module.modules()} == {training}
    assert in_eval_mode.remove_node(nodes=16) == done
    for one, other in zip(module.parameters(), in_eval_mode.parameters(), strict=True):
        assert torch.equal(one, other)


def test_lstm_growth_keeps_hooks():
    lstm, calls = EvolvableLSTM(LSTMSpec(hidden_state_size=16), 3), []
    lstm.reset_(torch.Generator().manual_seed(0), output_gain=1.0)
    lstm.register_forward_hook(lambda module, inputs, outputs: calls.append(module.num_outputs))
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    before, _ = lstm(x, torch.zeros(5, *lstm.state_shape))
    assert lstm.add_node(nodes=16) == {"nodes": 16}
    after, state = lstm(x, torch.zeros(5, *lstm.state_shape))
    assert calls == [16, 32]
    assert state.shape[-1] == 32
    torch.testing.assert_close(after[:, :16], before)


def test_growth_keeps_the_options_of_hooks():
    mlp, calls = made("mlp"), []
    mlp.register_forward_pre_hook(lambda module, inputs, keywords: calls.append(keywords), with_kwargs=True)
    mlp.register_forward_hook(lambda module, inputs, keywords, outputs: calls.append(keywords), with_kwargs=True)
    mlp.add_node()
    mlp(states_of(mlp))
    assert calls == [{}, {}]


def test_history_lstm_is_narrowed_without_states():
    """Its inputs are windows `[time * features]`; the new units, without consumers, are removed first."""
    window, stream = (
        EvolvableHistoryLSTM(HistoryLSTMSpec(hidden_state_size=32, num_layers=2), (5, 3)),
        torch.Generator(),
    )
    window.double().reset_(stream.manual_seed(0), output_gain=1.0)
    with torch.no_grad():
        for parameter in window.residuals.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=stream))
    x = torch.randn(64, 5 * 3, dtype=torch.float64, generator=stream)
    before = window(x)
    window.add_node(nodes=16)
    window.remove_node(nodes=16)
    torch.testing.assert_close(window(x), before, rtol=0, atol=1e-9)


def test_the_same_seed_draws_the_same_mutation():
    first, second, other = (made("mlp") for _ in range(3))
    assert first.add_node(seed=1) == second.add_node(seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert [other.add_node(seed=s) for s in range(2, 6)] != [first.add_node(seed=1)] * 4


def test_repeated_calls_draw_different_mutations():
    module = made("mlp")
    drawn = [tuple(module.add_node().items()) for _ in range(8)]
    assert len(set(drawn)) > 2


def test_illegal_mutations_raise_errors():
    module = made("mlp")
    with pytest.raises(
        ConfigurationError, match=r"add_node with {'layer': 7} is not legal .* allowed are \[{'layer': 0"
    ):
        module.add_node(layer=7)
    module.remove_layer()
    with pytest.raises(ConfigurationError, match="allowed are none, since it would leave its limits"):
        module.remove_layer()


def test_fading_layers_learn_in_proportion_to_their_blend():
    """The output is `(1 - blend) x + blend tanh(W x + b)`, so the weights have a gradient once the blend is not 0."""
    module = EvolvableMLP(MLPSpec((20,), activation="Tanh"), 3, 4)
    x = states_of(module).float()
    module.add_layer()
    for left, steps in ((1.0, 0), (0.75, 1), (0.25, 2)):
        for _ in range(steps):
            module.advance_fades_(0.25)
        assert module.fade_left() == left
        (slope,) = torch.autograd.grad(module(x).square().sum(), module.linears[1].weight)
        assert bool(slope.any()) == (left < 1)
    with pytest.raises(ConfigurationError, match=r"share=1.5 is outside its range \[0.0, 1.0\]"):
        module.advance_fades_(1.5)
    module.advance_fades_()
    before = module(x)
    inside = torch.tanh(module.linears[1](torch.tanh(module.linears[0](x))))
    torch.testing.assert_close(before, module.linears[2](inside))
    module.add_node(seed=3)  # which lets go of what is over
    assert not module.spec.is_fading
    torch.testing.assert_close(module(x), before)


@pytest.mark.parametrize("kind", ["mlp", "cnn", "resnet"])
def test_modules_mutate_again_after_fading_in(kind):
    module = made(kind)
    for activation in ("Tanh", "ELU"):
        module.change_activation(activation=activation)
        module.advance_fades_()
    assert getattr(module, GROWTH[kind][1])()


@pytest.mark.parametrize(("kind", "operator"), [("mlp", "add_node"), ("mlp", "add_layer"), ("cnn", "add_channel")])
def test_a_mutation_completes_the_fade_of_the_mutation_before_it(kind, operator):
    module, x = made(kind), states_of(made(kind))
    module.change_activation(activation="Tanh")
    completed = copy.deepcopy(module)
    completed.advance_fades_()
    with pytest.raises(ConfigurationError, match=rf"{operator} with {{'layer': 7}} is not legal"):
        getattr(module, operator)(layer=7)
    assert module.fade_left() == 1.0  # a mutation that is refused changes nothing
    done = getattr(module, operator)(seed=3)
    assert getattr(completed, operator)(seed=3) == done
    torch.testing.assert_close(module(x), completed(x), rtol=0, atol=1e-12)
