"""EvolvableLSTM: steps and sequences, episode starts, gradients through time, and mutations."""

import json
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from module_checks import normal

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules.param_stack import ParamStack
from agilerl_like.modules.recurrent import EvolvableLSTM, LSTMSpec, Sequences
from agilerl_like.modules.recurrent_cells import EpisodeStarts, LSTMCell, SequentialCell, linear_scan
from agilerl_like.modules.weight_transfer import transfer_weights_

CELLS = ("LSTM", "GRU", "minGRU")
SMALL = {"min_hidden_state_size": 1, "hidden_state_size": 5}


def made(spec, inputs=3, *, seed=0):
    """A module with random parameters."""
    lstm, generator = EvolvableLSTM(spec, inputs).double(), torch.Generator().manual_seed(seed)
    for parameter in lstm.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    lstm.resample_(generator)
    return lstm


def sequences(lstm, members=(), *, count=4, steps=7, seed=0):
    """Inputs, episode starts (one in five) and a state."""
    starts = (torch.rand(*members, count, steps, generator=torch.Generator().manual_seed(seed)) < 0.2).double()
    state = normal(*members, count, *lstm.state_shape, seed=seed + 1)
    return Sequences(normal(*members, count, steps, lstm.inputs, seed=seed + 2), starts, state)


def recurrent_weight(cell):
    """Return the weights by which gates read the hidden state; of a minGRU, whose gates do not, ones of no effect."""
    return getattr(cell, "recurrent_weight", torch.zeros(1, 5, 5))


# -- what it computes


def test_lstm_step_equals_hand_calculation():
    # one unit, all recurrent weights 0: c' = s(f) c + s(i) tanh(g) and h' = s(o) tanh(c')
    lstm = EvolvableLSTM(LSTMSpec(min_hidden_state_size=1, hidden_state_size=1), 1).double()
    cell = lstm.cells[0]
    with torch.no_grad():
        cell.recurrent_weight.zero_()
        cell.gates.weight.copy_(torch.tensor([0.0, 0.0, 0.0, 1.0]).view(4, 1, 1))
        cell.gates.bias.copy_(torch.tensor([1.0, 2.0, 3.0, 0.0]).view(4, 1))
    state = torch.tensor([[9.0, 0.5]], dtype=torch.float64).view(1, 2, 1)  # h plays no part, c = 0.5
    y, after = lstm.step(torch.tensor([[0.7]], dtype=torch.float64), state)

    def s(x):
        return 1 / (1 + math.exp(-x))

    cell_state = s(3) * 0.5 + s(2) * math.tanh(0.7)
    assert y.item() == pytest.approx(s(1) * math.tanh(cell_state), abs=1e-14)
    assert after.flatten().tolist() == pytest.approx([y.item(), cell_state], abs=1e-14)


def test_gru_step_equals_hand_calculation():
    # one unit: n = tanh(x + r u h), h' = (1 - z) n + z h
    gru = EvolvableLSTM(LSTMSpec(cell="GRU", min_hidden_state_size=1, hidden_state_size=1), 1).double()
    cell = gru.cells[0]
    with torch.no_grad():
        cell.recurrent_weight.copy_(torch.tensor([0.0, 0.0, 2.0]).view(3, 1, 1))
        cell.gates.weight.copy_(torch.tensor([0.0, 0.0, 1.0]).view(3, 1, 1))
        cell.gates.bias.copy_(torch.tensor([1.0, -1.0, 0.0]).view(3, 1))
    y, after = gru.step(torch.tensor([[0.7]], dtype=torch.float64), torch.full((1, 1, 1), 0.5, dtype=torch.float64))
    reset, keep = 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))
    expected = (1 - keep) * math.tanh(0.7 + reset * 2 * 0.5) + keep * 0.5
    assert y.item() == pytest.approx(expected, abs=1e-14)
    assert after.item() == y.item()


def torchs(lstm):
    """torch's layer with the same weights."""
    order = [1, 2, 3, 0] if lstm.spec.cell == "LSTM" else [0, 1, 2]  # torch has i, f, g, o and r, z, n
    cell, kind = lstm.cells[0], {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU}[lstm.spec.cell]
    reference = kind(lstm.inputs, lstm.num_outputs, batch_first=True).double()
    with torch.no_grad():
        reference.weight_ih_l0.copy_(cell.gates.weight[order].flatten(0, 1))
        reference.weight_hh_l0.copy_(cell.recurrent_weight[order].flatten(0, 1))
        reference.bias_ih_l0.copy_(cell.gates.bias[order].flatten())
        reference.bias_hh_l0.zero_()
    return reference


