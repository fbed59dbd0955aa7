"""Populations of PPO agents that find their hyperparameters and architectures while they train.

What is named here is loaded when it is first asked for: a worker process that only steps envs never loads torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agilerl_like.algorithms import PPO, Population
    from agilerl_like.envs import make_vect_envs
    from agilerl_like.errors import CheckpointError, ConfigurationError, EnvironmentFault, NoHealthyMember
    from agilerl_like.hpo import HyperparameterConfig, Mutations, RLParameter, TournamentSelection, TruncationSelection
    from agilerl_like.training import train_on_policy

__version__ = version("agilerl-like")

__all__ = [
    "PPO",
    "CheckpointError",
    "ConfigurationError",
    "EnvironmentFault",
    "HyperparameterConfig",
    "Mutations",
    "NoHealthyMember",
    "Population",
    "RLParameter",
    "TournamentSelection",
    "TruncationSelection",
    "make_vect_envs",
    "train_on_policy",
]

_HOMES = ("errors", "hpo", "envs", "algorithms", "training")  # where these names live, the lightest first


def __getattr__(name: str) -> Any:
    """Load what is asked for: a public name, or one of the packages that hold them."""
    if name in _HOMES:
        return import_module(f"{__name__}.{name}")
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"{__name__}.{home}")
            if hasattr(module, name):
                return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
