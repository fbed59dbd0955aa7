"""Layers that are written out give what autograd gives, in memory that minibatches use one after the other."""

import pytest
import torch

from agilerl_like.modules import EvolvableMLP, MLPSpec, ParamStack, dense

SIZES = {
    "one": [(6, 4)],
    "equal": [(6, 4)] * 3,
    "one has a layer more": [(6,), (5, 3), (7,)],
    "two have a layer more, and one between them has not": [(3, 4), (9,), (5, 2)],
    "narrow where a wide input passes by": [(9,), (8,), (2, 3, 2)],
}
INPUTS, OUTPUTS = 4, 3


def spec(sizes, activation):
    return MLPSpec(hidden_size=sizes, activation=activation, min_mlp_nodes=2)


def stack_of(sizes, activation):
    """Members of these hidden sizes, and their stack."""
    specs = [spec(its, activation) for its in sizes]
    members = []
    for seed, its in enumerate(specs):
        member = EvolvableMLP(its, INPUTS, OUTPUTS).double()
        for parameter in member.parameters():
            torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(seed))
        members.append(member)
    padded = EvolvableMLP(MLPSpec.padded_union(specs), INPUTS, OUTPUTS)
    padded.shrink_(members)
    return members, ParamStack.of(members, padded)


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def there_and_back(stack, x, gradient):
    """Outputs, gradient of the input, and of all parameters by row, as a minibatch step asks for them."""
    flat = torch.zeros_like(stack.flat)
    with torch.no_grad():
        y, pull = stack.module.pullback(x, to_input=True)
        y = y.clone()
        of_x = pull(gradient.clone(), [*dense_views(flat, stack).values()])
    return y, of_x.clone(), flat


def dense_views(flat, stack):
    return {slot.name: flat[:, slot.start : slot.stop].view(-1, *slot.shape) for slot in stack.slots}


def by_autograd(members, stack, x, gradient):
    found = []
    flat = torch.zeros_like(stack.flat)
    for row, member in enumerate(members):
        its = x[row].clone().requires_grad_()
        y = member(its)
        of_x, *of_parameters = torch.autograd.grad(y, [its, *member.parameters()], gradient[row])
        flat[row, stack.param_indices(row)] = torch.cat([part.reshape(-1) for part in of_parameters])
        found.append((y.detach(), of_x))
    return *(torch.stack(column) for column in zip(*found, strict=True)), flat


@pytest.mark.parametrize("activation", ["ReLU", "Tanh", "Identity"])
@pytest.mark.parametrize("name", SIZES)
def test_minibatch_after_minibatch_is_what_autograd_makes_of_it(name, activation):
    members, stack = stack_of(SIZES[name], activation)
    for seed, samples in enumerate((6, 6, 5, 6, 5, 7, 6)):
        x, gradient = (drawn(len(members), samples, size, seed=seed) for size in (INPUTS, OUTPUTS))
        expected = by_autograd(members, stack, x, gradient)
        for found, its in zip(there_and_back(stack, x, gradient), expected, strict=True):
            torch.testing.assert_close(found, its, rtol=0, atol=1e-12)
        with torch.no_grad():
            torch.testing.assert_close(stack.module(x), expected[0], rtol=0, atol=1e-12)
            stack.flat.mul_(0.9)  # as a step would, in place
    assert len(stack.module._served) == 3


def of_input(stack, samples):
    """The gradient of the input, as it is given."""
    into = [*dense_views(torch.zeros_like(stack.flat), stack).values()]
    with torch.no_grad():
        _, pull = stack.module.pullback(drawn(len(stack.flat), samples, INPUTS, seed=0), to_input=True)
        return pull(drawn(len(stack.flat), samples, OUTPUTS, seed=0), into)


def test_equal_minibatches_use_the_same_memory():
    _, stack = stack_of(SIZES["equal"], "ReLU")
    first, other, second = of_input(stack, 6), of_input(stack, 5), of_input(stack, 6)
    assert first is second
    assert other is not first