def torch_order(cell, tensor):
    return tensor[[1, 2, 3, 0]] if cell == "LSTM" else tensor


def test_min_gru_step_equals_hand_calculation():
    # one unit: h' = (1 - z) h + z n, with z = s(1 - 0.5 x), p = 2 x + 0.25 and n = p + 0.5 p1 - p2 + 2 p3, where pk is
    # the p of k steps ago
    module = EvolvableLSTM(LSTMSpec(cell="minGRU", min_hidden_state_size=1, hidden_state_size=1), 1).double()
    with torch.no_grad():
        module.cells[0].gates.weight.copy_(torch.tensor([-0.5, 2.0]).view(2, 1, 1))
        module.cells[0].gates.bias.copy_(torch.tensor([1.0, 0.25]).view(2, 1))
        module.cells[0].conv.copy_(torch.tensor([1.0, 0.5, -1.0, 2.0]).view(4, 1))
    state = torch.tensor([0.5, 0.3, -0.2, 0.1], dtype=torch.float64).view(1, 4, 1)
    y, after = module.step(torch.tensor([[0.7]], dtype=torch.float64), state)
    update = 1 / (1 + math.exp(-(1 - 0.35)))
    assert y.item() == pytest.approx((1 - update) * 0.5 + update * (1.65 + 0.15 + 0.2 + 0.2), abs=1e-14)
    assert after.flatten().tolist() == pytest.approx([y.item(), 1.65, 0.3, -0.2], abs=1e-14)


@pytest.mark.parametrize("lag", range(4))
def test_a_min_gru_can_output_an_input_of_earlier_steps_of_the_episode(lag):
    module = EvolvableLSTM(LSTMSpec(cell="minGRU", min_hidden_state_size=1, hidden_state_size=1), 1).double()
    with torch.no_grad():
        module.cells[0].gates.weight.copy_(torch.tensor([0.0, 1.0]).view(2, 1, 1))
        module.cells[0].gates.bias.copy_(torch.tensor([50.0, 0.0]).view(2, 1))  # an open update gate
        module.cells[0].conv.copy_(torch.eye(4)[lag].view(4, 1))
    x = torch.arange(1.0, 8.0, dtype=torch.float64).view(1, 7, 1)
    starts = torch.tensor([[1, 0, 0, 0, 0, 1, 0]])  # the second episode begins with 6
    outputs, _ = module.unroll(x, starts, torch.zeros(1, 4, 1, dtype=torch.float64))
    wanted = [0.0] * lag + [1.0, 2.0, 3.0, 4.0, 5.0][: 5 - lag] + ([0.0] * lag + [6.0, 7.0])[:2]
    assert outputs.flatten().tolist() == pytest.approx(wanted, abs=1e-12)


