"""The loop that trains and evolves a population.

Names are loaded on first access: single agents need no PettingZoo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agilerl_like._lazy import lazy_attributes

if TYPE_CHECKING:
    from agilerl_like.training.multi_agent import train_multi_agent_on_policy
    from agilerl_like.training.multi_agent_env_setup import MultiAgentEnvSetup
    from agilerl_like.training.off_policy import train_off_policy
    from agilerl_like.training.on_policy import train_on_policy
    from agilerl_like.training.training_arguments import TrainingArguments

__all__ = [
    "MultiAgentEnvSetup",
    "TrainingArguments",
    "train_multi_agent_on_policy",
    "train_off_policy",
    "train_on_policy",
]

_MODULES = ("training_arguments", "on_policy", "off_policy", "multi_agent_env_setup", "multi_agent")
"""The modules that define these names, the fastest to import first."""

__getattr__, __dir__ = lazy_attributes(__name__, __all__, _MODULES)
