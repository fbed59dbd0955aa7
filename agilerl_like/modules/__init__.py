"""Evolvable networks: a frozen spec, the module built from it, and what carries weights from one spec to another."""

from agilerl_like.modules.base import EvolvableModule, Spec
from agilerl_like.modules.mlp import EvolvableMLP, MLPSpec
from agilerl_like.modules.stack import Stack

__all__ = ["EvolvableMLP", "EvolvableModule", "MLPSpec", "Spec", "Stack"]
