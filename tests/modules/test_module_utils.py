"""What a module consists of, how it is made, and copies of it: as torch sees them."""

import gc
import weakref

import pytest
import torch
from torch import nn

from agilerl_like.modules.module_utils import Layer, listed, switch, walk
from agilerl_like.modules.param_stack import clone_module


class Tree(nn.Module):
    """Some parts in two places, one that is not there, and one parameter under two names."""

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


def test_everything_is_found_once_in_torchs_order_and_by_its_names():
    tree = Tree()
    found = walk(tree)
    for mine, torchs in zip(found, (tree.named_modules(), tree.named_parameters(), tree.named_buffers()), strict=True):
        expected = dict(torchs)
        assert list(mine) == list(expected)
        assert all(mine[name] is expected[name] for name in expected)
    assert list(found.tensors) == [*dict(tree.named_parameters()), *dict(tree.named_buffers())]


def test_what_is_made_at_once_is_what_torch_makes():
    assert vars(Layer()) == vars(nn.Module())
    parts = [nn.Linear(2, 3), nn.Identity()]
    mine, torchs = listed(parts), nn.ModuleList(parts)
    assert type(mine) is nn.ModuleList
    assert vars(mine) == vars(torchs)
    assert all(vars(mine)[name] is not vars(torchs)[name] for name in ("_modules", "_parameters", "_forward_hooks"))
    mine.append(nn.Tanh())
    assert (len(mine), len(torchs)) == (3, 2)


@pytest.fixture
def pair():
    tree = Tree().eval()
    del tree._modules["missing"]  # of ours nothing is missing, and biases are there
    tree.second[1].bias = nn.Parameter(torch.ones(2))
    return tree, clone_module(tree)


def test_a_twin_says_the_same_and_shares_no_number(pair):
    tree, copy = pair
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    before = tree(x)
    assert torch.equal(copy(x), before)
    assert not copy.training
    assert copy.label == ("kept", 7)
    with torch.no_grad():
        for tensor in walk(copy).tensors.values():
            tensor.add_(1)
    assert torch.equal(tree(x), before)
    assert not torch.equal(copy(x), before)


def test_what_stood_in_two_places_does_so_in_a_twin(pair):
    _, copy = pair
    assert copy.first["a"] is copy.second[0]
    assert copy.first["b"].weight is copy.second[1].weight


def test_the_parameters_of_a_twin_lie_behind_each_other(pair):
    tree, copy = pair
    row = torch.cat([parameter.reshape(-1) for parameter in tree.parameters()])
    stored = next(copy.parameters()).untyped_storage()
    assert torch.equal(torch.tensor(stored.tolist(), dtype=torch.uint8).view(torch.float32), row)
    assert all(parameter.untyped_storage().data_ptr() == stored.data_ptr() for parameter in copy.parameters())


def test_hooks_stay_where_they_were_hung(pair):
    tree, copy = pair
    heard = []
    for tree_or_copy, name in ((tree, "tree"), (copy, "copy")):
        tree_or_copy.register_forward_hook(lambda *_, name=name: heard.append(name))
    clone_module(tree)(torch.zeros(2, 3))
    assert heard == []
    copy(torch.zeros(2, 3))
    tree(torch.zeros(2, 3))
    assert heard == ["copy", "tree"]


def test_what_was_walked_through_or_copied_is_gone_when_it_is_forgotten(pair):
    tree, _ = pair
    gc.disable()  # nobody has to wait for a collection
    try:
        copy = clone_module(tree)
        walk(copy)
        weight = weakref.ref(copy.first["b"].weight)
        del copy
        assert weight() is None
    finally:
        gc.enable()


def test_a_switch_reaches_everything_and_respects_who_knows_better():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Dropout()

        def train(self, mode=True):
            return super().train(False)

    module = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2)), Frozen())
    for training in (False, True):
        switch(module, training)
        ours = [one.training for one in module.modules()]
        assert ours == [one.training for one in module.train(training).modules()]
    assert not module[2].inner.training
    assert module[1][0].training