@given(st.integers(1, 40), st.integers(0, 2**31))
def test_linear_scan_equals_a_loop_with_its_gradients(length, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (2, length, 3, 4)
    factors = torch.rand(shape, generator=generator, dtype=torch.float64).requires_grad_()
    terms = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    state = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    steps, h = [], state
    for factor, term in zip(factors.unbind(1), terms.unbind(1), strict=True):
        h = factor * h + term
        steps.append(h)
    expected, found = torch.stack(steps, 1), linear_scan(factors, terms, state)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    weights = torch.randn(shape, generator=generator, dtype=torch.float64)
    gradients = [torch.autograd.grad((y * weights).sum(), (factors, terms)) for y in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-11)


def test_min_gru_sequences_equal_steps():
    module = made(LSTMSpec(cell="minGRU", num_layers=2, **SMALL)).eval()
    x, starts, state = sequences(module)
    y, _ = module.unroll(x, starts, state)
    for t in range(x.shape[1]):
        state = state * (1 - starts[:, t]).view(-1, 1, 1)
        step, state = module.step(x[:, t], state)
        torch.testing.assert_close(step, y[:, t], rtol=0, atol=1e-12)


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_outputs_and_gradients_equal_torch(cell):
    lstm = made(LSTMSpec(cell=cell, **SMALL))
    reference, (x, starts, state) = torchs(lstm), sequences(lstm)
    starts = torch.zeros_like(starts)
    begin = tuple(state.transpose(0, 1).unsqueeze(1).contiguous())
    expected, end = reference(x, begin if cell == "LSTM" else begin[0])
    y, unrolled = lstm.unroll(x, starts, state)
    after = unrolled.states
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-10)
    ends = torch.cat(end) if cell == "LSTM" else end
    torch.testing.assert_close(after[:, -1], ends.transpose(0, 1), rtol=0, atol=1e-10)

    slope = normal(*y.shape, seed=9)
    theirs = torch.autograd.grad((expected * slope).sum(), list(reference.parameters()))
    ours = torch.autograd.grad((y * slope).sum(), list(lstm.parameters()))
    for found, wanted in zip(ours, (theirs[1], theirs[0], theirs[2]), strict=True):  # recurrent, input, bias
        torch.testing.assert_close(torch_order(cell, found).reshape(wanted.shape), wanted, rtol=0, atol=1e-10)


@pytest.fixture(params=[(cell, layers) for cell in CELLS for layers in (1, 3)], ids=lambda p: f"{p[0]}-{p[1]}")
def lstm(request):
    cell, layers = request.param
    return made(LSTMSpec(cell=cell, num_layers=layers, dropout=0.3, **SMALL))


def test_later_layers_add_a_linear_map_of_their_hidden_state(lstm):
    lstm.eval()
    x, starts, state = sequences(lstm)
    starts = torch.zeros_like(starts)
    count = state.shape[1] // lstm.spec.num_layers
    total, spec = 0.0, lstm.spec.evolve(num_layers=1)
    for layer, cell in enumerate(lstm.cells):
        alone = EvolvableLSTM(spec, cell.gates.weight.shape[-1]).double().eval()
        alone.cells[0].load_state_dict(cell.state_dict())
        outputs, _ = alone.unroll(x if layer == 0 else total, starts, state[:, layer * count : (layer + 1) * count])
        if layer:
            residual = lstm.residuals[str(layer)]
            outputs = outputs @ residual.weight.T + residual.bias
        total = total + outputs
    torch.testing.assert_close(lstm.unroll(x, starts, state)[0], total, rtol=0, atol=1e-12)


# -- time


def learned(lstm, its, slope=None):
    """The outputs of some sequences, and the gradients of the inputs and of all parameters."""
    x = its[0].detach().clone().requires_grad_()
    y, _ = lstm.unroll(x, *its[1:])
    slope = normal(*y.shape, seed=9).to(y.dtype) if slope is None else slope
    wanted = [x, *lstm.parameters()]
    return y.detach(), *torch.autograd.grad((y * slope).sum(), wanted, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("learning", [False, True])
def test_steps_equal_the_unrolled_sequence(lstm, learning):
    x, starts, state = sequences(lstm)
    with torch.set_grad_enabled(learning):
        y, unrolled = lstm.unroll(x, starts, state)
        after = unrolled.states
        for t in range(x.shape[1]):
            state = state * (1 - starts[:, t]).view(-1, 1, 1)
            outputs, state = lstm(x[:, t], state)
            torch.testing.assert_close(outputs, y[:, t], rtol=0, atol=1e-12)
            torch.testing.assert_close(state, after[:, t], rtol=0, atol=1e-12)


def test_episode_starts_split_the_sequence(lstm):
    x, starts, state = sequences(lstm, count=1)
    starts = torch.zeros_like(starts)
    starts[0, 3] = 1.0
    y, unrolled = lstm.unroll(x, starts, state)
    after = unrolled.states
    none = torch.zeros(1, 3, dtype=torch.float64)
    first, _ = lstm.unroll(x[:, :3], none, state)
    second, unrolled = lstm.unroll(x[:, 3:], torch.zeros(1, 4, dtype=torch.float64), torch.zeros_like(state))
    end = unrolled.states
    torch.testing.assert_close(y, torch.cat([first, second], 1), rtol=0, atol=1e-12)
    torch.testing.assert_close(after[:, 3:], end, rtol=0, atol=1e-12)


def test_chunks_equal_the_whole_sequence(lstm):
    x, starts, state = sequences(lstm)
    y, unrolled = lstm.unroll(x, starts, state)
    after = unrolled.states
    parts = []
    for here in (slice(0, 2), slice(2, 3), slice(3, 7)):
        part, unrolled = lstm.unroll(x[:, here], starts[:, here], state)
        states = unrolled.states
        state = states[:, -1]
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), y, rtol=0, atol=1e-12)
    torch.testing.assert_close(state, after[:, -1], rtol=0, atol=1e-12)


