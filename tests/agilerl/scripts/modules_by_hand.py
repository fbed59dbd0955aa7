"""Modules are built, called and mutated."""

import torch
from agilerl.modules import EvolvableCNN, EvolvableMLP, EvolvableResNet, EvolvableSimBa

mlp = EvolvableMLP(num_inputs=4, num_outputs=2, hidden_size=[64, 64], max_hidden_layers=4, activation="ReLU")
assert mlp(torch.zeros(3, 4)).shape == (3, 2)
done = mlp.add_node(hidden_layer=0, numb_new_nodes=16)
assert (done["hidden_layer"], done["numb_new_nodes"]) == (0, 16)
assert mlp.hidden_size == [80, 64]
for layers in (3, 4):
    mlp.add_layer()
    assert len(mlp.hidden_size) == layers
for mutate in (mlp.add_node, mlp.change_activation, mlp.remove_layer, mlp.change_activation, mlp.remove_node):
    mutate()
    assert mlp(torch.zeros(3, 4)).shape == (3, 2)
assert len(mlp.hidden_size) == 3
cnn = EvolvableCNN([3, 16, 16], 5, channel_size=[16], kernel_size=[3], stride_size=[2])
assert cnn(torch.zeros(2, 3, 16, 16)).shape == (2, 5)
simba = EvolvableSimBa(num_inputs=4, num_outputs=2, hidden_size=32, num_blocks=1)
assert simba(torch.zeros(3, 4)).shape == (3, 2)
assert cnn.add_channel(hidden_layer=0, numb_new_channels=8) == {"hidden_layer": 0, "numb_new_channels": 8}
assert cnn.change_kernel(kernel_size=5, hidden_layer=0) == {"hidden_layer": 0, "kernel_size": 5}
cnn.add_layer()
cnn.add_channel()
assert len(cnn.spec.channel_size) == 2
assert cnn(torch.zeros(2, 3, 16, 16)).shape == (2, 5)
assert simba.add_node(numb_new_nodes=16) == {"numb_new_nodes": 16}
resnet = EvolvableResNet([3, 16, 16], 5, channel_size=32, kernel_size=3, stride_size=1, num_blocks=1)
assert resnet.add_channel(numb_new_channels=8) == {"numb_new_channels": 8}

images = torch.randn(2, 3, 16, 16)
for module, x in ((mlp, torch.randn(3, 4)), (simba, torch.randn(3, 4)), (cnn, images), (resnet, images)):
    clone = module.clone()
    assert torch.equal(clone(x), module(x))
    assert type(module)(**module.init_dict).init_dict == module.init_dict
    assert "add_layer" in module.mutation_methods or "add_block" in module.mutation_methods
    for _ in range(5):
        method = clone.sample_mutation_method(0.2)
        assert method in module.mutation_methods
        getattr(clone, method)()
        assert clone(x).shape == module(x).shape
