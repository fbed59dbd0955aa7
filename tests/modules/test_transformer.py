"""EvolvableTransformer: attention within an episode's window, steps and sequences, stacks, and mutations."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from module_checks import normal

from agilerl_like.errors import ConfigurationError
from agilerl_like.modules import EvolvableTransformer, ParamStack, TransformerSpec
from agilerl_like.modules.weight_transfer import transfer_weights_

EXACT = {"rtol": 0, "atol": 1e-10}
SMALL = {"d_model": 6, "num_heads": 2, "d_mlp": 5, "num_layers": 2, "context": 4, "min_d_mlp": 1}


def made(spec, inputs=3, *, seed=0):
    """A module with random parameters."""
    module, generator = EvolvableTransformer(spec, inputs).double(), torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    return module


def cache_of(module, x, *, lengths):
    """The state after the first `lengths[s]` steps of each of some episodes `[S, L, in]`."""
    state = torch.zeros(len(x), *module.state_shape, dtype=x.dtype)
    with torch.no_grad():
        for t in range(max(lengths)):
            after = module.step(x[:, t], state)[1]
            running = torch.tensor([t < length for length in lengths])
            state = torch.where(running[:, None, None], after, state)
    return state


def random_starts(*shape, seed=0):
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.2).double()


def reference(module, x):
    """The outputs `[L, d_model]` of one episode `[L, in]`, with loops over layers, steps and heads."""
    spec, stream = module.spec, x @ module.embedding.weight.T + module.embedding.bias
    norm = torch.nn.functional.layer_norm
    for layer in module.layers:
        normal_stream = norm(stream, (spec.d_model,), layer.attention_norm.weight, layer.attention_norm.bias)
        q, k, v = (
            torch.einsum("ld,hud->lhu", normal_stream, layer.qkv.weight[i]) + layer.qkv.bias[i] for i in range(3)
        )
        attended = []
        for t in range(len(x)):
            window = range(max(0, t - spec.context + 1), t + 1)
            heads = []
            for head in range(spec.num_heads):
                scores = [
                    q[t, head] @ k[s, head] / math.sqrt(spec.head_dim) + layer.relative_position_bias[head, t - s]
                    for s in window
                ]
                weights = torch.softmax(torch.stack(scores), 0)
                heads.append(sum(w * v[s, head] for w, s in zip(weights, window, strict=True)))
            attended.append(torch.stack(heads))
        merged = torch.einsum("lhu,dhu->ld", torch.stack(attended), layer.output.weight) + layer.output.bias
        gate = torch.sigmoid(stream @ layer.attention_gate.weight.T + layer.attention_gate.bias)
        stream = stream + gate * merged
        hidden = norm(stream, (spec.d_model,), layer.mlp_norm.weight, layer.mlp_norm.bias)
        hidden = torch.relu(hidden @ layer.inner.weight.T + layer.inner.bias)
        gate = torch.sigmoid(stream @ layer.mlp_gate.weight.T + layer.mlp_gate.bias)
        stream = stream + gate * (hidden @ layer.outer.weight.T + layer.outer.bias)
    return norm(stream, (spec.d_model,), module.norm.weight, module.norm.bias)


# -- what it computes


@pytest.mark.parametrize("context", [1, 2, 4, 16])
def test_outputs_equal_a_plain_transformer(context):
    module = made(TransformerSpec(**{**SMALL, "context": context}))
    x = normal(2, 11, 3)
    outputs, _ = module.unroll(x, torch.zeros(2, 11), torch.zeros(2, *module.state_shape, dtype=torch.float64))
    for row in range(2):
        torch.testing.assert_close(outputs[row], reference(module, x[row]), **EXACT)


@settings(max_examples=20)
@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 6), st.integers(1, 3))
def test_steps_equal_the_unrolled_sequence(seed, length, context, layers):
    module = made(TransformerSpec(**{**SMALL, "context": context, "num_layers": layers}), seed=seed % 1000)
    x, starts = normal(3, length, 3, seed=seed), random_starts(3, length, seed=seed)
    state = cache_of(module, normal(3, 5, 3, seed=seed + 1), lengths=[0, 2, 5])
    outputs, states = module.unroll(x, starts, state)
    every = states.after(range(length))
    for t in range(length):
        state = state * (1 - starts[:, t]).view(-1, 1, 1)
        y, state = module.step(x[:, t], state)
        torch.testing.assert_close(outputs[:, t], y, **EXACT)
        torch.testing.assert_close(every[:, t], state, **EXACT)
    member, sequence, step = torch.tensor([0, 0]), torch.tensor([2, 0]), torch.tensor([length - 1, length // 2])
    torch.testing.assert_close(states.at(member, sequence, step), every[sequence, step], **EXACT)


def test_an_episode_start_hides_what_came_before():
    module = made(TransformerSpec(**SMALL))
    x, starts = normal(1, 7, 3), torch.zeros(1, 7, dtype=torch.float64)
    starts[0, 3] = 1.0
    state = cache_of(module, normal(1, 4, 3, seed=1), lengths=[4])
    outputs, _ = module.unroll(x, starts, state)
    torch.testing.assert_close(outputs[0, 3:], reference(module, x[0, 3:]), **EXACT)


def test_outputs_depend_on_the_window_alone():
    module = made(TransformerSpec(**{**SMALL, "num_layers": 1}))
    x = normal(1, 9, 3).requires_grad_()
    outputs, _ = module.unroll(x, torch.zeros(1, 9), torch.zeros(1, *module.state_shape, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(outputs[0, 6].sum(), x)
    assert [bool(step.any()) for step in gradient[0]] == [False] * 3 + [True] * 4 + [False] * 2


def test_a_chunk_continues_from_the_state_of_the_one_before():
    module = made(TransformerSpec(**SMALL))
    x, starts = normal(2, 11, 3), random_starts(2, 11)
    state = torch.zeros(2, *module.state_shape, dtype=torch.float64)
    outputs, states = module.unroll(x, starts, state)
    for here in (slice(0, 2), slice(2, 3), slice(3, 11)):
        part, after = module.unroll(x[:, here], starts[:, here], state)
        state = after.after([here.stop - here.start - 1])[:, 0]
        torch.testing.assert_close(part, outputs[:, here], **EXACT)
    torch.testing.assert_close(state, states.after([10])[:, 0], **EXACT)


# -- in a stack


@pytest.mark.parametrize(
    "changes",
    [
        ({}, {}, {}),
        ({"num_heads": 3, "head_dim": 3}, {"num_layers": 1, "head_dim": 3}, {"d_mlp": 9, "num_layers": 3}),
        ({"num_heads": 1, "head_dim": 3, "d_mlp": 2}, {"num_heads": 4, "head_dim": 3}),
    ],
    ids=str,
)
def test_stack_rows_equal_single_members(changes):
    specs = [TransformerSpec(**{**SMALL, **change}) for change in changes]
    members = [made(spec, seed=seed) for seed, spec in enumerate(specs)]
    assert len({spec.stack_key() for spec in specs}) == 1
    padded = EvolvableTransformer(TransformerSpec.padded_union(specs), 3).double()
    count, x = len(members), normal(len(members), 3, 7, 3)
    starts, slope = random_starts(count, 3, 7), normal(count, 3, 7, 6, seed=9)
    state, states = torch.zeros(count, 3, *padded.state_shape, dtype=torch.float64), []
    for row, member in enumerate(members):
        states.append(cache_of(member, normal(3, 5, 3, seed=row), lengths=[0, 2, 5]))
        vectors, units = member.state_shape
        state[row, :, :vectors, :units] = states[-1]

    def learned(module, x, starts, state, slope):
        x = x.clone().requires_grad_()
        outputs, states = module.unroll(x, starts, state)
        gradients = torch.autograd.grad((outputs * slope).sum(), [x, *module.parameters()])
        return outputs, states.after([2, 6]), gradients

    alone = [learned(member, x[i], starts[i], states[i], slope[i]) for i, member in enumerate(members)]
    stack = ParamStack.of(members, padded)
    outputs, after, (of_input, *gradients) = learned(stack.module, x, starts, state, slope)
    flat = torch.cat([gradient.reshape(count, -1) for gradient in gradients], 1)
    for row, (member, (y, own_states, (own_input, *own_gradients))) in enumerate(zip(members, alone, strict=True)):
        vectors, units = member.state_shape
        torch.testing.assert_close(outputs[row], y, **EXACT)
        torch.testing.assert_close(after[row, ..., :vectors, :units], own_states, **EXACT)
        torch.testing.assert_close(of_input[row], own_input, **EXACT)
        views, named = stack.member_views(flat, row), dict(member.named_parameters())
        for name, gradient in zip(named, own_gradients, strict=True):
            torch.testing.assert_close(views[name], gradient, **EXACT)
            views[name].zero_()
        assert not flat[row].any()  # what is not there has a gradient of exactly 0


# -- mutations


def grown(module, operator, arguments, *, states=None):
    child = module.rebuild(module.spec.apply(operator, **arguments)).double()
    generator = torch.Generator().manual_seed(1)
    maps = transfer_weights_(child, module, operator, arguments, states=states, generator=generator).maps
    return child, maps


@settings(max_examples=15)
@given(st.lists(st.sampled_from(["add_layer", "add_head", "add_node"]), min_size=1, max_size=4), st.integers(0, 2**31))
def test_growth_changes_no_output_and_keeps_the_cache(operators, seed):
    module = made(TransformerSpec(**SMALL, max_layers=6), seed=seed % 1000)
    x, starts = normal(3, 6, 3, seed=seed), random_starts(3, 6, seed=seed)
    state = cache_of(module, normal(3, 5, 3, seed=seed + 1), lengths=[0, 2, 5])
    before, _ = module.unroll(x, starts, state)
    rng = np.random.default_rng(seed)
    for operator in operators:
        _, arguments = module.spec.mutate(operator, rng)
        child, maps = grown(module, operator, arguments)
        state = EvolvableTransformer.transfer_state(state, module.spec, child.spec, maps)
        module = child
    after, _ = module.unroll(x, starts, state)
    torch.testing.assert_close(after, before, **EXACT)


@pytest.mark.parametrize("operator", ["add_layer", "add_head", "add_node"])
def test_growth_in_place_changes_no_output(operator):
    module = made(TransformerSpec(**SMALL))
    x, starts = normal(3, 6, 3), random_starts(3, 6)
    before, _ = module.unroll(x, starts, x.new_zeros(3, *module.state_shape))
    getattr(module, operator)(seed=3)
    after, _ = module.unroll(x, starts, x.new_zeros(3, *module.state_shape))
    torch.testing.assert_close(after, before, **EXACT)


def test_a_new_layer_and_a_new_head_learn():
    module = made(TransformerSpec(**SMALL))
    for operator, arguments in (("add_layer", {"layer": 2}), ("add_head", {"heads": 1})):
        module, _ = grown(module, operator, arguments)
    outputs, _ = module.unroll(
        normal(2, 6, 3), torch.zeros(2, 6), torch.zeros(2, *module.state_shape, dtype=torch.float64)
    )
    gradients = torch.autograd.grad(outputs.square().sum(), [layer.output.weight for layer in module.layers])
    assert all(bool((gradient != 0).any()) for gradient in gradients)
    assert bool((gradients[0][:, 2] != 0).any())  # of the new head


@pytest.mark.parametrize(("operator", "arguments"), [("remove_head", {"heads": 1}), ("remove_node", {"nodes": 2})])
def test_a_removal_is_refitted(operator, arguments):
    module = made(TransformerSpec(**{**SMALL, "num_layers": 1}))
    x = normal(80, 5, 3)
    child, _ = grown(module, operator, arguments, states=x)
    plain = module.rebuild(child.spec).double()
    plain.load_state_dict(child.state_dict())
    layer, old = plain.layers[0], module.layers[0]
    reader = layer.output if operator == "remove_head" else layer.outer
    parent_reader = old.output if operator == "remove_head" else old.outer
    state = torch.zeros(80, *module.state_shape, dtype=torch.float64)
    wanted, _ = module.unroll(x, torch.zeros(80, 5), state)
    own_state = torch.zeros(80, *child.state_shape, dtype=torch.float64)
    error = (child.unroll(x, torch.zeros(80, 5), own_state)[0] - wanted).square().mean()
    with torch.no_grad():  # the same units without the refit
        kept = parent_reader.weight[:, : reader.weight.shape[1]]
        reader.weight.copy_(kept)
        reader.bias.copy_(parent_reader.bias)
    unfitted = (plain.unroll(x, torch.zeros(80, 5), own_state)[0] - wanted).square().mean()
    assert error < 0.9 * unfitted
    assert error < wanted.var()


def test_the_cache_of_a_removed_head_is_dropped():
    module = made(TransformerSpec(**SMALL))
    state = cache_of(module, normal(2, 5, 3), lengths=[5, 2])
    child_spec = module.spec.apply("remove_head", heads=1)
    maps = {"heads0": torch.tensor([1]), "heads1": torch.tensor([0])}
    found = EvolvableTransformer.transfer_state(state, module.spec, child_spec, maps)
    rows = 2 * (SMALL["context"] - 1)
    assert torch.equal(found[:, 0, 0], state[:, 0, 0])
    assert torch.equal(found[:, 1 : 1 + rows], state[:, 1 : 1 + rows, 3:])
    assert torch.equal(found[:, 1 + rows :], state[:, 1 + rows :, :3])


@st.composite
def specs(draw):
    low, high = draw(st.integers(1, 3)), draw(st.integers(3, 6))
    return TransformerSpec(
        d_model=12,
        head_dim=3,
        num_heads=draw(st.integers(low, high)),
        d_mlp=draw(st.integers(16, 200)),
        num_layers=draw(st.integers(1, 3)),
        context=draw(st.integers(1, 8)),
        min_heads=low,
        max_heads=high,
        init_layers=draw(st.booleans()),
    )


@given(spec=specs(), seed=st.integers(0, 2**31))
def test_mutations_stay_within_limits(spec, seed):
    rng = np.random.default_rng(seed)
    for _ in range(12):
        legal = [name for kind in ("layer", "node") for name in spec.operators(kind)]
        child, drawn = spec.mutate(str(rng.choice(legal)), rng)
        assert spec.min_layers <= child.num_layers <= spec.max_layers
        assert spec.min_heads <= child.num_heads <= spec.max_heads
        assert spec.min_d_mlp <= child.d_mlp <= spec.max_d_mlp
        assert drawn
        assert child != spec
        assert (child.d_model, child.head_dim, child.context) == (spec.d_model, spec.head_dim, spec.context)
        spec = child


@given(spec=specs())
def test_spec_round_trips_through_json(spec):
    assert TransformerSpec.from_config("x", json.loads(json.dumps(spec.to_config()))) == spec


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"d_model": 10, "num_heads": 4}, "mem: d_model=10 must be a multiple of num_heads=4"),
        ({"d_model": 1, "num_heads": 1}, "mem: d_model=1 must be at least 2: one normalised number is constant"),
        ({"context": 0}, "mem: context=0 must be at least 1"),
        ({"num_layers": 0}, "num_layers=0 is outside its range"),
        ({"heads": 2}, "mem key='heads' is unknown; did you mean"),
        ({"head_dim": -1}, "head_dim=-1 must be at least 1"),
        ({"max_layers": 1}, r"num_layers=2 is outside its range \[1, 1\]"),
    ],
)
def test_invalid_configs_raise_errors_that_name_the_field(config, message):
    with pytest.raises(ConfigurationError, match=message):
        TransformerSpec.from_config("mem", config)


def test_limits_follow_a_configured_size():
    spec = TransformerSpec.from_config("mem", {"d_model": 32, "num_heads": 16, "d_mlp": 8})
    assert (spec.max_heads, spec.min_d_mlp, spec.head_dim) == (16, 8, 2)


def test_initial_weights_are_orthogonal_and_gates_nearly_closed():
    module = EvolvableTransformer(TransformerSpec(d_model=16, num_heads=4), 16)
    module.reset_(torch.Generator().manual_seed(0), output_gain=1.0)
    for layer in module.layers:
        for matrix in layer.qkv.weight:
            square = matrix.flatten(0, 1)
            torch.testing.assert_close(square @ square.T, torch.eye(16), rtol=0, atol=1e-5)
        assert bool((layer.attention_gate.bias == -1).all())