# -- learning


def by_autograd(monkeypatch):
    """Let every cell learn through time by autograd alone."""
    monkeypatch.setattr(LSTMCell, "unroll", SequentialCell.unroll)


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("members", [1, 3])
def test_fused_lstm_gradients_equal_autograds(steps, members, monkeypatch):
    stack = ParamStack.of([made(LSTMSpec(num_layers=2, **SMALL), seed=seed) for seed in range(members)])
    its = sequences(stack.module, (members,), steps=steps)
    fused = learned(stack.module, its)
    by_autograd(monkeypatch)
    for found, expected in zip(fused, learned(stack.module, its), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_fused_lstm_passes_gradcheck():
    cell = LSTMCell(3, 2).double()
    x, starts, state = normal(1, 4, 2, 3).requires_grad_(), torch.zeros(1, 2, 4).double(), normal(1, 2, 2, 2, seed=1)
    starts[0, 1, 2] = 1.0  # an episode begins inside a sequence

    def hidden(x, *parameters):
        for (name, _), parameter in zip([*cell.named_parameters()], parameters, strict=True):
            owner, _, attribute = name.rpartition(".")
            cell.get_submodule(owner)._parameters[attribute] = parameter
        return cell.unroll(x, EpisodeStarts(starts), state.unbind(2))[0]

    assert torch.autograd.gradcheck(hidden, (x, *(p.detach().clone().requires_grad_() for p in cell.parameters())))


def test_gradients_equal_autograd_in_float32():
    lstm = made(LSTMSpec(num_layers=2, **SMALL))
    its, found = sequences(lstm), []
    for dtype in (torch.float64, torch.float32):
        found.append(learned(lstm.to(dtype), [tensor.to(dtype) for tensor in its]))
    for exact, ours in zip(*found, strict=True):  # numbers of order 1, so 1e-4 is a thousand roundings
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4)


def test_gradients_stop_at_episode_starts(lstm):
    x, starts, state = sequences(lstm, count=1)
    starts = torch.zeros_like(starts)
    starts[0, 4] = 1.0
    x.requires_grad_()
    y, _ = lstm.unroll(x, starts, state)
    (of_input,) = torch.autograd.grad(y[0, 4:].sum(), x)
    assert bool((of_input[0, :4] == 0).all())
    assert bool((of_input[0, 4:] != 0).all())


@pytest.mark.parametrize("cell", CELLS)
def test_autocast_does_not_reduce_precision(cell):
    lstm = made(LSTMSpec(cell=cell, num_layers=2, **SMALL)).float()
    x, starts, state = (tensor.float() for tensor in sequences(lstm))

    def everything():
        y, states = lstm.unroll(x, starts, state)
        return [*lstm.step(x[:, 0], state), y, states.states]

    plain = everything()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for ours, theirs in zip(everything(), plain, strict=True):
            assert torch.equal(ours, theirs)
        y, _ = lstm.step(x[:, 0].bfloat16(), state)  # as an encoder's outputs are then
        assert y.dtype == torch.float32


# -- a stack


class SequenceCase(NamedTuple):
    """All that a memory makes of sequences."""

    y: torch.Tensor
    state: torch.Tensor
    step: torch.Tensor
    of_input: torch.Tensor
    of_parameters: dict[str, torch.Tensor]

    @classmethod
    def of(cls, module, its, slope):
        with torch.no_grad():
            _, unrolled = module.unroll(*its)
            state = unrolled.states
            step, _ = module.step(its.x[..., 0, :], its.state)
        y, of_input, *found = learned(module, its, slope)
        return cls(y, state, step, of_input, dict(zip(dict(module.named_parameters()), found, strict=True)))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("shapes", [((5, 1), (5, 1), (5, 1)), ((5, 2), (8, 1), (3, 3)), ((4, 1), (4, 2))], ids=str)
