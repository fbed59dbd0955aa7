"""A network of torch's layers becomes evolvable and computes the same."""

import torch
from agilerl.wrappers.make_evolvable import MakeEvolvable
from torch import nn

network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
evolvable = MakeEvolvable(network, input_tensor=torch.randn(1, 4), device="cpu")
x = torch.randn(5, 4)
assert evolvable(x).shape == network(x).shape
