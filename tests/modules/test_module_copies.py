"""Copies of modules made by `clone_module`."""

import gc
import weakref

import pytest
import torch
from torch import nn

from agilerl_like.modules.param_stack import clone_module


class Tree(nn.Module):
    """A module with a shared submodule, a missing one, and a parameter with two names."""

    def __init__(self):
        super().__init__()
        shared = nn.BatchNorm1d(3)
        self.first = nn.ModuleDict({"a": shared, "b": nn.Linear(3, 2)})
        self.second = nn.ModuleList([shared, nn.Linear(3, 2, bias=False)])
        self.second[1].weight = self.first["b"].weight
        self.nothing = None
        self.register_module("missing", None)
        self.own = nn.Parameter(torch.arange(3.0))
        self.label = ("kept", 7)

    def forward(self, x):
        return self.second[1](self.second[0](x * self.own)) + self.first["b"](self.first["a"](x))


@pytest.fixture
def pair():
    tree = Tree().eval()
    del tree._modules["missing"]  # our modules have none
    tree.second[1].bias = nn.Parameter(torch.ones(2))
    return tree, clone_module(tree)


def test_copies_are_equal_and_share_no_memory(pair):
    tree, copy = pair
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    before = tree(x)
    assert torch.equal(copy(x), before)
    assert not copy.training
    assert copy.label == ("kept", 7)
    with torch.no_grad():
        for tensor in (*copy.parameters(), *copy.buffers()):
            tensor.add_(1)
    assert torch.equal(tree(x), before)
    assert not torch.equal(copy(x), before)


def test_shared_modules_and_parameters_stay_shared(pair):
    _, copy = pair
    assert copy.first["a"] is copy.second[0]
    assert copy.first["b"].weight is copy.second[1].weight


def test_parameters_of_a_copy_are_contiguous(pair):
    tree, copy = pair
    row = torch.cat([parameter.reshape(-1) for parameter in tree.parameters()])
    stored = next(copy.parameters()).untyped_storage()
    assert torch.equal(torch.tensor(stored.tolist(), dtype=torch.uint8).view(torch.float32), row)
    assert all(parameter.untyped_storage().data_ptr() == stored.data_ptr() for parameter in copy.parameters())


def test_hooks_are_not_copied(pair):
    tree, copy = pair
    calls = []
    for tree_or_copy, name in ((tree, "tree"), (copy, "copy")):
        tree_or_copy.register_forward_hook(lambda *_, name=name: calls.append(name))
    clone_module(tree)(torch.zeros(2, 3))
    assert calls == []
    copy(torch.zeros(2, 3))
    tree(torch.zeros(2, 3))
    assert calls == ["copy", "tree"]


def test_copies_are_freed_without_garbage_collection(pair):
    tree, _ = pair
    gc.disable()
    try:
        copy = clone_module(tree)
        weight = weakref.ref(copy.first["b"].weight)
        del copy
        assert weight() is None
    finally:
        gc.enable()