def test_stack_rows_equal_single_members(cell, shapes):
    specs = [
        LSTMSpec(cell=cell, num_layers=layers, dropout=0.3, min_hidden_state_size=1, hidden_state_size=units)
        for units, layers in shapes
    ]
    members = [made(spec, seed=seed) for seed, spec in enumerate(specs)]
    padded = EvolvableLSTM(LSTMSpec.padded_union(specs), 3).double()
    x, starts, state = sequences(padded, (len(members),))
    slope = normal(len(members), 4, 7, padded.num_outputs, seed=9)
    for row, member in enumerate(members):  # missing vectors and units are 0
        vectors, units = member.state_shape
        state[row, :, vectors:] = 0.0
        state[row, :, :, units:] = 0.0
        slope[row, :, :, units:] = 0.0

    def by_itself(i):
        vectors, units = members[i].state_shape
        its = Sequences(x[i], starts[i], state[i, :, :vectors, :units])
        return SequenceCase.of(members[i], its, slope[i, ..., :units])

    alone = [by_itself(i) for i in range(len(members))]
    stack = ParamStack.of(members, padded)
    together = SequenceCase.of(stack.module, Sequences(x, starts, state), slope)
    flat = torch.cat([part.reshape(len(members), -1) for part in together.of_parameters.values()], 1)
    for row, (member, its) in enumerate(zip(members, alone, strict=True)):
        vectors, units = member.state_shape
        torch.testing.assert_close(by_itself(row), its, rtol=0, atol=1e-10)  # its tensors are the stack's now
        for name, leading in (("y", ()), ("step", ()), ("state", (slice(vectors),))):
            whole, part = getattr(together, name)[row].clone(), getattr(its, name)
            inside = (..., *leading, slice(units))
            torch.testing.assert_close(whole[inside], part, rtol=0, atol=1e-10)
            whole[inside] = 0.0
            assert bool((whole == 0).all())
        torch.testing.assert_close(together.of_input[row], its.of_input, rtol=0, atol=1e-10)
        parts, total = stack.member_views(flat, row), 0
        for name, gradient in its.of_parameters.items():
            torch.testing.assert_close(parts[name], gradient, rtol=1e-9, atol=1e-10)
            total += int((gradient != 0).sum())
        assert int((flat[row] != 0).sum()) == total  # what is not there has a gradient of exactly 0


def test_permuting_members_permutes_rows():
    members = [made(LSTMSpec(num_layers=2, **SMALL), seed=seed) for seed in range(3)]
    x, starts, state = sequences(members[0], (3,))
    order = [2, 0, 1]
    straight, _ = ParamStack.of(members).module.unroll(x, starts, state)
    permuted, _ = ParamStack.of([members[i] for i in order]).module.unroll(x[order], starts[order], state[order])
    torch.testing.assert_close(permuted, straight[order], rtol=0, atol=1e-12)


# -- how it begins


def test_initial_gate_weights_are_orthogonal_and_the_forget_bias_is_1():
    lstm = EvolvableLSTM(LSTMSpec(hidden_state_size=16, num_layers=2), 16)
    lstm.reset_(torch.Generator().manual_seed(0), output_gain=1.0)
    for cell in lstm.cells:
        for matrix in (*cell.gates.weight, *cell.recurrent_weight):
            torch.testing.assert_close(matrix @ matrix.T, torch.eye(16), rtol=0, atol=1e-5)
        assert cell.gates.bias.sum(1).tolist() == [0, 0, 16, 0]
    assert all(bool((parameter == 0).all()) for parameter in lstm.residuals.parameters())


def test_uniform_weights_fill_their_bound():
    lstm = EvolvableLSTM(LSTMSpec(hidden_state_size=100, init_layers=False), 100)
    lstm.reset_(torch.Generator().manual_seed(0), output_gain=1.0)
    for matrix in (lstm.cells[0].gates.weight, lstm.cells[0].recurrent_weight):
        largest = float(matrix.detach().abs().max())
        assert 0.0999 < largest <= 0.1  # of 40 000 draws none above 0.999 of the bound: a chance of 4e-18


