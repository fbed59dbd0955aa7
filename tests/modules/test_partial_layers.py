"""In a stack, layers that some members lack change neither outputs nor gradients of any member."""

import pytest
import torch

from agilerl_like.modules import EvolvableMLP, MLPSpec, ParamStack

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


def together(stack, x, gradient):
    """Outputs, gradient of the input, and of all parameters by row."""
    x = x.clone().requires_grad_()
    y = stack.module(x)
    of_x, *found = torch.autograd.grad(y, [x, *stack.module.parameters()], gradient)
    return y.detach(), of_x, torch.cat([part.reshape(len(part), -1) for part in found], 1)


def alone(members, stack, x, gradient):
    found = []
    flat = torch.zeros_like(stack.flat)
    for row, member in enumerate(members):
        its = x[row].clone().requires_grad_()
        y = member(its)
        of_x, *of_parameters = torch.autograd.grad(y, [its, *member.parameters()], gradient[row])
        flat[row, stack.param_indices(row)] = torch.cat([part.reshape(-1) for part in of_parameters])
        found.append((y.detach(), of_x))
    return *(torch.stack(column) for column in zip(*found, strict=True)), flat


@pytest.mark.parametrize("activation", ["ReLU", "Tanh", "Identity", "ELU"])
@pytest.mark.parametrize("name", SIZES)
def test_stacks_with_missing_layers_equal_single_members(name, activation):
    members, stack = stack_of(SIZES[name], activation)
    x, gradient = (drawn(len(members), 6, size, seed=1) for size in (INPUTS, OUTPUTS))
    expected = alone(members, stack, x, gradient)
    for found, its in zip(together(stack, x, gradient), expected, strict=True):
        torch.testing.assert_close(found, its, rtol=0, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(stack.module(x), expected[0], rtol=0, atol=1e-12)


def test_partial_layers_are_stored_at_their_owners_width():
    _, stack = stack_of(SIZES["one has a layer more"], "ReLU")
    assert stack.module.linear(1).weight.shape == (3, 5, 5)
    assert stack.module.linear(0).weight.shape == (3, 7, INPUTS)


@pytest.mark.parametrize("changes", [{"layer_norm": True}, {"activation": "Sigmoid"}], ids=["normed", "masked"])
def test_partial_normed_and_masked_layers_equal_single_members(changes):
    specs = [MLPSpec(hidden_size=its, min_mlp_nodes=2, **changes) for its in SIZES["one has a layer more"]]
    members = [EvolvableMLP(its, INPUTS, OUTPUTS).double() for its in specs]
    padded = EvolvableMLP(MLPSpec.padded_union(specs), INPUTS, OUTPUTS)
    padded.shrink_(members)
    stack = ParamStack.of(members, padded)
    assert stack.module.linear(1).weight.shape == (3, 5, 5)
    x, gradient = (drawn(3, 6, size, seed=1) for size in (INPUTS, OUTPUTS))
    for found, its in zip(together(stack, x, gradient), alone(members, stack, x, gradient), strict=True):
        torch.testing.assert_close(found, its, rtol=0, atol=1e-12)
