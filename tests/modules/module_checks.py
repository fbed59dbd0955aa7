"""Checks that hold for every kind of evolvable module."""

import torch

from agilerl_like.modules import ParamStack
from agilerl_like.modules.layers import Activation


def normal(*shape, seed=0):
    """Return normal numbers in double precision."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def advance_unequally(members):
    """Advance what fades in by another share for each member."""
    for share, member in enumerate(members):
        for layer in member.modules():
            if isinstance(layer, Activation):
                layer.advance_(0.2 * share)


def check_stack(members, padded, x):
    """Compare outputs and gradients of a stack on `x` `[P, B, …]` with its members'; return the stack.

    Outputs and gradients of padding must be exactly 0, so that it stays 0.
    """

    def results(module, x):
        x = x.clone().requires_grad_(x.is_floating_point())
        y, wanted = module(x), [*module.parameters(), *([x] if x.requires_grad else [])]
        return y, torch.autograd.grad(y.square().sum(), wanted, allow_unused=True, materialize_grads=True)

    alone = [results(member, x[row]) for row, member in enumerate(members)]
    stack = ParamStack.of(members, padded)
    outputs, gradients = results(stack.module, x)
    with torch.no_grad():
        torch.testing.assert_close(stack.module(x), outputs, rtol=0, atol=1e-12)
    count = len(list(padded.parameters()))
    flat = torch.cat([gradient.reshape(len(members), -1) for gradient in gradients[:count]], 1)
    for row, (member, (y, own_gradients)) in enumerate(zip(members, alone, strict=True)):
        torch.testing.assert_close(outputs[row, ..., : y.shape[-1]], y, rtol=0, atol=1e-10)
        assert not outputs[row, ..., y.shape[-1] :].any()
        own, parameters = stack.member_views(flat, row), dict(member.named_parameters())
        for of_input, of_own_input in zip(gradients[count:], own_gradients[len(parameters) :], strict=True):
            torch.testing.assert_close(of_input[row], of_own_input, rtol=1e-8, atol=1e-8)
        for name, gradient in zip(parameters, own_gradients, strict=False):
            torch.testing.assert_close(own[name], gradient, rtol=1e-8, atol=1e-8)
            own[name].zero_()
        assert not flat[row].any()
    return stack