# -- dropout


def test_dropout_keeps_its_mask_until_resampled_and_only_while_training():
    lstm = EvolvableLSTM(LSTMSpec(hidden_state_size=400, dropout=0.25), 3)
    lstm.reset_(torch.Generator().manual_seed(0), output_gain=1.0)
    generator = torch.Generator().manual_seed(1)
    lstm.resample_(generator)
    x, state = normal(6, 3).float(), torch.zeros(6, *lstm.state_shape)
    first, states = lstm.step(x, state)
    assert torch.equal(lstm.step(x, state)[0], first)
    dropped = (first == 0).all(0)
    # binomial(400, 1/4): mean 100, deviation 8.7; 5 deviations are a chance of 6e-7
    assert abs(int(dropped.sum()) - 100) < 5 * 8.7
    plain, undropped = lstm.eval().step(x, state)
    torch.testing.assert_close(first[:, ~dropped], plain[:, ~dropped] / 0.75)
    assert torch.equal(states, undropped)  # dropout applies to the outputs, not to the state
    lstm.train().resample_(generator)
    assert not torch.equal(lstm.step(x, state)[0], first)


# -- mutations


@st.composite
def specs(draw):
    low_units, low_layers = draw(st.integers(1, 20)), draw(st.integers(1, 2))
    high_units, high_layers = draw(st.integers(low_units, 150)), draw(st.integers(low_layers, 4))
    return LSTMSpec(
        cell=draw(st.sampled_from(CELLS)),
        hidden_state_size=draw(st.integers(low_units, high_units)),
        num_layers=draw(st.integers(low_layers, high_layers)),
        dropout=draw(st.sampled_from([0.0, 0.5])),
        min_hidden_state_size=low_units,
        max_hidden_state_size=high_units,
        min_layers=low_layers,
        max_layers=high_layers,
        init_layers=draw(st.booleans()),
    )


@given(spec=specs(), seed=st.integers(0, 2**31))
def test_mutations_stay_within_limits(spec, seed):
    rng = np.random.default_rng(seed)
    for _ in range(12):
        legal = [name for kind in ("layer", "node") for name in spec.operators(kind)]
        if not legal:
            return
        child, drawn = spec.mutate(str(rng.choice(legal)), rng)
        assert spec.min_layers <= child.num_layers <= spec.max_layers
        assert spec.min_hidden_state_size <= child.hidden_state_size <= spec.max_hidden_state_size
        assert drawn
        assert child != spec
        spec = child


@given(spec=specs())
def test_operators_change_only_their_field(spec):
    for operator, field, sign in (
        ("add_layer", "num_layers", 1),
        ("remove_layer", "num_layers", -1),
        ("add_node", "hidden_state_size", 1),
        ("remove_node", "hidden_state_size", -1),
    ):
        for arguments in spec.choices(operator):
            change = sign * arguments.get("nodes", 1)
            assert spec.apply(operator, **arguments) == spec.evolve(**{field: getattr(spec, field) + change})


@given(spec=specs())
def test_spec_round_trips_through_json(spec):
    assert LSTMSpec.from_config("x", json.loads(json.dumps(spec.to_config()))) == spec


def test_steps_stop_at_the_limits_and_every_size_is_reachable():
    spec = LSTMSpec(hidden_state_size=90, min_hidden_state_size=80, max_hidden_state_size=120)
    assert spec.choices("add_node") == ({"nodes": 16}, {"nodes": 30})
    assert spec.choices("remove_node") == ({"nodes": 10},)
    assert spec.evolve(hidden_state_size=120).choices("remove_node") == ({"nodes": 16}, {"nodes": 32}, {"nodes": 40})
    one = LSTMSpec(max_layers=1)
    assert one.operators("layer") == ()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": 64}, "mem key='hidden_size' is unknown; did you mean 'hidden_state_size'"),
        ({"cell": "LTSM"}, "cell='LTSM' is unknown; did you mean 'LSTM'"),
        ({"hidden_state_size": 8}, r"hidden_state_size=8 is outside its range \[16, 500\]"),
        ({"hidden_state_size": [64]}, r"hidden_state_size=\(64,\) must be an integer"),
        ({"num_layers": 4}, r"num_layers=4 is outside its range \[1, 3\]"),
        ({"min_layers": 0}, "min_layers=0 must be at least 1 and at most max_layers=3"),
        ({"min_hidden_state_size": 600}, "min_hidden_state_size=600 must be at least 1 and at most max_hidden_state"),
        ({"dropout": 1.0}, "dropout=1.0 must be at least 0 and less than 1"),
        ({"dropout": float("nan")}, "dropout=nan must be at least 0"),
    ],
)
def test_invalid_configs_raise_errors_that_name_the_field(config, message):
    with pytest.raises(ConfigurationError, match=message):
        LSTMSpec.from_config("mem", config)


