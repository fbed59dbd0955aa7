"""Evolvable networks: a frozen spec, the module built from it, and the transfer of weights after a mutation."""

from agilerl_like.modules.cnn import CNNSpec, EvolvableCNN
from agilerl_like.modules.evolvable_module import EvolvableModule
from agilerl_like.modules.memory_module import MemoryKind, MemoryModule, MemorySpec, StoredStates, UnrolledStates
from agilerl_like.modules.mlp import EvolvableMLP, MLPSpec
from agilerl_like.modules.multi_input import EvolvableMultiInput, MultiInputSpec
from agilerl_like.modules.param_stack import ParamStack
from agilerl_like.modules.recurrent import EvolvableLSTM, LSTMSpec
from agilerl_like.modules.resnet import EvolvableResNet, ResNetSpec
from agilerl_like.modules.simba import EvolvableSimBa, SimBaSpec
from agilerl_like.modules.spec import Spec
from agilerl_like.modules.transformer import EvolvableTransformer, TransformerSpec

__all__ = [
    "CNNSpec",
    "EvolvableCNN",
    "EvolvableLSTM",
    "EvolvableMLP",
    "EvolvableModule",
    "EvolvableMultiInput",
    "EvolvableResNet",
    "EvolvableSimBa",
    "EvolvableTransformer",
    "LSTMSpec",
    "MLPSpec",
    "MemoryKind",
    "MemoryModule",
    "MemorySpec",
    "MultiInputSpec",
    "ParamStack",
    "ResNetSpec",
    "SimBaSpec",
    "Spec",
    "StoredStates",
    "TransformerSpec",
    "UnrolledStates",
]
