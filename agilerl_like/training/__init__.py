"""The loop that trains and evolves a population.

What is named here is loaded when it is first asked for: agents by themselves need no PettingZoo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agilerl_like._lazy import lazy_attributes

if TYPE_CHECKING:
    from agilerl_like.training.multi_agent import train_multi_agent_on_policy
    from agilerl_like.training.on_policy import train_on_policy
    from agilerl_like.training.training_arguments import TrainingArguments

__all__ = ["TrainingArguments", "train_multi_agent_on_policy", "train_on_policy"]

_HOMES = ("training_arguments", "on_policy", "multi_agent")  # where these names live, the lightest first

__getattr__, __dir__ = lazy_attributes(__name__, __all__, _HOMES)