def test_unit_axes_name_every_axis():
    lstm = made(LSTMSpec(hidden_state_size=5, num_layers=3, dropout=0.1, min_hidden_state_size=1), inputs=3)
    widths = {"in": 3, "out": 5, "1": 5, "2": 5}
    unit_axes = lstm.unit_axes()
    for name, tensor in lstm.state_dict().items():
        named = unit_axes.get(name, ("",) * tensor.dim())
        assert tuple(tensor.shape) == tuple(widths.get(g, size) for g, size in zip(named, tensor.shape, strict=True))
        assert any(named) != name.endswith("present")


GROWTHS = st.lists(st.sampled_from(["add_layer", "add_node"]), min_size=1, max_size=5)


@given(cell=st.sampled_from(CELLS), operators=GROWTHS, seed=st.integers(0, 2**31))
def test_growth_changes_no_output_of_sequences(cell, operators, seed):
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    spec = LSTMSpec(cell=cell, dropout=0.2, min_hidden_state_size=1, hidden_state_size=4, num_layers=2, max_layers=7)
    lstm = made(spec, seed=seed)
    x, starts, state = sequences(lstm, seed=seed)
    before, unrolled = lstm.unroll(x, starts, state)
    states = unrolled.states
    for operator in operators:
        child_spec, arguments = lstm.spec.mutate(operator, rng)
        child = lstm.rebuild(child_spec).double()
        morphed = transfer_weights_(child, lstm, operator, arguments, states=None, generator=generator)
        state = EvolvableLSTM.transfer_state(state, lstm.spec, child_spec, morphed.maps)
        lstm = child
    after, unrolled = lstm.unroll(x, starts, state)
    then = unrolled.states
    assert all(bool(parameter.isfinite().all()) for parameter in lstm.parameters())
    torch.testing.assert_close(after[..., :4], before, rtol=0, atol=1e-12)
    vectors = states.shape[2]
    torch.testing.assert_close(then[:, :, :vectors, :4], states, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_new_units_have_a_state_and_learn(cell):
    lstm = made(LSTMSpec(cell=cell, num_layers=2, **SMALL))
    for operator, arguments in (("add_node", {"nodes": 3}), ("add_layer", {"layer": 2})):
        child = lstm.rebuild(lstm.spec.apply(operator, **arguments)).double()
        transfer_weights_(child, lstm, operator, arguments, states=None, generator=torch.Generator().manual_seed(1))
        lstm = child
    x, starts, state = sequences(lstm)
    y, _ = lstm.unroll(x, starts, torch.zeros_like(state))
    assert bool((y[..., 5:] != 0).all())
    assert bool((lstm.layer_input("residuals.2", x) != 0).all())
    found = torch.autograd.grad(y.sum(), list(lstm.parameters()))
    found = dict(zip(dict(lstm.named_parameters()), found, strict=True))
    assert bool((found["residuals.2.weight"] != 0).all())
    if cell != "minGRU":
        assert bool((found["cells.0.recurrent_weight"][:, :5, 5:] != 0).all())


@pytest.mark.parametrize("cell", CELLS)
def test_removing_unused_units_is_exact(cell):
    lstm = made(LSTMSpec(cell=cell, num_layers=2, **SMALL)).eval()
    with torch.no_grad():
        lstm.residuals["1"].weight[:, [0, 3]] = 0.0
        for place, dropped in ((0, [3, 4]), (1, [0, 3])):  # by itself, a module loses the last of its outputs
            recurrent_weight(lstm.cells[place])[:, :, dropped] = 0.0
        lstm.cells[1].gates.weight[:, :, [3, 4]] = 0.0
    child, its = lstm.rebuild(lstm.spec.apply("remove_node", nodes=2)).double(), sequences(lstm)
    maps = transfer_weights_(child, lstm, "remove_node", {"nodes": 2}, states=its.x, generator=torch.Generator()).maps
    assert {name: unit_map.tolist() for name, unit_map in maps.items()} == {"out": [0, 1, 2], "1": [1, 2, 4]}
    state = EvolvableLSTM.transfer_state(its.state, lstm.spec, child.spec, maps)
    before, after = lstm.unroll(*its)[0], child.unroll(its.x, its.starts, state)[0]
    torch.testing.assert_close(after, before[..., :3], rtol=0, atol=1e-9)


@pytest.mark.parametrize("cell", CELLS)
def test_consumers_are_refitted_after_units_are_removed(cell):
    lstm = made(LSTMSpec(cell=cell, num_layers=2, **SMALL)).eval()
    with torch.no_grad():  # the last two units of the second layer are twins
        for parameter in lstm.cells[1].parameters():
            parameter[:, 4] = parameter[:, 3]
        recurrent_weight(lstm.cells[1])[:, :, 3:] = 0.0
        recurrent_weight(lstm.cells[0])[:, :, 4] = 0.0
        lstm.cells[1].gates.weight[:, :, 4] = 0.0
    x, starts, state = sequences(lstm, count=64)
    child = lstm.rebuild(lstm.spec.apply("remove_node", nodes=1)).double()
    transfer_weights_(child, lstm, "remove_node", {"nodes": 1}, states=x, generator=torch.Generator())
    before, after = (
        lstm.unroll(x, starts, torch.zeros_like(state))[0],
        child.unroll(x, starts, torch.zeros(64, *child.state_shape).double())[0],
    )
    # the twin takes over; the ridge keeps it from doing so wholly
    torch.testing.assert_close(after, before[..., :4], rtol=0, atol=0.01)


def test_transfer_state_follows_the_units():
    spec = LSTMSpec(num_layers=2, **SMALL)
    state = torch.arange(20.0).view(4, 5)  # h and c of the first layer, then of the second
    maps = {"out": torch.tensor([0, 3]), "1": torch.tensor([1, 2])}
    fewer = EvolvableLSTM.transfer_state(state, spec, spec.evolve(hidden_state_size=2), maps)
    assert fewer.tolist() == [[0, 3], [5, 8], [11, 12], [16, 17]]
    maps = dict.fromkeys(("out", "1"), torch.tensor([0, 1, 2, 3, 4, -1]))
    more = EvolvableLSTM.transfer_state(state, spec, spec.evolve(hidden_state_size=6), maps)
    assert torch.equal(more, torch.nn.functional.pad(state, (0, 1)))
    deeper = EvolvableLSTM.transfer_state(state, spec, spec.evolve(num_layers=3), {})
    assert torch.equal(deeper, torch.nn.functional.pad(state, (0, 0, 0, 2)))
    assert torch.equal(EvolvableLSTM.transfer_state(state, spec, spec.evolve(num_layers=1), {}), state[:2])


def test_layer_inputs_follow_the_forward_pass(lstm):
    lstm.eval()
    x, starts, state = sequences(lstm)
    torch.testing.assert_close(lstm.layer_input("cells.0.gates", x), x.flatten(0, 1))
    torch.testing.assert_close(lstm.layer_input("cells.0.gates", x[:, 0]), x[:, 0])
    if not lstm.residuals:
        return
    name = f"residuals.{len(lstm.residuals)}"
    residual, its = lstm.get_submodule(name), [Sequences(x, starts, state)]
    its.append(Sequences(x, torch.zeros_like(starts), torch.zeros_like(state)))
    with torch.no_grad():
        read = [lstm.layer_input(name, its[0]), lstm.layer_input(name, x)]
        adds = [inputs @ residual.weight.T + residual.bias for inputs in read]
        whole = [lstm.unroll(*one)[0] for one in its]
        residual.weight.zero_()
        residual.bias.zero_()
        without = [lstm.unroll(*one)[0] for one in its]
    for added, one, other in zip(adds, whole, without, strict=True):
        torch.testing.assert_close(added, (one - other).flatten(0, 1), rtol=0, atol=1e-12)
