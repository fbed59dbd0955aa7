"""Stacks compute what their members compute, and change only their own rows."""

import pytest
import torch
from module_checks import check_stack, normal

from agilerl_like.modules import EvolvableMLP, MLPSpec, ParamStack
from agilerl_like.modules.param_stack import layout, views

SPECS = {
    "plain": MLPSpec(hidden_size=(16, 20), activation="Tanh"),
    "normed": MLPSpec(hidden_size=(16,), layer_norm=True, output_layernorm=True, activation="GELU"),
    "noisy": MLPSpec(hidden_size=(16,), noisy=True),
    "fading": MLPSpec(hidden_size=(16,), activation="Tanh", output_activation="Tanh").apply(
        "change_activation", activation="ELU"
    ),
    "born": MLPSpec(hidden_size=(16, 16), activation="SiLU").apply("add_layer", layer=0),
}


def members_of(spec, count=4):
    members = []
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)
        mlp = EvolvableMLP(spec, 5, 3)
        mlp.reset_(generator, output_gain=1.0)
        for parameter in mlp.parameters():
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
        for module in mlp.modules():
            if hasattr(module, "resample_"):
                module.resample_(generator)
            if hasattr(module, "advance_"):
                module.advance_(0.2 * seed)
            if hasattr(module, "counted"):
                module.counted[seed % len(module.counted)] = 0.0
                module.update_count_flags()
        members.append(mlp.double())
    return members


@pytest.fixture(params=SPECS)
def members(request):
    return members_of(SPECS[request.param])


@pytest.mark.parametrize("training", [True, False])
def test_stack_rows_equal_single_members(members, training):
    x, members = normal(4, 7, 5), [member.train(training) for member in members]
    alone = torch.stack([member(x[i]) for i, member in enumerate(members)])
    check_stack(members, members[0], x)
    # also after the members' tensors were re-pointed
    torch.testing.assert_close(torch.stack([m(x[i]) for i, m in enumerate(members)]), alone, rtol=0, atol=1e-12)


def test_stacks_use_their_current_weights_or_those_of_functional_call(members):
    x, stack = normal(4, 7, 5), ParamStack.of(members)
    stack.module.eval()
    with torch.no_grad():
        stack.flat.mul_(-0.5)
        alone = torch.stack([member.eval()(x[i]) for i, member in enumerate(members)])
        torch.testing.assert_close(stack.module(x), alone, rtol=0, atol=1e-12)
        others = {name: 2 * parameter for name, parameter in stack.module.named_parameters()}
        given = torch.func.functional_call(stack.module, others, (x,))
        stack.flat.mul_(2.0)
        torch.testing.assert_close(stack.module(x), given, rtol=0, atol=1e-12)
    torch.testing.assert_close(stack.module(x).detach(), given, rtol=0, atol=1e-12)  # where gradients are wanted


def test_permuting_members_permutes_rows(members):
    x, order = normal(4, 7, 5), [2, 0, 3, 1]
    straight = ParamStack.of(members).module(x)
    permuted = ParamStack.of([members[i] for i in order]).module(x[order])
    torch.testing.assert_close(permuted, straight[order], rtol=0, atol=1e-12)


def test_unused_parameters_have_zero_gradients():
    members = members_of(SPECS["noisy"], 2)
    stack = ParamStack.of(members)
    stack.module.eval()
    names, parameters = zip(*stack.module.named_parameters(), strict=True)
    loss = stack.module(normal(2, 7, 5)).square().sum()
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    for name, gradient in zip(names, gradients, strict=True):
        assert bool((gradient == 0).all()) == ("sigma" in name)


def test_members_and_stack_share_memory(members):
    stack = ParamStack.of(members)
    with torch.no_grad():
        stack.flat[1] += 1.0
        first = next(iter(members[2].parameters()))
        first += 5.0
        for name, buffer in members[3].named_buffers():
            buffer += 2.0
            assert torch.equal(stack.buffers[name][3], buffer)
    for row, member in enumerate(members):
        flat = torch.cat([parameter.reshape(-1) for parameter in member.parameters()])
        assert torch.equal(flat, stack.flat[row])
    for name, parameter in stack.module.named_parameters():
        assert torch.equal(parameter[2], dict(members[2].named_parameters())[name])


def test_restacked_members_leave_the_old_stack():
    members = members_of(SPECS["plain"])
    old = ParamStack.of(members)
    before = old.flat.clone()
    new = ParamStack.of(members[:2])
    with torch.no_grad():
        new.flat.zero_()
    assert torch.equal(old.flat, before)
    assert all(bool((parameter == 0).all()) for parameter in members[0].parameters())


def test_take_and_put_touch_only_their_rows(members):
    stack = ParamStack.of(members)
    before, buffers = stack.flat.clone(), {name: buffer.clone() for name, buffer in stack.buffers.items()}
    rows = torch.tensor([3, 1])
    part = stack.take(rows)
    x = normal(2, 7, 5)
    torch.testing.assert_close(part.module(x), torch.stack([members[3](x[0]), members[1](x[1])]), rtol=0, atol=1e-12)
    with torch.no_grad():
        part.flat += 1.0
        for buffer in part.buffers.values():
            buffer += 1.0
    assert torch.equal(stack.flat, before)  # taken rows are copies
    stack.put(rows, part)
    assert torch.equal(stack.flat[[0, 2]], before[[0, 2]])
    assert torch.equal(stack.flat[[3, 1]], before[[3, 1]] + 1.0)
    for name, buffer in buffers.items():
        assert torch.equal(stack.buffers[name][[0, 2]], buffer[[0, 2]])
        assert torch.equal(stack.buffers[name][[3, 1]], buffer[[3, 1]] + 1.0)


def test_layout_is_contiguous_and_its_views_are_the_parameters():
    member = members_of(SPECS["normed"], 1)[0]
    slots = layout(member)
    assert [slot.start for slot in slots] == [0, *(slot.stop for slot in slots[:-1])]
    row = torch.cat([parameter.reshape(-1) for parameter in member.parameters()])
    for name, parameter in member.named_parameters():
        assert torch.equal(views(row, slots)[name], parameter)