@pytest.mark.parametrize("name", SIZES)
def test_outputs_are_the_callers(name):
    _, stack = stack_of(SIZES[name], "Identity")
    x = drawn(len(stack.flat), 6, INPUTS, seed=0)
    with torch.no_grad():
        first = stack.module(x)
        before = first.clone()
        stack.module(-x)
        stack.module.pullback(2 * x, to_input=True)
    assert torch.equal(first, before)


@pytest.mark.parametrize("name", SIZES)
def test_who_acts_in_inference_mode_may_learn_afterwards(name):
    members, stack = stack_of(SIZES[name], "Tanh")
    x, gradient = (drawn(len(members), 6, size, seed=3) for size in (INPUTS, OUTPUTS))
    expected = by_autograd(members, stack, x, gradient)
    for _ in range(2):
        with torch.inference_mode():
            torch.testing.assert_close(stack.module(x), expected[0], rtol=0, atol=1e-12)
        for found, its in zip(there_and_back(stack, x, gradient), expected, strict=True):
            torch.testing.assert_close(found, its, rtol=0, atol=1e-12)


def test_room_is_kept_for_a_few_shapes():
    _, stack = stack_of(SIZES["equal"], "ReLU")
    with torch.no_grad():
        for samples in range(1, 20):
            stack.module(drawn(3, samples, INPUTS, seed=0))
    assert len(stack.module._served) == 8


def test_what_is_large_uses_fresh_memory(monkeypatch):
    _, stack = stack_of(SIZES["equal"], "ReLU")
    monkeypatch.setattr(dense, "MOST_NUMBERS", 3 * 5 * 6)
    assert of_input(stack, 6) is not of_input(stack, 6)
    assert of_input(stack, 5) is of_input(stack, 5)


def test_a_way_back_that_was_overtaken_is_refused():
    _, stack = stack_of(SIZES["one has a layer more"], "ReLU")
    x, gradient = (drawn(3, 6, size, seed=0) for size in (INPUTS, OUTPUTS))
    into = [*dense_views(torch.zeros_like(stack.flat), stack).values()]
    with torch.no_grad():
        _, early = stack.module.pullback(x, to_input=True)
        _, late = stack.module.pullback(x, to_input=True)
        late(gradient, into)
        with pytest.raises(RuntimeError, match="allowed is that of the last"):
            early(gradient, into)


def test_a_copy_has_room_of_its_own():
    members, stack = stack_of(SIZES["equal"], "ReLU")
    before = of_input(stack, 6)
    other = ParamStack.of(members)
    assert of_input(other, 6) is not before


def test_a_layer_that_some_lack_is_stored_as_wide_as_its_owners_need():
    _, stack = stack_of(SIZES["one has a layer more"], "ReLU")
    assert stack.module.linear(1).weight.shape == (3, 5, 5)
    assert stack.module.linear(0).weight.shape == (3, 7, INPUTS)


@pytest.mark.parametrize("changes", [{"layer_norm": True}, {"activation": "ELU"}], ids=["normed", "by autograd"])
def test_so_it_is_where_autograd_finds_the_way_back(changes):
    specs = [MLPSpec(hidden_size=its, min_mlp_nodes=2, **changes) for its in SIZES["one has a layer more"]]
    members = [EvolvableMLP(its, INPUTS, OUTPUTS).double() for its in specs]
    padded = EvolvableMLP(MLPSpec.padded_union(specs), INPUTS, OUTPUTS)
    padded.shrink_(members)
    stack = ParamStack.of(members, padded)
    assert stack.module.linear(1).weight.shape == (3, 5, 5)
    x, gradient = (drawn(3, 6, size, seed=1) for size in (INPUTS, OUTPUTS))
    for found, its in zip(there_and_back(stack, x, gradient), by_autograd(members, stack, x, gradient), strict=True):
        torch.testing.assert_close(found, its, rtol=0, atol=1e-12)
