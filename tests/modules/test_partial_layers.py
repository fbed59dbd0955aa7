"""In a stack, layers that some members lack change neither outputs nor gradients of any member."""

import pytest
import torch
from module_checks import check_stack

from agilerl_like.modules import EvolvableMLP, MLPSpec
from agilerl_like.modules.layers import NoisyLinear

SIZES = {
    "one": [(6, 4)],
    "equal": [(6, 4)] * 3,
    "one member has one layer more": [(6,), (5, 3), (7,)],
    "two members around a shallower one have one layer more": [(3, 4), (9,), (5, 2)],
    "a layer is narrower than the inputs passed on": [(9,), (8,), (2, 3, 2)],
}
INPUTS, OUTPUTS = 4, 3


def check(sizes, **changes):
    """Check a stack of MLPs of these hidden sizes, with random weights, and return it."""
    specs = [MLPSpec(hidden_size=hidden, min_mlp_nodes=2, **changes) for hidden in sizes]
    members = []
    for seed, spec in enumerate(specs):
        members.append(EvolvableMLP(spec, INPUTS, OUTPUTS).double())
        for parameter in members[-1].parameters():
            torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(seed))
        for layer in members[-1].modules():
            if isinstance(layer, NoisyLinear):
                layer.resample_(torch.Generator().manual_seed(seed))
    padded = EvolvableMLP(MLPSpec.padded_union(specs), INPUTS, OUTPUTS)
    generator = torch.Generator().manual_seed(1)
    return check_stack(members, padded, torch.randn(len(members), 6, INPUTS, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("activation", ["ReLU", "Tanh", "Identity", "ELU"])
@pytest.mark.parametrize("name", SIZES)
def test_stacks_with_missing_layers_equal_single_members(name, activation):
    check(SIZES[name], activation=activation)


@pytest.mark.parametrize(
    "changes", [{"layer_norm": True}, {"activation": "Sigmoid"}, {"noisy": True}], ids=["normed", "masked", "noisy"]
)
def test_stacks_with_missing_normed_masked_and_noisy_layers_equal_single_members(changes):
    check(SIZES["one member has one layer more"], **changes)
