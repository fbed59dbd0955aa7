"""Evolvable modules with AgileRL's constructors."""

from agilerl_like.agilerl.absent import absent_from
from agilerl_like.agilerl.modules.cnn import EvolvableCNN
from agilerl_like.agilerl.modules.mlp import EvolvableMLP
from agilerl_like.agilerl.modules.resnet import EvolvableResNet
from agilerl_like.agilerl.modules.simba import EvolvableSimBa
from agilerl_like.modules import EvolvableModule
from agilerl_like.modules.layers import NoisyLinear

__all__ = [
    "EvolvableCNN",
    "EvolvableMLP",
    "EvolvableModule",
    "EvolvableResNet",
    "EvolvableSimBa",
    "NoisyLinear",
]

__getattr__ = absent_from(__name__)
